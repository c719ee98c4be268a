"""Runs that a campaign cannot take as those of an arm."""

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.integrations.recording import RunRecorder, record
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.store.objects import open_store
from assay.workflows.campaign.elsewhere import recorded_run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)
    return Home.from_environment()


def saved(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def fails(run: RunRecorder, folder: Path) -> None:
    run.checkpoint(saved(folder), 1)
    raise ZeroDivisionError


def is_removed(run: RunRecorder, folder: Path) -> None:
    run.checkpoint(saved(folder), 1)
    run.end()
    (folder / "model.safetensors").unlink()
    folder.rmdir()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda run, folder: None, "has no model for a suite: its script recorded no checkpoint"),
        (fails, "run 'digits-first' has not finished"),
        (is_removed, "is not there any more. Restore it"),
    ],
)
def test_a_recorded_run_without_a_last_model_is_refused(
    home: Home, tmp_path: Path, train: Callable[[RunRecorder, Path], None], message: str
) -> None:
    try:
        with record("digits/first") as run:
            run.log(1, {"loss": 1.0})
            train(run, tmp_path / "step-1")
    except ZeroDivisionError:
        pass
    with pytest.raises(ConfigError) as raised:
        recorded_run(home, "digits-first", of="arm 'a'")
    assert message in str(raised.value)


def test_an_unknown_run_is_refused_with_where_to_look(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"arm 'a': there is no run 'gone' in .* 'assay runs list'"):
        recorded_run(home, "gone", of="arm 'a'")


def test_a_run_of_our_own_trainer_is_refused(home: Home) -> None:
    with record("digits/first") as run:
        run.log(1, {"loss": 1.0})
    ours = home.run("digits-first").model_copy(update={"imported": None})
    open_store(ours.run_dir).put(RUN_FILE, ours.to_sealed_json().encode())
    with pytest.raises(ConfigError, match="'digits-first' is no session of the Tinker API and was not recorded"):
        recorded_run(home, "digits-first", of="arm 'a'")

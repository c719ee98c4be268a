"""A command of the user's is told what becomes of a run; whatever it does, the run does not notice."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.records.failure import Failure
from assay.records.run import Attempt, Run
from assay.store.home import Home
from assay.workflows.events import EventCommand
from in_process import assay
from machine import MACHINE


def lines_of(path: Path, *, at_least: int) -> list[str]:
    """Once so many are there; the command is waited for by nobody."""
    deadline_s = time.monotonic() + 60
    while not path.exists() or len(path.read_text().splitlines()) < at_least:
        assert time.monotonic() < deadline_s, path.read_text() if path.exists() else "no line at all"
        time.sleep(0.02)
    return path.read_text().splitlines()


def settings(home: Home, command: str) -> None:
    home.folder.mkdir(parents=True, exist_ok=True)
    (home.folder / "settings.yaml").write_text(f"on_event: '{command}'")


@pytest.fixture
def events_file(tmp_path: Path, new_tiny_run: Callable[..., Run]) -> Path:
    """The file to which the command writes event, run and step."""
    settings(Home.from_environment(), f'echo "$ASSAY_EVENT $ASSAY_RUN $ASSAY_STEP" >> {tmp_path}/told')
    return tmp_path / "told"


def test_the_end_of_a_run_is_told(events_file: Path, new_tiny_run: Callable[..., Run]) -> None:
    run = new_tiny_run(trainer__max_steps=5)
    assert assay("train", "--resume", run.run_id) == 0
    assert lines_of(events_file, at_least=1) == [f"finished {run.run_id} 5"]


def test_a_hang_is_told_as_stalled_and_a_failure_as_failed(events_file: Path, new_tiny_run: Callable[..., Run]) -> None:
    run = new_tiny_run()
    event_command = EventCommand(Home.from_environment(), run)
    hang = Failure(failure_kind="hang", run_id=run.run_id, attempt=1, signature="hang", text="silent")
    attempt = Attempt(
        run_id=run.run_id,
        attempt=1,
        world_size=1,
        start_step=0,
        started_s=1.0,
        end_step=3,
        failure=hang,
        **MACHINE,
    )
    event_command.attempt_ended(attempt)
    assert lines_of(events_file, at_least=1) == [f"stalled {run.run_id} 3"]
    event_command.attempt_ended(attempt.model_copy(update={"failure": None}))
    event_command.notify("failed", step=None, text="")
    assert lines_of(events_file, at_least=2)[1] == f"failed {run.run_id} "


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000",
        *(pytest.param(text, marks=pytest.mark.slow) for text in ("exit 3", "no-such", "kill -9 $PPID")),
    ],
)
def test_a_command_that_fails_or_hangs_costs_the_run_nothing(new_tiny_run: Callable[..., Run], command: str) -> None:
    settings(Home.from_environment(), command)
    run = new_tiny_run(trainer__max_steps=2)
    assert assay("train", "--resume", run.run_id) == 0


def test_a_command_that_hangs_is_killed_with_all_that_it_started(
    new_tiny_run: Callable[..., Run], tmp_path: Path
) -> None:
    settings(Home.from_environment(), f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    run = new_tiny_run()
    EventCommand(Home.from_environment(), run, limit_s=0.5).notify("finished", step=1, text="")
    pid = int(lines_of(tmp_path / "pid", at_least=1)[0])
    assert "killed after 0.5 s" in lines_of(Path(run.run_dir) / "events.log", at_least=1)[0]
    with pytest.raises(ProcessLookupError):
        for _ in range(1000):
            os.kill(pid, 0)
            time.sleep(0.01)


def test_wrong_settings_are_refused_before_anything_is_trained(new_tiny_run: Callable[..., Run], capfd) -> None:
    run = new_tiny_run()
    (Home.from_environment().folder / "settings.yaml").write_text("on_evnt: x")
    assert assay("train", "--resume", run.run_id) == 2
    assert "Perhaps you meant 'on_event'" in capfd.readouterr().err
    assert not (Path(run.run_dir) / "attempts").exists()

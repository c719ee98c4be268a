"""Links, pipes and the like that a stranger left in a run's folder: nothing is written through them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.cli.main import main
from assay.store.attempts import saved_attempts
from assay.store.run_location import reject_links
from sample_project import SampleProjects

OF_THE_STORE = ("checkpoints", "log", "log-summaries")
"""It looks for links itself, where it writes."""

Assay = Callable[..., tuple[int, str]]


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Assay:
    """Run a command on a home: its exit code, and what it says."""
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)

    def run(home: Path, *arguments: object) -> tuple[int, str]:
        monkeypatch.setenv("ASSAY_HOME", str(home))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return int(ended.value.code or 0), "".join(capfd.readouterr())

    return run


@pytest.fixture
def stranger(tmp_path: Path, sample_projects: SampleProjects) -> Path:
    """A run that somebody gave us, to be gone on with."""
    return sample_projects.copy_to(tmp_path / "stranger") / "unfinished"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A folder of ours, with a file."""
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "file").write_text("precious")
    return folder


@contextmanager
def planted(path: Path, target: Path) -> Iterator[None]:
    """A link in place of what lies there, if anything does."""
    aside = path.with_name("aside")
    if was := path.exists():
        path.rename(aside)
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    yield
    path.unlink()
    for folder in missing:
        folder.rmdir()
    if was:
        aside.rename(path)


@pytest.mark.slow
def test_every_name_that_a_resumed_run_writes_is_refused_where_it_is_a_link(
    stranger: Path, ours: Path, tmp_path: Path, assay: Assay, sample_projects: SampleProjects
) -> None:
    """What is written is learned from a run that nobody disturbs, so a new kind of file is tried, too."""
    baseline = sample_projects.copy_to(tmp_path / "calm") / "unfinished"
    code, output = assay(baseline.parent, "train", "--resume", "unfinished")
    assert code == 0, output
    names = [path.relative_to(baseline) for path in sorted(baseline.rglob("*"))]
    names = [name for name in names if name.parts[0] not in OF_THE_STORE or len(name.parts) == 1]
    assert {"incidents.jsonl", "attempts", "metrics", "heartbeats", "stacks", "log"} <= {
        name.parts[0] for name in names
    }
    before = sorted(stranger.rglob("*"))
    for name in names:
        target = ours if (baseline / name).is_dir() else ours / "file"
        with planted(stranger / name, target), pytest.raises(ConfigError, match="is a link to"):
            reject_links(stranger)
    assert sorted(stranger.rglob("*")) == before
    reject_links(stranger)


@pytest.mark.parametrize("name", ["incidents.jsonl", "heartbeats", "metrics/attempt-0002/rank-00000.seg", "log"])
def test_a_run_with_a_link_is_not_gone_on_with(stranger: Path, ours: Path, assay: Assay, name: str) -> None:
    target = ours / "file" if "." in name else ours
    before = sorted(stranger.rglob("*"))
    with planted(stranger / name, target):
        code, output = assay(stranger.parent, "train", "--resume", "unfinished")
    assert (code, output.count("error: ")) == (2, 1)
    assert f"error: {stranger / name} is a link to {target}: " in output
    assert "remove it, or replace it by what it refers to" in output
    assert sorted(stranger.rglob("*")) == before
    assert [(path.name, path.read_text()) for path in ours.iterdir()] == [("file", "precious")]


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(stranger: Path, assay: Assay) -> None:
    (stranger / "incidents.jsonl").unlink(missing_ok=True)
    os.mkfifo(stranger / "incidents.jsonl")
    code, output = assay(stranger.parent, "train", "--resume", "unfinished")
    assert code == 2 and f"{stranger / 'incidents.jsonl'} is neither a file nor a folder" in output


@pytest.mark.slow
def test_a_commit_whose_name_was_guessed_is_not_written_through_a_link_and_the_next_attempt_has_another(
    stranger: Path, ours: Path, tmp_path: Path, assay: Assay, sample_projects: SampleProjects
) -> None:
    baseline = sample_projects.copy_to(tmp_path / "calm") / "unfinished"
    code, output = assay(baseline.parent, "train", "--resume", "unfinished")
    assert code == 0, output
    present = {path.name for path in (stranger / "checkpoints").iterdir()}
    new = [path.name for path in (baseline / "checkpoints").iterdir() if path.name not in present]
    for name in new:
        (stranger / "checkpoints" / name).symlink_to(ours)
    code, output = assay(stranger.parent, "train", "--resume", "unfinished")
    assert code == 0, output
    assert saved_attempts(stranger)[1].outcome == "failed"
    assert f"is a link to {ours}: a store writes into folders of its own only" in saved_attempts(stranger)[1].reason
    assert [(path.name, path.read_text()) for path in ours.iterdir()] == [("file", "precious")]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("report candidate", "report.html"),
        ("decide compare finished candidate", "comparison.html"),
        ("runs audit candidate", "audit.json"),
    ],
)
def test_a_page_or_a_report_replaces_a_link_that_has_its_name(
    stranger: Path, ours: Path, assay: Assay, command: str, name: str
) -> None:
    page = stranger.parent / "candidate" / name
    page.unlink(missing_ok=True)
    page.symlink_to(ours / "file")
    code, output = assay(stranger.parent, *command.split())
    assert code == 0, output
    assert (ours / "file").read_text() == "precious"
    assert page.is_file() and not page.is_symlink()


@pytest.mark.slow
def test_the_memo_of_a_campaign_replaces_a_link_that_has_its_name(
    tmp_path: Path, ours: Path, assay: Assay, sample_projects: SampleProjects
) -> None:
    home = sample_projects.copy_to(tmp_path / "stranger", campaign=True)
    for name in ("memo.html", "memo.md"):
        page = home / "campaigns" / "small" / name
        page.unlink(missing_ok=True)
        page.symlink_to(ours / "file")
    code, output = assay(home, "decide", "again", "small")
    assert code == 0, output
    assert (ours / "file").read_text() == "precious"

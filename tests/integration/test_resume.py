"""What `assay train --resume` does not do: touch what is finished, or take a choice and ignore it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from in_process import assay

USAGE_ERROR = 2


def left_behind(run: Run) -> dict[str, bytes]:
    """All that training writes."""
    rooms = ("log", "attempts", "launches", "metrics", "checkpoints", "rendezvous", "stacks")
    files = [path for room in rooms for path in sorted((Path(run.run_dir) / room).rglob("*"))]
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_a_finished_run_is_not_appended_to(new_tiny_run: Callable[..., Run], capfd) -> None:
    run = new_tiny_run(trainer__max_steps=5)
    assert assay("train", "--resume", run.run_id) == 0
    log, before = CommitLog(open_store(run.store_url)), left_behind(run)
    assert log.finished() is not None
    (Path(run.run_dir) / "audit.json").unlink()  # as if its launch had been killed before it got there
    capfd.readouterr()
    for location in ("here", "background"):
        assert assay("train", "--resume", run.run_id, "--on", location) == 0
    output = capfd.readouterr()
    assert output.err.count("has finished at step 5: nothing is left to train") == 2
    assert "rows learned once" in output.out
    assert left_behind(run) == before
    assert (Path(run.run_dir) / "audit.json").is_file()


@pytest.mark.slow
def test_a_finished_run_whose_weights_are_damaged_is_trained_on(new_tiny_run: Callable[..., Run]) -> None:
    run = new_tiny_run(trainer__max_steps=5)
    assert assay("train", "--resume", run.run_id) == 0
    log = CommitLog(open_store(run.store_url))
    last = log.commits()[-1]
    (Path(run.run_dir) / last.folder / last.files[0].path).write_bytes(bytes(10))
    assert assay("train", "--resume", run.run_id) == 0
    assert log.finished() is not None
    assert log.commits()[-1].weights_digest == last.weights_digest
    assert log.commits()[-1].attempt == 2


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (("--store", "s3://elsewhere/runs"), "and cannot move. Leave --store out"),
        (("--run-id", "another"), "keeps its id. Leave --run-id out"),
        (("--check",), "--check needs a RECIPE"),
        (("trainer.epochs=9", "seed=2"), "trainer.epochs=9 seed=2'."),
    ],
)
def test_what_a_run_that_goes_on_can_not_be_given_is_refused(
    new_tiny_run: Callable[..., Run], capfd, choice: tuple[str, ...], message: str
) -> None:
    run = new_tiny_run()
    before = left_behind(run)
    assert assay("train", "--resume", run.run_id, *choice) == USAGE_ERROR
    assert message in capfd.readouterr().err
    assert left_behind(run) == before

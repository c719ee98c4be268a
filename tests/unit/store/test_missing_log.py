"""A log of commits that was moved away is told apart from a run that never began."""

from pathlib import Path

import pytest

from assay.base.errors import DamagedDataError
from assay.records.commit import Commit, CommitQuarantined, RunFinished
from assay.records.cursor import Cursor
from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.commit_log import CommitLog, checkpoint_folder
from assay.store.metrics.segment import segment_path
from assay.store.missing_log import missing_log, reject_missing_log
from assay.store.objects import open_store
from machine import MACHINE


def log_of(run: Run) -> CommitLog:
    return CommitLog(open_store(run.store_url))


def commit_of(attempt: int, step: int) -> Commit:
    return Commit(
        attempt=attempt, world_size=1, step=step, cursor=Cursor(), committed_s=0.0, folder=f"c{step}", files=(),
        weights_digest="", receipts_from_step=0, rows_trained=0,
    )  # fmt: skip


def leave_record(run: Run, attempt: int) -> None:
    began = Attempt(run_id="r", attempt=attempt, world_size=1, start_step=0, started_s=0.0, **MACHINE)
    save_attempt(Path(run.run_dir), began)


def leave_metrics(run: Run, attempt: int) -> None:
    path = segment_path(Path(run.run_dir), attempt, 0)
    path.parent.mkdir(parents=True)
    path.touch()


def leave_checkpoint(run: Run, attempt: int) -> None:
    open_store(run.store_url).put(f"{checkpoint_folder(5, attempt)}/model", b"weights")


def test_a_run_that_never_began_and_one_whose_log_knows_all_are_well(run: Run) -> None:
    assert missing_log(run, log_of(run)) is None
    attempt = log_of(run).begin_attempt(world_size=1, now_s=0.0)
    assert missing_log(run, log_of(run)) is None
    for leave in (leave_record, leave_metrics, leave_checkpoint):
        leave(run, attempt)
    assert missing_log(run, log_of(run)) is None


@pytest.mark.parametrize("leave", [leave_record, leave_metrics, leave_checkpoint])
def test_what_an_attempt_left_shows_that_the_log_was_moved_away(leave, run: Run) -> None:
    leave(run, 1)
    with pytest.raises(DamagedDataError, match=r"store/log/ is missing or empty, but .* is of attempt 1") as error:
        reject_missing_log(run, log_of(run))
    assert "Put it back" in str(error.value)


def test_a_log_that_lost_its_end_is_told_from_what_later_attempts_left(run: Run) -> None:
    log_of(run).begin_attempt(world_size=1, now_s=0.0)
    leave_record(run, 1)
    leave_checkpoint(run, 3)
    assert "ends with attempt 1, but" in str(missing_log(run, log_of(run)))


def test_a_store_with_the_commits_of_another_run_is_refused(run: Run) -> None:
    log = log_of(run)
    log.begin_attempt(world_size=1, now_s=0.0)
    reject_missing_log(run, log)  # who was killed before it wrote its attempt down
    log.append(commit_of(1, 5))
    with pytest.raises(DamagedDataError, match=r"They are of another run with the same --store"):
        reject_missing_log(run, log)
    leave_metrics(run, 1)
    reject_missing_log(run, log)


def test_a_log_without_the_last_commit_of_an_attempt_that_ended_has_lost_it(run: Run) -> None:
    log = log_of(run)
    log.begin_attempt(world_size=1, now_s=0.0)
    for step in (5, 9):
        log.append(commit_of(1, step))
    log.append(RunFinished(attempt=1, step=9, weights_digest=""))
    ended = Attempt(
        run_id="r", attempt=1, world_size=1, start_step=0, started_s=0.0, ended_s=1.0, end_step=9, **MACHINE
    )
    save_attempt(Path(run.run_dir), ended.model_copy(update={"outcome": "succeeded"}))
    assert missing_log(run, log_of(run)) is None
    for number, lost in ((3, "attempt 1 finished the run"), (2, "attempt 1 committed step 9")):
        log.store.delete(f"log/{number:08d}.json")
        with pytest.raises(DamagedDataError, match=f"attempt-0001.json says that {lost}, and the log does not"):
            reject_missing_log(run, log_of(run))


def test_an_attempt_that_ended_and_whose_commits_were_distrusted_is_well(run: Run) -> None:
    log = log_of(run)
    log.begin_attempt(world_size=1, now_s=0.0)
    log.append(commit_of(1, 5))
    log.append(CommitQuarantined(attempt=1, folder="c5", step=5, reason="torn"))
    for end_step in (5, 0):
        ended = Attempt(
            run_id="r",
            attempt=1,
            world_size=1,
            start_step=0,
            started_s=0.0,
            ended_s=1.0,
            end_step=end_step,
            **MACHINE,
        )
        save_attempt(Path(run.run_dir), ended)
        assert missing_log(run, log_of(run)) is None
    log.begin_attempt(world_size=1, now_s=1.0)
    assert missing_log(run, log_of(run)) is None

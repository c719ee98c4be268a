"""Attempt records in a run's folder, written at the start and at the end of each attempt.

The supervisor is their only writer. If it died, its successor closes the attempts it left open.
"""

from pathlib import Path

from assay.records.failure import Failure
from assay.records.record import readable_records
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store


def attempt_path(run_dir: Path, attempt: int) -> Path:
    """Return the path of an attempt's record."""
    return run_dir / "attempts" / f"attempt-{attempt:04d}.json"


def save_attempt(run_dir: Path, attempt: Attempt) -> None:
    """Write an attempt's record atomically."""
    key = attempt_path(run_dir, attempt.attempt).relative_to(run_dir).as_posix()
    open_store(str(run_dir)).put(key, attempt.to_sealed_json().encode())


def saved_attempts(run_dir: Path) -> list[Attempt]:
    """Return a run's readable attempts in order.

    Corrupt records are skipped, because resuming depends on the log alone; `unreadable_attempts` reports them.
    """
    return _readable_attempts(run_dir)[0]


def unreadable_attempts(run_dir: Path) -> list[str]:
    """Return a message for each corrupt attempt record."""
    return _readable_attempts(run_dir)[1]


def _readable_attempts(run_dir: Path) -> tuple[list[Attempt], list[str]]:
    paths = sorted((run_dir / "attempts").glob("attempt-*.json"))
    attempts, problems = readable_records(Attempt, paths)
    numbers = [attempt.attempt for attempt in attempts]
    if not problems and [attempt_path(run_dir, number) for number in numbers] != paths:
        problems = [f"{run_dir}/attempts: the files hold the attempts {numbers}: one has another's place."]
    return attempts, problems


def close_abandoned_attempts(
    run: Run, log: CommitLog, successor: Attempt | None = None, *, seen_s: float = 0.0
) -> None:
    """End on paper the attempts before `successor` whose end nobody wrote down: their supervisor died, or the process
    of a recorded run.

    All of them, where there is no successor, and none who drives the run; `seen_s`: when somebody else last saw
    that it was driven.

    They held their devices until the last sign of life of any rank. Should one only have been asleep, it writes
    its own end over this one when it wakes up.
    """
    from assay.store.metrics.segment import (  # here, for who lists runs needs no numpy
        read_segment,
        segment_path,
    )

    for attempt in saved_attempts(Path(run.run_dir)):
        is_abandoned = successor is None or attempt.attempt < successor.attempt
        if attempt.ended_s is not None or not is_abandoned:
            continue
        paths = [segment_path(Path(run.run_dir), attempt.attempt, rank) for rank in range(attempt.world_size)]
        segments = [read_segment(path) for path in paths if path.exists()]
        last_steps = log.summary().last_steps
        if run.is_recorded():
            # The tool's checkpoints may be unknown here: the next attempt's first step shows what was kept.
            steps = [step for segment in segments for step in segment.step_ends.steps.tolist()]
            last_steps = {attempt.attempt: max([attempt.start_step, *steps])}
            failure = failure_of_ranks(run, attempt) or Failure(
                failure_kind="exited",
                run_id=run.run_id,
                attempt=attempt.attempt,
                rank=0,
                signature="process gone",
                text="ended without a word (killed, out of memory or a lost node); held until its last sign of life",
            )
        else:
            failure = Failure(
                failure_kind="supervisor_gone",
                run_id=run.run_id,
                attempt=attempt.attempt,
                signature="supervisor gone",
                text="its supervisor, which starts its ranks, died without a word; held until its last sign of life",
            )
        closed = attempt.model_copy(
            update={
                "ended_s": max([attempt.started_s, seen_s, *(segment.last_at_s() for segment in segments)]),
                "end_step": last_steps.get(attempt.attempt, attempt.start_step),
                "outcome": "killed" if failure.failure_kind in ("supervisor_gone", "exited") else "failed",
                "reason": failure.sentence(run.run_dir),
                "failure": failure,
            }
        )
        save_attempt(Path(run.run_dir), closed)


def rank_failure_path(run_dir: Path, attempt: int, rank: int) -> Path:
    """Return the path at which a rank of a recorded run leaves its failure."""
    return run_dir / "errors" / f"attempt-{attempt:04d}-rank-{rank:05d}.json"


def failure_of_ranks(run: Run, attempt: Attempt) -> Failure | None:
    """Return the cause of failure that a rank of a recorded run left; None if there is none."""
    paths = (rank_failure_path(Path(run.run_dir), attempt.attempt, rank) for rank in range(attempt.world_size))
    left = readable_records(Failure, (path for path in paths if path.is_file()))[0]
    return next((failure for failure in left if failure.failure_kind != "peer_lost"), None)

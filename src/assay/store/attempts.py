"""The files in which a run's attempts are written down: at the beginning of each, and again at its end.

The supervisor is their only writer; who comes after a supervisor that died ends its attempts on paper.
"""

from pathlib import Path

from assay.records.failure import Failure
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.store.readable import readable


def attempt_path(run_dir: Path, attempt: int) -> Path:
    """Where the supervisor writes an attempt down, at its beginning and again at its end."""
    return run_dir / "attempts" / f"attempt-{attempt:04d}.json"


def save_attempt(run_dir: Path, attempt: Attempt) -> None:
    """Write the attempt down, whole or not at all."""
    key = attempt_path(run_dir, attempt.attempt).relative_to(run_dir).as_posix()
    open_store(str(run_dir)).put(key, attempt.to_sealed_json().encode())


def saved_attempts(run_dir: Path) -> list[Attempt]:
    """All attempts of a run that can be read, the first one first.

    They are an account, and the log decides what is resumed: a damaged one stops nobody, but
    `unreadable_attempts` names it.
    """
    return _readable_attempts(run_dir)[0]


def unreadable_attempts(run_dir: Path) -> list[str]:
    """A sentence on each record of an attempt that is damaged."""
    return _readable_attempts(run_dir)[1]


def _readable_attempts(run_dir: Path) -> tuple[list[Attempt], list[str]]:
    paths = sorted((run_dir / "attempts").glob("attempt-*.json"))
    attempts, problems = readable(Attempt, paths)
    numbers = [attempt.attempt for attempt in attempts]
    if not problems and [attempt_path(run_dir, number) for number in numbers] != paths:
        problems = [f"{run_dir}/attempts: the files hold the attempts {numbers}: one has another's place."]
    return attempts, problems


def close_abandoned_attempts(
    run: Run, log: CommitLog, successor: Attempt | None = None, *, seen_s: float = 0.0
) -> None:
    """End on paper the attempts before `successor` whose end nobody wrote down: their supervisor died.

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
        signs_s = [read_segment(path).last_at_s() for path in paths if path.exists()]
        failure = Failure(
            failure_kind="supervisor_gone",
            run_id=run.run_id,
            attempt=attempt.attempt,
            signature="supervisor gone",
            text="its supervisor was gone without a word; held until its last sign of life",
        )
        closed = attempt.model_copy(
            update={
                "ended_s": max([attempt.started_s, seen_s, *signs_s]),
                "end_step": log.summary().last_steps.get(attempt.attempt, attempt.start_step),
                "outcome": "killed",
                "reason": failure.sentence(run.run_dir),
                "failure": failure,
            }
        )
        save_attempt(Path(run.run_dir), closed)

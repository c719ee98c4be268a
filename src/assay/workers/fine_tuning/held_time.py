"""Device time of a job's run by attempt, as in the ledger.

An attempt holds as many devices as it has ranks. If its supervisor died, it ends at the last heartbeat of a
rank or
when the worker last saw it alive. Attempt 0 is evaluation outside of attempts, by its leases.
"""

from pathlib import Path
from typing import NamedTuple

from assay.records.run import Attempt, Run
from assay.store.attempts import close_abandoned_attempts, saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.ledger.ledger import Ledger
from assay.store.objects import ObjectStore
from assay.workflows.bookkeeping import record_phases
from assay.workflows.evaluation.results import evaluation_seconds


class AttemptTime(NamedTuple):
    """Device time of an attempt; until now if it is running."""

    attempt: int
    began_s: float
    ended_s: float
    device_s: float


def held_by(run: Run, store: ObjectStore, *, now_s: float) -> list[AttemptTime]:
    """Return the device time of all attempts and evaluations. `store`: the run's."""
    attempts = saved_attempts(Path(run.run_dir))
    return [*_evaluation_time(run, store, attempts), *(_of_attempt(attempt, now_s) for attempt in attempts)]


def close_on_paper(run: Run, log: CommitLog, *, seen_s: float) -> list[Attempt]:
    """End the open attempts of a run without a supervisor and return them. `seen_s`: when it was last alive."""
    abandoned = {attempt.attempt for attempt in saved_attempts(Path(run.run_dir)) if attempt.ended_s is None}
    if not abandoned:
        return []
    close_abandoned_attempts(run, log, seen_s=seen_s)
    return [attempt for attempt in saved_attempts(Path(run.run_dir)) if attempt.attempt in abandoned]


def record_in_ledger(ledger: Ledger, run: Run, closed: list[Attempt]) -> None:
    """Record attempts that `close_on_paper` ended."""
    for attempt in closed:
        ledger.record_attempt(attempt)
        record_phases(ledger, run, attempt)


def _of_attempt(attempt: Attempt, now_s: float) -> AttemptTime:
    ended_s = max(attempt.started_s, now_s if attempt.ended_s is None else attempt.ended_s)
    seconds = ended_s - attempt.started_s
    return AttemptTime(attempt.attempt, attempt.started_s, ended_s, seconds * attempt.world_size)


def _evaluation_time(run: Run, store: ObjectStore, attempts: list[Attempt]) -> list[AttemptTime]:
    device_s = evaluation_seconds(run, store).held_s if attempts else 0.0
    if not device_s:
        return []
    began_s, ended_s = attempts[0].started_s, attempts[-1].ended_s or attempts[-1].started_s
    return [AttemptTime(0, began_s, max(began_s, ended_s), device_s)]

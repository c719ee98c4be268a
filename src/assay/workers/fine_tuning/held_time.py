"""For how long a job's run held devices, attempt by attempt: what the ledger will say, or says.

An attempt holds as many devices as it has ranks, from its beginning to its end. One whose supervisor died
without a word held them until the last sign of life of any rank, or until the worker last saw it living: it is
closed on paper as its successor would do it, should there be one. Attempt 0 is what was evaluated beside
training, by its leases.
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
    """Devices that an attempt held; of one that goes on, until now."""

    attempt: int
    began_s: float
    ended_s: float
    device_s: float


def held_by(run: Run, store: ObjectStore, *, now_s: float) -> list[AttemptTime]:
    """Every attempt of a run, and what was evaluated beside it. `store`: the run's own."""
    attempts = saved_attempts(Path(run.run_dir))
    return [*_beside(run, store, attempts), *(_of_attempt(attempt, now_s) for attempt in attempts)]


def close_on_paper(run: Run, log: CommitLog, *, seen_s: float) -> list[Attempt]:
    """End the attempts of a run that nobody drives any more; those that were open till then. `seen_s`: when it
    was last seen to be driven."""
    abandoned = {attempt.attempt for attempt in saved_attempts(Path(run.run_dir)) if attempt.ended_s is None}
    if not abandoned:
        return []
    close_abandoned_attempts(run, log, seen_s=seen_s)
    return [attempt for attempt in saved_attempts(Path(run.run_dir)) if attempt.attempt in abandoned]


def tell_ledger(ledger: Ledger, run: Run, closed: list[Attempt]) -> None:
    """Debit what was closed on paper."""
    for attempt in closed:
        ledger.record_attempt(attempt)
        record_phases(ledger, run, attempt)


def _of_attempt(attempt: Attempt, now_s: float) -> AttemptTime:
    ended_s = max(attempt.started_s, now_s if attempt.ended_s is None else attempt.ended_s)
    seconds = ended_s - attempt.started_s
    return AttemptTime(attempt.attempt, attempt.started_s, ended_s, seconds * attempt.world_size)


def _beside(run: Run, store: ObjectStore, attempts: list[Attempt]) -> list[AttemptTime]:
    device_s = evaluation_seconds(run, store).held_s if attempts else 0.0
    if not device_s:
        return []
    began_s, ended_s = attempts[0].started_s, attempts[-1].ended_s or attempts[-1].started_s
    return [AttemptTime(0, began_s, max(began_s, ended_s), device_s)]

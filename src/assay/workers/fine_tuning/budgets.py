"""Enforces budgets of jobs and monthly limits of projects, including device time of running attempts.

    logged charges of ended attempts, eval runs and batches
    + held time of running attempts

When a budget is spent, the job is asked to commit and stop. After `LEAVE_S` its run is killed, and work after its last
commit is lost.

An attempt holds as many devices as it has ranks. If its supervisor died, it ends at the last heartbeat of a rank or
when the worker last saw it alive. Attempt 0 is evaluation outside of attempts, by its leases.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from assay.base.clock import Clock
from assay.records.fine_tuning_job import BudgetSpent
from assay.records.run import Attempt, Run
from assay.serving.admin.projects import ProjectRepository
from assay.serving.admin.spend import ChargedResources, HeldTime
from assay.serving.batches.batches import BatchRepository
from assay.serving.evals.runs import EvalRunRepository
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.queue.limits import ProjectLimits
from assay.serving.sessions.sessions import SessionRepository
from assay.store.attempts import close_abandoned_attempts, saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.ledger.ledger import Ledger
from assay.store.objects import ObjectStore
from assay.workflows.bookkeeping import record_phases
from assay.workflows.evaluation.results import evaluation_seconds

LEAVE_S = 9.0
"""Seconds that a job over its budget may take to commit and stop."""


class AttemptTime(NamedTuple):
    """Device time of an attempt; until now if it is running."""

    attempt: int
    began_s: float
    ended_s: float
    device_s: float


class Budgets:
    """Budgets of all jobs and projects."""

    def __init__(
        self, store: ObjectStore, jobs: JobRepository, held: Callable[[str], Iterable[AttemptTime]], clock: Clock
    ) -> None:
        """`held`: run id -> held time by attempt so far."""
        self._jobs = jobs
        self._held = held
        self._clock = clock
        tasks = EvalRunRepository(store, clock), BatchRepository(store, clock)
        resources = ChargedResources(jobs, *tasks, SessionRepository(store, clock))
        self.limits = ProjectLimits(resources, ProjectRepository(store, clock), clock, self._of_job)

    def is_spent(self, project: str) -> bool:
        """Return whether the project is over its monthly limit."""
        if not self.limits.has_limit(project):
            return False
        states = [state for _, state in self._jobs.states(self._jobs.open_ids())]
        return self.limits.spent_reason(project, states) is not None

    def spent(self, state: JobState, states: Sequence[JobState], lease: int) -> BudgetSpent | None:
        """Return the entry that stops a job over a budget, or None. `states`: all running jobs, among others."""
        if state.budget_device_hours is not None:
            device_s = sum(held.device_s for held in self._of_job(state))
            limit_s = state.budget_device_hours * 3600
            if device_s >= limit_s:
                return BudgetSpent(
                    at_s=self._clock.now_s(), lease=lease, of="job", device_s=device_s, limit_device_s=limit_s
                )
        month = self.limits.of(state.created.project, states)
        if month is None or not month.is_spent:
            return None
        return BudgetSpent(
            at_s=self._clock.now_s(),
            lease=lease,
            of="project",
            device_s=month.device_s,
            limit_device_s=month.limit_device_s,
        )

    def _of_job(self, state: JobState) -> list[HeldTime]:
        """Return the logged charges, replaced by the run's current values where known."""
        known: dict[int, HeldTime] = {charge.attempt: charge for charge in state.charges}
        if state.validated is not None:
            known.update((held.attempt, held) for held in self._held(state.validated.run_id))
        return list(known.values())


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

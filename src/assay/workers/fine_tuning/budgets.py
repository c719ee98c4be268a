"""Enforces budgets of jobs and monthly limits of projects, including device time of running attempts.

    logged charges of ended attempts, eval runs and batches
    + held time of running attempts

When a budget is spent, the job is asked to commit and stop. After `LEAVE_S` its run is killed, and work after
its
last commit is lost.
"""

from collections.abc import Callable, Iterable, Sequence

from assay.base.clock import Clock
from assay.records.fine_tuning_job import BudgetSpent
from assay.serving.admin.projects import ProjectRepository
from assay.serving.admin.spend import ChargedResources, HeldTime
from assay.serving.batches.batches import BatchRepository
from assay.serving.evals.runs import EvalRunRepository
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.queue.limits import ProjectLimits
from assay.store.objects import ObjectStore
from assay.workers.fine_tuning.held_time import AttemptTime

LEAVE_S = 9.0
"""Seconds that a job over its budget may take to commit and stop."""


class Budgets:
    """Budgets of all jobs and projects."""

    def __init__(
        self, store: ObjectStore, jobs: JobRepository, held: Callable[[str], Iterable[AttemptTime]], clock: Clock
    ) -> None:
        """`held`: run id -> held time by attempt so far."""
        self._jobs = jobs
        self._held = held
        self._clock = clock
        resources = ChargedResources(jobs, EvalRunRepository(store, clock), BatchRepository(store, clock))
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

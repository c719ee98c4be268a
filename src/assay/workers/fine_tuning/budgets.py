"""Whether a job may go on: what it, and its project in this month, hold devices for is counted while they do.

    charged in the logs of jobs that are over, or left, of evals and of batches
    + what attempts that go on have held by now

At a spent budget a job is asked to commit and leave, and has some seconds for it (`LEAVE_S`); then its run is
ended, and what lies behind its last commit is lost.
"""

from collections.abc import Callable, Iterable, Sequence

from assay.base.clock import Clock
from assay.records.fine_tuning_job import BudgetSpent
from assay.serving.admin.projects import ProjectShelf
from assay.serving.admin.spend import ChargedThings, HeldTime
from assay.serving.batches.batches import BatchShelf
from assay.serving.evals.runs import EvalRunShelf
from assay.serving.job import JobState
from assay.serving.jobs import JobShelf
from assay.serving.queue.limits import ProjectLimits
from assay.store.objects import ObjectStore
from assay.workers.fine_tuning.held_time import AttemptTime

LEAVE_S = 9.0
"""How long a job whose budget is spent may take to commit and leave."""


class Budgets:
    """Those of all jobs and projects of a store."""

    def __init__(
        self,
        store: ObjectStore,
        jobs: JobShelf,
        held: Callable[[str], Iterable[AttemptTime]],
        clock: Clock,
    ) -> None:
        """`held`: attempt by attempt, what a run held so far."""
        self._jobs = jobs
        self._held = held
        self._clock = clock
        things = ChargedThings(jobs.shelf, EvalRunShelf(store, clock).shelf, BatchShelf(store, clock).shelf)
        self.limits = ProjectLimits(things, ProjectShelf(store, clock), clock, self._of_job)

    def is_spent(self, project: str) -> bool:
        """Whether a project may hold nothing more in this month."""
        if not self.limits.has_limit(project):
            return False
        states = [state for _, state in self._jobs.shelf.states(self._jobs.shelf.open_ids())]
        return self.limits.why_spent(project, states) is not None

    def spent(self, state: JobState, states: Sequence[JobState], lease: int) -> BudgetSpent | None:
        """What stops a job; None where it may go on. `states`: all jobs at work among others."""
        if state.budget_device_hours is not None:
            device_s = sum(each.device_s for each in self._of_job(state))
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
        """What was charged, and in its place what is known of its run by now."""
        known: dict[int, HeldTime] = {charge.attempt: charge for charge in state.charges}
        if state.validated is not None:
            known.update((each.attempt, each) for each in self._held(state.validated.run_id))
        return list(known.values())

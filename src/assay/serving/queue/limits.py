"""What projects may hold devices for in a month; which have, none of theirs is launched before the next."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from assay.base.clock import Clock
from assay.serving.admin.projects import ProjectShelf
from assay.serving.admin.spend import ChargedThings, HeldTime, ProjectSpend, month_of
from assay.serving.job import JobState, hours_text


class MonthOfProject(NamedTuple):
    """What a project held devices for in this month, and may."""

    device_s: float
    limit_device_s: float

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.device_s >= self.limit_device_s


def charged_to(state: JobState) -> Iterable[HeldTime]:
    """What a job cost as far as its log says: what goes on is charged when it leaves."""
    return state.charges


class ProjectLimits:
    """Those of all projects of a store."""

    def __init__(
        self,
        things: ChargedThings,
        projects: ProjectShelf,
        clock: Clock,
        held: Callable[[JobState], Iterable[HeldTime]] = charged_to,
    ) -> None:
        """`held`: what a job that is at work held so far."""
        self._projects = projects
        self._clock = clock
        self._held = held
        self._spend = ProjectSpend(things)

    def of(self, project: str, states: Sequence[JobState]) -> MonthOfProject | None:
        """A project's month, `states` being all jobs at work among others; None where it has no limit."""
        limit_device_hours = self._limit_device_hours(project)
        if limit_device_hours is None:
            return None
        live = {
            state.created.job_id: self._held(state)
            for state in states
            if state.is_at_work and state.created.project == project
        }
        device_s = self._spend.of_month(project, self._clock.now_s(), live)
        return MonthOfProject(device_s, limit_device_hours * 3600)

    def has_limit(self, project: str) -> bool:
        """Whether anything may be spent."""
        return self._limit_device_hours(project) is not None

    def why_spent(self, project: str, states: Sequence[JobState]) -> str | None:
        """In words, why nothing of a project is begun; None where it may be."""
        month = self.of(project, states)
        return self._words(project, month) if month is not None and month.is_spent else None

    def blocked(self, states: Sequence[JobState]) -> dict[str, str]:
        """Project -> in words, why none of its jobs is launched; of those that have waiting jobs here."""
        projects = sorted({state.created.project for state in states if state.is_waiting})
        why = {project: self.why_spent(project, states) for project in projects}
        return {project: words for project, words in why.items() if words is not None}

    def _limit_device_hours(self, project: str) -> float | None:
        there = self._projects.find(project)
        return None if there is None else there.limit_device_hours

    def _words(self, project: str, month: MonthOfProject) -> str:
        first, behind = month_of(self._clock.now_s())
        return (
            f"project {project} has held devices for {hours_text(month.device_s)} hours in {first:%B %Y}, and "
            f"its limit is {hours_text(month.limit_device_s)}: it goes on when that is raised, or on {behind}"
        )

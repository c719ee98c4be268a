"""Monthly device-hour limits of projects. Jobs of a project over its limit wait for the next month."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from assay.base.clock import Clock
from assay.serving.admin.projects import ProjectRepository
from assay.serving.admin.spend import ChargedResources, HeldTime, ProjectSpend, month_of
from assay.serving.job import JobState, hours_text


class MonthOfProject(NamedTuple):
    """Device time of a project in this month."""

    device_s: float
    limit_device_s: float

    @property
    def is_spent(self) -> bool:
        return self.device_s >= self.limit_device_s


def charged_to(state: JobState) -> Iterable[HeldTime]:
    """Return the logged charges of a job; running attempts are charged when they end."""
    return state.charges


class ProjectLimits:
    """Limits of all projects."""

    def __init__(
        self,
        resources: ChargedResources,
        projects: ProjectRepository,
        clock: Clock,
        held: Callable[[JobState], Iterable[HeldTime]] = charged_to,
    ) -> None:
        """`held`: held time so far of a running job."""
        self._projects = projects
        self._clock = clock
        self._held = held
        self._spend = ProjectSpend(resources)

    def of(self, project: str, states: Sequence[JobState]) -> MonthOfProject | None:
        """Return the project's month, or None without a limit. `states`: all running jobs, among others."""
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
        return self._limit_device_hours(project) is not None

    def spent_reason(self, project: str, states: Sequence[JobState]) -> str | None:
        """Return why the project may not start anything, or None if it may."""
        month = self.of(project, states)
        return self._words(project, month) if month is not None and month.is_spent else None

    def blocked(self, states: Sequence[JobState]) -> dict[str, str]:
        """Return project -> reason for projects over their limit that have waiting jobs."""
        projects = sorted({state.created.project for state in states if state.is_waiting})
        why = {project: self.spent_reason(project, states) for project in projects}
        return {project: words for project, words in why.items() if words is not None}

    def _limit_device_hours(self, project: str) -> float | None:
        found = self._projects.find(project)
        return None if found is None else found.limit_device_hours

    def _words(self, project: str, month: MonthOfProject) -> str:
        first, end = month_of(self._clock.now_s())
        return (
            f"project {project} has used {hours_text(month.device_s)} device-hours in {first:%B %Y}; "
            f"its limit is {hours_text(month.limit_device_s)}. It continues when the limit is raised, or on {end}"
        )

"""Where a running program stands, and where it will end."""

from typing import Literal

from assay.planning.program.offer import Safety
from assay.planning.risk.forecast import ProgramForecast
from assay.planning.risk.offer import safety_of
from assay.reporting.views.view import View


class StageView(View):
    """The device-hours of a stage."""

    name: str
    planned: float
    spent: float
    low: float
    """At completion; a tenth of the simulated worlds lies below."""
    middle: float
    """The median at completion."""
    high: float
    """At completion; a tenth lies above."""
    limit: float | None
    """Null where the program sets none."""


class AlarmView(View):
    """Something to act on before it is too late."""

    level: Literal["act", "watch"]
    what: str
    """Which promise, activity or risk it is about."""
    text: str


class ForecastView(View):
    """A program under way."""

    now: str
    """The moment, in the program's calendar."""
    spent_device_hours: float
    to_come_device_hours: float
    """What is still to come of what has begun: as noted; else what was planned, less what is spent."""
    forecast: Safety
    """Date and cost at completion, the rest simulated; device-hours include what was spent."""
    stages: tuple[StageView, ...]
    alarms: tuple[AlarmView, ...]


def forecast_view(found: ProgramForecast) -> ForecastView:
    """What is said of a forecast."""
    return ForecastView(
        now=found.progress.now,
        spent_device_hours=found.spent,
        to_come_device_hours=found.to_come,
        forecast=safety_of(found.outcome),
        stages=tuple(map(StageView.of, found.stages)),
        alarms=tuple(map(AlarmView.of, found.alarms)),
    )

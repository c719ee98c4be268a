"""Where a running program stands, and where it will end."""

from typing import Literal

from assay.planning.program.offer import Safety
from assay.planning.simulation.forecast import ProgramForecast
from assay.planning.simulation.offer import safety_of
from assay.reporting.views.view import View
from assay.store.settings import HourPrice


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
    spent_cost: float | None
    """What `spent_device_hours` cost at the price of the day; null where none is set (docs/settings.md)."""
    expected_cost: float | None
    """The cost of the median of the device-hours at completion."""
    currency: str | None
    """Null where the costs are."""


def forecast_view(found: ProgramForecast, price: HourPrice | None = None) -> ForecastView:
    """What is said of a forecast, its hours at the price of the day."""
    safety = safety_of(found.outcome)
    return ForecastView(
        now=found.progress.now,
        spent_device_hours=found.spent,
        to_come_device_hours=found.to_come,
        forecast=safety,
        stages=tuple(map(StageView.of, found.stages)),
        alarms=tuple(map(AlarmView.of, found.alarms)),
        spent_cost=price.of(found.spent).amount if price else None,
        expected_cost=price.of(safety.device_hours.p50).amount if price else None,
        currency=price.currency if price else None,
    )

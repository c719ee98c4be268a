"""The progress of a running program and its forecast."""

from typing import Literal

from assay.planning.program.offer import Safety
from assay.planning.simulation.forecast import ProgramEstimate
from assay.planning.simulation.outcome import safety_of
from assay.reporting.views.view import View
from assay.store.settings import HourPrice


class StageView(View):
    """Device-hours of a stage."""

    name: str
    planned: float
    spent: float
    low: float
    """10% quantile at completion."""
    middle: float
    """Median."""
    high: float
    """90% quantile."""
    limit: float | None
    """From the program."""


class AlarmView(View):
    """A warning about a target, activity or risk."""

    level: Literal["act", "watch"]
    what: str
    """Target, activity or risk."""
    text: str


class ProgramEstimateView(View):
    """A program's progress."""

    now: str
    """In the program's calendar."""
    spent_device_hours: float
    remaining_device_hours: float
    """For activities in progress."""
    forecast: Safety
    """Spent device-hours included."""
    stages: tuple[StageView, ...]
    alarms: tuple[AlarmView, ...]
    spent_cost: float | None
    expected_cost: float | None
    currency: str | None


def forecast_view(found: ProgramEstimate, price: HourPrice | None = None) -> ProgramEstimateView:
    """Return the view of a forecast, with costs if the price is known."""
    safety = safety_of(found.outcome)
    return ProgramEstimateView(
        now=found.progress.now,
        spent_device_hours=found.spent,
        remaining_device_hours=found.to_come,
        forecast=safety,
        stages=tuple(map(StageView.of, found.stages)),
        alarms=tuple(map(AlarmView.of, found.alarms)),
        spent_cost=price.of(found.spent).amount if price else None,
        expected_cost=price.of(safety.device_hours.p50).amount if price else None,
        currency=price.currency if price else None,
    )

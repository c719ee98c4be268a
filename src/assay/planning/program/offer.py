"""An offer: the chosen scope, its schedule and its risk, compared with the optimum of the full scope."""

from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.config import FrozenConfig
from assay.base.units import sampled_percent_text
from assay.planning.program.calendar import Calendar
from assay.planning.program.plan import Plan
from assay.planning.program.risk import Probability
from assay.records.record import Record


class Quantiles(FrozenConfig):
    """Quantiles of a distribution."""

    p10: float
    p50: float
    p90: float


class VerdictMeans(FrozenConfig):
    """Means over simulations with one verdict."""

    decision_day: float
    device_hours: float


class Safety(FrozenConfig):
    """A plan's simulated risk."""

    num_programs: PositiveInt
    p_on_time: Probability
    """Decision by its date."""
    p_over_budget: Probability
    """More device-hours than the budget."""
    decision_day: Quantiles
    """Days from the start."""
    device_hours: Quantiles
    verdicts: dict[str, Probability]
    by_verdict: dict[str, VerdictMeans] = Field(default_factory=dict)

    def probability_text(self, share: float) -> str:
        """Return a probability as text; never 0% or 100%, because a finite number of samples cannot show
        these."""
        return sampled_percent_text(share, self.num_programs)


class Move(FrozenConfig):
    """An option or mitigation."""

    name: str
    title: str
    gives_up: str = ""
    changes: dict[str, Any]
    """Patch on the program."""


class EvaluatedScope(FrozenConfig):
    """A scope that was simulated."""

    moves: tuple[str, ...]
    p_on_time: Probability
    p_over_budget: Probability
    p_within_limits: Probability
    """On time and within budget."""


class Offer(Record):
    """A proposed scope and plan."""

    program: str
    program_sha256: str
    """At full scope."""
    seed: NonNegativeInt
    target_on_time: Probability
    target_over_budget: Probability
    meets_targets: bool
    moves: tuple[Move, ...]
    plan: Plan
    safety: Safety
    baseline_plan: Plan
    baseline_safety: Safety
    evaluated: tuple[EvaluatedScope, ...]
    spent_s: NonNegativeFloat
    calendar: Calendar
    decide_by: str

    def decision_text(self) -> str:
        """Return the decision's date and cost as text: `decision on day 41, 13 Feb (80% of samples: ...), due
        by the end of week 8 (day 56, 28 Feb), after 15,040 device-hours`; medians."""
        days, hours = self.safety.decision_day, self.safety.device_hours
        low, middle, high = (
            self.calendar.day_text(24 * days_quantile) for days_quantile in (days.p10, days.p50, days.p90)
        )
        due = self.calendar.deadline_text(self.decide_by)
        interval = f"80% of simulations: {low}, to {high}"
        return f"decision on {middle} ({interval}), due by the {due}, after {hours.p50:,.0f} device-hours"

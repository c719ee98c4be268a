"""An offer: the chosen scope, its schedule and its risk, compared with the optimum of the full scope."""

import math
from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.config import FrozenConfig
from assay.base.units import sampled_percent_text
from assay.planning.program.calendar import Calendar
from assay.planning.program.plan import Plan
from assay.planning.program.risk import Probability
from assay.records.record import Record


def changed_share(own: float, base: float, known: float) -> float:
    """Return `known` plus the change from `base` to `own`, as a probability."""
    return min(1.0, max(0.0, known + own - base))


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

    def standard_error(self, share: float) -> float:
        """Return the simulation's standard error of a probability."""
        return math.sqrt(share * (1.0 - share) / self.num_programs)

    def anchored(self, base: "Safety", known: "Safety") -> "Safety":
        """Return `known` plus the change from `base` to this.

        `base` and `known` are the same plan, simulated with few samples (those of this) and with many. So the plan has
        the same figures wherever it stands beside its changes, and the changes are as precise as paired samples are.
        """
        if self == base:
            return known

        def quantiles(own: Quantiles, from_: Quantiles, at: Quantiles) -> Quantiles:
            return Quantiles(
                p10=at.p10 + own.p10 - from_.p10, p50=at.p50 + own.p50 - from_.p50, p90=at.p90 + own.p90 - from_.p90
            )

        return self.model_copy(
            update={
                "p_on_time": changed_share(self.p_on_time, base.p_on_time, known.p_on_time),
                "p_over_budget": changed_share(self.p_over_budget, base.p_over_budget, known.p_over_budget),
                "decision_day": quantiles(self.decision_day, base.decision_day, known.decision_day),
                "device_hours": quantiles(self.device_hours, base.device_hours, known.device_hours),
                "verdicts": {
                    name: changed_share(value, base.verdicts[name], known.verdicts[name])
                    for name, value in self.verdicts.items()
                },
            }
        )


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

"""The plan that is offered: the scope that was chosen, its schedule, and how safe it is, beside the calm
optimum."""

from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.config import FrozenConfig
from assay.base.units import sampled_percent_text
from assay.planning.program.calendar import Calendar
from assay.planning.program.plan import Plan
from assay.planning.program.risk import Probability
from assay.records.record import Record


class Quantiles(FrozenConfig):
    """A distribution in three numbers."""

    p10: float
    p50: float
    p90: float


class VerdictMeans(FrozenConfig):
    """The worlds that end in one verdict, on average."""

    decision_day: float
    device_hours: float


class Safety(FrozenConfig):
    """What the simulation says of a plan."""

    num_programs: PositiveInt
    """Worlds in which the plan was played."""
    p_on_time: Probability
    """P(the decision stands by its date)."""
    p_over_budget: Probability
    """P(more device-hours than the budget)."""
    decision_day: Quantiles
    """Days from the program's start to the decision."""
    device_hours: Quantiles
    verdicts: dict[str, Probability]
    """`scale`, `narrow`, `stop`."""
    by_verdict: dict[str, VerdictMeans] = Field(default_factory=dict)
    """For each verdict that comes at all: worlds that stop and worlds that go on differ too much for one
    distribution to tell of both."""

    def probability_text(self, share: float) -> str:
        """A chance that these worlds show; never 0% or 100%, which no number of worlds does."""
        return sampled_percent_text(share, self.num_programs)


class Move(FrozenConfig):
    """An option or a mitigation that the offered plan makes."""

    name: str
    title: str
    gives_up: str = ""
    changes: dict[str, Any]
    """The patch on the program."""


class EvaluatedScope(FrozenConfig):
    """A scope that was played in the search."""

    moves: tuple[str, ...]
    p_on_time: Probability
    p_over_budget: Probability
    p_within_limits: Probability
    """P(on time and within budget)."""


class Offer(Record):
    """What is proposed to the program's owners, and what it was chosen from."""

    program: str
    program_sha256: str
    """Digest of the program at its full scope, which the moves are patches on."""
    seed: NonNegativeInt
    target_on_time: Probability
    target_over_budget: Probability
    meets_targets: bool
    moves: tuple[Move, ...]
    plan: Plan
    """The schedule of the chosen scope."""
    safety: Safety
    baseline_plan: Plan
    """The optimum of the full scope when nothing happens."""
    baseline_safety: Safety
    tried: tuple[EvaluatedScope, ...]
    spent_s: NonNegativeFloat
    """Seconds that the search, the schedules and the simulations took."""
    calendar: Calendar | None = None
    """The program's: which dates its days are. None where it was made before that was kept."""
    decide_by: str = ""
    """The moment by which the decision must stand; likewise."""

    def decision_text(self) -> str:
        """`decision on day 41, 13 Feb (80% of worlds: ...), due by the end of week 8 (day 56, 28 Feb), after
        15,040 device-hours`: medians; empty where no calendar was kept."""
        if self.calendar is None:
            return ""
        days, hours = self.safety.decision_day, self.safety.device_hours
        low, middle, high = (
            self.calendar.day_text(24 * days_quantile) for days_quantile in (days.p10, days.p50, days.p90)
        )
        due = self.calendar.deadline_text(self.decide_by)
        interval = f"80% of worlds: {low}, to {high}"
        return f"decision on {middle} ({interval}), due by the {due}, after {hours.p50:,.0f} device-hours"

"""Uncertainty of a program: noise, risks with their mitigations, and the pilot's evidence.

The schedule ignores all of this; the simulation samples it.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from assay.base.config import FrozenConfig
from assay.planning.program.calendar import Share

Probability = Annotated[float, Field(ge=0.0, le=1.0)]

Triangular = tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]
"""Least, most likely, most."""

Changes = dict[str, Any]
"""A patch on the program: dotted key -> value; None removes the key."""


class Noise(FrozenConfig):
    """Scatter of durations and runs around the plan."""

    work_factor: Annotated[float, Field(gt=0, le=1000)] = 1.1
    """Median of (days that people's work takes) / (days planned)."""

    work_sigma: Annotated[float, Field(ge=0, le=5)] = 0.3
    """Standard deviation of its logarithm."""

    run_sigma: Annotated[float, Field(ge=0, le=5)] = 0.12
    """The same for the hours of a run; the median is as planned."""

    interrupts_per_device_hour: Annotated[float, Field(ge=0, le=10_000)] = 1 / 50_676 + 1 / 2_500
    """Hardware (Llama 3's 419 in 54 days on 16,384 devices) and software together."""

    interrupts_known_from: PositiveFloat | None = None
    """Interrupts behind this rate: each simulated program draws its own, Gamma-distributed with this shape. Null:
    fixed. `--rates-from` fits both to the ledger.
    """

    interrupt_loss_hours: tuple[NonNegativeFloat, NonNegativeFloat] = (1.0, 2.0)
    """Uniform between the two."""

    rerun_probability: Probability = 0.08
    """A run must be repeated, in part or whole, because of a mistake."""

    rerun_fraction: tuple[Share, Share] = (0.2, 1.0)
    """Uniform between the two."""


class Late(FrozenConfig):
    """An event, or the start of an activity, slips."""

    type: Literal["late"] = "late"
    what: str
    """Name of an event or an activity."""

    days: Triangular
    """`[least, likely, most]`."""


class Longer(FrozenConfig):
    """Activities take longer."""

    type: Literal["longer"] = "longer"
    what: tuple[str, ...]
    """Names of activities, or of stages."""

    factor: Triangular
    """`[least, likely, most]`; 1.5 is half as long again."""


class MoreWork(FrozenConfig):
    """Runs must be repeated."""

    type: Literal["rerun"] = "rerun"
    what: tuple[str, ...]
    """Names of activities, or of stages."""

    fraction: Triangular
    """Share of their device-hours: `[least, likely, most]`."""


class BookingOverruns(FrozenConfig):
    """A booking by others ends late."""

    type: Literal["booking_overruns"] = "booking_overruns"
    booking: str
    days: Triangular
    """`[least, likely, most]`."""


class CapacityLost(FrozenConfig):
    """A part of the cluster is down, from a random day on."""

    type: Literal["capacity_lost"] = "capacity_lost"
    share: Share
    days: Triangular
    """`[least, likely, most]`."""


class Away(FrozenConfig):
    """A person is absent, from a random day on."""

    type: Literal["away"] = "away"
    role: str
    fte: PositiveFloat
    days: Triangular
    """`[least, likely, most]`."""


class GainLost(FrozenConfig):
    """The true gain is smaller than believed."""

    type: Literal["gain_lost"] = "gain_lost"
    points: Triangular
    """`[least, likely, most]`."""


Effect = Annotated[
    Late | Longer | MoreWork | BookingOverruns | CapacityLost | Away | GainLost, Field(discriminator="type")
]


class Mitigation(FrozenConfig):
    """A change against a risk that the simulation tries."""

    title: str
    changes: Changes = Field(default_factory=dict)
    """Patch of the program, e.g. of `risks.data_late.probability`."""


class Risk(FrozenConfig):
    """A line of the risk register."""

    title: str
    probability: Probability
    effect: Effect
    owner: str
    """A role of the team, or a stakeholder."""

    sign: str = ""
    """The first visible sign."""

    mitigations: dict[str, Mitigation] = Field(default_factory=dict)


class Benchmark(FrozenConfig):
    """A benchmark that a gate may read, with its noise."""

    title: str = ""
    role: Literal["primary", "guardrail", "safety"] = "primary"
    items: PositiveInt
    """Items (prompts) that baseline and candidate are both scored on."""

    discordance: Share = 0.3
    """Share of items on which the two differ."""

    seed_sd: NonNegativeFloat = 1.0
    """Standard deviation over seeds of a run's score, in points (100 = all items)."""

    margin: PositiveFloat | None = None
    """For a guardrail."""

    failure_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """For a failure mode with a limit: the expected share of failed items. Seeds are assumed to fail on
    different items; if they share them, candidates pass more often."""

    @model_validator(mode="after")
    def _guardrails_have_margins(self) -> Self:
        if self.role == "guardrail" and self.margin is None:
            raise ValueError("a guardrail needs a margin: the points that a candidate may lose")
        return self


class Pilot(FrozenConfig):
    """What is known before the program begins."""

    benchmark: str
    gains: tuple[float, ...]
    """Points over the baseline: the pilot's, then those of all its reruns."""

    standard_error: PositiveFloat
    """Standard error of each gain, seeds and items together."""

    prior_sd: PositiveFloat = 2.0
    """Standard deviation of true gains of such ideas around zero, in points."""

    note: str = ""
    """For the stage gates document."""


class StopCondition(FrozenConfig):
    """A condition that ends or narrows the program at any time."""

    title: str
    watch: str
    """A benchmark's name, `device_hours`, `decision_day`, `failure_share` or `gain`."""

    above: float | None = None
    """In the unit of what is watched: device-hours, days since the start, a share (0.1), points."""

    below: float | None = None
    """Give one of the two."""

    then: Literal["stop", "narrow", "review"] = "review"
    owner: str

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("expected exactly one of above and below")
        return self


class Option(FrozenConfig):
    """An alternative that the simulation may choose: less scope, another order."""

    title: str
    changes: Changes
    gives_up: str = ""
    """What is lost."""


class WhatIf(FrozenConfig):
    """A question, answered by solving and simulating again."""

    title: str
    changes: Changes

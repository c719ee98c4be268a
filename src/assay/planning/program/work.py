"""Work of a program: activities of people and devices in alternative modes, and the gates between them."""

import math
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from assay.base.config import FrozenConfig
from assay.planning.program.calendar import Fte, Moment
from assay.planning.program.risk import Probability

Verdict = Literal["pass", "narrow", "stop", "again"]

Section = Literal["activities", "gates"]
"""Section of a program's file."""

HalfDays = Annotated[float, Field(gt=0.0, multiple_of=0.5)]
"""Working days, in halves."""


class Dependency(FrozenConfig):
    """A predecessor that must have ended (or started)."""

    name: str
    """An activity, a gate or an event."""

    lag_hours: int = 0
    """Negative if the two may overlap."""

    of: Literal["end", "start"] = "end"

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


def _one_is_a_list(value: Any) -> Any:
    return (value,) if isinstance(value, dict) else value


class Work(FrozenConfig):
    """One alternative for people."""

    days: HalfDays
    """Working days."""

    people: dict[str, Fte]
    """Role or person -> full-time equivalents."""


class RunMode(FrozenConfig):
    """One mode of a run."""

    devices: PositiveInt
    hours: PositiveInt
    """Wall hours of one run."""


class Runs(FrozenConfig):
    """Runs on devices: one or several equal runs (seeds, arms), all in the same mode so that they compare.
    Give `modes`, or `device_hours` and the `devices` to choose from."""

    count: PositiveInt = 1
    """Runs may be parallel or one after the other."""

    modes: tuple[RunMode, ...] = ()

    device_hours: PositiveFloat | None = None
    """Device-hours of one run on the smallest number in `devices`."""

    devices: tuple[PositiveInt, ...] = ()

    loss_per_doubling: NonNegativeFloat = 0.03
    """Share of additional device-hours for twice the devices."""

    people: dict[str, Fte] = Field(default_factory=dict)
    """Who watch each run, around the clock."""

    resume_hours: NonNegativeInt = 1
    """Lost each time that a run pauses and continues."""

    ids: str = ""
    """Pattern of run ids (`pilot-again-*`). Empty: the activity's name, with dashes for underscores, and a dash.
    """

    @model_validator(mode="after")
    def _one_way_of_saying_it(self) -> Self:
        if bool(self.modes) == (self.device_hours is not None):
            raise ValueError("give either modes, or device_hours with the devices to choose from")
        if (self.device_hours is not None) != bool(self.devices):
            raise ValueError("device_hours and devices go together")
        return self

    def all_modes(self) -> tuple[RunMode, ...]:
        """Return the modes, fewest devices first, with hours rounded up."""
        if self.device_hours is None:
            return tuple(sorted(self.modes, key=lambda mode: mode.devices))
        least, loss = min(self.devices), 1.0 + self.loss_per_doubling
        device_hours = {n: self.device_hours * loss ** math.log2(n / least) for n in sorted(set(self.devices))}
        return tuple(
            RunMode(devices=devices, hours=max(1, math.ceil(held / devices - 1e-9)))
            for devices, held in device_hours.items()
        )


class Owners(FrozenConfig):
    """RACI: one is responsible (does it), one accountable (answers for it); others are consulted or
    informed."""

    responsible: str
    accountable: str
    consulted: tuple[str, ...] = ()
    informed: tuple[str, ...] = ()


class Activity(FrozenConfig):
    """Work of people (`work`) or of devices (`runs`)."""

    title: str
    stage: str
    after: tuple[Dependency, ...] = ()

    work: Annotated[tuple[Work, ...], BeforeValidator(_one_is_a_list)] = ()
    """The solver chooses one."""

    runs: Runs | None = None

    not_before: Moment | None = None
    due: Moment | None = None
    """Latest end."""

    optional: bool = False
    """The simulation may leave the activity out. An option that removes it, with what that gives up, replaces
    this.
    """

    owners: Owners | None = None
    """If they differ from the stage's."""

    changes: tuple[str, ...] = ()
    """For runs: what differs from the known-good recipe."""

    @model_validator(mode="after")
    def _people_or_devices(self) -> Self:
        if bool(self.work) == (self.runs is not None):
            raise ValueError("expected either work (of people) or runs (of devices)")
        return self


class ProgramGuardrail(FrozenConfig):
    """A benchmark on which a candidate must not be worse."""

    benchmark: str
    """Its items and noise give the power."""
    margin: PositiveFloat
    """Points that a candidate may lose; the upper bound of the loss must be smaller."""


class ProgramSafetyRule(FrozenConfig):
    """A failure mode that must be rare, whatever the baseline's rate is."""

    benchmark: str
    """Its items and `failure_rate` give the power."""
    max_rate: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Share of items that the exact 95% upper bound of the worst seed's rate must not exceed."""


class GateRule(FrozenConfig):
    """The rule of the campaign that decides a gate (docs/decide.md), with effects in points."""

    least_effect: PositiveFloat
    """The smallest gain worth having, in points."""

    prior_sd: PositiveFloat | None = None
    """As in a campaign's."""

    looks: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """Seeds of each arm at the declared looks; the last look uses all runs of the activity."""

    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """This and the four below as in a campaign's own `rule`."""
    probability: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.80
    stop_probability: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.20
    least_predictive_power: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.02
    unscheduled_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1

    candidates: PositiveInt = 1
    """Number of candidates that share the error."""

    arms: Annotated[int, Field(ge=2)] = 2
    """Arms among the activity's runs, with equal numbers of seeds: the baseline and each candidate. From a
    campaign's file: all arms, or one candidate's two, as its `count` says."""

    over_seeds: Literal["mean", "trimmed"] = "mean"
    """As in a campaign's."""

    guardrails: tuple[ProgramGuardrail, ...] = ()
    """All must pass."""

    safety: tuple[ProgramSafetyRule, ...] = ()
    """All must pass; a rate certainly above its limit stops the program."""


class Evidence(FrozenConfig):
    """What a gate measures: the verdict follows from the estimated gain by `pass_at` and `stop_below`, or by
    the `rule` of a campaign."""

    benchmark: str
    runs: str
    """The activity with the compared runs; half of them are the baseline's (with a `rule`, one in `arms`)."""

    pass_at: float | None = None
    """Points; an estimate at or above passes."""

    stop_below: float | None = None
    """Points; an estimate below stops the program; between the two the verdict is `between`."""

    between: Literal["narrow", "again"] = "again"
    """`again` becomes `narrow` after its last repeat."""

    campaign: str = ""
    """The campaign with the decision for this gate: scale passes, narrow and stop stay."""

    rule: GateRule | None = None
    """Instead of `pass_at`, `stop_below` and `between`: scale passes, narrow and stop stay. May be the path
    of a campaign's file, relative to the program: its rule, looks, guardrails and safety are used."""

    @model_validator(mode="after")
    def _has_one_rule(self) -> Self:
        thresholds = [name for name in ("pass_at", "stop_below") if getattr(self, name) is not None]
        if self.rule is not None and thresholds:
            raise ValueError(f"a campaign's rule judges it; leave {' and '.join(thresholds)} out")
        if self.rule is None and len(thresholds) < 2:
            raise ValueError("give pass_at and stop_below, or the rule of a campaign")
        if self.pass_at is not None and self.stop_below is not None and self.stop_below > self.pass_at:
            raise ValueError(
                f"stop_below {self.stop_below:g} lies above pass_at {self.pass_at:g}: between the two an "
                "estimate would do both. Swap them"
            )
        return self

    @property
    def thresholds(self) -> tuple[float, float]:
        """Return (`pass_at`, `stop_below`) of a gate without a rule."""
        assert self.pass_at is not None and self.stop_below is not None, self
        return self.pass_at, self.stop_below

    @property
    def arms(self) -> int:
        """Return the number of arms among the activity's runs, including the baseline."""
        return 2 if self.rule is None else self.rule.arms

    @property
    def least_seeds(self) -> int:
        """Return the minimal number of seeds of each arm."""
        if self.rule is None:
            return 1
        fewest = 2
        if self.rule.over_seeds == "trimmed":
            from assay.statistics.seeds.trimmed import MIN_SEEDS  # scipy, that few programs need

            fewest = MIN_SEEDS
        return max((fewest, *self.rule.looks[:1]))

    @property
    def least_gain(self) -> float:
        """Return the smallest worthwhile gain, in points."""
        return self.thresholds[0] if self.rule is None else self.rule.least_effect


class Narrow(FrozenConfig):
    """Continue with a smaller scope."""

    drops: tuple[str, ...] = ()
    """Activities to drop."""


class Again(FrozenConfig):
    """Reproduce, then judge all runs together."""

    activities: tuple[str, ...]

    at_most: PositiveInt = 1


class ProgramGate(FrozenConfig):
    """A meeting that decides from records how the program continues: pass, narrow, stop or again."""

    title: str
    stage: str
    after: tuple[Dependency, ...]
    """What it judges. Activities that wait for the gate name it in their own `after`."""

    days: HalfDays = 0.5
    people: dict[str, Fte] = Field(default_factory=dict)

    evidence: Evidence | None = None
    """If the verdict follows from a measured effect."""

    probabilities: dict[Verdict, Probability] = Field(default_factory=dict)
    """Otherwise: of each verdict."""

    narrow: Narrow = Narrow()
    again: Again | None = None
    stop_goes_to: tuple[str, ...] = ()
    """Activities done even after a stop (the memo); others that have not begun are dropped."""

    not_before: Moment | None = None
    due: Moment | None = None
    owners: Owners | None = None

    @model_validator(mode="after")
    def _has_one_source_of_its_verdict(self) -> Self:
        if (self.evidence is None) == (not self.probabilities):
            raise ValueError("expected either evidence or probabilities: where does its verdict come from?")
        if self.probabilities and abs(sum(self.probabilities.values()) - 1.0) > 1e-9:
            raise ValueError(f"probabilities sum to {sum(self.probabilities.values()):g}, expected 1")
        can_repeat = self.probabilities.get("again", 0.0) > 0 or (
            self.evidence is not None and self.evidence.rule is None and self.evidence.between == "again"
        )
        if self.evidence is not None and self.evidence.rule is not None and self.again is not None:
            raise ValueError("a campaign's rule judges it, which has looks of its own; leave 'again' out")
        if can_repeat and self.again is None:
            raise ValueError("its verdict may be 'again': say what is repeated (again: {repeats: [ACTIVITY]})")
        return self


class Node(NamedTuple):
    """An activity or a gate, as the scheduler sees it."""

    section: Section
    name: str
    work: tuple[Work, ...]
    runs: Runs | None
    title: str
    stage: str
    after: tuple[Dependency, ...]
    not_before: str | None
    due: str | None
    owners: Owners | None

    @property
    def key(self) -> str:
        """Return its key in the file: `activities.memo`."""
        return f"{self.section}.{self.name}"

    @property
    def is_gate(self) -> bool:
        return self.section == "gates"

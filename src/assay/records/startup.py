"""Where the time goes before the first step: what `assay triage startup` finds."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


class StartupSpan(Record):
    """One part of the startup, over the attempts that were looked at; those without it count 0."""

    median_s: NonNegativeFloat
    p90_s: NonNegativeFloat
    share: NonNegativeFloat
    """Its share of all their time before the first step."""


class GrownSpan(Record):
    """A part that takes longer than it did."""

    span: str
    seconds: float
    """By how much, on average."""
    low: float | None
    """The 95% interval of that, by Welch's test; None where a side has a single attempt."""
    high: float | None


class SlowestStart(Record):
    """The attempt that took longest to its first step."""

    run_id: str
    attempt: PositiveInt
    rank: NonNegativeInt
    """The last of its ranks to end the first step; its spans are the attempt's."""
    total_s: NonNegativeFloat


class Startup(Record):
    """From the moment when a run was asked for, or its attempt before died, to the end of the first step."""

    attempts: PositiveInt
    """That reached a first step."""
    total_s: NonNegativeFloat
    """The median over them."""
    unaccounted_s: NonNegativeFloat
    """The median of what is in no span."""
    spans: dict[str, StartupSpan]
    """In the order in which they come: `command`, `launch`, `restart`, `process`, `imports`, `rendezvous`,
    `dataset`, `model`, `restore`, `evaluation`, `first_step`."""
    slowest: SlowestStart
    against: str | None
    """The run that it was held against."""
    grew: tuple[GrownSpan, ...]
    """The largest first: those whose interval lies above 0, or that have none and take half a second more."""
    left_out: NonNegativeInt
    """Attempts that reached no step."""

"""Where the time goes before the first step: what `assay triage startup` finds."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


class StartupSpan(Record):
    """A part of the startup."""

    median_s: NonNegativeFloat
    p90_s: NonNegativeFloat
    share: NonNegativeFloat
    """For all startup time."""


class GrownSpan(Record):
    """A span slower than in the baseline."""

    span: str
    seconds: float
    """Mean difference."""
    low: float | None
    high: float | None


class SlowestStart(Record):
    """The slowest attempt."""

    run_id: str
    attempt: PositiveInt
    rank: NonNegativeInt
    total_s: NonNegativeFloat


class Startup(Record):
    """Time from launch or failure to the first step."""

    attempts: PositiveInt
    """With a first step."""
    total_s: NonNegativeFloat
    """Median."""
    unaccounted_s: NonNegativeFloat
    """Median outside all spans."""
    spans: dict[str, StartupSpan]
    slowest: SlowestStart
    against: str | None
    """The baseline run."""
    grew: tuple[GrownSpan, ...]
    """Largest first."""
    left_out: NonNegativeInt
    """Attempts without a first step."""

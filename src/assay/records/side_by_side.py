"""Two commits, datasets or recipes, run in turn: which takes longer for a step."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


class VariantBlock(Record):
    """One run of each variant."""

    ratio: float
    """B / A."""
    a_s: dict[str, float]
    """By phase."""
    b_s: dict[str, float]


class PhaseDifference(Record):
    """Seconds per step in one phase."""

    a_s: float
    b_s: float
    difference_s: float
    """B minus A."""
    low_s: float | None
    high_s: float | None


class SideBySide(Record):
    """Step times of two variants."""

    what: Literal["commits", "datasets", "recipes"]
    a: str
    b: str
    verdict: Literal["slower", "faster", "same", "undecided"]
    """B compared with A."""
    ratio: float
    """Seconds per step, B / A."""
    low: float | None
    high: float | None
    least: float
    """Smallest relevant change, as a share."""
    error: float
    """Probability that the interval misses the ratio."""
    noise: NonNegativeFloat | None
    """Between blocks, relative."""
    phase: str | None
    """With the largest difference."""
    phases: dict[str, PhaseDifference]
    steps: PositiveInt
    """Measured per run, after `warm_up`."""
    warm_up: NonNegativeInt
    workers: PositiveInt
    apart: bool
    """Run one after the other."""
    device_hours: NonNegativeFloat
    blocks: tuple[VariantBlock, ...]
    blocks_needed: PositiveInt | None
    """In all, to decide; null if it is decided, or no number would."""
    sources: dict[str, str]

"""Whether durations within one run differ by where they were, or by what was worked on."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.record import Record


class SkewEffect(Record):
    """One place, or one piece of work, that takes longer or shorter than the others."""

    side: Literal["place", "work"]
    operation: str
    """Which kind of operation (`--kind`); empty where none was told apart."""
    factors: dict[str, str]
    ratio: float
    """Its durations against the others', everything else being equal."""
    low: float
    """The lower end of a 99.9% interval, shared out over all that were looked at."""
    high: float
    measurements: NonNegativeInt


class Skew(Record):
    """Durations split into place and work."""

    verdict: Literal["place", "work", "even"]
    """Which of the two makes durations differ more; `even` where neither does."""
    because: str
    place_spread: NonNegativeFloat
    """Standard deviation of the effects of places, as a share of the duration, without what noise adds."""
    work_spread: NonNegativeFloat
    noise: NonNegativeFloat
    effects: tuple[SkewEffect, ...]
    """The greatest first."""
    measurements: NonNegativeInt
    sources: dict[str, str]

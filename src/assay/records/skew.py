"""Whether durations within one run differ by where they were, or by what was worked on."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.record import Record


class SkewEffect(Record):
    """A location or work with other durations."""

    side: Literal["location", "work"]
    operation: str
    """As in `--kind`."""
    factors: dict[str, str]
    ratio: float
    """Over the others'."""
    low: float
    """Lower end of a 99.9% interval."""
    high: float
    measurements: NonNegativeInt


class Skew(Record):
    """Effects of location and work on durations."""

    verdict: Literal["location", "work", "both", "even"]
    location_sd: NonNegativeFloat
    work_sd: NonNegativeFloat
    noise: NonNegativeFloat
    effects: tuple[SkewEffect, ...]
    """Largest first."""
    measurements: NonNegativeInt
    sources: dict[str, str]

"""Whether durations within one run differ by where they were, or by what was worked on."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.record import Record


class SkewEffect(Record):
    """A location or a piece of work with other durations."""

    side: Literal["location", "work"]
    operation: str
    """As in `--kind`."""
    factors: dict[str, str]
    ratio: float
    """Its durations over the others'."""
    low: float
    """Lower end of a 99.9% interval."""
    high: float
    measurements: NonNegativeInt


class Skew(Record):
    """Durations split into effects of location and work."""

    verdict: Literal["location", "work", "even"]
    """Which causes more variation."""
    because: str
    location_sd: NonNegativeFloat
    work_sd: NonNegativeFloat
    noise: NonNegativeFloat
    effects: tuple[SkewEffect, ...]
    """Largest first."""
    measurements: NonNegativeInt
    sources: dict[str, str]

"""What became slower over runs or steps, and which factors on record explain it."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.record import Record


class SlowChange(Record):
    """One lasting change of a value's level."""

    index: NonNegativeInt
    """The first measurement after it, from 0 in the order of --at."""
    at: str
    """When that was, as the source writes it; its place where nothing says when."""
    before: float
    """The mean level before, in the value's unit (geometric where all values are positive), spikes clipped."""
    after: float
    ratio: float | None
    """After / before; None where values are not all positive."""
    low: float | None
    """The least of a 95% interval of the ratio, neighbours' correlation counted."""
    high: float | None
    p_value: float
    """That noise makes as great a step anywhere in the series."""
    phase: str | None
    """The phase that took most of the difference; None where no phases are on record."""
    verdict: Literal["assigned", "unidentifiable", "unexplained"]
    because: str
    changed: dict[str, tuple[str, str]]
    """Factor -> its value mostly before and mostly after, of those that changed there."""
    assigned: dict[str, float]
    """Factor -> the ratio that it alone makes (the difference, where values are not all positive). Factors
    that never vary apart are one, joined by +."""
    next: str
    """What would tell, or what to do."""


class SlowChanges(Record):
    """All changes of a series."""

    value: str
    """What was measured."""
    measurements: NonNegativeInt
    noise: NonNegativeFloat
    """Standard deviation within segments, as a share of the level; in the value's unit where values are not
    all positive."""
    correlation: NonNegativeFloat
    """Correlation of neighbours within segments."""
    changes: tuple[SlowChange, ...]
    because: str
    """The answer in a sentence."""
    sources: dict[str, str]
    """What was read -> SHA-256 of its bytes; of a ledger, of its rows."""

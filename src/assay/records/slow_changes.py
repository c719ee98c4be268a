"""What became slower over runs or steps, and which recorded factors explain it."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


class SlowChange(Record):
    """A level change."""

    index: NonNegativeInt
    at: str
    before: float
    """Mean."""
    after: float
    ratio: float | None
    """`after` / `before`."""
    low: float | None
    high: float | None
    p_value: float
    """Probability under noise."""
    phase: str | None
    """With the largest difference."""
    verdict: Literal["assigned", "unidentifiable", "unexplained"]
    changed: dict[str, tuple[str, str]]
    """Factor to both values."""
    assigned: dict[str, float]
    """Factor to its own ratio."""
    runs_needed: PositiveInt | None
    """Runs with one changed factor alone, to separate them."""
    device_hours_needed: NonNegativeFloat | None = None
    """What these runs would cost, if runs' costs are known."""


class SlowChanges(Record):
    """Level changes of a series."""

    value: str
    measurements: NonNegativeInt
    noise: NonNegativeFloat
    """Within segments, relative."""
    correlation: NonNegativeFloat
    """For neighbours within segments."""
    changes: tuple[SlowChange, ...]
    sources: dict[str, str]

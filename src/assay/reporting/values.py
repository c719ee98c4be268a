"""How values are written: dates, device time, estimates and foreign text. Imports little, so that short commands start
fast."""

from collections.abc import Sequence
from typing import Any

from assay.base.clock import utc_text
from assay.base.units import duration_text
from assay.records.evaluation import Estimate

STATUS_WORDS = {"preempted": "stopped", "gone": "supervisor gone", "unknown": "cannot tell"}
"""Statuses that are shown in other words. Of a stop the record does not say whether a person or a scheduler asked."""


def device_hours_text(seconds: float) -> str:
    """`7_200` -> `2.0 device-h`; below an hour as a duration."""
    return duration_text(seconds) if seconds < 3600 else f"{seconds / 3600:,.1f} device-h"


def minute_text(at_s: float) -> str:
    """`2027-01-04 09:30`: a moment in UTC."""
    return utc_text(at_s)[:16].replace("T", " ")


def world_sizes_text(sizes: Sequence[int]) -> str:
    """`[2, 2, 4, 1]` -> `2→4→1`."""
    changes = [size for index, size in enumerate(sizes) if index == 0 or size != sizes[index - 1]]
    return "→".join(map(str, changes))


def one_line(text: str) -> str:
    """Return foreign text on one line, with control characters made visible."""
    return "".join(item if item.isprintable() else ascii(item)[1:-1] for item in text)


def shortened(text: str, most: int) -> str:
    """Return the first characters of a text, and how many it has beyond them."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def value_text(value: Any) -> str:
    """Return a recipe's value as text, or a dash."""
    return "—" if value is None else str(value)


def estimate_text(estimate: Estimate | None, *, digits: int = 4, signed: bool = False) -> str:
    """`0.8712 [0.8600, 0.8820]`, or a dash."""
    if estimate is None:
        return "—"
    return f"{_digits(estimate.value, digits, signed)}{interval_text(estimate, digits=digits, signed=signed)}"


def interval_text(estimate: Estimate, *, digits: int = 4, signed: bool = False) -> str:
    """` [0.8600, 0.8820]`, or an empty string if there is no interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{_digits(estimate.low, digits, signed)}, {_digits(estimate.high, digits, signed)}]"


def without_interval(estimate: Estimate) -> str:
    """`, without an interval (paired DeLong: undefined, one row of a class)`, or an empty string."""
    return "" if estimate.low is not None else f", without an interval ({estimate.method})"


def signed_text(value: float, digits: int = 0) -> str:
    """`+1,200`, `-3.1`, or `0` if the value rounds to zero."""
    shown = f"{value:+,.{digits}f}"
    return "0" if not shown.strip("+-0.") else shown


def _digits(value: float, digits: int, signed: bool) -> str:
    return format(value, f"{'+' if signed else ''}.{digits}f")

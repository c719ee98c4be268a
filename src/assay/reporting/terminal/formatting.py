"""Words and formats that several screens share. Imports little, so that short commands start fast."""

from collections.abc import Sequence

from assay.base.clock import utc_text
from assay.base.units import duration_text

STATUS_STYLES = {
    "running": "cyan",
    "gone": "red",
    "unknown": "yellow",
    "succeeded": "",  # of its rows and its model this says nothing
    "failed": "red",
    "preempted": "yellow",
}
STATUS_WORDS = {"gone": "supervisor gone", "unknown": "cannot tell"}
"""Statuses that are shown in other words."""


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

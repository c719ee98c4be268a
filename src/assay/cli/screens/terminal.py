"""How facts about runs look on a terminal: colours and words."""

from collections.abc import Sequence

from rich.console import Console

from assay.base.units import duration_text

STATUS_STYLES = {"running": "cyan", "succeeded": "green", "failed": "red", "preempted": "yellow"}
VERDICT_STYLES = {"pass": "green", "fail": "red", "incomplete": "yellow"}

_UNTERMINATED_WIDTH = 160
"""Columns where stdout is no terminal, so that ids are not cut in a pipe."""


def stdout() -> Console:
    """Where results go."""
    # Names and reasons are data: brackets in them are no markup.
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _UNTERMINATED_WIDTH
    return console


def device_hours_text(seconds: float) -> str:
    """`7_200` -> `2.0 device-h`; below an hour as a duration."""
    return duration_text(seconds) if seconds < 3600 else f"{seconds / 3600:,.1f} device-h"


def world_sizes_text(sizes: Sequence[int]) -> str:
    """`[2, 2, 4, 1]` -> `2→4→1`."""
    kept = [size for index, size in enumerate(sizes) if index == 0 or size != sizes[index - 1]]
    return "→".join(map(str, kept))

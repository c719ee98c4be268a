"""A figure: a drawing, what to see in it, and the same numbers as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

FULL, HALF, THIRD, NARROW = 1036, 500, 320, 360
"""Widths in pixels for which figures are drawn, so that their text is never scaled: on a desk by size; on a
telephone all are narrow. The stylesheet shows the one that fits."""

Size = Literal["full", "half", "third"]


@dataclass(frozen=True)
class Table:
    """Numbers to read; every cell is text already."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """What a page shows under one heading."""

    title: str
    caption: str
    """What to see, in a sentence or two."""
    wide: str
    """SVG for a page of a desk's width; shown on every width where `narrow` is empty."""
    narrow: str = ""
    """The same for a telephone."""
    legend: Sequence[tuple[str, str]] = ()
    """Swatch class and name of what is drawn."""
    table: Table = field(default_factory=lambda: Table((), ()))
    size: Size = "full"
    """Of the page's width, on a desk."""


def both_widths(draw: Callable[[int], str], size: Size = "full") -> tuple[str, str]:
    """A drawing made for a desk and for a telephone."""
    return draw(FULL if size == "full" else HALF), draw(NARROW)

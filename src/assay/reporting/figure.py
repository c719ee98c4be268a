"""A figure: a drawing, what to see in it, and the same numbers as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WIDE, NARROW = 760, 360
"""Widths, in pixels, for which a wide figure is drawn; the stylesheet shows the one that fits."""


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
    is_half: bool = False
    """Half the page's width is enough for it."""


def both_widths(draw: Callable[[int], str]) -> tuple[str, str]:
    """A drawing made for a desk and for a telephone."""
    return draw(WIDE), draw(NARROW)

"""A figure: a drawing, its caption, and the same numbers as a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

FULL, HALF, NARROW = 1036, 500, 360
"""Widths in pixels at which figures are drawn, so that text is never scaled; the stylesheet selects one. Narrow
is for phones."""

Size = Literal["full", "half", "third"]
Legend = Sequence[tuple[str, str]]
"""Swatch class and label."""

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Table:
    """Rows of formatted cells."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, facts: Iterable[Fact], *columns: tuple[str, Callable[[Fact], str]]) -> Self:
        """Build a table with a row for each fact; a column is a heading and a function of the fact."""
        rows = [tuple(cell(fact) for _, cell in columns) for fact in facts]
        return cls(tuple(heading for heading, _ in columns), rows)


NO_TABLE = Table((), ())


@dataclass(frozen=True)
class Figure:
    """A titled figure of a page."""

    title: str
    caption: str
    """What to look for, in a sentence or two."""
    wide: str
    """SVG for wide pages; used at every width if `narrow` is empty."""
    narrow: str = ""
    """SVG for phones."""
    legend: Legend = ()
    table: Table = NO_TABLE
    size: Size = "full"
    """Share of the page's width on wide screens."""


def figure(
    draw: Callable[[int], str],
    *,
    title: str,
    caption: str,
    legend: Legend = (),
    table: Table = NO_TABLE,
    size: Size = "full",
) -> Figure:
    """Return a figure drawn at a wide and a narrow width."""
    wide, narrow = draw(FULL if size == "full" else HALF), draw(NARROW)
    return Figure(title, caption, wide, narrow, legend, table, size)


def legend_of(names: Iterable[str]) -> Legend:
    """Return a legend for lines in the default colours."""
    return [(f"s{index}", name) for index, name in enumerate(names, 1)]

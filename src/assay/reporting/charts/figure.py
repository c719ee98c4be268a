"""A figure: a drawing, what to see in it, and the same numbers as a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

FULL, HALF, NARROW = 1036, 500, 360
"""Widths in pixels for which figures are drawn, so that their text is never scaled: on a desk by size; on a
telephone all are narrow. The stylesheet shows the one that fits."""

Size = Literal["full", "half", "third"]
Legend = Sequence[tuple[str, str]]
"""Swatch class and name of what is drawn."""

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Table:
    """Numbers to read; every cell is text already."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, facts: Iterable[Fact], *columns: tuple[str, Callable[[Fact], str]]) -> Self:
        """A row for each fact; a column is its heading and what it says of a fact."""
        rows = [tuple(cell(fact) for _, cell in columns) for fact in facts]
        return cls(tuple(heading for heading, _ in columns), rows)


NO_TABLE = Table((), ())


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
    legend: Legend = ()
    table: Table = NO_TABLE
    size: Size = "full"
    """The share of the page's width, on a desk."""


def figure(
    draw: Callable[[int], str],
    *,
    title: str,
    caption: str,
    legend: Legend = (),
    table: Table = NO_TABLE,
    size: Size = "full",
) -> Figure:
    """A figure whose drawing is made for a desk and for a telephone."""
    wide, narrow = draw(FULL if size == "full" else HALF), draw(NARROW)
    return Figure(title, caption, wide, narrow, legend, table, size)


def legend_of(names: Iterable[str]) -> Legend:
    """The legend of lines in the colours of their order."""
    return [(f"s{index}", name) for index, name in enumerate(names, 1)]

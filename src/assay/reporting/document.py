"""A document as data: a title, a verdict, key facts, and sections of blocks.

    view (typed facts) --> Document --> HTML page | terminal | Markdown

A block is a paragraph, list, list of facts, table, figure, list of commands, text or fold. Every number is formatted
here, once, by the function that builds the document; renderers decide only how it looks. JSON is the view itself.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, NamedTuple, Protocol, Self, TypeVar

Tone = Literal["good", "ended", "open", "bad"]
"""`ended`: a clear result that nothing further is done; it is not a failure."""

SIGNS: dict[Tone, str] = {"good": "✓", "ended": "■", "open": "○", "bad": "✕"}

FULL, HALF, NARROW = 1036, 500, 360
"""Widths in pixels at which pages draw figures, so that text is never scaled; the stylesheet selects one. Narrow is for
phones."""

Row = TypeVar("Row")


def worst(tones: Iterable[Tone]) -> Tone:
    """Return the worst tone; good if there is none."""
    return max(tones, key=tuple(SIGNS).index, default="good")


class Mark(NamedTuple):
    """A judgement of one aspect, such as `rows: proved` or `model: diverged`."""

    about: str
    tone: Tone
    word: str

    def text(self) -> str:
        """Return the mark with its sign, which does not depend on colour."""
        return f"{SIGNS[self.tone]} {self.about}: {self.word}"


class Verdict(NamedTuple):
    """The result in words."""

    tone: Tone
    word: str
    """One or two words, which do not depend on colour."""
    sentence: str
    marks: tuple[Mark, ...] = ()
    """The aspects of which `tone` is the worst; empty if there is only one."""


class Cell(NamedTuple):
    """A text with a tone, a link, or both."""

    text: str
    tone: Tone | None = None
    link: str = ""
    """A file, or an anchor such as `#records`; terminals leave it out."""


Text = str | Cell


def text_of(text: Text) -> str:
    """Return the text without its tone and link."""
    return text if isinstance(text, str) else text.text


class Fact(NamedTuple):
    """A name with its value, and a remark about it."""

    name: str
    value: Text
    note: str = ""


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    kind: Literal["text", "line", "name", "number"] = "text"
    """If there is no room, text is wrapped and a line is cut; names and numbers never are. Numbers are
    right-aligned."""
    drop_order: int = 0
    """If a terminal is too narrow, the column with the highest is dropped first; 0 is never dropped."""


def number(heading: str, *, drop_order: int = 0) -> Column:
    """Return a right-aligned column."""
    return Column(heading, "number", drop_order)


def name(heading: str, *, drop_order: int = 0) -> Column:
    """Return a column whose cells are not wrapped."""
    return Column(heading, "name", drop_order)


@dataclass(frozen=True)
class Table:
    """Rows of formatted cells under headings; the first cell of a row is its name."""

    header: Sequence[str | Column]
    rows: Sequence[Sequence[Text]]

    @classmethod
    def of(cls, facts: Iterable[Row], *columns: tuple[str | Column, Callable[[Row], Text]]) -> Self:
        """Build a table with a row for each fact; a column is a heading and a function of the fact."""
        rows = [tuple(cell(fact) for _, cell in columns) for fact in facts]
        return cls(tuple(heading for heading, _ in columns), rows)

    @property
    def columns(self) -> list[Column]:
        """The columns; a heading without a kind is one of text."""
        return [column if isinstance(column, Column) else Column(column) for column in self.header]

    def of_columns(self, headings: Sequence[str]) -> "Table":
        """Return the table with the columns of these headings, in this order."""
        index = {column.heading: at for at, column in enumerate(self.columns)}
        chosen = [index[heading] for heading in dict.fromkeys(headings)]
        return Table([self.header[at] for at in chosen], [[row[at] for at in chosen] for row in self.rows])

    def without_empty_columns(self) -> "Table":
        """Return the table without the columns that have no text in any row."""
        filled = [index for index in range(len(self.header)) if any(text_of(row[index]) for row in self.rows)]
        return Table([self.header[index] for index in filled], [[row[index] for index in filled] for row in self.rows])


NO_TABLE = Table((), ())


@dataclass(frozen=True)
class Block:
    """A part of a section."""

    _: KW_ONLY
    pages_only: bool = False
    """Left out on terminals."""


@dataclass(frozen=True)
class Paragraph(Block):
    """A paragraph."""

    text: Text


@dataclass(frozen=True)
class Listing(Block):
    """A bulleted list."""

    items: Sequence[Text]
    title: str = ""


@dataclass(frozen=True)
class FactList(Block):
    """A list of names and values."""

    items: Sequence[Fact]
    title: str = ""


@dataclass(frozen=True)
class TitledTable(Block):
    """A table with a heading."""

    title: str
    caption: str
    table: Table

    @classmethod
    def of(
        cls, title: str, caption: str, facts: Iterable[Row], *columns: tuple[str | Column, Callable[[Row], Text]]
    ) -> Self:
        """Build a table with a row for each fact; a column is a heading and a function of the fact."""
        return cls(title, caption, Table.of(facts, *columns))


@dataclass(frozen=True)
class Commands(Block):
    """What to do next: purposes, and the command for each."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code(Block):
    """Text that keeps its line breaks."""

    text: str
    title: str = ""
    anchor: str = ""


@dataclass(frozen=True)
class Fold(Block):
    """Blocks that a page shows under a summary line that opens and closes them."""

    title: str
    blocks: Sequence[Block]
    note: str = ""
    """Follows the title in the summary line."""
    is_open: bool = False
    anchor: str = ""


class Chart(Protocol):
    """The data of a drawing in a form that a renderer can draw."""

    def svg(self, width: int) -> str:
        """Return the drawing at a width in pixels."""
        ...


@dataclass(frozen=True)
class Drawing:
    """A chart that only pages can draw."""

    draw: Callable[[int], str]

    def svg(self, width: int) -> str:
        """Return the drawing at a width in pixels."""
        return self.draw(width)


class CurveLine(NamedTuple):
    """A line of a curve figure, which a page that serves points draws from them."""

    label: str
    run_id: str
    metric: str
    divisor: str = ""
    """If set, the line shows `metric` divided by this metric and by `scale`."""
    scale: float = 1.0


Size = Literal["full", "half", "third"]
Legend = Sequence[tuple[str, str]]
"""Swatch class and label."""


@dataclass(frozen=True)
class Figure(Block):
    """A chart with its caption, and the same numbers as a table."""

    title: str
    caption: str
    """What to look for, in a sentence or two."""
    chart: Chart
    legend: Legend = ()
    table: Table = NO_TABLE
    size: Size = "full"
    """Share of the page's width on wide screens."""
    has_one_width: bool = False
    """Drawn at one width for all screens, such as a square plot."""
    lines: Sequence[CurveLine] = ()
    """What the chart's lines show."""

    @property
    def anchor(self) -> str:
        """The title as an anchor, such as `training-loss`."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def figure(
    draw: Callable[[int], str],
    *,
    title: str,
    caption: str,
    legend: Legend = (),
    table: Table = NO_TABLE,
    size: Size = "full",
) -> Figure:
    """Return a figure that only pages can draw, at a wide and a narrow width."""
    return Figure(title, caption, Drawing(draw), legend, table, size)


def legend_of(names: Iterable[str]) -> Legend:
    """Return a legend for lines in the default colours."""
    return [(f"s{index}", name) for index, name in enumerate(names, 1)]


@dataclass(frozen=True)
class Section:
    """A section."""

    name: str
    blocks: Sequence[Block]
    _: KW_ONLY
    pages_only: bool = False
    """Left out on terminals."""
    anchor: str = ""
    """By default from the name."""
    starts_page: bool = False
    """Begins on a new sheet when it is printed."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document for one audience."""

    title: str
    kind: str
    """Shown above the title, such as `risk register`."""
    subtitle: str = ""
    """Source and date, shown above the title."""
    verdict: Verdict | None = None
    tiles: Sequence[Fact] = ()
    """The key figures."""
    sections: Sequence[Section] = field(default=())
    footer: str = ""
    """Where the numbers come from, and how to regenerate the document."""
    links: Sequence[tuple[str, str]] = ()
    """(file, title) of related documents."""
    tags: Sequence[str] = ()
    name: str = ""
    """File name without suffix, such as `risk-register`."""

"""A document that renders as a self-contained HTML page and as Markdown. It has a verdict, tiles, and sections
of paragraphs, lists, tables and figures. In Markdown a figure is its caption and table."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from assay.reporting.charts.figure import Fact, Figure, Table
from assay.reporting.documents.markdown import markdown_table, plain, quoted
from assay.reporting.views.verdict import Tile, Verdict


class Paragraph(NamedTuple):
    """A paragraph."""

    text: str


class Listing(NamedTuple):
    """A bulleted list."""

    items: Sequence[str]
    title: str = ""


class TitledTable(NamedTuple):
    """A table with a heading."""

    title: str
    caption: str
    table: Table

    @classmethod
    def of(cls, title: str, caption: str, facts: Iterable[Fact], *columns: tuple[str, Callable[[Fact], str]]) -> Self:
        """Build a table with a row for each fact; a column is a heading and a function of the fact."""
        return cls(title, caption, Table.of(facts, *columns))


Block = Paragraph | Listing | TitledTable | Figure


@dataclass(frozen=True)
class DocumentSection:
    """A section."""

    name: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A document for one audience."""

    name: str
    """File name without suffix, such as `risk-register`."""
    title: str
    kind: str
    """Shown above the title, such as `risk register`."""
    subtitle: str
    """Source and date, shown above the title."""
    verdict: Verdict
    tiles: Sequence[Tile]
    sections: Sequence[DocumentSection]
    footer: str
    """Where the numbers come from, and how to regenerate the document."""
    links: Sequence[tuple[str, str]] = field(default=())
    """(file, title) of related documents."""


def markdown(document: Document) -> str:
    """Return the document as Markdown."""
    return "\n".join(_lines(document)).rstrip() + "\n"


def _lines(document: Document) -> Iterator[str]:
    yield from (f"# {plain(document.title)}", "", f"*{plain(document.kind)} · {plain(document.subtitle)}*", "")
    yield from (f"**{plain(document.verdict.word)}.** {plain(document.verdict.sentence)}", "")
    for tile in document.tiles:
        note = f" ({plain(tile.note)})" if tile.note else ""
        yield f"- {plain(tile.name)}: **{plain(tile.value)}**{note}"
    for section in document.sections:
        yield from ("", f"## {plain(section.name)}", "")
        for block in section.blocks:
            yield from _block_lines(block)
            yield ""
    yield from ("---", plain(document.footer))


def _block_lines(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield plain(block.text)
    elif isinstance(block, Listing):
        if block.title:
            yield from (f"**{plain(block.title)}**", "")
        yield from (f"- {plain(item)}" for item in block.items)
    else:
        yield from (f"### {plain(block.title)}", "")
        if block.caption:
            yield from (plain(block.caption), "")
        if block.table.rows:
            yield from markdown_table(quoted(block.table))

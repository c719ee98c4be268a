"""Documents on a terminal: facts, sparklines and bars in one column of names, tables that fit, and tones as colours.
Captions, footers and what is for pages only are left out."""

from collections.abc import Iterator, Sequence
from itertools import dropwhile

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text as RichText

from assay.reporting.charts.plots import LineChart, StackedBars
from assay.reporting.document import (
    SIGNS,
    Block,
    Code,
    Commands,
    Document,
    Fact,
    FactList,
    Figure,
    Fold,
    Listing,
    Paragraph,
    Section,
    Table,
    Text,
    TitledTable,
    Tone,
    Verdict,
    text_of,
)
from assay.reporting.terminal.drawing import PHASE_STYLES, phase_bar, sparkline
from assay.reporting.terminal.table import TONE_COLOURS, print_table
from assay.reporting.terminal.terminal import stdout
from assay.reporting.views.runs.series import Series

MAX_NAME_WIDTH = 40
"""Longer names of facts are wrapped."""

END_WIDTH = 9
"""Columns that the value at an end of a sparkline takes."""

Line = tuple[str, RenderableType]
"""A name and what stands beside it."""


def print_document(document: Document) -> None:
    """Print a document."""
    screen = stdout()
    for part in dropwhile(lambda part: part == "", _parts(document)):
        if isinstance(part, Table):
            print_table(part)
        else:
            screen.print(part)


def _parts(document: Document) -> Iterator[RenderableType | Table]:
    if document.title:
        yield _heading(document)
    if document.verdict is not None:
        yield from _verdict(document.verdict)
    shown = [section for section in document.sections if not section.pages_only and _shown(section.blocks)]
    width = max((len(name) for name in _names(document.tiles, shown)), default=0)
    width = min(width, MAX_NAME_WIDTH)
    if document.tiles:
        yield ""
        yield _grid([(fact.name, _value(fact)) for fact in document.tiles], width)
    for section in shown:
        if section.name or _lines(_shown(section.blocks)[0]) is None:
            yield ""
        if section.name:
            yield RichText(section.name, style="bold underline")
        yield from _blocks(_shown(section.blocks), width)


def _heading(document: Document) -> RichText:
    title = RichText(document.title, style="bold")
    if (verdict := document.verdict) is not None:
        title.append(f"  {verdict.word.upper()}", style=f"bold {TONE_COLOURS[verdict.tone]}")
    title.append("".join(f"  #{tag}" for tag in document.tags), style="cyan not bold")
    return title


def _verdict(verdict: Verdict) -> Iterator[RenderableType]:
    if verdict.marks:
        yield RichText("   ").join(RichText(mark.text(), style=TONE_COLOURS[mark.tone]) for mark in verdict.marks)
    if verdict.sentence:
        yield verdict.sentence


def _shown(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if not block.pages_only]


def _names(tiles: Sequence[Fact], sections: Sequence[Section]) -> Iterator[str]:
    """Yield the names that stand in the column of names."""
    yield from (fact.name for fact in tiles)
    for section in sections:
        for block in _shown(section.blocks):
            if (lines := _lines(block)) is not None:
                yield from (name for name, _ in lines)


def _blocks(blocks: Sequence[Block], width: int) -> Iterator[RenderableType | Table]:
    lines: list[Line] = []
    for block in blocks:
        if (of_block := _lines(block)) is not None:
            if not lines and block is not blocks[0]:
                yield ""
            lines += of_block
            continue
        if lines:
            yield _grid(lines, width)
        lines = []
        is_first = block is blocks[0]
        if not is_first:
            yield ""
        yield from _block(block, width, is_first=is_first)
    if lines:
        yield _grid(lines, width)


def _lines(block: Block) -> list[Line] | None:
    """Return the lines of a block that has its names in the column of names, else None."""
    match block:
        case FactList(items, title):
            heading: list[Line] = [(title, "")] if title else []
            return [*heading, *((fact.name, _value(fact)) for fact in items)]
        case Figure(title, _, LineChart() as chart):
            several = len(chart.series) > 1
            return [
                (f"{title}: {series.name}" if several else title, RichText(f"{ends[0]} {curve} {ends[1]}"))
                for series in chart.series
                if (ends := chart.end_texts(series)) and (curve := _sparkline(series, chart.series))
            ]
        case Figure(title, _, StackedBars([(_, parts), *_]), legend):
            phases = RichText()
            for class_, text in legend:
                phases.append("■ ", style=PHASE_STYLES[class_.removeprefix("phase ")])  # type: ignore[index]
                phases.append(f"{text}   ")
            return [(title, Group(phase_bar(parts), phases))]
    return None


def _sparkline(series: Series, shown: Sequence[Series]) -> str:
    """Return a curve on the scale of all that its chart shows."""
    room = stdout().width - MAX_NAME_WIDTH - 2 * END_WIDTH
    values, *others = (found.committed_points()[1] for found in (series, *shown))
    return sparkline(values, width=min(60, max(12, room)), others=others)


def _block(block: Block, width: int, *, is_first: bool) -> Iterator[RenderableType | Table]:
    """Yield a block; the first figure below a heading goes without its title."""
    match block:
        case Paragraph(text):
            yield _text(text)
        case Listing(items, title):
            yield from _title(title)
            for item in items:
                tone = None if isinstance(item, str) else item.tone
                yield RichText.assemble(f"{SIGNS[tone]} " if tone else "- ", _text(item))
        case Commands(items):
            lines: list[Line] = [(purpose, RichText(command, style="cyan")) for purpose, command in items]
            yield _grid(lines, max(len(purpose) for purpose, _ in items))
        case Code(text, title):
            yield from _title(title)
            yield RichText(text)
        case Fold(title, blocks, note):
            yield from _title(title)
            if note:
                yield note
            yield from _blocks(_shown(blocks), width)
        case TitledTable(title, caption, table) | Figure(title, caption, table=table) if table.rows:
            yield from _title("" if is_first and isinstance(block, Figure) else title)
            if isinstance(block, TitledTable) and caption:
                yield RichText(caption, style="dim")
            yield table


def _title(title: str) -> Iterator[RenderableType]:
    if title:
        yield RichText(title, style="bold")


def _grid(lines: Sequence[Line], width: int) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="bold", width=width)
    grid.add_column()
    for name, value in lines:
        grid.add_row(name, value)
    return grid


def _value(fact: Fact) -> RichText:
    value = _text(fact.value)
    return RichText.assemble(value, (f"  {fact.note}", "dim")) if fact.note else value


def _text(text: Text) -> RichText:
    tone: Tone | None = None if isinstance(text, str) else text.tone
    return RichText(text_of(text), style=TONE_COLOURS[tone] if tone else "")

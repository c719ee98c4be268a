"""Documents as Markdown, and the escaping of foreign text. Only marks that would have an effect get a backslash, so
that the source stays readable."""

import re
from collections.abc import Iterable, Iterator

from assay.base.visible import written_out
from assay.reporting.document import (
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
    Table,
    Text,
    TitledTable,
    text_of,
)

_OBEYED = re.compile(
    r"(\\(?=[!-/:-@\[-`{-~]|$)"  # a backslash that takes a mark's meaning
    r"|`|<(?=[A-Za-z/!?])|&(?=#|\w+;)|\](?=[(\[:])"  # code, HTML, links
    r"|\*(?=\S)|(?<=\S)\*|(?<![^\W_])_|_(?![^\W_])|~(?=~)|(?<=~)~"  # emphasis
    r"|^>|(?:^|(?<=\s))#(?=#*(?:\s|$))|^[-+*](?=\s|$)|^[-=](?=[-=\s]*$))"  # what begins a line, or ends one
)


def plain(text: str) -> str:
    """Escape a text for use within a line or as a whole line."""
    line = _OBEYED.sub(r"\\\1", " ".join(written_out(text).split()))
    return re.sub(r"^(\d{1,9})([.)])(?=\s|$)", r"\1\\\2", line)  # the number of a list


def code(text: str) -> str:
    """Return a name or path as inline code, or escaped if it holds marks that would end the code."""
    line = " ".join(written_out(text).split())
    return plain(text) if not line or "`" in line or "|" in line else f"`{line}`"


def fenced(text: str, language: str) -> Iterator[str]:
    """Yield the lines of a code block."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}{language}", text, fence)


def quoted(table: Table) -> Table:
    """Return a table with escaped cells."""
    header = [plain(column.heading) for column in table.columns]
    return Table(header, [[plain(text_of(cell)) for cell in row] for row in table.rows])


def markdown_table(table: Table) -> Iterator[str]:
    """Yield the lines of a table whose cells are Markdown."""
    columns = table.columns
    yield _row(column.heading for column in columns)
    yield f"|{''.join('--:|' if column.kind == 'number' else '---|' for column in columns)}"
    yield from (_row(map(text_of, row)) for row in table.rows)


def markdown(document: Document) -> str:
    """Return the document as Markdown. A figure is its caption and table."""
    return "\n".join(_lines(document)).rstrip() + "\n"


def _lines(document: Document) -> Iterator[str]:
    about = " · ".join(plain(text) for text in (document.kind, document.subtitle, *document.tags) if text)
    yield from (f"# {plain(document.title)}", "", f"*{about}*", "")
    if (verdict := document.verdict) is not None:
        yield from (f"**{plain(verdict.word)}.** {plain(verdict.sentence)}", "")
        yield from (f"- {plain(mark.text())}" for mark in verdict.marks)
    yield from map(_fact_line, document.tiles)
    for section in document.sections:
        yield from ("", *([f"## {plain(section.name)}", ""] if section.name else []))
        for block in section.blocks:
            yield from _block_lines(block)
            yield ""
    if document.footer:
        yield from ("---", plain(document.footer))


def _block_lines(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield _plain(text)
        case Listing(items, title):
            yield from _title_lines(title)
            yield from (f"- {_plain(item)}" for item in items)
        case FactList(items, title):
            yield from _title_lines(title)
            yield from map(_fact_line, items)
        case Commands(items):
            yield from (f"- {plain(purpose)}: {code(command)}" for purpose, command in items)
        case Code(text, title):
            yield from _title_lines(title)
            yield from fenced(written_out(text), "")
        case Fold(title, blocks, note):
            yield from (f"### {plain(title)}", "", *([plain(note), ""] if note else []))
            for part in blocks:
                yield from _block_lines(part)
                yield ""
        case TitledTable(title, caption, table) | Figure(title, caption, table=table):
            yield from (*([f"### {plain(title)}", ""] if title else []), *([plain(caption), ""] if caption else []))
            if isinstance(block, Figure) and block.legend:
                yield from (" · ".join(plain(label) for _, label in block.legend), "")
            if table.rows:
                yield from markdown_table(quoted(table))


def _title_lines(title: str) -> list[str]:
    return [f"**{plain(title)}**", ""] if title else []


def _fact_line(fact: Fact) -> str:
    note = f" ({plain(fact.note)})" if fact.note else ""
    return f"- {plain(fact.name)}: **{_plain(fact.value)}**{note}"


def _plain(text: Text) -> str:
    return plain(text_of(text))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

"""Escaping of foreign text in Markdown. Only marks that would have an effect get a backslash, so that the
source stays readable."""

import re
from collections.abc import Iterable, Iterator

from assay.base.visible import written_out
from assay.reporting.charts.figure import Table

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
    return Table(tuple(map(plain, table.header)), [list(map(plain, row)) for row in table.rows])


def markdown_table(table: Table) -> Iterator[str]:
    """Yield the lines of a table whose cells are Markdown."""
    yield _row(table.header)
    yield f"|{'---|' * len(table.header)}"
    yield from map(_row, table.rows)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

"""Tables on a terminal, without rich: a list may have thousands of rows, and rich takes a millisecond for each.

If the terminal is too narrow, columns are dropped by their `drop_order`, texts are wrapped and lines are cut. A pipe
gets whole rows.
"""

import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import click

from assay.base.visible import written_out
from assay.reporting.document import Column, Table, Text, Tone, text_of

TONE_COLOURS: dict[Tone, str] = {"good": "green", "bad": "red", "open": "yellow", "ended": "blue"}
_GAP = "  "
_LEAST_WIDTH = 24
"""Width below which a text is not wrapped and a line is not cut: another column is dropped instead."""


def print_table(table: Table) -> None:
    """Print a table."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines, dropped = table_lines(table, width=width)
    click.echo("\n".join(lines))
    if dropped:
        click.secho(f"no room for: {', '.join(dropped)} (a wider terminal, or a pipe, has them)", dim=True)


def table_lines(table: Table, *, width: int | None) -> tuple[list[str], list[str]]:
    """Return the heading and the rows in colours, at most `width` wide if possible, and the dropped headings."""
    columns = dict(enumerate(table.columns))
    rows = [[_line(text_of(cell), columns[at]) for at, cell in enumerate(row)] for row in table.rows]
    widths = {at: max(map(_width, [column.heading, *(row[at] for row in rows)])) for at, column in columns.items()}
    dropped = []
    while width is not None and _least(columns, widths) > width:
        last = max(columns, key=lambda at: columns[at].drop_order)
        if not columns[last].drop_order:
            break
        dropped.append(columns.pop(last).heading)
    if width is not None:
        widths = _narrowed(columns, widths, width)
    heading = _joined([(column, widths[at], column.heading, None) for at, column in columns.items()])
    lines = [click.style(heading, bold=True)]
    for row, cells in zip(table.rows, rows, strict=True):
        parts = [_wrapped(cells[at], column, widths[at]) for at, column in columns.items()]
        lines += [
            _joined([(columns[at], widths[at], text, row[at]) for at, text in zip(columns, line, strict=True)])
            for line in zip_longest(*parts, fillvalue="")
        ]
    return lines, dropped


def _line(text: str, column: Column) -> str:
    text = written_out(text)
    return text if column.kind == "text" else " ".join(text.split()) if "\n" in text else text


def _least(columns: Mapping[int, Column], widths: Mapping[int, int]) -> int:
    """Return the least width of a row."""
    parts = [min(widths[at], _LEAST_WIDTH) if _is_flexible(column) else widths[at] for at, column in columns.items()]
    return sum(parts) + len(_GAP) * (len(parts) - 1)


def _is_flexible(column: Column) -> bool:
    return column.kind in ("text", "line")


def _narrowed(columns: Mapping[int, Column], widths: Mapping[int, int], width: int) -> dict[int, int]:
    """Return widths whose sum fits, if flexible columns can be made narrow enough."""
    found = {at: widths[at] for at in columns}
    while sum(found.values()) + len(_GAP) * (len(found) - 1) > width:
        flexible = [at for at, column in columns.items() if _is_flexible(column) and found[at] > min(widths[at], 1)]
        if not flexible:
            break
        widest = max(flexible, key=lambda at: found[at])
        excess = sum(found.values()) + len(_GAP) * (len(found) - 1) - width
        others = [found[at] for at in flexible if at != widest]
        found[widest] = max(1, found[widest] - excess, min(found[widest] - 1, max(others, default=0)))
    return found


def _wrapped(text: str, column: Column, width: int) -> list[str]:
    if column.kind == "line":
        return [_cut(text, width)]
    if column.kind != "text" or (_width(text) <= width and "\n" not in text):
        return [text]
    return [part for line in text.splitlines() for part in textwrap.wrap(line, width) or [""]] or [""]


def _joined(cells: Sequence[tuple[Column, int, str, Text | None]]) -> str:
    row = ""
    for column, wide, text, cell in cells:
        tone = None if cell is None or isinstance(cell, str) else cell.tone
        pad = " " * max(wide - _width(text), 0)
        styled = click.style(text, fg=TONE_COLOURS[tone]) if tone and text else text
        row += (_GAP if row else "") + (pad + styled if column.kind == "number" else styled + pad)
    return row.rstrip()


def _cut(text: str, width: int) -> str:
    """Cut a text to a width, with an ellipsis."""
    if _width(text) <= width:
        return text
    while text and _width(text) >= max(width, 1):
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    """Return the number of terminal cells."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )

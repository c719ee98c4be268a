"""The list of runs on a terminal. It may have thousands of rows, and rich would take a millisecond for each, so
the layout is done here. If the terminal is too narrow, optional columns are dropped and the last one is cut. A
pipe gets full rows."""

import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import click

from assay.base.clock import SystemClock
from assay.base.units import age_text
from assay.reporting.terminal.terminal import STATUS_STYLES
from assay.reporting.values import STATUS_WORDS, device_hours_text, minute_text, world_sizes_text
from assay.reporting.views.run_list import RunLine

_GAP = "  "
_MIN_NOTE_WIDTH = 24
"""Width of the last note below which another column is dropped instead."""


class _Column(NamedTuple):
    heading: str
    cell: Callable[[RunLine], str]
    is_number: bool = False
    """Right-aligned."""
    drop_order: int = 0
    """If the terminal is too narrow, the highest is dropped first; 0 is never dropped."""
    is_optional: bool = False
    """Left out if no row has a value."""


def print_runs(lines: Sequence[RunLine]) -> None:
    """Print a row for each run."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    now_s = SystemClock().now_s()
    click.echo("\n".join(run_rows(lines, now_s=now_s, width=width)))
    for line in lines:
        if line.is_stale:
            click.secho(line.stale_text(now_s), err=True, fg="yellow")


def run_rows(lines: Sequence[RunLine], *, now_s: float, width: int | None) -> list[str]:
    """Return the heading and a row for each run in colours, at most `width` wide if possible."""
    table = [(column, [column.cell(line) for line in lines]) for column in _columns(now_s)]
    table = [(column, cells) for column, cells in table if any(cells) or not column.is_optional]
    widths = {column.heading: max(map(_width, (column.heading, *cells))) for column, cells in table}
    while width is not None and _needed(table, widths) > width:
        spare = max((column for column, _ in table), key=lambda column: column.drop_order)
        if not spare.drop_order:
            break
        table = [entry for entry in table if entry[0] is not spare]
    heading = _row([(column, column.heading) for column, _ in table], widths, width)
    return [
        click.style(heading, bold=True),
        *(
            _row([(column, cells[index]) for column, cells in table], widths, width, line.status)
            for index, line in enumerate(lines)
        ),
    ]


def _needed(table: Sequence[tuple[_Column, list[str]]], widths: Mapping[str, int]) -> int:
    """Return the width of a row; an optional last cell may be cut."""
    *others, last = (widths[column.heading] for column, _ in table)
    shown = min(last, _MIN_NOTE_WIDTH) if table[-1][0].is_optional else last
    return sum(others) + shown + len(_GAP) * len(others)


def _columns(now_s: float) -> list[_Column]:
    return [
        _Column("run", lambda line: line.run_id),
        _Column("status", lambda line: STATUS_WORDS.get(line.status) or line.status_text()),
        _Column("step", _step, is_number=True),
        _Column("ranks", lambda line: world_sizes_text(line.world_sizes), drop_order=2),
        _Column("attempts", lambda line: str(line.attempts), is_number=True, drop_order=3),
        _Column("measured", _measured, is_number=True),
        _Column("device time", lambda line: device_hours_text(3600 * line.device_hours), is_number=True, drop_order=1),
        _Column(
            "evaluation",
            lambda line: device_hours_text(3600 * line.evaluation_hours) if line.evaluation_hours else "",
            is_number=True,
            drop_order=6,
            is_optional=True,
        ),
        _Column("begun (UTC)", lambda line: minute_text(line.created), is_number=True, drop_order=5),
        _Column("age", lambda line: age_text(now_s - line.created), is_number=True),
        _Column(
            "last sign",
            lambda line: "" if line.last_seen is None else age_text(now_s - line.last_seen),
            is_number=True,
            drop_order=4,
        ),
        _Column("tags", lambda line: " ".join(line.tags), is_optional=True),
        _Column("where", _where, is_optional=True),
        _Column("note", lambda line: " ".join((line.note or "").split()), is_optional=True),
    ]


def _row(cells: Sequence[tuple[_Column, str]], widths: Mapping[str, int], width: int | None, status: str = "") -> str:
    row, used = "", 0
    for column, text in cells:
        gap, wide = _GAP if row else "", widths[column.heading]
        if column is cells[-1][0] and column.is_optional and width is not None:
            text = _cut(text, max(width - used - len(gap), 1))
        pad = " " * (wide - _width(text))
        colour = STATUS_STYLES[status] if status and column.heading == "status" else ""
        styled = click.style(text, fg=colour) if colour else text
        row += gap + (pad + styled if column.is_number else styled + pad)
        used += len(gap) + wide
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


def _step(line: RunLine) -> str:
    return f"{line.step:,}/{line.total_steps:,}"


def _measured(line: RunLine) -> str:
    return "" if line.value is None else f"{line.metric or ''} {line.value:.4f}".strip()


def _where(line: RunLine) -> str:
    return (line.started or "") if line.status in ("running", "unknown") else ""

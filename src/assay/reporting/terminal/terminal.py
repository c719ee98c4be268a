"""Shared terminal output: colours, tables and progress bars."""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, TypeVar, cast

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from assay.base.visible import terminal_of
from assay.records.run import RunStatus
from assay.reporting import document
from assay.reporting.values import STATUS_WORDS

RECOMMENDATION_STYLES = {"scale": "green", "narrow": "yellow", "stop": "blue"}
VERDICT_STYLES = {"pass": "green", "fail": "red", "incomplete": "yellow"}
STATUS_STYLES = {
    "running": "cyan",
    "gone": "red",
    "unknown": "yellow",
    "succeeded": "",  # of its rows and its model this says nothing
    "failed": "red",
    "preempted": "yellow",
}
TONE_STYLES = {"good": "green", "bad": "red", "open": "yellow", "ended": "blue"}

_UNTERMINATED_WIDTH = 160
"""Columns if stdout is not a terminal, so that ids are not cut in a pipe."""

_ENDLESS = 100_000
"""Columns for measuring a table without a limit."""

_BAR = 40

_PADDING = re.compile(r" +$", re.MULTILINE)

Fact = TypeVar("Fact")


def stdout(*, markup: bool = False) -> Console:
    """Return the console for results."""
    # Names and reasons are data: brackets in them are no markup.
    console = Console(highlight=False, markup=markup)
    if not console.is_terminal:
        console = Console(highlight=False, markup=markup, file=cast(IO[str], _Unpadded(sys.stdout)))
        console.width = _UNTERMINATED_WIDTH
    return console


class _Unpadded:
    """A stream that strips the trailing blanks of table rows."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def print_file(text: str) -> None:
    """Print a file's content: byte for byte into a pipe or a file, sanitized on a terminal."""
    if sys.stdout.isatty():
        click.echo(text.replace("\r\n", "\n"), nl=False)
    else:
        click.echo(text.encode(), file=terminal_of(sys.stdout), nl=False)


def number(heading: str) -> Column:
    """Return a right-aligned column that does not wrap."""
    return Column(heading, justify="right", no_wrap=True)


def name(heading: str) -> Column:
    """Return a column that does not wrap."""
    return Column(heading, no_wrap=True)


def table_of(facts: Iterable[Fact], *columns: tuple[str | Column, Callable[[Fact], str | Text]]) -> Table:
    """Return a table with a row for each fact; a column is a heading and a function of the fact."""
    # A column of rich holds its cells, so each table has its own.
    headings = (heading.copy() if isinstance(heading, Column) else heading for heading, _ in columns)
    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for fact in facts:
        table.add_row(*(cell(fact) for _, cell in columns))
    return table


def print_list(
    facts: Sequence[Fact], *columns: tuple[Column, Callable[[Fact], str | Text]], dispensable: Sequence[str]
) -> None:
    """Print a table with uncut cells. If it is too wide, the columns in `dispensable` are dropped, the first
    first, and named."""
    screen, left_out = stdout(), list[str]()
    wide = screen.options.update(max_width=_ENDLESS)
    while True:
        table = table_of(facts, *(entry for entry in columns if entry[0].header not in left_out))
        width = screen.measure(table, options=wide).maximum
        if not screen.is_terminal:
            screen.width = max(screen.width, width)
        rest = [text for text in dispensable if text not in left_out]
        if width <= screen.width or not rest:
            break
        left_out.append(rest[0])
    screen.print(table)
    left_out = [text for text in left_out if text in (column.header for column, _ in columns)]
    if left_out:
        screen.print(f"no room for: {', '.join(left_out)} (a wider terminal, or a pipe, has them)", style="dim")


def print_table(found: document.Table) -> None:
    """Print a page's table: names in the first column, numbers in the others."""
    first, *others = (column.heading for column in found.columns)
    table = Table(first, *map(number, others), box=None, pad_edge=False, header_style="bold")
    for row in found.rows:
        table.add_row(*map(document.text_of, row))
    stdout().print(table)


def show_progress(what: str, done: int, total: int, *, unit: str = "") -> None:
    """Print a progress bar on one line of stderr, if that is a terminal."""
    if total and sys.stderr.isatty():
        bar = "━" * (_BAR * done // total)
        end = "\n" if done == total else ""
        click.echo(f"\r{what:<12} {bar:<{_BAR}} {done:,}/{total:,}{unit}{end}", nl=False, err=True)


def warn_of_model(rules: Iterable[str], texts: Iterable[str]) -> None:
    """Print the model's warnings on stderr."""
    for rule, text in zip(rules, texts, strict=True):
        click.secho(f"warning: {rule}: {text}", err=True, fg="yellow")


def status_text(status: RunStatus) -> Text:
    """Return the status in its colour."""
    return Text(STATUS_WORDS.get(status, status), style=STATUS_STYLES[status])

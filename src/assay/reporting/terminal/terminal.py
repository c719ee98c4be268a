"""How facts look on a terminal: colours, words, tables."""

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
from assay.reporting.charts import figure
from assay.reporting.terminal.formatting import STATUS_STYLES, STATUS_WORDS

RECOMMENDATION_STYLES = {"scale": "green", "narrow": "yellow", "stop": "blue"}
VERDICT_STYLES = {"pass": "green", "fail": "red", "incomplete": "yellow"}
TONE_STYLES = {"good": "green", "bad": "red", "open": "yellow", "ended": "blue"}

_UNTERMINATED_WIDTH = 160
"""Columns where stdout is no terminal, so that ids are not cut in a pipe."""

_ENDLESS = 100_000
"""Columns of a terminal that has room for everything."""

_BAR = 40

_PADDING = re.compile(r" +$", re.MULTILINE)

Fact = TypeVar("Fact")


def stdout(*, markup: bool = False) -> Console:
    """Where results go."""
    # Names and reasons are data: brackets in them are no markup.
    console = Console(highlight=False, markup=markup)
    if not console.is_terminal:
        console = Console(highlight=False, markup=markup, file=cast(IO[str], _Unpadded(sys.stdout)))
        console.width = _UNTERMINATED_WIDTH
    return console


class _Unpadded:
    """A file or a pipe without the blanks that fill the lines of a table."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def print_file(text: str) -> None:
    """A file that the command was asked for: byte for byte into a pipe or a file, as `--out` writes it; on a
    terminal like all that others wrote."""
    if sys.stdout.isatty():
        click.echo(text.replace("\r\n", "\n"), nl=False)
    else:
        click.echo(text.encode(), file=terminal_of(sys.stdout), nl=False)


def number(heading: str) -> Column:
    """Over numbers: at the right, never broken."""
    return Column(heading, justify="right", no_wrap=True)


def name(heading: str) -> Column:
    """Over names: never broken."""
    return Column(heading, no_wrap=True)


def table_of(facts: Iterable[Fact], *columns: tuple[str | Column, Callable[[Fact], str | Text]]) -> Table:
    """A row for each fact; a column is its heading and what it says of a fact."""
    # A column of rich holds its cells, so each table has its own.
    headings = (heading.copy() if isinstance(heading, Column) else heading for heading, _ in columns)
    table = Table(*headings, box=None, pad_edge=False, header_style="bold")
    for fact in facts:
        table.add_row(*(cell(fact) for _, cell in columns))
    return table


def print_list(
    facts: Sequence[Fact], *columns: tuple[Column, Callable[[Fact], str | Text]], dispensable: Sequence[str]
) -> None:
    """A table whose cells are whole: columns that a terminal has no room for are left out, the first of
    `dispensable` before the others, and named."""
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


def print_table(found: figure.Table) -> None:
    """A table of a page: its first column holds names, the others numbers."""
    table = Table(found.header[0], *map(number, found.header[1:]), box=None, pad_edge=False, header_style="bold")
    for row in found.rows:
        table.add_row(*row)
    stdout().print(table)


def show_progress(what: str, done: int, total: int, *, unit: str = "") -> None:
    """How far it is, on one line of stderr that is written over; nothing where nobody looks."""
    if total and sys.stderr.isatty():
        bar = "━" * (_BAR * done // total)
        end = "\n" if done == total else ""
        click.echo(f"\r{what:<12} {bar:<{_BAR}} {done:,}/{total:,}{unit}{end}", nl=False, err=True)


def warn_of_model(rules: Iterable[str], texts: Iterable[str]) -> None:
    """What a model's numbers warn of, on stderr, beside what a command prints."""
    for rule, text in zip(rules, texts, strict=True):
        click.secho(f"warning: {rule}: {text}", err=True, fg="yellow")


def status_text(status: RunStatus) -> Text:
    """How a run stands, in its colour."""
    return Text(STATUS_WORDS.get(status, status), style=STATUS_STYLES[status])

"""Shared terminal output: colours, files and progress bars."""

import re
import sys
from collections.abc import Iterable
from typing import IO, Any, cast

import click
from rich.console import Console

from assay.base.visible import terminal_of

_UNTERMINATED_WIDTH = 160
"""Columns if stdout is not a terminal, so that ids are not cut in a pipe."""

_BAR = 40

_PADDING = re.compile(r" +$", re.MULTILINE)


def stdout(*, markup: bool = False) -> Console:
    """Return the console for results."""
    # Names and reasons are data: brackets in them are no markup. In a notebook, rich would not write to stdout.
    console = Console(highlight=False, markup=markup, force_jupyter=False)
    if not sys.stdout.isatty():
        file = cast(IO[str], _Unpadded(sys.stdout))
        console = Console(highlight=False, markup=markup, force_jupyter=False, file=file)
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

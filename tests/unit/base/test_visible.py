"""What a terminal would obey is written out, wherever it is printed."""

import sys

import click
import pytest
from rich.console import Console

from assay.base.errors import ConfigError
from assay.base.visible import visible, visible_output
from assay.cli import main as command_line

OBEYED = [
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x1b[1A\x1b[2K",
    "\x1bc",
    "\x9b2J",
    "a\rb",
    "\x08",
    "\u202eevil",
    "\x7f",
]


@pytest.mark.parametrize("text", OBEYED, ids=ascii)
def test_what_a_terminal_would_obey_is_written_out(text: str, capsys) -> None:
    with visible_output():
        click.echo(f"a {text}")
        click.secho(f"b {text}", err=True, fg="red")
        print(f"c {text}")
        Console(markup=False).print(f"d {text}")
    output = "".join(capsys.readouterr())
    assert visible(output) == output.replace("\r", "\\u000d")
    assert output.count("\\u00") + output.count("\\u202e") >= 2  # click itself drops some where nobody looks


def test_letters_colours_lines_and_a_line_of_progress_pass(capsys) -> None:
    passes = ["ünï → ✓\n\ttab", click.style("red", fg="red", bold=True), "\x1b[38;5;12;1mx\x1b[0m", "\r 3 of 9"]
    assert [visible(text) for text in passes] == passes


def test_an_error_in_others_words_is_shown_as_it_is(monkeypatch, capsys) -> None:
    def fails(**rest: object) -> None:
        raise ConfigError("name '\x1b]0;gone\x07'")

    monkeypatch.setattr(command_line.cli, "main", fails)
    before = sys.stdout, sys.stderr
    with pytest.raises(SystemExit):
        command_line.main(["runs"])
    assert "name '\\u001b]0;gone\\u0007'" in capsys.readouterr().err
    assert (sys.stdout, sys.stderr) == before

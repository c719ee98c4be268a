"""Commands of assay in processes of their own."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import click

from assay.base.errors import AssayError

KEYWORDS = "Keywords are the command's options, with underscores; keys of a recipe are texts: 'trainer.epochs=2'."
MAX_LINES = 100
"""Longest error: a run may go on after a line that looks like one, and print for hours."""
_SHELL = re.compile(r"('assay [^']*'|^ +assay .*$)", re.MULTILINE)
"""A command for a shell inside an error: its options stay as they are."""
_OPTION = re.compile(r"(--[a-z][a-z-]*)([ =](?=[A-Z]{2}|\d|\S+:(?:\s|$)))?")
"""An option in an error, and what is between it and its value."""


def run_command(*arguments: str, is_json: bool = True, accepts: Sequence[int] = (0,)) -> str:
    """Run a command of assay and return its output; its progress stays on stderr, and its error is raised."""
    # -P: a file of the working directory named like a library, such as six.py, is not imported in its place.
    command = [sys.executable, "-P", "-m", "assay", *arguments, *(["--json"] if is_json else [])]
    # Jupyter's kernel asks for colours, as of a terminal; a bar of progress would then be a new line at each change.
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    # A file: a pipe that is read only once the progress has ended would fill up, and stop the command.
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(command, stdout=printed, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        assert process.stderr is not None
        held: list[str] = []  # what may be the error, which the caller's traceback shows
        for line in process.stderr:
            if held or line.lower().startswith(("error: ", "usage: assay ")):
                held.append(line)
            if not 0 < len(held) < MAX_LINES:
                _show("".join(held) or line)
                held.clear()
        process.wait()
        printed.seek(0)
        output = printed.read()
    if process.returncode in accepts:
        _show("".join(held))
        return output
    before, message = _split_error("".join(held))
    _show(before)
    error = AssayError(_in_python(message, arguments) or f"'assay {' '.join(arguments[:2])}' failed.")
    error.exit_code = process.returncode
    raise error


def start_training(arguments: Sequence[str], workers: int | str, options: Mapping[str, Any]) -> str:
    """Run `assay train` and return the run's id."""
    started = json.loads(run_command("train", *arguments, f"--workers={workers}", *flags_of(options)))
    return str(started["run_id"])


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Return options of Python as those of a command: `run_id="first"` as `--run-id=first`; each of a list."""
    flags = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else [value]:
            flags += [option] if one is True else [] if one in (None, False) else [f"{option}={one}"]
    return flags


def _show(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _split_error(text: str) -> tuple[str, str]:
    """Return what was printed before the last error, without the usage in a shell, and the error."""
    found = [*re.finditer(r"^error: ", text, flags=re.IGNORECASE | re.MULTILINE)]
    if not found:
        return text, ""
    before = re.sub(r"^Usage: assay .*", "", text[: found[-1].start()], flags=re.DOTALL | re.MULTILINE)
    return before, text[found[-1].end() :].strip()


def _in_python(message: str, arguments: Sequence[str]) -> str:
    """Return an error about options of a command as one about keywords: `--workers x: ...` as `workers=x: ...`."""
    if unknown := re.match(r"No such option '--([\w-]+)'", message):
        keyword = unknown[1].replace("-", "_")
        message = f"There is no keyword '{keyword}'{message[unknown.end() :]} {KEYWORDS}"
    message = re.sub(r"'assay train --resume (\S+)'", r"assay.run('\1').resume()", message)
    options = _options_of(arguments)

    def keyword_of(found: re.Match[str]) -> str:
        if found[1] not in options:
            return found[0]
        name = found[1].removeprefix("--").replace("-", "_")
        return f"{name}=" if found[2] else f"{name}=True" if options[found[1]] else name

    parts = _SHELL.split(message)
    return "".join(part if index % 2 else _OPTION.sub(keyword_of, part) for index, part in enumerate(parts))


def _options_of(arguments: Sequence[str]) -> dict[str, bool]:
    """Return the options of a command, and whether they are flags."""
    from assay.cli.main import cli  # here: only an error needs it

    command: click.Command = cli
    for name in arguments[:2]:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), name) or command
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {name: bool(option.is_flag) for option in options for name in option.opts}

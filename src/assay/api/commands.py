"""Commands of assay in processes of their own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from assay.base.errors import AssayError

KEYWORDS = "Keywords are the command's options, with underscores; keys of a recipe are texts: 'trainer.epochs=2'."
MAX_LINES = 100
"""Longest error: a run may go on after a line that looks like one, and print for hours."""


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
        message: list[str] = []
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if line.lower().startswith("error: "):
                message = [line[len("error: ") :]]
            elif 0 < len(message) < MAX_LINES:
                message.append(line)
        process.wait()
        printed.seek(0)
        output = printed.read()
    if process.returncode not in accepts:
        text = "".join(message).strip()
        if text.startswith("No such option"):
            text += f" {KEYWORDS}"
        error = AssayError(text or f"'assay {' '.join(arguments[:2])}' failed.")
        error.exit_code = process.returncode
        raise error
    return output


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

"""Runs a command for a Python program that waits for it: shows its progress, and passes Ctrl-C on.

    program --- stdin: open until the program ends -----> command, in a process group of its own
       ^   <--- stderr: progress, then perhaps an error --    |
       +------- Ctrl-C, passed on: it commits and stops ------+

A kernel of Jupyter gets Ctrl-C alone, a script at a terminal together with its process group. With a group of its
own, the command gets each Ctrl-C once.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

MAX_LINES = 100
"""Longest error: a run may go on after a line that looks like one, and print for hours."""


class CommandResult(NamedTuple):
    """How a command ended."""

    exit_code: int
    output: str
    error: str
    """The last error that it printed, which was not shown; empty if there is none."""
    is_interrupted: bool


def run_in_foreground(arguments: Sequence[str], *, module: str, reworded: Callable[[str], str]) -> CommandResult:
    """Run a command of `module` and wait for it; its progress is shown on stderr as `reworded`."""
    # -P: a file of the working directory named like a library, such as six.py, is not imported in its place.
    command = [sys.executable, "-P", "-m", module, *arguments]
    # Jupyter's kernel asks for colours, as of a terminal; a bar of progress would then be a new line at each change.
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    # A file: a pipe that is read only once the progress has ended would fill up, and stop the command.
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            # Other threads do not hear of Ctrl-C: their commands get a terminal's as before.
            process_group=0 if threading.current_thread() is threading.main_thread() else None,
        ) as process,
        _passing_interrupts_on(process) as interrupts,
    ):
        held = _show_progress(process, reworded)
        before, error = _split_error(held) if process.wait() else (held, "")
        printed.seek(0)
        output = printed.read()
    _show(reworded(before))
    return CommandResult(process.returncode, output, error, bool(interrupts))


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Return options of Python as those of a command: `run_id="first"` as `--run-id=first`; each of a list."""
    flags = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is False and name == "requeue":
                flags.append("--no-requeue")
            elif one is not None and one is not False:  # 0 is a value
                flags.append(option if one is True else f"{option}={one}")
    return flags


@contextmanager
def _passing_interrupts_on(process: "subprocess.Popen[str]") -> Iterator[list[int]]:
    """Send Ctrl-C to the command instead of raising `KeyboardInterrupt`; yield the list of what was sent."""
    interrupts: list[int] = []

    def pass_on(number: int, _: object) -> None:
        interrupts.append(number)
        with suppress(ProcessLookupError):  # it may have ended before its return code is known
            if process.returncode is None:
                os.killpg(process.pid, number)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield interrupts
        return
    previous = signal.signal(signal.SIGINT, pass_on)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)


def _show_progress(process: "subprocess.Popen[str]", reworded: Callable[[str], str]) -> str:
    """Show what the command prints until it ends, and return what may be its error, which a traceback shows."""
    assert process.stderr is not None
    held: list[str] = []
    for line in process.stderr:
        if held or line.lower().startswith(("error: ", "usage: assay ")):
            held.append(line)
        if not 0 < len(held) < MAX_LINES:
            _show(reworded("".join(held) or line))
            held.clear()
    return "".join(held)


def _show(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _split_error(text: str) -> tuple[str, str]:
    """Return what was printed before the last error, without the usage in a shell, and the error."""
    found = [*re.finditer(r"^error: ", text, flags=re.IGNORECASE | re.MULTILINE)]
    if not found:
        return text, ""
    before = re.sub(r"^Usage: assay .*", "", text[: found[-1].start()], flags=re.DOTALL | re.MULTILINE)
    return before, text[found[-1].end() :].strip()

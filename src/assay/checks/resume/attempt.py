"""One attempt of a script under test: start its command, stop it where it was requested, and leave no process behind.

Every process of an attempt carries its folder in the environment, which also finds those that left its session.
"""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.checks.resume.observed import ObservedTraining, observed_training
from assay.checks.resume.observer import sitecustomize
from assay.checks.resume.observer.sitecustomize import CONTINUE, REACHED, VARIABLE
from assay.triage.symptoms.logs import read_log

POLL_S = 0.02
LINGER_S = 2.0
"""Seconds that a script's processes may outlive its command: torchrun's, loaders'."""
LEAST_DELAY_S = 0.1
"""Limits are extended by the time that a busy machine let a process wait for a core, from this on."""
SHOWN_CHARACTERS = 300


class Stop(NamedTuple):
    """Where an attempt is to be stopped, and how."""

    at: str
    """`step`: after an optimizer step; `forward`: before the forward of a step; `save`: with a file half written."""
    number: int
    """The step or save of this attempt, from 1."""
    file: int = 1
    """The file of the save, from 1."""
    signal: Signals = SIGKILL


class ScriptCommand(NamedTuple):
    """A command with placeholders, and what its processes get."""

    words: tuple[str, ...]
    out: Path
    environment: Mapping[str, str]
    timeout_s: float
    grace_s: float
    """Seconds after SIGTERM, after which the processes are killed."""

    def line(self, workers: int, checkpoint: str = "") -> list[str]:
        """Return the command's words for a number of workers."""
        values = {"out": str(self.out), "workers": str(workers), "checkpoint": checkpoint}
        return [re.sub(r"\{(out|workers|checkpoint)\}", lambda match: values[match[1]], word) for word in self.words]


class ScriptAttempt(NamedTuple):
    """What an attempt did."""

    training: ObservedTraining
    exit_code: int | None
    """Negative: the signal that ended it; None: it was killed after its time or its grace."""
    is_observed: bool
    """Python imported torch with the hooks."""
    is_stopped: bool
    """It reached its stop."""
    is_torn: bool
    """A file was half written when it was stopped."""
    outside: str
    """A file outside the output folder, which it was not allowed to write."""
    started_s: float
    seconds: float
    message: str
    """The line of its output that names its failure, or else its last one."""
    lingering: tuple[str, ...]
    """Commands of processes that outlived it."""

    @property
    def problem(self) -> str:
        """How it ended, and what it printed about it."""
        ended = "did not end within --timeout" if self.exit_code is None else f"ended with exit code {self.exit_code}"
        return f"{ended}: {self.message}" if self.message else f"{ended}, and printed nothing"


def run_attempt(
    command: ScriptCommand, workers: int, folder: Path, stop: Stop | None = None, *, checkpoint: str = ""
) -> ScriptAttempt:
    """Run the command to its end or to its stop. `folder`: new, for the observations."""
    folder.mkdir(parents=True)
    words = command.line(workers, checkpoint)
    settings = {"folder": str(folder), "out": str(command.out), "stop": stop and stop._asdict(), "checker": os.getpid()}
    started_s = time.time()
    with (folder / "output").open("wb") as output:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(command, folder, settings),
            )
        except OSError as error:
            raise ConfigError(f"{shlex.join(words)}: cannot be started: {error.strerror or error}.") from error
    try:
        exit_code = _wait(process, command, folder, stop, until_s=time.monotonic() + command.timeout_s)
        seconds = time.time() - started_s
        lingering = _lingering(folder) if exit_code is not None and stop is None else ()
    finally:
        _kill_all(folder)
        process.wait()
    training, lines = observed_training(folder)
    reached = _reached(folder)
    return ScriptAttempt(
        training=training,
        exit_code=exit_code,
        is_observed=any(line["kind"] == "watching" for line in lines),
        is_stopped=reached is not None,
        is_torn=bool(reached and reached.get("is_on_disk")),
        outside=next((line["path"] for line in lines if line["kind"] == "outside"), ""),
        started_s=started_s,
        seconds=seconds,
        message=_message(folder / "output", is_failure=bool(exit_code)),
        lingering=lingering,
    )


def _environment(command: ScriptCommand, folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    paths = [str(Path(sitecustomize.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    temporary = folder / "tmp"  # short, because Ray binds sockets 68 characters below, and 107 are the most
    temporary.mkdir()
    return {
        **os.environ,
        **command.environment,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
        VARIABLE: json.dumps(settings),
    }


def _wait(
    process: "subprocess.Popen[bytes]", command: ScriptCommand, folder: Path, stop: Stop | None, *, until_s: float
) -> int | None:
    is_signalled = False
    delay_s = 0.0
    while (exit_code := process.poll()) is None:
        if time.monotonic() > until_s:
            more_s = _delay_s(_processes(folder)) - delay_s
            if more_s < LEAST_DELAY_S:
                return None
            until_s, delay_s = time.monotonic() + more_s, delay_s + more_s
        if not is_signalled and _reached(folder) is not None:
            assert stop is not None
            is_signalled = True
            if stop.signal == SIGKILL:
                _kill_all(folder)
                return process.wait()
            process.send_signal(stop.signal)
            (folder / CONTINUE).touch()
            until_s = min(until_s, time.monotonic() + command.grace_s)
            delay_s = _delay_s(_processes(folder))
        time.sleep(POLL_S)
    return exit_code


def _reached(folder: Path) -> dict[str, Any] | None:
    """Return what the process that waits at the stop says of it; None before all of it is written."""
    try:
        facts: dict[str, Any] = json.loads((folder / REACHED).read_bytes())
    except (OSError, ValueError):
        return None
    return facts


def _message(output: Path, *, is_failure: bool) -> str:
    """Return the line that names a failure (a launcher's own errors follow those of its ranks), or the last one."""
    found = [candidate.text for candidate in read_log(output)[0].candidates] if is_failure else []
    printed = [line for line in output.read_text(errors="replace").splitlines() if re.search(r"\w", line)]
    return next(iter([*found, *printed[-1:]]), "").strip()[:SHOWN_CHARACTERS]


def _lingering(folder: Path) -> tuple[str, ...]:
    pids = _processes(folder)
    until_s, delay_s = time.monotonic() + LINGER_S, _delay_s(pids)
    while pids and time.monotonic() < until_s + max(0.0, _delay_s(pids) - delay_s):
        time.sleep(POLL_S)
        pids = _processes(folder)
    return tuple(_command_line(pid) for pid in pids)


def _delay_s(pids: Sequence[int]) -> float:
    """Return how long the one of some processes that a busy machine delayed most has waited for a core."""
    delays_ns = [0]
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            delays_ns.append(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]))
    return max(delays_ns) / 1e9


def _kill_all(folder: Path) -> None:
    """Kill the processes of an attempt until none is left; a killed one may have started another meanwhile."""
    while pids := _processes(folder):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        time.sleep(POLL_S)


def _processes(folder: Path) -> list[int]:
    tag = json.dumps({"folder": str(folder)})[1:-1].encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                # A process that ended has no environment any more, also while nobody has waited for it.
                if tag in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return sorted(found)


def _command_line(pid: int) -> str:
    try:
        return shlex.join(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
    except OSError:
        return ""

"""The process between a Ray actor and a node's command, without Ray."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.launchers.ray.child import LEAVES

COMMAND = ("import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
           "print('up', flush=True); time.sleep(60)")  # fmt: skip


@pytest.fixture
def watched() -> Iterator["subprocess.Popen[bytes]"]:
    """What stands for the raylet."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def child(pid: int, *command: str) -> "subprocess.Popen[str]":
    program = [sys.executable, "-m", "assay.launchers.ray.child", f"{os.getpid()},{pid}"]
    return subprocess.Popen([*program, *command], stdout=subprocess.PIPE, text=True, start_new_session=True)


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_its_exit_code_is_the_commands(watched: "subprocess.Popen[bytes]", program: str, code: int) -> None:
    with child(watched.pid, sys.executable, "-c", program) as process:
        assert process.wait(20) == code


def test_a_request_to_leave_reaches_the_command(watched: "subprocess.Popen[bytes]") -> None:
    with child(watched.pid, sys.executable, "-c", COMMAND) as process:
        assert line(process) == "up"
        process.terminate()
        assert process.wait(20) == LEAVES


def test_the_command_and_what_it_left_end_with_what_is_watched(
    watched: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """Also where nobody has reaped what ended, which a signal to its number does not tell."""
    program = (
        "import pathlib, signal, subprocess, sys, time\n"
        f"def leave(*_): pathlib.Path({str(tmp_path / 'asked')!r}).touch(); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "time.sleep(60)"
    )
    with child(watched.pid, sys.executable, "-c", program) as process:
        left = int(line(process))
        watched.kill()
        assert process.wait(20) == -signal.SIGKILL
    assert (tmp_path / "asked").exists(), "it could commit"
    deadline_s = time.monotonic() + 20
    while is_running(left):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only what nobody has reaped of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_nothing_begins_below_what_has_ended(watched: "subprocess.Popen[bytes]") -> None:
    watched.kill()
    watched.wait()
    with child(watched.pid, sys.executable, "-c", "print('up')") as process:
        assert (line(process), process.wait(20)) == ("", LEAVES)

"""A user's `def grade(sample, item) -> float`, run in a process of its own that a runaway can not outgrow.

    parent --- one JSON line: sample, item ---> child: limits set, then the source, then grade()
           <-- one JSON line: score or error --

The child has an empty environment, an empty working folder, limits on memory, processor time, files and
threads, no network (a namespace of its own where the kernel grants one; sockets and new processes are refused
besides) and a time limit for each sample. That keeps accidents in. It is no jail for somebody who means harm:
a kernel's or an interpreter's hole is not closed here.

One child serves many samples; after a time-out or a crash the next sample gets a fresh one.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.scoring.item_failure import ItemFailure

MAX_SOURCE_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 1 << 20


class Limits(NamedTuple):
    """What a grader may use; the API's own limits."""

    memory_bytes: int = 2 << 30
    """Address space."""
    seconds: float = 120.0
    """For one sample, by the clock; the start of a fresh process counts, too."""


class PythonAnswer(NamedTuple):
    """What came of one sample."""

    score: float | None
    failure: ItemFailure | None = None


class PythonProcess:
    """Runs one grader's source; to be closed, and not to be shared between threads."""

    def __init__(self, source: str, limits: Limits = Limits()) -> None:  # noqa: B008
        """`ConfigError` where the source is too long, no Python, or defines no `grade`."""
        check_source(source)
        self._source = source
        self._limits = limits
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def grade(self, sample: Mapping[str, Any], item: Mapping[str, Any]) -> PythonAnswer:
        """The score of one sample, or why there is none."""
        child = self._child or self._start()
        is_late = threading.Event()

        def end_it() -> None:
            is_late.set()
            child.kill()

        timer = threading.Timer(self._limits.seconds, end_it)
        timer.start()
        try:
            line = _exchange(child, json.dumps({"sample": sample, "item": item}).encode())
        finally:
            timer.cancel()
        if line is not None:
            return _answer(line)
        how = self.close()
        if is_late.is_set():
            late = f"no score within {self._limits.seconds:g} s"
            return PythonAnswer(None, ItemFailure("python_timeout", late))
        ended = ItemFailure("python_grader_server_error", f"the grader's process ended ({how})")
        return PythonAnswer(None, ended)

    def _start(self) -> subprocess.Popen[bytes]:
        self._folder = tempfile.TemporaryDirectory(prefix="assay-grader-")
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd=self._folder.name,
            start_new_session=True,
        )
        settings = {"memory_bytes": self._limits.memory_bytes, "cpu_s": int(self._limits.seconds) + 1}
        # The source is read before any limit bites, so that a wrong limit is a clear answer, not a dead child.
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({**settings, "source": self._source}).encode() + b"\n")
        return self._child

    def close(self) -> str:
        """Kill the child with all that it started; how it had ended, in words."""
        child, self._child = self._child, None
        if child is None:
            return "it was not running"
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        # Its input has ended, so it ends; one that does not, or that left others behind, is killed.
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.5)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        if self._folder is not None:
            self._folder.cleanup()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def check_source(source: str) -> None:
    """Refuse what can never grade."""
    if (size := len(source.encode())) > MAX_SOURCE_BYTES:
        raise ConfigError(f"the grader's source has {size} bytes; at most {MAX_SOURCE_BYTES} are run.")
    try:
        compile(source, "grader", "exec")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"the grader's source is no Python: {error}.") from error
    if "def grade" not in source:
        raise ConfigError("the grader's source defines no function 'grade(sample, item)'.")


def _exchange(child: subprocess.Popen[bytes], line: bytes) -> bytes | None:
    """The child's answer to a line; None where it ended instead."""
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(line + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return None
    answer = child.stdout.readline(MAX_ANSWER_BYTES)
    return answer if answer.endswith(b"\n") else None


def _answer(line: bytes) -> PythonAnswer:
    tree = json.loads(line)
    said = tree.get("failure")
    return PythonAnswer(
        tree.get("score"), ItemFailure("python_grader_runtime_error", said) if said is not None else None
    )


_CHILD = r"""
import ctypes, json, math, os, resource, sys

channel = os.fdopen(os.dup(1), "wb", buffering=0)
nothing = os.open(os.devnull, os.O_RDWR)
os.dup2(nothing, 1)
first = json.loads(sys.stdin.buffer.readline())

NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000
try:
    ctypes.CDLL(None).unshare(NEW_USER_AND_NETWORK)
except Exception:
    pass

REFUSED = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.kill",
           "pty.", "ctypes.")

def watch(event, arguments):
    if event.startswith(REFUSED):
        raise PermissionError(f"graders may not use {event}")

def limit(which, amount):
    hard = resource.getrlimit(which)[1]
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(which, (amount, amount))

limit(resource.RLIMIT_AS, first["memory_bytes"])
limit(resource.RLIMIT_FSIZE, 16 << 20)
limit(resource.RLIMIT_NOFILE, 32)
limit(resource.RLIMIT_CORE, 0)
sys.addaudithook(watch)

names = {"__name__": "grader"}
broken = None
try:
    exec(compile(first["source"], "grader", "exec"), names)
    grade = names["grade"]
except BaseException as error:
    broken = f"{type(error).__name__}: {error}"

for line in sys.stdin.buffer:
    asked = json.loads(line)
    answer = {"failure": broken}
    if broken is None:
        try:
            # Processor time is limited for each sample anew: one child serves many.
            used = resource.getrusage(resource.RUSAGE_SELF)
            soft = int(used.ru_utime + used.ru_stime) + first["cpu_s"]
            resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
            score = float(grade(asked["sample"], asked["item"]))
            answer = {"score": score} if math.isfinite(score) else {
                "failure": f"grade() returned {score}"}
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"[:500]
            answer = {"failure": text}
    channel.write(json.dumps(answer).encode() + b"\n")
"""

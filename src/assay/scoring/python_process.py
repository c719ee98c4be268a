"""A user's `def grade(sample, item) -> float`, run in a process of its own that a runaway cannot outgrow.

    parent --- one JSON line: sample, item ---> child: fence and limits, then the source, then grade()
           <-- one JSON line: score or error --

The child has an environment of one fixed value, an empty working folder, limits on memory, processor time and
open files, a time limit for each sample, and a fence of the kernel's (`python_child`): no files but its own, no
processes, no network. Where the kernel does not grant a part of it, a warning says so to whoever evaluates. An
answer bears the name of its question, which nobody can know before it is asked. Hashes of words and the numbers
of `random` are fixed: a grader that is asked again says the same.

One child serves many samples; after a time-out or a crash the next sample gets a fresh one.
"""

import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.scoring import python_child
from assay.scoring.item_failure import ItemFailure

MAX_SOURCE_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 1 << 20


class Limits(NamedTuple):
    """What a grader may use; the API's own limits."""

    memory_bytes: int = 2 << 30
    """Address space."""
    seconds: float = 120.0
    """Processor time for one sample: however busy the machine is, the same samples take too long."""
    clock_s: float = 480.0
    """For one sample by the clock, for graders that wait."""


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

        timer = threading.Timer(self._limits.clock_s, end_it)
        timer.start()
        try:
            question = secrets.token_hex(8)
            asked = json.dumps({"of": question, "sample": sample, "item": item})
            line = _exchange(child, asked.encode())
        finally:
            timer.cancel()
        if line is not None and (answer := _answer(line, question)) is not None:
            return answer
        how = self.close()
        if is_late.is_set() or how == f"signal {python_child.OUT_OF_TIME.name}":
            by_clock, by_processor = (
                f"{self._limits.clock_s:g} s",
                f"{self._limits.seconds:g} s of processor time",
            )
            late = f"no score within {by_clock if is_late.is_set() else by_processor}"
            return PythonAnswer(None, ItemFailure("python_timeout", late))
        what = f"the grader's process ended ({how})" if line is None else "the grader wrote an answer by itself"
        return PythonAnswer(None, ItemFailure("python_grader_server_error", what))

    def _start(self) -> subprocess.Popen[bytes]:
        self._folder = tempfile.TemporaryDirectory(prefix="assay-grader-")
        self._child = subprocess.Popen(
            [sys.executable, "-s", "-P", python_child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0"},
            cwd=self._folder.name,
            start_new_session=True,
        )
        settings = {"memory_bytes": self._limits.memory_bytes, "cpu_s": self._limits.seconds}
        # The source is read before any limit bites, so that a wrong limit is a clear answer, not a dead child.
        began = _exchange(self._child, json.dumps({**settings, "source": self._source}).encode())
        if missing := json.loads(began or b"{}").get("missing"):
            warnings.warn(
                f"a python grader runs with your rights: this kernel fences no {', no '.join(missing)}. Run "
                "graders that you trust only, or on Linux 5.13 or later with Landlock and seccomp.",
                stacklevel=2,
            )
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


def _answer(line: bytes, question: str) -> PythonAnswer | None:
    """What came of a question; None where a line is no answer to it."""
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        tree = json.loads(line)
        if tree["of"] == question:
            if (said := tree.get("failure")) is not None:
                return PythonAnswer(None, ItemFailure("python_grader_runtime_error", str(said)))
            if math.isfinite(score := float(tree["score"])):
                return PythonAnswer(score)
    return None

"""A user's `def grade(sample, item) -> float`, run in a process of its own that a runaway cannot outgrow.

    parent --- limits and fence -----------> child: puts them up
           <-- what the kernel lacks ------- anything: nothing is run, and a `ConfigError` says so
           --- the source -----------------> reads it
           --- sample, item ---------------> grade()
           <-- score or error --------------

The child has an environment of fixed values, an empty working folder, limits on memory and files, and a fence
of the kernel's (`python_child`): it reads Python's files and libraries, writes none, starts no process and
opens no socket. Processor time, threads and the clock are watched from here, where no grader can turn them
off. Hashes of words and the numbers of `random` are fixed: a grader that is asked again says the same.

One child serves many samples. Each question has a name that nobody can know before it is asked, and an answer
bears it; a child that said something unasked, ended, or goes on by itself (a thread of Python's, processor
time) answers for no other sample: the next one gets a fresh child.
"""

import json
import math
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.scoring import python_child
from assay.scoring.item_failure import ItemFailure
from assay.scoring.python_channel import Channel, UnaskedError
from assay.scoring.python_fence import FENCE, filter_program

HOW_TO_TRUST = (
    "--python-graders trusted, or for all commands ASSAY_PYTHON_GRADERS=trusted in the environment, or "
    "'python_graders: trusted' in the home's settings.yaml"
)
MAX_SOURCE_BYTES = 256 * 1024
MAX_FAILURE_CHARACTERS = 500
IDLE_CPU_S = 0.05
"""A child that took more processor time before it was asked again computes for itself."""
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # Where a machine has a hundred cores, the stacks of as many threads would not fit into the memory allowed.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
}


class Limits(NamedTuple):
    """What a grader may use; memory and time are the API's own limits."""

    memory_bytes: int = 2 << 30
    """Address space."""
    seconds: float = 120.0
    """Processor time for one sample: however busy the machine is, the same samples take too long."""
    clock_s: float = 480.0
    """For one sample by the clock, for graders that wait."""
    threads: int = 64
    open_files: int = 64

    @property
    def lifetime_s(self) -> int:
        """Processor time after which the kernel ends the process, whatever became of who started it."""
        return math.ceil(max(60.0, 10 * self.seconds))


class PythonAnswer(NamedTuple):
    """What came of one sample."""

    score: float | None
    failure: ItemFailure | None = None


class PythonProcess:
    """Runs one grader's source; to be closed, and not to be shared between threads."""

    def __init__(
        self,
        source: str,
        limits: Limits = Limits(),  # noqa: B008
        fence: frozenset[str] = FENCE,
    ) -> None:
        """`fence`: none for a grader that is trusted with all that this process may do. `ConfigError` where the
        source is too long, no Python, or defines no `grade`."""
        check_source(source)
        self._source = source
        self._limits = limits
        self._fence = fence
        self._child: _Child | None = None

    def grade(self, sample: Mapping[str, Any], item: Mapping[str, Any]) -> PythonAnswer:
        """The score of one sample, or why there is none.

        `ConfigError` where this kernel does not grant the fence; then nothing of the source was run.
        """
        if self._child is not None and not self._child.may_go_on():
            self.close()
        was_asked_before = self._child is not None
        try:
            return self._graded(sample, item)
        except _NoAnswerError as error:
            if not (error.is_forged and was_asked_before):
                return PythonAnswer(None, error.failure)
        # An earlier sample's doing may come to light only now.
        try:
            return self._graded(sample, item)
        except _NoAnswerError as error:
            return PythonAnswer(None, error.failure)

    def _graded(self, sample: Mapping[str, Any], item: Mapping[str, Any]) -> PythonAnswer:
        try:
            if self._child is None:
                self._start()
            assert self._child is not None, "it was started"
            said = self._child.said({"sample": sample, "item": item})
            if said.get("goes_on"):
                self.close()
            return _answer(said)
        except _NoAnswerError:
            self.close()
            raise

    def _start(self) -> None:
        self._child = _Child(self._limits, self._fence)
        if missing := self._child.put_up_fence():
            self.close()
            raise ConfigError(
                f"this kernel does not keep a python grader in: it fences no {', no '.join(missing)}. Nothing "
                "of it was run. Use Linux 5.13 or later with Landlock and seccomp, on x86_64 or aarch64, in a "
                "container whose profile allows both. Or, if you trust every grader with all that you may do "
                f"here, say so: {HOW_TO_TRUST}."
            )
        self._child.said({"source": self._source})

    def close(self) -> None:
        """Kill the child with all that it started."""
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _NoAnswerError(Exception):
    def __init__(self, kind: Any, text: str, *, is_forged: bool = False) -> None:
        super().__init__(text)
        self.failure = ItemFailure(kind, text)
        self.is_forged = is_forged


class _Child:
    """One process, and what is known of it."""

    def __init__(self, limits: Limits, fence: frozenset[str]) -> None:
        self._limits = limits
        self._fence = fence
        self._folder = tempfile.TemporaryDirectory(prefix="assay-grader-")
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", python_child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            cwd=self._folder.name,
            start_new_session=True,
        )
        self._channel = Channel(self._process)
        self._cpu_when_answered_s = 0.0

    def put_up_fence(self) -> list[str]:
        """Limits and fence; what of it the kernel did not grant."""
        calls = filter_program(platform.machine())
        limits = {
            "memory_bytes": self._limits.memory_bytes,
            "open_files": self._limits.open_files,
            "lifetime_s": self._limits.lifetime_s,
        }
        told = self.said({**limits, "fence": sorted(self._fence), "calls": calls and calls.hex()})
        return [str(each) for each in told["missing"]]

    def may_go_on(self) -> bool:
        """Whether the next sample may be its: it said nothing unasked, and nothing goes on in it."""
        used_s = self._cpu_s()
        return not (
            self._channel.holds_something()
            or used_s - self._cpu_when_answered_s > IDLE_CPU_S
            or used_s > self._limits.lifetime_s - 2 * self._limits.seconds
        )

    def said(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What it says to a question. Raises `_NoAnswerError` where it ends, takes too long or forges."""
        name = secrets.token_hex(8)
        limits, began_s, used_s = self._limits, time.monotonic(), self._cpu_s()

        def look() -> None:
            if self._cpu_s() - used_s > limits.seconds:
                raise _NoAnswerError(
                    "python_timeout", f"no score within {limits.seconds:g} s of processor time"
                )
            if time.monotonic() - began_s > limits.clock_s:
                raise _NoAnswerError("python_timeout", f"no score within {limits.clock_s:g} s")
            if self._num_threads() > limits.threads:
                raise _NoAnswerError(
                    "python_grader_server_error", f"the grader has more than {limits.threads} threads"
                )

        try:
            line = self._channel.exchange(json.dumps({"of": name, **question}).encode(), look)
        except UnaskedError:
            line = b""
        if line is None:
            text = f"the grader's process ended ({self._how_it_ended()})"
            raise _NoAnswerError("python_grader_server_error", text)
        # Whatever stands there: it may be what the grader wrote.
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("of") == name:
                self._cpu_when_answered_s = self._cpu_s()
                return found
        text = "the grader wrote an answer by itself"
        raise _NoAnswerError("python_grader_server_error", text, is_forged=True)

    def _how_it_ended(self) -> str:
        """In words; one that only closed its pipe is killed."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(0.5)
            return f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        return "it closed its channel, or wrote no end of it"

    def _cpu_s(self) -> float:
        """Processor time that it has used; 0 where this system does not say."""
        with suppress(OSError):
            return time.clock_gettime((~self._process.pid << 3) | 2)
        return 0.0

    def _num_threads(self) -> int:
        """1 where this system does not say."""
        with suppress(OSError):
            return os.stat(f"/proc/{self._process.pid}/task").st_nlink - 2  # noqa: PTH116
        return 1

    def end(self) -> None:
        """Kill it with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._folder.cleanup()


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


def _answer(said: Mapping[str, Any]) -> PythonAnswer:
    """What came of a question. A number is one that a float holds; a text, one that can be written down."""
    if (reason := said.get("failure")) is not None:
        text = str(reason)[:MAX_FAILURE_CHARACTERS].encode("utf-8", "replace").decode()
        return PythonAnswer(None, ItemFailure("python_grader_runtime_error", text))
    with suppress(OverflowError):
        if isinstance(score := said.get("score"), float | int) and math.isfinite(score):
            return PythonAnswer(float(score))
    raise _NoAnswerError("python_grader_server_error", "the grader wrote an answer by itself", is_forged=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)

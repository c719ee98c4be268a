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

One child serves many samples, and is stopped (SIGSTOP) between two of them: then it computes nothing and
starts nothing. Each question has a name that nobody can know before it is asked, and an answer bears it; a
child that said something unasked, ended, or has more threads than when its source had been read answers for no
other sample: the next one gets a fresh child.

A child that ends without an answer (killed from outside, by the kernel when memory runs out, by its own doing)
is no grade: the sample is graded again in a fresh process, in `MAX_PROCESSES` of them at most.
"""

import ast
import json
import logging
import math
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.scoring import python_child
from assay.scoring.item_failure import ItemFailure
from assay.scoring.python_channel import Channel, UnexpectedOutputError
from assay.scoring.python_fence import FENCE, filter_program

HOW_TO_TRUST = (
    "--python-graders trusted, or for all commands ASSAY_PYTHON_GRADERS=trusted in the environment, or "
    "'python_graders: trusted' in the home's settings.yaml"
)
MAX_SOURCE_BYTES = 256 * 1024
MAX_FAILURE_CHARACTERS = 500
MAX_PROCESSES: Mapping[str, int] = {"python_grader_server_error": 3, "python_grader_killed": 10}
"""Processes that grade one sample, if each ends without an answer: by its own doing, or killed from outside."""
MAX_PAUSE_S = 0.5
"""Before another process, if several were killed: memory that ran out may be free again."""
SETTLE_S = 0.02
"""The time that threads have to end after an answer, before they count as left behind."""
WARN_INTERVAL_S = 60.0
KILL_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that come from outside of a fenced grader, which can send none."""
MAX_FUNCTIONS = 4000
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.comprehension, ast.keyword)
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
    compared_pairs: float = math.inf
    """Pairs of characters that a similarity of two texts looks at: what it takes grows with their product."""
    abandoned: threading.Event | None = None
    """Set by another thread when nobody waits for the grade any more."""

    @property
    def lifetime_s(self) -> int:
        """Processor time after which the kernel ends the process, whatever became of who started it."""
        return math.ceil(max(60.0, 10 * self.seconds))


class GradingAbandonedError(Exception):
    """`Limits.abandoned` was set while a process graded."""


class PythonResult(NamedTuple):
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
        self._num_ended = 0
        self._warned_s = -math.inf

    def grade(self, sample: Mapping[str, Any], item: Mapping[str, Any]) -> PythonResult:
        """The score of one sample, or why there is none.

        `ConfigError` where this kernel does not grant the fence; then nothing of the source was run.
        """
        num_ended = Counter[str]()
        while True:
            if self._child is not None and not self._child.may_go_on():
                self.close()
            has_graded = self._child is not None
            try:
                return self._graded(sample, item)
            except _ProcessEndedError as error:
                self._warn(str(error))
                num_ended[kind := error.failure.kind] += 1
                if num_ended[kind] == (most := MAX_PROCESSES[kind]):
                    text = f"{error}, as {most - 1} others did before that were to grade the same"
                    return PythonResult(None, error.failure._replace(text=text))
                if kind == "python_grader_killed":
                    time.sleep(min(MAX_PAUSE_S, 0.01 * 2 ** num_ended[kind]))
            except _NoResultError as error:
                # An earlier sample's doing may come to light only now.
                if not (error.is_of_process and has_graded):
                    return PythonResult(None, error.failure)

    def _warn(self, text: str) -> None:
        """Log a process that ended without an answer: the first one, and later ones together, once a minute."""
        self._num_ended += 1
        if time.monotonic() > self._warned_s + WARN_INTERVAL_S:
            self._warned_s = time.monotonic()
            logging.getLogger("assay.scoring").warning(
                "%s before it had graded its sample; a fresh process grades it again (%d so far)",
                text,
                self._num_ended,
            )

    def _graded(self, sample: Mapping[str, Any], item: Mapping[str, Any]) -> PythonResult:
        try:
            if self._child is None:
                self._start()
            assert self._child is not None, "it was started"
            return _result_of(self._child.exchange({"sample": sample, "item": item}))
        except _NoResultError:
            self.close()
            raise

    def _start(self) -> None:
        try:
            self._child = _Child(self._limits, self._fence)
        except OSError as error:
            raise _ProcessEndedError("python_grader_killed", f"no process was started ({error})") from error
        if missing := self._child.install_fence():
            self.close()
            raise ConfigError(
                f"this kernel does not keep a python grader in: it fences no {', no '.join(missing)}. Nothing "
                "of it was run. Use Linux 5.13 or later with Landlock and seccomp, on x86_64 or aarch64, in a "
                "container whose profile allows both. Or, if you trust every grader with all that you may do "
                f"here, say so: {HOW_TO_TRUST}."
            )
        self._child.exchange({"source": self._source})
        self._child.count_threads()

    def close(self) -> None:
        """Kill the child with all that it started."""
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _NoResultError(Exception):
    def __init__(self, kind: Any, text: str, *, is_of_process: bool = False) -> None:
        """`is_of_process`: samples that were graded before in the same process may be the reason."""
        super().__init__(text)
        self.failure = ItemFailure(kind, text)
        self.is_of_process = is_of_process


class _ProcessEndedError(_NoResultError):
    """A process that ended without an answer: says nothing of the sample."""


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
        self._num_threads_of_source: float = math.inf

    def install_fence(self) -> list[str]:
        """Limits and fence; what of it the kernel did not grant."""
        calls = filter_program(platform.machine())
        limits = {
            "memory_bytes": self._limits.memory_bytes,
            "open_files": self._limits.open_files,
            "lifetime_s": self._limits.lifetime_s,
            "threads": self._limits.threads,
        }
        reply = self.exchange({**limits, "fence": sorted(self._fence), "calls": calls and calls.hex()})
        return [str(part) for part in reply["missing"]]

    def count_threads(self) -> None:
        """Take the threads that it has, those that its source started, for its own."""
        self._num_threads_of_source = self._num_threads()

    def may_go_on(self) -> bool:
        """Whether the next sample may be its: it said nothing unasked, and no sample left a thread behind."""
        return not (
            self._channel.has_output()
            or self._num_threads() > self._num_threads_of_source
            or self._cpu_s() > self._limits.lifetime_s - 2 * self._limits.seconds
        )

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _stop(self) -> None:
        """Have the kernel stop all of it until it is asked again; threads that end are waited for."""
        until_s = time.monotonic() + SETTLE_S
        while self._num_threads() > self._num_threads_of_source and time.monotonic() < until_s:
            time.sleep(SETTLE_S / 20)
        self._signal(signal.SIGSTOP)

    def exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question; the child is stopped after it. Raises `_NoAnswerError` where it ends, takes
        too long or forges."""
        name = secrets.token_hex(8)
        limits, began_s, used_s = self._limits, time.monotonic(), self._cpu_s()

        def look() -> None:
            if limits.abandoned is not None and limits.abandoned.is_set():
                raise GradingAbandonedError
            if self._cpu_s() - used_s > limits.seconds:
                raise _NoResultError("python_timeout", f"no score within {limits.seconds:g} s of processor time")
            if time.monotonic() - began_s > limits.clock_s:
                raise _NoResultError("python_timeout", f"no score within {limits.clock_s:g} s")
            if self._num_threads() > limits.threads:
                raise _NoResultError("python_grader_server_error", f"the grader has more than {limits.threads} threads")

        self._signal(signal.SIGCONT)
        try:
            line = self._channel.exchange(json.dumps({"of": name, **request}).encode(), look)
        except UnexpectedOutputError:
            line = b""
        if line is None:
            raise self._ended()
        # Whatever stands there: it may be what the grader wrote.
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("of") == name:
                self._stop()
                return found
        text = "the grader wrote an answer by itself"
        raise _NoResultError("python_grader_server_error", text, is_of_process=True)

    def _ended(self) -> _NoResultError:
        """What came of a child that answers no more."""
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            text = "the grader closed its channel, or wrote no end of an answer"
            return _NoResultError("python_grader_server_error", text, is_of_process=True)
        how = f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        kind = "python_grader_killed" if -code in KILL_SIGNALS else "python_grader_server_error"
        return _ProcessEndedError(kind, f"the grader's process ended ({how})")

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
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._folder.cleanup()


def check_source(source: str) -> None:
    """Refuse what can never grade."""
    if (size := len(source.encode("utf-8", "surrogatepass"))) > MAX_SOURCE_BYTES:
        raise ConfigError(f"the grader's source has {size} bytes; at most {MAX_SOURCE_BYTES} are run.")
    try:
        tree = ast.parse(source)
        # Compiling takes the square of their number (20 s of 20,000), in which no other thread runs.
        if (number := sum(isinstance(node, _NAMED) for node in ast.walk(tree))) > MAX_FUNCTIONS:
            raise ConfigError(
                f"the grader's source has {number:,} functions, classes, comprehensions and arguments by name; "
                f"at most {MAX_FUNCTIONS:,} are compiled."
            )
        compile(source, "grader", "exec")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"the grader's source is no Python: {error}.") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError(
            "the grader's source is nested too deeply for Python's compiler. Split its longest expression."
        ) from error
    if "def grade" not in source:
        raise ConfigError("the grader's source defines no function 'grade(sample, item)'.")


def _result_of(reply: Mapping[str, Any]) -> PythonResult:
    """What came of a question. A number is one that a float holds; a text, one that can be written down."""
    if (reason := reply.get("failure")) is not None:
        text = str(reason)[:MAX_FAILURE_CHARACTERS].encode("utf-8", "replace").decode()
        if text.startswith("MemoryError"):  # others before it may have kept what there was
            raise _NoResultError("python_grader_runtime_error", text, is_of_process=True)
        return PythonResult(None, ItemFailure("python_grader_runtime_error", text))
    with suppress(OverflowError):
        if isinstance(score := reply.get("score"), float | int) and math.isfinite(score):
            return PythonResult(float(score))
    raise _NoResultError("python_grader_server_error", "the grader wrote an answer by itself", is_of_process=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)

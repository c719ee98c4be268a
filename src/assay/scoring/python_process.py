"""Runs a user's `def grade(sample, item) -> float` in a fenced process with resource limits.

    parent --- limits and fence -----------> child: installs them
           <-- missing kernel features ----- if any, nothing is run and a `ConfigError` is raised
           --- the source -----------------> executes it
           --- sample, item ---------------> grade()
           <-- score or error --------------

The child has a fixed environment, an empty working folder, limits on memory and files, and a kernel fence
(`python_child`): it can read Python's files and libraries, but cannot write files, start processes or open sockets.
CPU time, threads and wall time are checked by the parent, where a grader cannot disable them. Hash seed and
`random` are fixed, so repeated grading gives the same score.

One child grades many samples, and is stopped (SIGSTOP) between them. Every request carries a random name that the
reply must repeat. A child that writes unrequested output, ends, or has more threads than after loading its source is
replaced before the next sample.

While a reply is awaited, the child is checked every `LOOK_S` seconds, so neither a full pipe nor a line without end
blocks the parent. If a child ends without a reply (killed from outside, out of memory, or by itself), the sample is
graded again in a new process, at most `MAX_PROCESSES` times.
"""

import ast
import json
import logging
import math
import os
import platform
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.scoring import python_child
from assay.scoring.grade import Grade, ItemFailure
from assay.scoring.python_fence import FENCE, filter_program

HOW_TO_TRUST = (
    "--python-graders trusted, or for all commands ASSAY_PYTHON_GRADERS=trusted in the environment, or "
    "'python_graders: trusted' in the home's settings.yaml"
)
MAX_SOURCE_BYTES = 256 * 1024
MAX_FAILURE_CHARACTERS = 500
MAX_PROCESSES: Mapping[str, int] = {"python_grader_server_error": 3, "python_grader_killed": 10}
"""Attempts at one sample if processes end without a reply: by themselves, or killed from outside."""
MAX_PAUSE_S = 0.5
"""Maximum pause before the next attempt, in which exhausted memory may become free."""
MAX_REPLY_BYTES = 1 << 20
LOOK_S = 0.05
_CHUNK_BYTES = 1 << 16
SETTLE_S = 0.02
"""Time for threads to end after a reply, before they count as left behind."""
WARN_INTERVAL_S = 60.0
KILL_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that must come from outside, because a fenced grader cannot send signals."""
MAX_FUNCTIONS = 4000
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.comprehension, ast.keyword)
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # On machines with many cores, the stacks of one thread per core would exceed the memory limit.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
}


class Limits(NamedTuple):
    """Resource limits of a grader; memory and time are the API's own limits."""

    memory_bytes: int = 2 << 30
    """Address space."""
    seconds: float = 120.0
    """CPU time for one sample, so that time-outs do not depend on the load of the machine."""
    clock_s: float = 480.0
    """Wall time for one sample, for graders that wait."""
    threads: int = 64
    open_files: int = 64
    compared_pairs: float = math.inf
    """Maximum product of text lengths in a similarity, to which its cost is proportional."""
    abandoned: threading.Event | None = None
    """Set by another thread to abandon the grading."""

    @property
    def lifetime_s(self) -> int:
        """CPU time after which the kernel kills the process, even if its parent is dead."""
        return math.ceil(max(60.0, 10 * self.seconds))


class GradingAbandonedError(Exception):
    """Raised if `Limits.abandoned` is set during grading."""


class PythonProcess:
    """Runs one grader's source. Must be closed; not thread-safe."""

    def __init__(
        self,
        source: str,
        limits: Limits = Limits(),  # noqa: B008
        fence: frozenset[str] = FENCE,
    ) -> None:
        """`fence` is empty for a trusted grader. Raises `ConfigError` if the source is invalid."""
        check_source(source)
        self._source = source
        self._limits = limits
        self._fence = fence
        self._child: _Child | None = None
        self._num_ended = 0
        self._warned_s = -math.inf

    def grade(self, sample: Mapping[str, Any], item: Mapping[str, Any]) -> Grade:
        """Grade one sample.

        Raises `ConfigError` if the kernel does not grant the fence; then the source has not run.
        """
        num_ended = Counter[str]()
        while True:
            if self._child is not None and not self._child.is_reusable():
                self.close()
            has_graded = self._child is not None
            try:
                return self._graded(sample, item)
            except _NoResultError as error:
                if not error.has_ended:
                    # An earlier sample in the same process may have caused this.
                    if error.is_of_process and has_graded:
                        continue
                    return Grade(None, error.failure)
                self._warn(str(error))
                num_ended[kind := error.failure.kind] += 1
                if num_ended[kind] == (most := MAX_PROCESSES[kind]):
                    text = f"{error}, like {most - 1} processes before it that graded the same sample"
                    return Grade(None, error.failure._replace(text=text))
                if kind == "python_grader_killed":
                    time.sleep(min(MAX_PAUSE_S, 0.01 * 2 ** num_ended[kind]))

    def _warn(self, text: str) -> None:
        """Log processes that ended without a reply, at most once a minute."""
        self._num_ended += 1
        if time.monotonic() > self._warned_s + WARN_INTERVAL_S:
            self._warned_s = time.monotonic()
            logging.getLogger("assay.scoring").warning(
                "%s before it had graded its sample; a new process grades it again (%d so far)", text, self._num_ended
            )

    def _graded(self, sample: Mapping[str, Any], item: Mapping[str, Any]) -> Grade:
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
            raise _NoResultError("python_grader_killed", f"no process was started ({error})", has_ended=True) from error
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
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _NoResultError(Exception):
    def __init__(self, kind: Any, text: str, *, is_of_process: bool = False, has_ended: bool = False) -> None:
        """`is_of_process` is set if samples graded earlier in the same process may be the cause; `has_ended` if the
        process ended without a reply, which is no evidence about the sample."""
        super().__init__(text)
        self.failure = ItemFailure(kind, text)
        self.is_of_process = is_of_process
        self.has_ended = has_ended


class _Child:
    """One grader process."""

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
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._out, select.POLLIN)
        self._writable.register(self._in, select.POLLOUT)
        self._next_look_s = 0.0
        self._num_threads_of_source: float = math.inf

    def install_fence(self) -> list[str]:
        """Install limits and fence; return the parts that the kernel did not grant."""
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
        """Record the current number of threads, which the source started when it was loaded."""
        self._num_threads_of_source = self._num_threads()

    def is_reusable(self) -> bool:
        """Return whether the child may grade the next sample: no stray output, no leftover threads, enough CPU time."""
        return not (
            self._has_output()
            or self._num_threads() > self._num_threads_of_source
            or self._cpu_s() > self._limits.lifetime_s - 2 * self._limits.seconds
        )

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _stop(self) -> None:
        """Stop the process group until the next request, after a short wait for ending threads."""
        until_s = time.monotonic() + SETTLE_S
        while self._num_threads() > self._num_threads_of_source and time.monotonic() < until_s:
            time.sleep(SETTLE_S / 20)
        self._signal(signal.SIGSTOP)

    def exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply; the child is stopped afterwards.

        Raises `_NoResultError` if the child ends, exceeds a limit, or writes an invalid reply.
        """
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
        self._next_look_s = time.monotonic() + LOOK_S
        is_sent = self._send(json.dumps({"of": name, **request}).encode() + b"\n", look)
        line = self._receive(look) if is_sent else None
        if line is None:
            raise self._ended()
        # The line may be anything, because the grader can write to the pipe.
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("of") == name:
                self._stop()
                return found
        text = "the grader wrote to the result channel itself"
        raise _NoResultError("python_grader_server_error", text, is_of_process=True)

    def _has_output(self) -> bool:
        """Return whether the child wrote something unrequested, or has ended."""
        return bool(self._readable.poll(0))

    def _send(self, line: bytes, look: Callable[[], None]) -> bool:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._in, rest) :]
            except BlockingIOError:
                self._writable.poll(LOOK_S * 1000)
                self._look_if_due(look)
            except BrokenPipeError:
                return False
        return True

    def _receive(self, look: Callable[[], None]) -> bytes | None:
        """Return the reply line; None if the child ended or its line is too long, empty if it wrote more than one."""
        found = bytearray()
        while b"\n" not in found:
            if len(found) > MAX_REPLY_BYTES:
                return None
            if self._readable.poll(LOOK_S * 1000):
                chunk = os.read(self._out, _CHUNK_BYTES)
                if not chunk:
                    return None
                found += chunk
            self._look_if_due(look)
        line, _, more = bytes(found).partition(b"\n")
        return b"" if more else line

    def _look_if_due(self, look: Callable[[], None]) -> None:
        if (now_s := time.monotonic()) >= self._next_look_s:
            look()
            self._next_look_s = now_s + LOOK_S

    def _ended(self) -> _NoResultError:
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            text = "the grader closed its result channel, or wrote a line without end"
            return _NoResultError("python_grader_server_error", text, is_of_process=True)
        how = f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        kind = "python_grader_killed" if -code in KILL_SIGNALS else "python_grader_server_error"
        return _NoResultError(kind, f"the grader's process ended ({how})", has_ended=True)

    def _cpu_s(self) -> float:
        with suppress(OSError):
            return time.clock_gettime((~self._process.pid << 3) | 2)
        return 0.0

    def _num_threads(self) -> int:
        with suppress(OSError):
            return os.stat(f"/proc/{self._process.pid}/task").st_nlink - 2  # noqa: PTH116
        return 1

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._folder.cleanup()


def check_source(source: str) -> None:
    """Raise `ConfigError` if a source cannot be a grader."""
    if (size := len(source.encode("utf-8", "surrogatepass"))) > MAX_SOURCE_BYTES:
        raise ConfigError(f"the grader's source has {size} bytes; at most {MAX_SOURCE_BYTES} are run.")
    try:
        tree = ast.parse(source)
        # Compile time grows quadratically with their number (20 s for 20,000), and holds the GIL.
        if (number := sum(isinstance(node, _NAMED) for node in ast.walk(tree))) > MAX_FUNCTIONS:
            raise ConfigError(
                f"the grader's source has {number:,} functions, classes, comprehensions and arguments by name; "
                f"at most {MAX_FUNCTIONS:,} are compiled."
            )
        compile(source, "grader", "exec")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"the grader's source is not valid Python: {error}.") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError(
            "the grader's source is nested too deeply for Python's compiler. Split its longest expression."
        ) from error
    if "def grade" not in source:
        raise ConfigError("the grader's source defines no function 'grade(sample, item)'.")


def _result_of(reply: Mapping[str, Any]) -> Grade:
    """Convert a reply to a result; the number must be finite, and the text encodable."""
    if (reason := reply.get("failure")) is not None:
        text = str(reason)[:MAX_FAILURE_CHARACTERS].encode("utf-8", "replace").decode()
        if text.startswith("MemoryError"):  # earlier samples may hold the memory
            raise _NoResultError("python_grader_runtime_error", text, is_of_process=True)
        return Grade(None, ItemFailure("python_grader_runtime_error", text))
    with suppress(OverflowError):
        if isinstance(score := reply.get("score"), float | int) and math.isfinite(score):
            return Grade(float(score))
    raise _NoResultError(
        "python_grader_server_error", "the grader wrote to the result channel itself", is_of_process=True
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)

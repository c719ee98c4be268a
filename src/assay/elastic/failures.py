"""Turns an exception in a rank into a failure record with a kind and a signature.

    error --> kind        by its class, or by its message for torch and gloo errors that are bare RuntimeErrors
          --> signature   its class and the innermost assay functions of its traceback
          --> file        the traceback

A signature has no line numbers, messages or paths, so the same bug has the same signature in another run, on
another machine, and after an unrelated edit of the file.
"""

import socket
import traceback
from itertools import groupby
from pathlib import Path
from types import TracebackType

from assay.base.errors import (
    AssayError,
    ConfigError,
    DamagedDataError,
    DataError,
    FencedError,
    LossNotFiniteError,
    StoreError,
    StoreFullError,
)
from assay.elastic.task import RankTask
from assay.records.failure import Failure, FailureKind
from assay.records.phase import Phase
from assay.records.suspect import WrongArithmeticError
from assay.store.heartbeat import Beat, Heartbeats

NUM_FRAMES = 3
"""Innermost assay functions in a signature: enough to distinguish two callers of one function."""
OURS = "assay."

_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (WrongArithmeticError, "wrong_arithmetic"),
    (LossNotFiniteError, "loss_not_finite"),
    (DamagedDataError, "damaged_data"),
    (DataError, "data_error"),
    (ConfigError, "config_error"),
    (StoreFullError, "disk_full"),
    (StoreError, "store_unreachable"),
    (FencedError, "fenced"),
    (AssayError, "refused"),
    (MemoryError, "out_of_memory"),
)
_OUT_OF_MEMORY_CLASSES = frozenset(("OutOfMemoryError",))
_OUT_OF_MEMORY_WORDS = ("DefaultCPUAllocator: can't allocate memory", "CUDA out of memory")
_PEER_LOST_CLASSES = frozenset(("DistNetworkError", "DistBackendError", "DistStoreError"))
_PEER_LOST_WORDS = ("Connection closed by peer", "Connection reset by peer", "/gloo/")
"""Message fragments, because torch raises a bare RuntimeError if its allocator or gloo fails."""


def kind_of(error: BaseException) -> FailureKind:
    """Return the failure kind of an exception in a rank."""
    named = next((kind for known, kind in _KINDS if isinstance(error, known)), None)
    if named is not None:
        return named
    text = str(error) if isinstance(error, RuntimeError) else ""
    name = type(error).__name__
    if name in _OUT_OF_MEMORY_CLASSES or any(words in text for words in _OUT_OF_MEMORY_WORDS):
        return "out_of_memory"
    if name in _PEER_LOST_CLASSES or any(words in text for words in _PEER_LOST_WORDS):
        return "peer_lost"
    return "exception"


def signature_of(error: BaseException, *, package: str = OURS) -> str:
    """Return e.g. `ValueError in training.trainer.step.Stepper.step < training.trainer.trainer.Trainer.train`.

    Only functions of `package` count; an empty text counts all.
    """
    names = [name for name, _ in groupby(_functions(error.__traceback__))]  # a recursion counts once
    ours = [name.removeprefix(package) for name in names if name.startswith(package)]
    shown = " < ".join(reversed(ours[-NUM_FRAMES:]))
    return f"{type(error).__qualname__} in {shown}" if shown else type(error).__qualname__


def _functions(trace: TracebackType | None) -> list[str]:
    """Return module and name of each function in the traceback, outermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    return [f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}" for frame in frames]


def failure_of(error: BaseException, task: RankTask, *, device: str) -> Failure:
    """Return the failure for an exception that ends this rank. Unexpected errors get a traceback file."""
    with_traceback = not isinstance(error, AssayError)
    text = f"{type(error).__name__}: {error}"
    phase, step = last_phase(_last_beat(task))
    return Failure(
        failure_kind=kind_of(error),
        run_id=task.run.run_id,
        attempt=task.orders.attempt.attempt,
        host=socket.gethostname(),
        device=device,
        rank=task.rank,
        phase=phase,
        step=step,
        signature=signature_of(error),
        text=text.splitlines()[0] if with_traceback else text,
        file=_keep_traceback(error, task) if with_traceback else "",
    )


def distance_from_cause(failure: Failure | None) -> int:
    """Rank failures by how likely they are consequences: 0 is a cause; a rank that lost its peer has 2."""
    if failure is None or failure.failure_kind == "peer_lost":
        return 2
    return 1 if failure.failure_kind in ("exception", "exited") else 0


def last_phase(beat: Beat | None) -> tuple[Phase, int | None]:
    """Return the phase of a rank's last heartbeat and the step in progress; None before its first heartbeat."""
    if beat is None or not beat.at_s:
        return "startup", None
    return beat.phase, beat.step + 1


def _last_beat(task: RankTask) -> Beat:
    page = Heartbeats(Path(task.heartbeats), task.orders.attempt.world_size)
    beat = page.read()[task.rank]
    page.close()
    return beat


def _keep_traceback(error: BaseException, task: RankTask) -> str:
    """Write the traceback to a file: on the terminal, those of all peers that lost this rank would hide it."""
    run_dir = Path(task.run.run_dir)
    path = run_dir / "errors" / f"attempt-{task.orders.attempt.attempt:04d}-rank-{task.rank:05d}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)))
    except OSError:  # e.g. the disk is full; the failure is reported without a traceback
        return ""
    return path.relative_to(run_dir).as_posix()

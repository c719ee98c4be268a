"""From an exception in a rank to a failure of a named kind, with a signature that its like has, too.

    error --> kind        by its class; torch's and gloo's errors, which have no class, by their words
          --> signature   its class, and the innermost functions of ours in its traceback
          --> file        the traceback itself

A signature holds no line numbers, messages or paths: the same mistake has the same one in another run, on
another machine, and after an edit elsewhere in the file.
"""

import socket
import traceback
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

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
"""Innermost functions of ours in a signature: enough to tell two callers of one helper apart."""
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
"""torch raises a bare RuntimeError where its allocator or gloo fails: these are their words."""


def kind_of(error: BaseException) -> FailureKind:
    """What kind of failure an exception in a rank is."""
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


def signature_of(error: BaseException) -> str:
    """`ValueError in training.trainer.step.Stepper.step < training.trainer.trainer.Trainer.train`."""
    names = [name for name, _ in groupby(_functions(error.__traceback__))]  # a recursion counts once
    ours = [name.removeprefix(OURS) for name in names if name.startswith(OURS)]
    shown = " < ".join(reversed(ours[-NUM_FRAMES:]))
    return f"{type(error).__qualname__} in {shown}" if shown else type(error).__qualname__


def _functions(trace: TracebackType | None) -> list[str]:
    """Module and name of each function, the outermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    return [f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}" for frame in frames]


def failure_of(error: BaseException, task: RankTask, *, device: str) -> Failure:
    """What this rank has to say of an exception that ends it. A surprise's traceback is kept in a file."""
    with_traceback = not isinstance(error, AssayError)
    text = f"{type(error).__name__}: {error}"
    last = last_phase(_last_beat(task))
    return Failure(
        failure_kind=kind_of(error),
        run_id=task.run.run_id,
        attempt=task.orders.attempt.attempt,
        host=socket.gethostname(),
        device=device,
        rank=task.rank,
        phase=last.phase,
        step=last.step,
        signature=signature_of(error),
        text=text.splitlines()[0] if with_traceback else text,
        file=_keep_traceback(error, task) if with_traceback else "",
    )


def distance_from_cause(failure: Failure | None) -> int:
    """The least is the cause: when one rank fails, its peers fail for want of it."""
    if failure is None or failure.failure_kind == "peer_lost":
        return 2
    return 1 if failure.failure_kind in ("exception", "exited") else 0


class LastPhase(NamedTuple):
    """What a rank was at."""

    phase: Phase
    step: int | None
    """The update under way; None before its first sign of life."""


def last_phase(beat: Beat | None) -> LastPhase:
    """By a rank's last sign of life."""
    if beat is None or not beat.at_s:
        return LastPhase("startup", None)
    return LastPhase(beat.phase, beat.step + 1)


def _last_beat(task: RankTask) -> Beat:
    page = Heartbeats(Path(task.heartbeats), task.orders.attempt.world_size)
    beat = page.read()[task.rank]
    page.close()
    return beat


def _keep_traceback(error: BaseException, task: RankTask) -> str:
    """In a file and not on the terminal: when one rank dies, all of its peers fail for want of it."""
    run_dir = Path(task.run.run_dir)
    path = run_dir / "errors" / f"attempt-{task.orders.attempt.attempt:04d}-rank-{task.rank:05d}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)))
    except OSError:  # a full disk keeps no traceback
        return ""
    return path.relative_to(run_dir).as_posix()

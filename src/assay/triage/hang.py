"""Finds the rank for which all others wait, and what it was doing.

All ranks wait for the slowest in every step. If no rank progresses for much longer than any step took, the
hung rank is the one that has not entered the exchange: the rank furthest behind, in no phase in which ranks
wait for one another (`WAITING`), or in the earliest of these; among equals, the one silent longest. A rank
without any heartbeat is timed from the attempt's start.
"""

import ctypes
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from assay.records.phase import WAITING
from assay.store.heartbeat import Beat

SLOW_PHASES = frozenset(("startup", "evaluation", "checkpoint", "meeting"))
"""Phases without steps, which have a fixed limit."""
SLOW_PHASE_LIMIT_S = 900.0
STOPPED = "stopped by a signal"
FLIGHT_SIGNAL = signal.SIGUSR2
"""Requests a rank's flight recorder dump."""
MAIN_STACK_SIGNAL = signal.SIGUSR1
"""Requests the stack of a rank's main thread."""
ALL_STACKS_SIGNAL = signal.SIGRTMIN
"""Requests the stacks of all threads, the main thread again last. Other threads keep running meanwhile; one
that leaves a frame at that moment can crash the process."""
HANG_STEPS = 10
"""A rank is hung after this multiple of the longest step so far."""


class HungRank(NamedTuple):
    """The rank for which the others wait."""

    rank: int
    beat: Beat | None
    """Its last heartbeat; None if it gave none."""
    silent_s: float
    num_silent_others: int = 0
    """Other ranks that also gave no heartbeat."""


def find_hung_rank(beats: Sequence[Beat], *, now_s: float, least_s: float, began_s: float) -> HungRank | None:
    """Return the rank for which all others wait, or None while any rank progresses.

    `least_s`: minimal seconds of silence, however fast the steps are. `began_s`: the start of the ranks, on
    the clock of the heartbeats.
    """
    unheard = [rank for rank, beat in enumerate(beats) if beat.at_s == 0]
    if unheard:
        silent_s = now_s - began_s
        is_hung = silent_s >= max(SLOW_PHASE_LIMIT_S, least_s)
        return HungRank(unheard[0], None, silent_s, len(unheard) - 1) if is_hung else None
    silent_s = now_s - max(beat.at_s for beat in beats)
    if silent_s < least_s:
        return None
    rank, beat = min(enumerate(beats), key=lambda item: _progress(item[1]))
    longest_s = max(beat.longest_step_s for beat in beats)
    limit_s = SLOW_PHASE_LIMIT_S if beat.phase in SLOW_PHASES else HANG_STEPS * longest_s
    return HungRank(rank, beat, silent_s) if silent_s >= max(limit_s, least_s) else None


def _progress(beat: Beat) -> tuple[int, int, float]:
    """Return the rank's progress; the others wait for the lowest."""
    waits = WAITING.index(beat.phase) + 1 if beat.phase in WAITING else 0
    return beat.step, waits, beat.at_s


def stacks_path(run_dir: Path, attempt: int, rank: int) -> Path:
    """Return where a rank writes the Python stacks of its threads."""
    return run_dir / "stacks" / f"attempt-{attempt:04d}-rank-{rank:05d}.txt"


def has_main_stack(path: Path) -> bool:
    """Return whether the main thread's stack is complete: it ends in its module.

    A rank that has not opened its file yet writes none, and nobody needs to wait for it.
    """
    return not path.is_file() or _ends_in_module(path.read_text(errors="replace"))


def are_stacks_whole(path: Path) -> bool:
    """Return whether the stacks of all threads are complete; the main thread comes last."""
    if not path.is_file():
        return True
    text = path.read_text(errors="replace")
    return re.search("^(T|Current t)hread 0x", text, re.MULTILINE) is not None and _ends_in_module(text)


def _ends_in_module(stacks: str) -> bool:
    last = stacks.rpartition("\n")[0].rpartition("\n")[2]
    return last.endswith(("in <module>", "  ..."))  # the dots: more frames than are shown


def flight_path(run_dir: Path, attempt: int, rank: int) -> Path:
    """Return where a rank writes its flight recorder dump; one folder per attempt, for `assay triage hang`."""
    return run_dir / "stacks" / f"attempt-{attempt:04d}-flight" / f"rank-{rank:05d}.json"


def request_flight_dump(pid: int) -> bool:
    """Request a flight recorder dump; return whether the signal was sent.

    A stopped process is skipped: it would continue its work before it could write.
    """
    return process_state(pid) != STOPPED and send_signal(pid, FLIGHT_SIGNAL)


def request_main_stack(pid: int) -> None:
    """Request the main thread's stack. The handler runs even within a C call; a stopped process is
    continued."""
    _send_to_main_thread(pid, MAIN_STACK_SIGNAL)
    send_signal(pid, signal.SIGCONT)


def request_all_stacks(pid: int) -> None:
    """Request the stacks of all threads; see `ALL_STACKS_SIGNAL`."""
    _send_to_main_thread(pid, ALL_STACKS_SIGNAL)


def _send_to_main_thread(pid: int, number: signal.Signals) -> None:
    """The kernel may deliver a process signal to any thread of a stopped process, so this targets the main
    thread."""
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc has it since 2.30
    if tgkill is None:
        send_signal(pid, number)
    else:
        tgkill(pid, pid, number)


def send_signal(pid: int, number: int) -> bool:
    """Send a signal; return False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def process_state(pid: int) -> str:
    """Return the kernel's state of a process: `stopped by a signal`, `sleeping`, ...; empty if unknown."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return {
        "T": STOPPED, "D": "in an uninterruptible wait, usually a disk or a file system", "R": "running",
        "S": "sleeping", "Z": "dead",
    }.get(letter, letter)  # fmt: skip

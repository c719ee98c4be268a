"""Finds the rank that makes the others wait for ever, and what it was doing.

All ranks of a step wait for the slowest, so when nobody has moved for far longer than any step took, the
hung rank is the one that has not entered the exchange: the furthest behind, and in no phase in
which ranks wait for one another (`WAITING`), or in the earliest of these; of equals, the one that was heard of
longest ago. A rank that was never heard of is timed from the attempt's start:
no other can pass the start without it.
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

SLOW_PHASES = frozenset(("startup", "evaluation", "checkpoint"))
"""They have no steps to measure by."""
SLOW_PHASE_LIMIT_S = 900.0
STOPPED = "stopped by a signal"
FLIGHT_SIGNAL = signal.SIGUSR2
"""Asks a rank for its flight recorder's dump."""
MAIN_STACK_SIGNAL = signal.SIGUSR1
"""Asks a rank for the stack of its main thread."""
ALL_STACKS_SIGNAL = signal.SIGRTMIN
"""Asks it for the stacks of all its threads, the main one once more. Others run on while they are read, and one
that leaves a frame at that moment can end the process."""
HANG_STEPS = 10
"""A rank is hung when it stands still for this many times the longest step so far."""


class HungRank(NamedTuple):
    """Who stands still."""

    rank: int
    beat: Beat | None
    """Its last sign of life; None where it gave none."""
    silent_s: float
    num_silent_others: int = 0
    """Other ranks that gave no sign of life either."""


def find_hung_rank(beats: Sequence[Beat], *, now_s: float, least_s: float, began_s: float) -> HungRank | None:
    """The rank that all wait for, or None while somebody moves.

    `least_s`: never before so many seconds of silence, however fast the steps are. `began_s`: when the ranks
    were started, on the clock of the beats.
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
    """How far a rank is; the least is the one that the others wait for."""
    waits = WAITING.index(beat.phase) + 1 if beat.phase in WAITING else 0
    return beat.step, waits, beat.at_s


def describe_silence(hung: HungRank, process_state: str) -> str:
    """What is seen of a rank that hangs: `no sign of life for 61 s, process stopped by a signal`."""
    others = f", as of {hung.num_silent_others} more" if hung.num_silent_others else ""
    state = process_state or "in an unknown state"
    return f"no sign of life for {hung.silent_s:.0f} s{others}, process {state}"


def stacks_path(run_dir: Path, attempt: int, rank: int) -> Path:
    """Where a rank writes the Python stacks of all its threads when asked."""
    return run_dir / "stacks" / f"attempt-{attempt:04d}-rank-{rank:05d}.txt"


def has_main_stack(path: Path) -> bool:
    """Whether a rank's main thread wrote its own stack to the end: its module stands at the bottom.

    A rank that was too young to open its file writes none, and nobody need wait for it."""
    return not path.is_file() or _ends_in_module(path.read_text(errors="replace"))


def are_stacks_whole(path: Path) -> bool:
    """Whether a rank wrote the stacks of all threads after it, of which the main one comes last."""
    if not path.is_file():
        return True
    text = path.read_text(errors="replace")
    return re.search("^(T|Current t)hread 0x", text, re.MULTILINE) is not None and _ends_in_module(text)


def _ends_in_module(stacks: str) -> bool:
    last = stacks.rpartition("\n")[0].rpartition("\n")[2]
    return last.endswith(("in <module>", "  ..."))  # the dots: more frames than are shown


def flight_path(run_dir: Path, attempt: int, rank: int) -> Path:
    """Where it writes which collectives it entered; a folder for each attempt, for `assay triage hang`."""
    return run_dir / "stacks" / f"attempt-{attempt:04d}-flight" / f"rank-{rank:05d}.json"


def request_flight_dump(pid: int) -> bool:
    """Whether a thread of the rank's was asked to write the flight recorder's dump.

    One that is stopped is let be: it would go on where it was before it could write."""
    return process_state(pid) != STOPPED and send_signal(pid, FLIGHT_SIGNAL)


def request_main_stack(pid: int) -> None:
    """The signal's handler writes it, even from within a C call; a stopped process is woken, where it stood."""
    _send_to_main_thread(pid, MAIN_STACK_SIGNAL)
    send_signal(pid, signal.SIGCONT)


def request_all_stacks(pid: int) -> None:
    """Its main thread writes them, if it can be: see `ALL_STACKS_SIGNAL`."""
    _send_to_main_thread(pid, ALL_STACKS_SIGNAL)


def _send_to_main_thread(pid: int, number: signal.Signals) -> None:
    """The kernel may give what is sent to a process that is stopped to any of its threads."""
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # glibc has it since 2.30
    if tgkill is None:
        send_signal(pid, number)
    else:
        tgkill(pid, pid, number)


def send_signal(pid: int, number: int) -> bool:
    """Whether there was a process to send it to; a rank may have ended since it was last looked at."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def process_state(pid: int) -> str:
    """What the kernel says: `stopped by a signal`, `waiting for a disk`, ...; empty where it does not say."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return {
        "T": STOPPED,
        "D": "in an uninterruptible wait, usually a disk or a file system",
        "R": "running",
        "S": "sleeping",
        "Z": "dead",
    }.get(letter, letter)

"""Signs of life outside the collectives: one page of shared memory, a line of it per rank.

A collective makes every rank look alike: when one stops, all wait. So each rank notes what it is doing in a
place that the supervisor reads without asking, and the one that stopped is the one that is not waiting.
Writing costs a microsecond and no system call; the page is a file, so the ranks only need its name.
"""

import mmap
import struct
from pathlib import Path
from typing import NamedTuple, get_args

from assay.records.phase import Phase

PHASES: tuple[Phase, ...] = get_args(Phase)
_LINE = struct.Struct("<qqddd")
_LINE_BYTES = 64  # one cache line per rank


class Beat(NamedTuple):
    """What a rank did last."""

    step: int
    """Updates made."""
    phase: Phase
    """Since `at_s`."""
    at_s: float
    """Monotonic seconds of this machine; 0 before the first sign."""
    own_s: float
    """Seconds of this attempt that the rank spent on its own work in steps, not waiting for others."""
    longest_step_s: float


class Heartbeats:
    """The page of one attempt on one node."""

    def __init__(self, path: Path, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), num_ranks * _LINE_BYTES)

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> "Heartbeats":
        """A fresh page, no rank heard of yet."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(num_ranks * _LINE_BYTES))
        return cls(path, num_ranks)

    def beat(self, rank: int, beat: Beat) -> None:
        """Note what the rank does from now on."""
        line = _LINE.pack(beat.step, PHASES.index(beat.phase), beat.at_s, beat.own_s, beat.longest_step_s)
        self._page[rank * _LINE_BYTES : rank * _LINE_BYTES + len(line)] = line

    def read(self) -> list[Beat]:
        """The last beat of each rank."""
        lines = (_LINE.unpack_from(self._page, rank * _LINE_BYTES) for rank in range(self._num_ranks))
        return [Beat(step, PHASES[phase], *rest) for step, phase, *rest in lines]

    def close(self) -> None:
        """Let go of the page."""
        self._page.close()


def heartbeat_path(run_dir: Path, attempt: int, ranks: range) -> Path:
    """Where the page of an attempt's ranks on one node lies: nodes do not share memory, only folders."""
    return run_dir / "heartbeats" / f"attempt-{attempt:04d}-from-rank-{ranks.start:05d}"

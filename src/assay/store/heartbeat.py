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
    """Last heartbeat of a rank."""

    step: int
    """Completed optimizer steps."""
    phase: Phase
    """Since `at_s`."""
    at_s: float
    """Monotonic seconds of this machine; 0 before the first heartbeat."""
    own_s: float
    """Seconds of this attempt that the rank spent on its own work in steps, not waiting for others."""
    longest_step_s: float


class Heartbeats:
    """Heartbeats of one attempt on one node."""

    def __init__(self, path: Path, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), num_ranks * _LINE_BYTES)

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> "Heartbeats":
        """Create the page, without heartbeats."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(num_ranks * _LINE_BYTES))
        return cls(path, num_ranks)

    def beat(self, rank: int, beat: Beat) -> None:
        """Write the rank's step and phase."""
        line = _LINE.pack(beat.step, PHASES.index(beat.phase), beat.at_s, beat.own_s, beat.longest_step_s)
        self._page[rank * _LINE_BYTES : rank * _LINE_BYTES + len(line)] = line

    def read(self) -> list[Beat]:
        """Return the last heartbeat of each rank."""
        lines = (_LINE.unpack_from(self._page, rank * _LINE_BYTES) for rank in range(self._num_ranks))
        return [Beat(step, PHASES[phase], *rest) for step, phase, *rest in lines]

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()


def heartbeat_path(run_dir: Path, attempt: int, ranks: range) -> Path:
    """Return the path of the page of an attempt's ranks on one node; each node has its own."""
    return run_dir / "heartbeats" / f"attempt-{attempt:04d}-from-rank-{ranks.start:05d}"

"""What the observers of one attempt wrote, as steps of a training: rows, loss, learning rate, digests of the state."""

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class TrainingState(NamedTuple):
    """Digests of the weights and of the optimizer's state, and some of the weights."""

    weights: str
    optimizer: str
    sample: tuple[float, ...]

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "TrainingState":
        """Build it from an observer's line."""
        return cls(facts["weights"], facts["optimizer"], tuple(facts["sample"]))


class ObservedStep(NamedTuple):
    """An optimizer step over all ranks."""

    rows: tuple[str, ...]
    """Digests of the rows' contents, rank after rank; empty if the model's input could not be seen."""
    loss: float
    """Mean of the ranks' sums over micro-batches."""
    rates: tuple[float, ...]
    generator: str
    """Digest of rank 0's random generators before its forward."""
    after: TrainingState
    at_s: float


class SavedFiles(NamedTuple):
    """The files that were saved with no training in between."""

    step: int
    """Optimizer steps of this process before it."""
    files: tuple[tuple[str, int, int], ...]
    """Path in the output folder, size and time of change of each file."""
    num_files: int
    """Calls that saved, at most one a file."""
    rows_in_flight: tuple[str, ...]
    """Rows whose gradients were computed at that time, and not yet applied."""

    def is_whole(self, out: Path) -> bool:
        """Return whether its files are still as they were saved."""
        return bool(self.files) and all(_is_unchanged(out / name, size, time) for name, size, time in self.files)


def _is_unchanged(path: Path, size: int, changed_ns: int) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (size, changed_ns)


class ObservedTraining(NamedTuple):
    """One training from its start to its end, over all ranks."""

    before: TrainingState | None
    """Rank 0's, before its first step."""
    steps: tuple[ObservedStep, ...]
    saves: tuple[SavedFiles, ...]
    world_size: int


def observed_training(folder: Path) -> tuple[ObservedTraining, list[dict[str, Any]]]:
    """Return the training that the processes of one attempt observed, and the lines that are no part of it.

    If ranks were started more than once, as by an elastic launcher, the last start counts.
    """
    ranks: dict[int, list[dict[str, Any]]] = {}
    others: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.observed")):
        lines = list(_lines(path))
        others += [line for line in lines if line["kind"] in ("watching", "outside")]
        if (last := lines[-1:]) and any(line["kind"] in ("begin", "saved") for line in lines):
            ranks[last[0]["rank"]] = lines
    by_rank = [[line for line in ranks[rank] if line["kind"] == "step"] for rank in sorted(ranks)]
    first = ranks.get(0, [])
    begin = next((line for line in first if line["kind"] == "begin"), None)
    saves = [line for line in first if line["kind"] == "saved"]
    return ObservedTraining(
        before=TrainingState.of(begin) if begin else None,
        steps=tuple(_step(lines) for lines in zip(*by_rank, strict=False)),
        saves=tuple(
            SavedFiles(
                line["step"],
                tuple((name, size, changed_ns) for name, size, changed_ns in line["files"]),
                line["num_files"],
                tuple(line["rows_in_flight"]),
            )
            for line in saves
        ),
        world_size=len(by_rank),
    ), others


def _step(lines: Sequence[dict[str, Any]]) -> ObservedStep:
    first = lines[0]
    return ObservedStep(
        rows=tuple(row for line in lines for row in line["rows"]),
        loss=sum(line["loss"] for line in lines) / len(lines),
        rates=tuple(first["rates"]),
        generator=first["generator"],
        after=TrainingState.of(first),
        at_s=first["at_s"],
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of an observer's file; a kill may tear the last one."""
    for line in path.read_bytes().split(b"\n"):
        checksum, _, content = line.partition(b" ")
        if checksum and checksum == b"%08x" % zlib.crc32(content):
            yield json.loads(content)

"""One epoch of all rows through the loader, by ranks that are killed and come back as another number of ranks.

    attempt 1: 3 ranks --kill -9--> attempt 2: 8 ranks --kill -9--> ... --> the last step
                 |                     |
          receipts of some steps, a file for each rank, under its name when it is whole

A commit is a step for which each rank of the attempt has left its file; the next attempt goes on from the last
one, as training does. What was read beyond it is read again and counts nowhere. The ranks do what training's do
but for the model: their lanes are dealt by the same rule, and their receipts made as there.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness import peak_rss_mb

WORLD_SIZES = (3, 8, 1, 5, 2, 7, 4, 6)
"""In turn, one for each attempt."""
COMMITS = 320
"""In an epoch, about."""
POLL_S = 0.05


class Rank(NamedTuple):
    """Whose lanes, and from where on."""

    attempt: int
    number: int
    world_size: int
    start: int
    ends: int
    """1: its receipts of the epoch's end are left; 0: it waits to be killed before, however late the kill comes."""


class Attempt(NamedTuple):
    """What came of one."""

    stop: int
    """The last step that was committed."""
    peak_mb: float


def read_lanes(loader: Any, rank: Rank, folder: Path) -> None:
    """What a rank does: reads its lanes' rows, and leaves their receipts at every commit."""
    from assay.data.loader.lane_shares import LaneShares
    from assay.data.loader.receipts import receipt

    steps, found = loader.steps_per_epoch, []
    everything = commit_every(steps)
    lanes = LaneShares(loader.config.lanes, rank.world_size).of_rank(rank.number)
    shares = loader.shares(loader.cursor_at(rank.start), lanes, steps - rank.start)
    for step, share in enumerate(shares, start=rank.start + 1):
        for lane in share.lanes:
            ids = np.concatenate([np.zeros(0, np.uint64), *(batch.row_ids for batch in lane.micro_batches)])
            found.append((step, lane.lane, *receipt(ids)))
        if step == steps and not rank.ends:
            signal.pause()
        if step % everything == 0 or step == steps:
            _leave(folder / file_name(rank, step), found)
            found = []


def commit_every(steps: int) -> int:
    """Steps from one commit to the next."""
    return max(1, steps // COMMITS)


def file_name(rank: Rank, step: int) -> str:
    """The receipts of a rank up to a step."""
    return f"{rank.attempt:03d}-{step:07d}-{rank.number}.npz"


def _leave(path: Path, found: list[tuple[int, int, int, int]]) -> None:
    step, lane, num_rows, digests = zip(*found, strict=True)
    columns = {
        "step": np.array(step, np.int64),
        "lane": np.array(lane, np.int32),
        "num_rows": np.array(num_rows, np.int32),
        "digest": np.array(digests, np.uint64),
    }
    half = path.with_suffix(".half")
    with half.open("wb") as file:
        np.savez(file, **columns)  # type: ignore[arg-type]
    half.rename(path)


def read_epoch(
    folder: Path, steps: int, command: Callable[[Rank], list[str]], *, kills: int, seed: int
) -> dict[str, float]:
    """All rows once, however often ranks are killed; the receipts of what was committed go to receipts.npz."""
    rng = random.Random(seed)
    receipts = folder / "receipts"
    receipts.mkdir(exist_ok=True)
    for path in receipts.iterdir():
        path.unlink()
    last = (steps - 1) // commit_every(steps) * commit_every(steps)  # the last commit before the end
    kill_steps = sorted(rng.sample(range(1, last + 1), min(kills, last)))
    at, committed, attempts, peak_mb = 0, list[Path](), 0, 0.0
    began = time.monotonic(), _children_cpu_s()
    while at < steps:
        world_size = WORLD_SIZES[attempts % len(WORLD_SIZES)]
        kill_at = kill_steps.pop(0) if kill_steps else None
        ranks = [Rank(attempts, number, world_size, at, int(kill_at is None)) for number in range(world_size)]
        found = _attempt(receipts, ranks, steps, command, kill_at, rng)
        committed += _files(receipts, ranks[0], at, found.stop)
        at, attempts, peak_mb = found.stop, attempts + 1, max(peak_mb, found.peak_mb)
        _log(f"attempt {attempts}: {world_size} ranks to step {at:,} of {steps:,}, {peak_mb:.0f} MB")
    _gather(committed, folder / "receipts.npz")
    return {
        "wall_s": time.monotonic() - began[0],
        "cpu_s": _children_cpu_s() - began[1],
        "attempts": attempts,
        "peak_mb": peak_mb,
    }


def _attempt(
    receipts: Path,
    ranks: list[Rank],
    steps: int,
    command: Callable[[Rank], list[str]],
    kill_at: int | None,
    rng: random.Random,
) -> Attempt:
    """Until the epoch's end, or until some step is committed and a little later one of the ranks is killed."""
    processes = [subprocess.Popen(command(rank)) for rank in ranks]
    at, peak_mb = ranks[0].start, 0.0
    try:
        while any(process.poll() is None for process in processes):
            peak_mb = max(peak_mb, *(peak_rss_mb(process.pid) for process in processes))
            if any(process.poll() for process in processes):
                raise RuntimeError(f"a rank of {ranks[0]} ended by itself, with an error")
            at = _committed(receipts, ranks, steps, at)
            if kill_at is not None and at >= kill_at:
                time.sleep(rng.random() * 0.3)
                rng.choice(processes).kill()
                break
            time.sleep(POLL_S)
    finally:
        # Who lost a rank does not go on without it.
        for process in processes:
            process.kill()
            process.wait()
    return Attempt(_committed(receipts, ranks, steps, at), peak_mb)


def _committed(receipts: Path, ranks: list[Rank], steps: int, at: int) -> int:
    """The last step for which each rank has left its receipts; they have up to `at`."""
    everything = commit_every(steps)
    while at < steps:
        following = min(steps, at // everything * everything + everything)
        if not all((receipts / file_name(rank, following)).exists() for rank in ranks):
            break
        at = following
    return at


def _files(receipts: Path, rank: Rank, start: int, stop: int) -> Iterator[Path]:
    """Those of an attempt's commits."""
    for path in sorted(receipts.glob(f"{rank.attempt:03d}-*.npz")):
        if start < int(path.name.split("-")[1]) <= stop:
            yield path


def _gather(files: list[Path], to: Path) -> None:
    parts = []
    for path in files:
        with np.load(path) as columns:
            parts.append({name: columns[name] for name in columns.files})
    np.savez(to, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})  # type: ignore[arg-type]


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

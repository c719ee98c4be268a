"""Made-up traces of one run whose slow locations and uneven work are known, as tables that `assay triage skew` reads.

A run has pipeline stages, data-parallel ranks and sometimes slots, works on micro-batches of steps, forward and
backward, or in one kind. What is planted is one of `KINDS`; sizes, ratios, noise, names, lost rows and the order of
rows are drawn for each. Nothing here knows how causes are found.
"""

from typing import NamedTuple

import numpy as np

from assay.triage.attempts.columns import columns_of
from assay.triage.skew import Durations, durations_of

KINDS = (
    "one worker", "one value of a column", "two workers", "one worker in one kind", "a quick worker",
    "uneven lengths by rank", "uneven steps or micro-batches", "a worker and uneven lengths", "nothing",
    "a stage and a worker",
)  # fmt: skip


class SkewIncident(NamedTuple):
    """A trace with what is planted in it."""

    kind: str
    durations: Durations
    is_uneven: bool
    """Whether work is."""
    locations: tuple[np.ndarray, ...]
    """For each slow location, its rows."""


class _Trace:
    """All operations of a run, before they are written."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        sizes = ([1, 2, 4, 8], [4, 8, 16], [1, 1, 4])
        self.stages, self.ranks, self.slots = (int(rng.choice(np.array(some))) for some in sizes)
        if self.stages * self.ranks * self.slots > 64:
            self.slots = 1
        self.micro_batches = int(rng.choice([1, 2, 4]))
        kinds = ["forward", "backward"] if rng.random() < 0.75 else [""]
        locations = self.stages * self.ranks * self.slots
        steps = min(int(rng.integers(8, 80)), max(16_000 // (locations * self.micro_batches * len(kinds)), 8))
        axes = (np.arange(n) for n in (self.stages, self.ranks, self.slots, steps, self.micro_batches, len(kinds)))
        grid = [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]
        rows = rng.permutation(len(grid[0]))[: int(len(grid[0]) * rng.choice([1.0, 1.0, 0.9]))]
        self.stage, self.rank, self.slot, self.step, self.micro_batch, kind = (axis[rows] for axis in grid)
        self.kind = np.array(kinds)[kind]
        self.kinds, self.steps = kinds, steps
        self.logs = np.where(self.kind == "backward", np.log(rng.uniform(1.5, 2.5)), 0.0)
        # Stages are seldom equal to the last percent.
        self.logs = self.logs + rng.normal(0.0, rng.choice([0.0, 0.01]), self.stages)[self.stage]
        self.is_uneven = False
        self.locations: list[np.ndarray] = []

    def worker(self) -> np.ndarray:
        """The rows of a random location that has none of those planted before."""
        while True:
            location = (self.rng.integers(self.stages), self.rng.integers(self.ranks), self.rng.integers(self.slots))
            rows: np.ndarray = (self.stage == location[0]) & (self.rank == location[1]) & (self.slot == location[2])
            if not any((rows & other).any() for other in self.locations):
                return rows

    def slow_down(self, rows: np.ndarray, ratio: float) -> None:
        self.logs[rows] += np.log(ratio)
        self.locations.append(rows)

    def uneven_by_rank(self) -> None:
        """Each rank has its own sequences, whose length all its stages, slots and kinds feel."""
        lengths = self.rng.normal(0.0, self.rng.uniform(0.1, 0.5), (self.ranks, self.steps, self.micro_batches))
        self.logs += lengths[self.rank, self.step, self.micro_batch]
        self.is_uneven = True

    def has_replicates(self) -> bool:
        """Whether a rank's own lengths show in more than one duration each."""
        return self.stages * self.slots * len(self.kinds) > 1


def skew_incident(seed: int) -> SkewIncident:
    rng, kind = np.random.default_rng([49, seed]), KINDS[seed % len(KINDS)]
    trace = _Trace(rng)
    while ("length" in kind and not trace.has_replicates()) or ("stage" in kind and trace.stages < 4):
        trace = _Trace(rng)
    ratio = float(np.exp(rng.uniform(np.log(1.1), np.log(3.0))))
    match kind:
        case "one worker":
            trace.slow_down(trace.worker(), ratio)
        case "one value of a column":
            sizes = {"stage": trace.stages, "rank": trace.ranks, "slot": trace.slots}
            column = str(rng.choice([name for name, size in sizes.items() if size > 2]))
            codes = getattr(trace, column)
            trace.slow_down(codes == rng.integers(sizes[column]), ratio)
        case "two workers":
            trace.slow_down(trace.worker(), ratio)
            trace.slow_down(trace.worker(), float(np.exp(rng.uniform(np.log(1.1), np.log(3.0)))))
        case "one worker in one kind":
            trace.slow_down(trace.worker() & (trace.kind == trace.kinds[-1]), ratio)
        case "a quick worker":
            trace.slow_down(trace.worker(), 1.0 / ratio)
        case "uneven lengths by rank":
            trace.uneven_by_rank()
        case "uneven steps or micro-batches":
            if trace.micro_batches > 2 and rng.random() < 0.5:
                trace.logs[trace.micro_batch == rng.integers(trace.micro_batches)] += np.log(ratio)
            else:
                trace.logs[trace.step % int(rng.integers(4, 8)) == 1] += np.log(ratio)
            trace.is_uneven = True
        case "a worker and uneven lengths":
            trace.uneven_by_rank()
            trace.slow_down(trace.worker(), max(ratio, 1.4))
        case "a stage and a worker":
            stage = trace.stage == rng.integers(trace.stages)
            worker = trace.worker()
            trace.slow_down(stage, ratio)
            trace.slow_down(worker, float(np.exp(rng.uniform(np.log(1.1), np.log(3.0)))))
    return SkewIncident(kind, _written(trace), trace.is_uneven, tuple(trace.locations))


def _written(trace: _Trace) -> Durations:
    rng, number = trace.rng, len(trace.logs)
    noise = float(np.exp(rng.uniform(np.log(0.003), np.log(0.04))))
    shocks = rng.standard_t(4, number) / np.sqrt(2.0) if rng.random() < 0.5 else rng.normal(size=number)
    seconds = float(np.exp(rng.uniform(-7.0, 3.0))) * np.exp(trace.logs + noise * shocks)
    seconds[rng.random(number) < rng.choice([0.0, 0.01])] *= 4.0
    names = rng.permutation(trace.ranks * trace.stages * trace.slots)
    if trace.slots == 1 and rng.random() < 0.5:
        # A worker has a name of its own, whatever its stage is.
        workers = names[(trace.stage * trace.ranks + trace.rank) * trace.slots + trace.slot]
        location = {"stage": trace.stage, "dp": trace.rank, "worker": workers}
    else:
        location = {"stage": trace.stage, "dp": trace.rank, "slot": trace.slot}
    present = {name: codes for name, codes in location.items() if len(np.unique(codes)) > 1}
    work = {"step": trace.step + 1_000, "micro_batch": trace.micro_batch}
    if not trace.is_uneven and rng.random() < 0.2:
        # No two ranks have a micro-batch in common.
        work["micro_batch"] = trace.micro_batch + 100 * trace.rank
    rows: list[dict[str, str | None]] = [
        {
            "duration": repr(float(seconds[row])), "op": str(trace.kind[row]),
            **{name: f"{name}{codes[row]}" for name, codes in present.items()},
            **{name: str(codes[row]) for name, codes in work.items()},
        }
        for row in range(number)
    ]  # fmt: skip
    kind = "op" if len(trace.kinds) > 1 else None
    return durations_of(
        columns_of(rows, "trace.csv"), value="duration", location=list(present), work=list(work), kind=kind
    )

"""Measure how fast a recipe trains here, with some seconds of real steps: real ranks, rows and commits.

The run is in a temporary folder; nothing reaches the home, the ledger or the run's store.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import Interrupted, TrainingError
from assay.base.shapes import Float64
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.records.phase import STEP, Phase
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.phases import rank_phase_seconds, step_seconds
from assay.store.metrics.segment import SegmentData, read_segment, segment_path
from assay.store.objects import open_store
from assay.workflows.run import plan_run

HANG_S = 900.0
"""Hang timeout; long, because the duration of a step is unknown yet."""
MIN_STEPS = 4
"""Minimum number of steps; the first one warms up and is not measured."""
MEASURING = RestartPolicy(max_restarts=0, hang_s=HANG_S)


class Calibration(NamedTuple):
    """Measured times of a recipe."""

    num_steps: int
    """Number of measured steps."""
    startup_s: float
    """Seconds from the start to the end of the first step."""
    seconds_per_token: float
    """Wall-clock seconds per token of all ranks."""
    seconds_per_step: float
    """Wall-clock seconds per step of all ranks."""
    commit_s: float
    """Seconds that the last commit held up a rank."""
    peak_bytes: int
    """Peak host memory of the rank that used most."""
    phase_s: Mapping[Phase, float]
    """Mean seconds of a step by phase, of rank 0."""
    mfu: float | None
    """Share of the card's dense bfloat16 rate, of rank 0; None on a CPU and for a card that is not listed."""
    gpu_peak_bytes: int
    """Peak GPU memory of rank 0; 0 on a CPU."""
    host_waits: float | None
    """Waits of the host in a sampled step; None if no step was sampled."""


class Trained(NamedTuple):
    """An attempt that was ended after some seconds."""

    attempt: Attempt
    peak_bytes: int
    """Peak host memory of the rank that used most."""


def calibrate(recipe_values: LoadedConfig, *, world_size: int, seconds: float) -> Calibration:
    """Train for `seconds` after the first step, commit, measure, and remove everything."""
    with short_run(recipe_values, world_size=world_size) as run:
        return _measure(run, train_for(run, world_size=world_size, seconds=seconds))


@contextmanager
def short_run(recipe_values: LoadedConfig, *, world_size: int, **trainer: object) -> Iterator[Run]:
    """Yield a run of the recipe in a temporary folder, on this cluster alone, without evaluations; `trainer` overrides
    keys of its trainer."""
    changed = {**recipe_values.values.get("trainer", {}), "evaluate_every": None, **trainer}
    values = {**recipe_values.values, "trainer": changed, "evaluation": None, "outer": None}
    with TemporaryDirectory(prefix="assay-check-") as folder:
        run = plan_run(
            Home.at(Path(folder)),
            LoadedConfig(values, recipe_values.origins),
            world_size=world_size,
            run_id="check",
            store_url=None,
        )
        Path(run.run_dir).mkdir()
        yield run


def train_for(run: Run, *, world_size: int, seconds: float, policy: RestartPolicy = MEASURING) -> Trained:
    """Run one attempt, and end it with a commit `seconds` after its first step."""
    watch = _Stopwatch(run, seconds)
    supervisor = Supervisor(
        run, CommitLog(open_store(run.store_url)), policy=policy, observers=[watch], clock=SystemClock()
    )
    watch.stop = supervisor.request_stop
    try:
        attempt = supervisor.run(world_size)
        assert attempt is not None, "this machine has room for the ranks"
        return Trained(attempt, watch.peak_bytes)
    except Interrupted:
        raise KeyboardInterrupt from None
    except TrainingError as error:
        ended = saved_attempts(Path(run.run_dir))
        reason = ended[-1].reason if ended else str(error)
        raise TrainingError(f"the recipe does not train on this machine: {reason}") from error


def segment_of(run: Run, attempt: Attempt, rank: int = 0) -> SegmentData | None:
    """Return the metrics of a rank of an attempt; None if it wrote none."""
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    return read_segment(path) if path.exists() else None


def _measure(run: Run, trained: Trained) -> Calibration:
    attempt, segment = trained.attempt, segment_of(run, trained.attempt)
    if segment is None or segment.header is None or len(segment.step_ends.at_s) < 2:
        raise TrainingError("fewer than two steps ran, so the time of the run cannot be estimated.")
    assert attempt.ended_s is not None and attempt.end_step is not None
    end_times_s = segment.metrics["tokens"].at_s
    spent = rank_phase_seconds(run, attempt, 0, held_to_s=attempt.ended_s, committed_step=attempt.end_step)
    tokens = float(segment.metrics["tokens"].values[1:].sum())
    return Calibration(
        num_steps=len(end_times_s) - 1,
        startup_s=float(segment.header.wall_of(end_times_s)[0]) - attempt.started_s,
        seconds_per_token=float(end_times_s[-1] - end_times_s[0]) / tokens,
        seconds_per_step=float(end_times_s[-1] - end_times_s[0]) / (len(end_times_s) - 1),
        commit_s=spent.seconds.get("checkpoint", 0.0),
        peak_bytes=trained.peak_bytes,
        phase_s={phase: float(step_seconds(segment, (phase,)).mean()) for phase in STEP},
        mfu=_statistic(segment, "mfu", np.median),
        gpu_peak_bytes=int(_statistic(segment, "gpu_memory_peak_bytes", np.max) or 0),
        host_waits=_statistic(segment, "host_waits", np.mean),
    )


def _statistic(
    segment: SegmentData, name: str, of: Callable[[Float64[np.ndarray, "step"]], np.floating[Any]]
) -> float | None:
    """Return a statistic of a metric; None if it was not logged."""
    return float(of(segment.metrics[name].values)) if name in segment.metrics else None


class _Stopwatch:
    """A run observer that stops the run after enough steps, and records the peak memory of the ranks."""

    def __init__(self, run: Run, seconds: float) -> None:
        self._run = run
        self._seconds = seconds
        self._pids: Sequence[int] = ()
        self.peak_bytes = 0
        self.stop: Callable[[], None] = lambda: None

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        self._pids = pids

    def tick(self, attempt: Attempt) -> None:
        self.peak_bytes = max([self.peak_bytes, *map(_peak_bytes, self._pids)])
        segment = segment_of(self._run, attempt)
        if segment is None or len(end_times_s := segment.step_ends.at_s) < MIN_STEPS:
            return
        if end_times_s[-1] - end_times_s[0] >= self._seconds:
            self.stop()

    def attempt_ended(self, attempt: Attempt) -> None:
        pass


def _peak_bytes(pid: int) -> int:
    """Return the peak memory of a process; 0 if it is gone or the system does not report it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0

"""How fast a recipe trains here, from some seconds of real steps: real ranks, rows and commits.

They are made in a folder that is removed afterwards; nothing reaches the home, the ledger or the run's store.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import Interrupted, TrainingError
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.phases import rank_phase_seconds
from assay.store.metrics.segment import SegmentData, read_segment, segment_path
from assay.store.objects import open_store
from assay.workflows.run import plan_run

HANG_S = 900.0
"""As long as a first step may take: nobody knows yet how long one takes."""
MIN_STEPS = 4
"""The first one reads the first rows and warms up, so it is not counted."""
MEASURING = RestartPolicy(max_restarts=0, hang_s=HANG_S)


class Calibration(NamedTuple):
    """What was measured."""

    num_steps: int
    """That the speed was measured over."""
    startup_s: float
    """From the beginning to the end of the first step."""
    seconds_per_token: float
    """Wall-clock, all ranks together."""
    seconds_per_step: float
    """Likewise."""
    commit_s: float
    """For which a rank was held up by the last commit, at the most."""
    peak_bytes: int
    """Bytes of the host's memory, by the rank that held most."""


class Trained(NamedTuple):
    """Some seconds of a run."""

    attempt: Attempt
    peak_bytes: int
    """Bytes of the host's memory, by the rank that held most."""


def calibrate(recipe_values: LoadedConfig, *, world_size: int, seconds: float) -> Calibration:
    """Train for so many seconds behind the first step, commit, and remove everything."""
    with short_run(recipe_values, world_size=world_size) as run:
        return _measure(run, train_for(run, world_size=world_size, seconds=seconds))


@contextmanager
def short_run(recipe_values: LoadedConfig, *, world_size: int, **trainer: object) -> Iterator[Run]:
    """A run of this recipe in a folder that is removed, without evaluations on the way; `trainer`: what else is
    otherwise of its trainer."""
    changed = {**recipe_values.values.get("trainer", {}), "evaluate_every": None, **trainer}
    values = {**recipe_values.values, "trainer": changed, "evaluation": None}
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
    """One attempt, that is ended with a commit so many seconds behind its first step, if it lasts that long."""
    watch = _Stopwatch(run, seconds)
    supervisor = Supervisor(
        run, CommitLog(open_store(run.store_url)), policy=policy, observers=[watch], clock=SystemClock()
    )
    watch.stop = supervisor.request_stop
    try:
        return Trained(supervisor.run(world_size), watch.peak_bytes)
    except Interrupted:
        raise KeyboardInterrupt from None
    except TrainingError as error:
        ended = saved_attempts(Path(run.run_dir))
        reason = ended[-1].reason if ended else str(error)
        raise TrainingError(f"no run of this recipe gets far here: {reason}") from error


def segment_of(run: Run, attempt: Attempt, rank: int = 0) -> SegmentData | None:
    """What a rank of an attempt wrote down; None where it wrote nothing."""
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    return read_segment(path) if path.exists() else None


def _measure(run: Run, trained: Trained) -> Calibration:
    attempt, segment = trained.attempt, segment_of(run, trained.attempt)
    if segment is None or segment.header is None or len(segment.step_ends.at_s) < 2:
        raise TrainingError("no two steps were made, so nothing can be said of the time that the run takes.")
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
    )


class _Stopwatch:
    """Ends the run when enough was seen, and notes how much memory the ranks take."""

    def __init__(self, run: Run, seconds: float) -> None:
        self._run = run
        self._seconds = seconds
        self._pids: Sequence[int] = ()
        self.peak_bytes = 0
        self.stop: Callable[[], None] = lambda: None

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        """Note whom to look at."""
        self._pids = pids

    def tick(self, attempt: Attempt) -> None:
        """Look."""
        self.peak_bytes = max([self.peak_bytes, *map(_peak_bytes, self._pids)])
        segment = segment_of(self._run, attempt)
        if segment is None or len(end_times_s := segment.step_ends.at_s) < MIN_STEPS:
            return
        if end_times_s[-1] - end_times_s[0] >= self._seconds:
            self.stop()

    def attempt_ended(self, attempt: Attempt) -> None:
        """What it left is read afterwards."""


def _peak_bytes(pid: int) -> int:
    """The most that a process held so far; 0 where it is gone or its system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0

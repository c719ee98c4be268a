"""Follows a run's metric segments and sends new points to a sink, in a separate process.

    metrics/attempt-0001/rank-00000.seg --(frames after the cursor)--> points --> sink
                                                                         `--> sinks/KIND-DIGEST.json: the cursor

It only reads files, so training is not affected. If it is killed and restarted, it continues after the saved cursor;
points that were sent after the cursor was last saved are sent again.
"""

import fcntl
import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.base.errors import AssayError, ConfigError
from assay.elastic.detached import start_detached
from assay.launchers.launches import last_launch, state_of
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.segment import Position, attempt_and_rank, read_segment, segment_paths
from assay.store.objects import ObjectStore, open_store
from assay.trackers.gpus import gpu_points
from assay.trackers.sink import MlflowSink, Point, Sink, TensorBoardSink, TrackioSink, WandbSink, is_address

POLL_S = 2.0
GPU_POLL_S = 10.0
_DIGESTS = ("gradient_digest", "spot_check_digest", "spot_check_lane")
"""Metrics for replay only, which make no sense as a plot."""

KINDS: dict[str, tuple[str, Callable[[str, Run, dict[str, Any]], Sink]]] = {
    "tensorboard": ("FOLDER", TensorBoardSink),
    "mlflow": ("SERVER_OR_FOLDER", MlflowSink),
    "wandb": ("FOLDER", WandbSink),
    "trackio": ("FOLDER", TrackioSink),
}
"""The placeholder of the part after the colon, and what opens the sink: given that part, the run, and a dict in which
it may keep state."""


class SinkError(AssayError):
    """Raised if a sink does not accept a run's metrics; the run is not affected."""


class SinkName(NamedTuple):
    """A parsed `tensorboard:FOLDER`. Folders are absolute, so that a destination has one name."""

    kind: str
    where: str

    @classmethod
    def parse(cls, text: str) -> "SinkName":
        """Parse a sink name; raises `ConfigError` if it is invalid."""
        kind, colon, where = text.partition(":")
        if kind not in KINDS or not colon or not where:
            forms = ", ".join(f"{name}:{placeholder}" for name, (placeholder, _) in KINDS.items())
            raise ConfigError(f"'{text}' is not a sink. Use one of: {forms}.")
        if where.startswith("file:"):
            where = url2pathname(urlsplit(where).path)
        return cls(kind, where if is_address(where) else str(Path(where).expanduser().resolve()))

    @property
    def key(self) -> str:
        """Key of this destination's cursor in the run's folder."""
        return f"sinks/{self.kind}-{sha256_of_json(list(self))[:8]}.json"


def follow(run: Run, name: SinkName, clock: Clock, *, until_ended: bool = True) -> int:
    """Send all points until the run has ended, or only those of now; return how many were sent."""
    with _locked(run, name):
        try:
            return _follow(run, name, clock, until_ended=until_ended)
        except AssayError:
            raise
        except Exception as error:  # third-party clients raise errors of any class
            raise SinkError(
                f"{':'.join(name)}: {type(error).__name__}: {error}. The run is not affected; run the same "
                "command again to send the rest."
            ) from error


@contextmanager
def _locked(run: Run, name: SinkName) -> Iterator[None]:
    """Hold an exclusive lock on the destination: two processes would send every point twice."""
    path = Path(run.run_dir) / f"{name.key}.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process sends the metrics of this run to {':'.join(name)}. Stop it first."
            ) from error
        yield


def _cursor(store: ObjectStore, name: SinkName) -> dict[str, Any]:
    """Return the saved cursor of a destination; an empty one if the destination was deleted."""
    if is_address(name.where) or Path(name.where).exists():
        found: dict[str, Any] = json.loads(store.get(name.key)) if store.exists(name.key) else {}
        if found.get("where") == name.where:
            return found
    return {"where": name.where, "positions": {}, "memory": {}}


def _follow(run: Run, name: SinkName, clock: Clock, *, until_ended: bool) -> int:
    store, key = open_store(run.run_dir), name.key
    cursor_state = _cursor(store, name)
    _, opened = KINDS[name.kind]
    sink = opened(name.where, run, cursor_state["memory"])
    store.put(key, json.dumps(cursor_state).encode())
    launch, num_points, step, next_gpus_s = last_launch(run), 0, 0, 0.0
    trains_here = launch is not None and launch.host == socket.gethostname()
    while True:
        # Check before reading the segments, so that a run that ends in between is read to its end.
        has_ended = not until_ended or _has_ended(run)
        new = [point for part in _copy_new_points(run, sink, cursor_state["positions"]) for point in part]
        num_points, step = num_points + len(new), new[-1].step if new else step
        if trains_here and not has_ended and clock.monotonic_s() >= next_gpus_s:
            next_gpus_s = clock.monotonic_s() + GPU_POLL_S
            sink.write(gpu_points(step, clock.now_s()))
        sink.flush()
        if new:
            store.put(key, json.dumps(cursor_state).encode())
        if has_ended:
            break
        clock.sleep_s(POLL_S)
    finished = CommitLog(open_store(run.store_url)).finished() is not None
    sink.close(failed=not finished if finished or _has_ended(run) else None)
    return num_points


def _copy_new_points(run: Run, sink: Sink, positions: dict[str, str]) -> Iterator[list[Point]]:
    starts = {saved_attempt.attempt: saved_attempt for saved_attempt in saved_attempts(Path(run.run_dir))}
    for path in segment_paths(Path(run.run_dir)):
        attempt, rank = attempt_and_rank(path)
        if rank != 0:
            continue
        segment = path.relative_to(run.run_dir).as_posix()
        after = Position.from_json(positions[segment]) if segment in positions else Position()
        data = read_segment(path, after)
        if data.header is None:
            continue
        if segment not in positions and attempt in starts:
            sink.began(starts[attempt].start_step, starts[attempt].started_s)
        found = [
            Point(metric, step, at_s, value)
            for metric, points in data.metrics.items()
            if metric not in _DIGESTS
            for step, at_s, value in zip(
                points.steps.tolist(),
                data.header.wall_of(points.at_s).tolist(),
                points.values.tolist(),
                strict=True,
            )
        ]
        sink.write(found := sorted(found, key=lambda point: point.at_s))
        positions[segment] = data.next.to_json()
        yield found


def _has_ended(run: Run) -> bool:
    launch = last_launch(run)
    if CommitLog(open_store(run.store_url)).finished() is not None:
        return True
    if launch is None:
        return True
    if (state := state_of(launch)) == "elsewhere":
        attempts = saved_attempts(Path(run.run_dir))
        return bool(attempts) and attempts[-1].outcome in ("preempted", "failed", "succeeded")
    return state == "ended"


LOG_FILE = "sinks.log"


class BackgroundSinks:
    """A `RunObserver` that starts the sinks once, with the first attempt."""

    def __init__(self, home: Home, run: Run) -> None:
        self._home = home
        self._run = run
        self._waiting = list(home.settings().sinks)

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        """Start the sinks. They outlive this process briefly to send the last metrics."""
        while self._waiting:
            name = self._waiting.pop()
            command = [sys.executable, "-m", "assay", "runs", "sink", self._run.run_id, name]
            start_detached(command, self._home.environment(), log=Path(self._run.run_dir) / LOG_FILE)

    def tick(self, attempt: Attempt) -> None:
        """Do nothing: sinks run on their own."""

    def attempt_ended(self, attempt: Attempt) -> None:
        """Do nothing: another attempt may begin."""

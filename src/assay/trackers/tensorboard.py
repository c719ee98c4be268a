"""The TensorBoard sink, which writes a new event file each time a run is followed."""

from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from assay.records.run import Run
from assay.trackers.sink import Point, needs


class TensorBoardSink:
    """Writes a run that `tensorboard --logdir FOLDER` shows."""

    def __init__(self, folder: str, run: Run, memory: MutableMapping[str, Any]) -> None:  # noqa: ARG002
        with needs("tensorboard", "tensorboard"):
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self._event, self._session, self._summary = Event, SessionLog, Summary
        self._writer = EventFileWriter(str(Path(folder) / run.run_id))

    def began(self, step: int, at_s: float) -> None:
        """See `Sink`; TensorBoard then hides the points after `step`."""
        start = self._session(status=self._session.START)
        self._writer.add_event(self._event(step=step + 1, wall_time=at_s, session_log=start))

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            value = self._summary.Value(tag=point.name, simple_value=point.value)
            summary = self._summary(value=[value])
            self._writer.add_event(self._event(step=point.step, wall_time=point.at_s, summary=summary))

    def flush(self) -> None:
        self._writer.flush()

    def close(self, *, failed: bool | None) -> None:  # noqa: ARG002
        self._writer.close()

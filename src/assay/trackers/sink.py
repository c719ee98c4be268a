"""Sinks: third-party metrics tools that receive points in the order of their creation.

A tool's package is imported when its sink is opened.
"""

import os
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from assay.base.config import dotted_leaves
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.records.run import Run


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    step: int
    at_s: float
    """Seconds since the Unix epoch."""
    value: float


class Sink(Protocol):
    """Receives points; those written before a `flush` survive a kill. A sink leaves out what its tool does not need."""

    def began(self, step: int, at_s: float) -> None:
        """Called when an attempt begins at `step`: points of later steps were rolled back."""

    def write(self, points: Sequence[Point]) -> None:
        """Write points."""
        ...

    def flush(self) -> None:
        """Return once all points are delivered."""

    def close(self, *, failed: bool | None) -> None:
        """Close the sink. `failed`: whether the run failed; None if it still runs."""


def is_address(where: str) -> bool:
    """Return whether a destination is the URL of a server or database, not a folder."""
    return "://" in where or where.startswith("databricks")


@contextmanager
def needs(kind: str, package: str) -> Iterator[None]:
    """Turn an `ImportError` into a `ConfigError` that says what to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"a sink of kind '{kind}' needs the package {package} ({error}): pip install 'assay[{kind}]'."
        ) from error


class TensorBoardSink(Sink):
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


_AT_ONCE = 1000
"""Maximum metrics of one MLflow call."""
_LONGEST_PARAM = 6000


class MlflowSink(Sink):
    """Writes to the experiment with the recipe's name; the recipe becomes the parameters.

    MLflow, W&B and trackio keep rolled-back points under the same steps.
    """

    def __init__(self, uri: str, run: Run, memory: MutableMapping[str, Any]) -> None:
        with needs("mlflow", "mlflow-skinny"):
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        self._metric = Metric
        os.environ.setdefault(
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4"
        )  # give up after 30 s; the default is 4 min without a message
        if not is_address(uri):
            # Without it MLflow 3.17 rejects folders, and mlflow-skinny has no other store.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = Path(uri).as_uri()
        try:
            self._client = MlflowClient(tracking_uri=uri)
        except ImportError as error:
            raise ConfigError(
                f"{uri} needs the full mlflow package ({error}): pip install mlflow, or use a folder."
            ) from error
        if "run_id" in memory:
            self._client.update_run(str(memory["run_id"]), status="RUNNING")
        else:
            name = str(run.recipe.get("name", "assay"))
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            created = self._client.create_run(
                experiment,
                run_name=run.run_id,
                tags={"assay.recipe": run.recipe_sha256, "assay.code": run.code_version},
            )
            leaves = [(key, str(value)[:_LONGEST_PARAM]) for key, value in dotted_leaves(run.recipe)]
            params = [Param(key, value) for key, value in leaves]
            for first in range(0, len(params), 100):
                self._client.log_batch(created.info.run_id, params=params[first : first + 100])
            memory["run_id"] = created.info.run_id
        self._run_id = str(memory["run_id"])

    def write(self, points: Sequence[Point]) -> None:
        metrics = [self._metric(point.name, point.value, int(point.at_s * 1000), point.step) for point in points]
        for first in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _AT_ONCE])

    def close(self, *, failed: bool | None) -> None:
        if failed is None:
            return
        self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")


STEP = "step"


class WandbSink(Sink):
    """Writes to the project with the recipe's name; nothing leaves the machine."""

    def __init__(self, folder: str, run: Run, memory: MutableMapping[str, Any]) -> None:  # noqa: ARG002
        with needs("wandb", "wandb"):
            import wandb
        self._teardown = wandb.teardown
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            mode="offline",
            dir=folder,
            project=str(run.recipe.get("name", "assay")),
            name=run.run_id,
            id=run.recipe_sha256[:8] + "-" + run.run_id[-40:],
            resume="allow",
            reinit="create_new",
            config=run.recipe,
            settings=wandb.Settings(x_disable_stats=True, console="off", silent=True),
        )
        # Rolled-back steps are logged again, but W&B's own step must increase.
        self._run.define_metric("*", step_metric=STEP)

    def write(self, points: Sequence[Point]) -> None:
        for step, of_step in groupby(points, key=lambda point: point.step):
            self._run.log({STEP: step, **{point.name: point.value for point in of_step}})

    def close(self, *, failed: bool | None) -> None:
        """See `Sink`; the data is on disk only after W&B's process has ended."""
        self._run.finish(exit_code=int(failed or False))
        self._teardown()


class TrackioSink(Sink):
    """Writes to the project with the recipe's name; `TRACKIO_DIR=FOLDER trackio show` shows it."""

    def __init__(self, folder: str, run: Run, memory: MutableMapping[str, Any]) -> None:  # noqa: ARG002
        os.environ["TRACKIO_DIR"] = folder  # read once, when trackio is imported
        with needs("trackio", "trackio"):
            from trackio.sqlite_storage import SQLiteStorage
            from trackio.utils import TRACKIO_DIR
        assert Path(folder) == TRACKIO_DIR, (folder, TRACKIO_DIR)
        # Not `trackio.log`: it stamps its own time, and sends from a thread.
        self._bulk_log = SQLiteStorage.bulk_log
        self._run = run

    def write(self, points: Sequence[Point]) -> None:
        rows = [
            (step, at_s, {point.name: point.value for point in of_row})
            for (step, at_s), of_row in groupby(points, key=lambda point: (point.step, point.at_s))
        ]
        self._bulk_log(
            project=str(self._run.recipe.get("name", "assay")),
            run=self._run.run_id,
            metrics_list=[values for _, _, values in rows],
            steps=[step for step, _, _ in rows],
            timestamps=[datetime.fromtimestamp(at_s, UTC).isoformat() for _, at_s, _ in rows],
            config=self._run.recipe,
            # trackio ignores a row whose id it has: rows that are sent again after a kill are not doubled.
            log_ids=[sha256_of_json([self._run.run_id, step, at_s, *values]) for step, at_s, values in rows],
        )

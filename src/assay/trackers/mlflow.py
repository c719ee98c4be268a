"""The MLflow sink, which writes to a server or a folder."""

import os
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from assay.base.config import dotted_leaves
from assay.base.errors import ConfigError
from assay.records.run import Run
from assay.trackers.sink import Point, is_address, needs

_AT_ONCE = 1000
"""Maximum metrics of one MLflow call."""
_LONGEST_PARAM = 6000


class MlflowSink:
    """Writes to the experiment with the recipe's name; the recipe becomes the parameters."""

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

    def began(self, step: int, at_s: float) -> None:
        """See `Sink`; MLflow keeps rolled-back points under the same steps."""

    def write(self, points: Sequence[Point]) -> None:
        metrics = [self._metric(point.name, point.value, int(point.at_s * 1000), point.step) for point in points]
        for first in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _AT_ONCE])

    def flush(self) -> None:
        """See `Sink`; calls are synchronous."""

    def close(self, *, failed: bool | None) -> None:
        if failed is None:
            return
        self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")

"""Reads MLflow's two local stores, without MLflow: the SQLite database and the folder `mlruns`."""

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from assay.base.errors import DataError
from assay.records.run import RunStatus
from assay.trackers.importers.foreign_run import ForeignRun, RunBuilder
from assay.trackers.importers.sqlite import TableReader, opened

_STATUSES: Mapping[str, RunStatus] = {"FINISHED": "succeeded", "FAILED": "failed", "KILLED": "preempted"}
_NUMBERED: Mapping[object, str] = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""Statuses as the folder's files have them."""
META_FILE = "meta.yaml"
_LEFT_OUT = {"artifacts": "{} artifact files", "inputs": "{} datasets that it used", "outputs": "{} logged models"}
"""Subfolder of a run -> how its files are counted."""
_RUNS = (
    "SELECT run_uuid, runs.name, status, start_time, end_time, artifact_uri, experiment_id, experiments.name FROM runs "
    "JOIN experiments USING (experiment_id) WHERE runs.lifecycle_stage = 'active' ORDER BY start_time, run_uuid"
)


def read_mlflow_database(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a database that are not deleted."""
    with closing(opened(path)) as database:
        for run_id, name, status, start_ms, end_ms, artifacts, experiment_id, experiment in database.execute(_RUNS):
            builder = RunBuilder()
            run = TableReader(database, "run_uuid", run_id, builder)
            for key, step, at_ms, value, is_nan in run.rows("key, step, timestamp, value, is_nan", "metrics"):
                builder.add(str(key), step, _seconds(at_ms), math.nan if is_nan else value)
            run._replace(key="destination_id").leave_out({"inputs": _LEFT_OUT["inputs"]})
            of_experiment = run._replace(key="experiment_id", run_id=experiment_id).pairs("experiment_tags")
            address = urlsplit(str(artifacts or ""))
            if address.scheme in ("", "file") and address.path:
                builder.leave_out(_LEFT_OUT["artifacts"], len(_texts(Path(unquote(address.path)), is_read=False)))
            meta = {
                "run_id": run_id, "run_name": name, "status": status, "start_time": start_ms, "end_time": end_ms
            }  # fmt: skip
            yield _run(builder, path, str(experiment), meta, run.pairs("params"), run.pairs("tags"), of_experiment)


def read_mlflow_folder(folder: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a folder `mlruns` that are not deleted."""
    for experiment_dir in sorted(path.parent for path in folder.glob(f"*/{META_FILE}")):
        experiment = str(_meta(experiment_dir).get("name", experiment_dir.name))
        for run_dir in sorted(path.parent for path in experiment_dir.glob(f"*/{META_FILE}")):
            meta = _meta(run_dir)
            if "run_id" not in meta or meta.get("lifecycle_stage", "active") != "active":
                continue
            builder = RunBuilder()
            for name, text in _texts(run_dir / "metrics").items():
                for line in text.splitlines():
                    _add_line(builder, name, line)
            for subfolder, sentence in _LEFT_OUT.items():
                builder.leave_out(sentence, len(_texts(run_dir / subfolder, is_read=False)))
            params, tags, experiment_tags = map(_texts, (run_dir / "params", run_dir / "tags", experiment_dir / "tags"))
            yield _run(builder, run_dir, experiment, meta, params, tags, experiment_tags)


def _run(
    builder: RunBuilder,
    source: Path,
    experiment: str,
    meta: Mapping[str, Any],
    params: Mapping[str, str],
    tags: Mapping[str, str],
    experiment_tags: Mapping[str, str],
) -> ForeignRun:
    """Return a run with the facts that both stores have under the same names."""
    status = str(_NUMBERED.get(meta.get("status"), meta.get("status")))
    return builder.run(
        experiment=experiment,
        params=params,
        tool="mlflow",
        source=str(source),
        tool_run_id=str(meta["run_id"]),
        name=str(meta.get("run_name") or tags.get("mlflow.runName") or meta["run_id"]),
        status=_STATUSES.get(status, "unknown"),
        tool_status=status,
        tags={**{f"experiment.{key}": value for key, value in experiment_tags.items()}, **tags},
        started_s=_seconds(meta.get("start_time")),
        ended_s=_seconds(meta.get("end_time")),
    )


def _seconds(time_ms: object) -> float | None:
    return time_ms / 1000 if isinstance(time_ms, int | float) and 0 < time_ms < 2**62 else None


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / META_FILE
    try:
        tree = yaml.safe_load(path.read_text("utf-8", "replace"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Restore the file, or move its folder away.") from error
    return tree if isinstance(tree, dict) else {}


def _texts(folder: Path, *, is_read: bool = True) -> dict[str, str]:
    """Return the files of a folder, at any depth, by the name that their path spells; empty texts if not read."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8", "replace") if is_read else "" for path in paths
    }


def _add_line(builder: RunBuilder, name: str, line: str) -> None:
    """Add a line `TIME_MS VALUE STEP`; files of MLflow before 1.0 have no steps."""
    words = line.split(" ")
    try:
        at_s, value, step = int(words[0]) / 1000, float(words[1]), int(words[2]) if len(words) > 2 else 0
    except (ValueError, IndexError, OverflowError):
        builder.leave_out("{} lines were damaged")
        return
    builder.add(name, step, at_s, value)

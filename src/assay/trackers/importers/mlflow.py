"""Reads MLflow's two local stores, without MLflow: the SQLite database and the folder `mlruns`."""

import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from assay.base.errors import DataError
from assay.records.run import ImportedFrom, RunStatus
from assay.trackers.importers.foreign_run import ForeignRun, Losses, SeriesBuilder
from assay.trackers.importers.sqlite import opened

_STATUSES: Mapping[str, RunStatus] = {"FINISHED": "succeeded", "FAILED": "failed", "KILLED": "preempted"}
_NUMBERED = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""Statuses as the folder's files have them."""
META_FILE = "meta.yaml"


def read_mlflow_database(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a database that are not deleted."""
    with closing(opened(path)) as database:
        query = (
            "SELECT run_uuid, runs.name, status, start_time, end_time, experiments.name FROM runs "
            "JOIN experiments USING (experiment_id) WHERE runs.lifecycle_stage = 'active' ORDER BY start_time, run_uuid"
        )
        for run_id, name, status, start_ms, end_ms, experiment in database.execute(query).fetchall():
            losses = Losses()
            builder = SeriesBuilder(losses)
            metrics = "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid"
            for key, step, at_ms, value, is_nan in database.execute(metrics, (run_id,)):
                builder.add(key, step, _seconds(at_ms) or 0.0, math.nan if is_nan else value)
            params, tags = (_pairs(database, table, run_id) for table in ("params", "tags"))
            facts = {"source": str(path), "tool_run_id": run_id, "name": name or tags.get("mlflow.runName") or run_id}
            yield _run(builder, losses, str(experiment), params, tags, str(status), (start_ms, end_ms), **facts)


def read_mlflow_folder(folder: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a folder `mlruns` that are not deleted."""
    for experiment_dir in sorted(path.parent for path in folder.glob(f"*/{META_FILE}")):
        experiment = str(_meta(experiment_dir).get("name", experiment_dir.name))
        for run_dir in sorted(path.parent for path in experiment_dir.glob(f"*/{META_FILE}")):
            meta = _meta(run_dir)
            if "run_id" not in meta or meta.get("lifecycle_stage", "active") != "active":
                continue
            losses = Losses()
            builder = SeriesBuilder(losses)
            for name, path in _files(run_dir / "metrics"):
                for line in path.read_text("utf-8", "replace").splitlines():
                    _add_line(builder, name, line, losses)
            params, tags = (
                {name: path.read_text("utf-8", "replace") for name, path in _files(run_dir / kind)}
                for kind in ("params", "tags")
            )
            status = meta.get("status")
            facts = {
                "source": str(run_dir),
                "tool_run_id": str(meta["run_id"]),
                "name": str(meta.get("run_name") or tags.get("mlflow.runName") or meta["run_id"]),
            }
            text = _NUMBERED.get(status, str(status)) if isinstance(status, int) else str(status)
            yield _run(
                builder, losses, experiment, params, tags, text, (meta.get("start_time"), meta.get("end_time")), **facts
            )


def _run(
    builder: SeriesBuilder,
    losses: Losses,
    experiment: str,
    params: Mapping[str, Any],
    tags: dict[str, str],
    status: str,
    times_ms: tuple[object, object],
    **facts: str,
) -> ForeignRun:
    series = builder.series()
    imported = ImportedFrom(
        tool="mlflow",
        status=_STATUSES.get(status, "unknown"),
        tool_status=status,
        tags=tags,
        started_s=_seconds(times_ms[0]),
        ended_s=_seconds(times_ms[1]),
        left_out=losses.sentences(),
        **facts,
    )
    return ForeignRun(imported, experiment, params, [series])


def _seconds(time_ms: object) -> float | None:
    return time_ms / 1000 if isinstance(time_ms, int | float) and time_ms else None


def _pairs(database: sqlite3.Connection, table: str, run_id: str) -> dict[str, str]:
    rows = database.execute(f"SELECT key, value FROM {table} WHERE run_uuid = ? ORDER BY key", (run_id,))
    return {str(key): str(value) for key, value in rows}


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / META_FILE
    try:
        tree = yaml.safe_load(path.read_text("utf-8", "replace"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Restore the file, or move its folder away.") from error
    return tree if isinstance(tree, dict) else {}


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder, at any depth, by the name that their path spells."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def _add_line(builder: SeriesBuilder, name: str, line: str, losses: Losses) -> None:
    """Add a line `TIME_MS VALUE STEP`; files of MLflow before 1.0 have no steps."""
    words = line.split(" ")
    try:
        at_s, value, step = int(words[0]) / 1000, float(words[1]), int(words[2]) if len(words) > 2 else 0
    except (ValueError, IndexError):
        losses["{} lines were damaged"] += 1
        return
    builder.add(name, step, at_s, value)

"""Reads trackio's projects, a SQLite database or a Parquet file each, without trackio."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from assay.trackers.importers.foreign_run import ForeignRun, RunBuilder, json_or_text, seconds_of
from assay.trackers.importers.sqlite import TableReader, columns_of, opened

_ROW_COLUMNS = ("id", "run_id", "run_name", "timestamp", "step", "log_id", "space_id", "created_at")
"""Columns of a Parquet file that are no metrics."""
_LEFT_OUT = {
    "system_metrics": "{} samples of the system", "alerts": "{} alerts", "traces": "{} traces",
    "run_artifact_links": "{} artifacts", "external_run_artifact_links": "{} artifacts of other projects",
}  # fmt: skip
"""Table -> how the rows of a run are counted."""
ASIDE = ("_configs", "_system", "_traces")
"""Ends of the names of a project's other Parquet files; no project may have such a name."""


def read_trackio_database(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a project."""
    with closing(opened(path)) as database:
        # Before 0.10 runs had names only.
        key = "run_id" if "run_id" in columns_of(database, "metrics") else "run_name"
        runs = database.execute(f"SELECT {key}, run_name, MIN(id) FROM metrics GROUP BY {key} ORDER BY 3").fetchall()
        for run_id, name, _ in runs:
            builder = RunBuilder()
            run = TableReader(database, key, run_id, builder)
            for step, time, text in run.rows("step, timestamp, metrics", "metrics"):
                _add_row(builder, step, time, json_or_text(text))
            run.leave_out(_LEFT_OUT)
            config: Any = next((json_or_text(text) for (text,) in run.rows("config", "configs")), {})
            yield _run(builder, path, str(run_id), str(name), config)


def read_trackio_parquet(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a project's Parquet file."""
    configs = _by_run(path, "_configs")
    left_out = {table: _by_run(path, end) for table, end in (("system_metrics", "_system"), ("traces", "_traces"))}
    for run_id, rows in _by_run(path, "").items():
        builder = RunBuilder()
        for row in rows:
            _add_row(builder, row["step"], row.get("timestamp"), _values(row))
        for table, of_runs in left_out.items():
            builder.leave_out(_LEFT_OUT[table], len(of_runs.get(run_id, ())))
        config = _values(configs[run_id][0]) if run_id in configs else {}
        yield _run(builder, path, run_id, str(rows[0]["run_name"]), config)


def _by_run(path: Path, end: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a project's Parquet file by run; no rows if there is no such file."""
    file = path.with_name(f"{path.stem}{end}.parquet")
    found: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(file).to_pylist() if file.is_file() else ():
        found.setdefault(str(row.get("run_id") or row.get("run_name")), []).append(row)
    return found


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _ROW_COLUMNS}


def _add_row(builder: RunBuilder, step: object, time: object, metrics: Any) -> None:
    if not isinstance(metrics, Mapping):
        builder.leave_out("{} rows were damaged")
        return
    at_s = seconds_of(str(time))
    for metric, value in metrics.items():
        if value is not None:
            builder.add(metric, step, at_s, value)


def _run(builder: RunBuilder, path: Path, run_id: str, name: str, config: Any) -> ForeignRun:
    params = config if isinstance(config, Mapping) else {}
    created = params.get("_Created")
    return builder.run(
        experiment=path.stem,
        params={key: params[key] for key in params if not key.startswith("_")},
        tool="trackio",
        source=str(path),
        tool_run_id=f"{path.stem}/{run_id}",
        name=name,
        status="unknown",
        tags={key.lstrip("_").lower(): str(value) for key, value in params.items() if key.startswith("_") and value},
        started_s=seconds_of(created) if isinstance(created, str) else None,
    )

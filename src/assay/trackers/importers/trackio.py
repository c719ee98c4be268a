"""Reads trackio's projects, a SQLite database or a Parquet file each, without trackio."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from assay.records.run import ImportedFrom
from assay.trackers.importers.foreign_run import ForeignRun, Losses, SeriesBuilder, json_or_text, seconds_of
from assay.trackers.importers.sqlite import columns_of, opened

_ROW_COLUMNS = ("id", "run_id", "run_name", "timestamp", "step", "log_id", "space_id")
"""Columns of a Parquet file that are no metrics."""


def read_trackio_database(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a project."""
    with closing(opened(path)) as database:
        # Before 0.10 runs had names only.
        key = "run_id" if "run_id" in columns_of(database, "metrics") else "run_name"
        configs: dict[str, str] = {}
        if columns_of(database, "configs"):
            configs = dict(database.execute(f"SELECT {key}, config FROM configs ORDER BY id").fetchall())
        runs = database.execute(f"SELECT {key}, run_name, MIN(id) FROM metrics GROUP BY {key} ORDER BY 3").fetchall()
        for run_id, name, _ in runs:
            query = f"SELECT step, timestamp, metrics FROM metrics WHERE {key} = ? ORDER BY id"
            rows = ((step, time, json_or_text(text)) for step, time, text in database.execute(query, (run_id,)))
            config = json_or_text(configs.get(run_id, "{}"))
            yield _run(path, str(run_id), str(name), config, rows)


def read_trackio_parquet(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a project's Parquet file."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist()
    configs_path = path.with_name(f"{path.stem}_configs.parquet")
    configs = pq.read_table(configs_path).to_pylist() if configs_path.is_file() else []
    by_run: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_run.setdefault(str(row.get("run_id") or row["run_name"]), []).append(row)
    for run_id, of_run in by_run.items():
        config: dict[str, Any] = next((row for row in configs if run_id in (row.get("run_id"), row["run_name"])), {})
        points = (
            (row["step"], str(row["timestamp"]), {name: row[name] for name in row if name not in _ROW_COLUMNS})
            for row in of_run
        )
        params = {name: value for name, value in config.items() if name not in (*_ROW_COLUMNS, "created_at")}
        yield _run(path, run_id, str(of_run[0]["run_name"]), params, points)


def _run(path: Path, run_id: str, name: str, config: Any, rows: Iterable[tuple[int, str, Any]]) -> ForeignRun:
    losses = Losses()
    builder = SeriesBuilder(losses)
    for step, time, metrics in rows:
        at_s = seconds_of(time)
        for metric, value in (metrics if isinstance(metrics, Mapping) else {}).items():
            if value is not None:
                builder.add(metric, step, at_s, value)
    params = config if isinstance(config, Mapping) else {}
    created = params.get("_Created")
    series = builder.series()
    facts = ImportedFrom(
        tool="trackio",
        source=str(path),
        tool_run_id=f"{path.stem}/{run_id}",
        name=name,
        status="unknown",
        tags={key.lstrip("_").lower(): str(value) for key, value in params.items() if key.startswith("_") and value},
        started_s=seconds_of(created) if isinstance(created, str) else None,
        left_out=losses.sentences(),
    )
    return ForeignRun(facts, path.stem, {key: params[key] for key in params if not key.startswith("_")}, [series])

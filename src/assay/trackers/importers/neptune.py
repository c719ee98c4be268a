"""Reads the Parquet files of neptune-exporter: `PROJECT/RUN_part_N.parquet`, a row per attribute or point."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assay.records.run import RunStatus
from assay.store.metrics.segment import Points
from assay.trackers.importers.foreign_run import ForeignRun, RunBuilder

_PART = re.compile(r"(?P<run>.+)_part_(?P<part>\d+)\.parquet")
_VALUES = {
    "float": "float_value", "int": "int_value", "string": "string_value", "bool": "bool_value",
    "datetime": "datetime_value", "string_set": "string_set_value",
}  # fmt: skip
"""Type of an attribute -> column of its value."""
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("project_id", "run_id", "attribute_path", "attribute_type")),
        ("step", pa.float64()), ("timestamp", pa.timestamp("us", tz="UTC")), ("float_value", pa.float64()),
        ("int_value", pa.int64()), ("string_value", pa.string()), ("bool_value", pa.bool_()),
        ("datetime_value", pa.timestamp("us", tz="UTC")), ("string_set_value", pa.list_(pa.string())),
    ]
)  # fmt: skip


def read_neptune(folder: Path) -> Iterator[ForeignRun]:
    """Yield a run for each set of part files."""
    runs: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        if match := _PART.fullmatch(path.name):
            runs.setdefault((path.parent, match["run"]), []).append((int(match["part"]), path))
    for parts in runs.values():
        builder = RunBuilder()
        tables = [table for _, path in sorted(parts) if (table := _table(path, builder)) is not None]
        if tables and sum(map(len, tables)):
            yield _read_run(pa.concat_tables(tables), parts[0][1], builder)


def _table(path: Path, builder: RunBuilder) -> pa.Table | None:
    """Return a file's rows that have a name; None if the file or the types in it are damaged."""
    try:
        table = pq.read_table(path, columns=_SCHEMA.names).cast(_SCHEMA)
    except (pa.ArrowException, OSError):
        builder.leave_out("{} damaged Parquet files")
        return None
    named = table.filter(pc.and_(pc.is_valid(table["attribute_path"]), pc.is_valid(table["attribute_type"])))
    builder.leave_out("{} rows without a name or type", len(table) - len(named))
    return named


def _read_run(table: pa.Table, path: Path, builder: RunBuilder) -> ForeignRun:
    is_series = pc.equal(table["attribute_type"], "float_series")
    _add_series(table.filter(is_series), builder)
    params: dict[str, Any] = {}
    for row in table.filter(pc.invert(is_series)).to_pylist():
        if (column := _VALUES.get(row["attribute_type"])) is None:
            builder.leave_out(f"{{}} rows of {row['attribute_type']}")
        elif row[column] is not None:
            params[row["attribute_path"]] = row[column]
    system = {name.removeprefix("sys/"): params.pop(name) for name in [*params] if name.startswith("sys/")}
    run_id, project = str(table["run_id"][0]), str(table["project_id"][0])
    return builder.run(
        experiment=project,
        params=params,
        tool="neptune",
        source=str(path),
        tool_run_id=f"{project}/{run_id}",
        name=str(system.get("name") or system.get("custom_run_id") or run_id),
        status=_status(system),
        tool_status=str(system.get("state", "")),
        tags={name: str(value) for name, value in system.items()},
        started_s=_seconds(system.get("creation_time")),
        ended_s=_seconds(system.get("modification_time")),
    )


def _add_series(table: pa.Table, builder: RunBuilder) -> None:
    steps = table["step"].to_numpy()
    has_step = np.abs(steps) < 2**62
    builder.leave_out("{} points without a whole step", int((~has_step).sum()))
    builder.leave_out("{} points with their fractional step rounded down", int((steps[has_step] % 1 != 0).sum()))
    # A null and a NaN are one: Neptune had no points without a value.
    values = table["float_value"].to_numpy()
    times = pc.cast(pc.cast(table["timestamp"], pa.int64()), pa.float64()).to_numpy() / 1e6
    paths = table["attribute_path"].combine_chunks().dictionary_encode()
    codes, names = paths.indices.to_numpy(), paths.dictionary.to_pylist()
    order = np.flatnonzero(has_step)
    order = order[np.argsort(codes[order], kind="stable")]
    for group in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if len(group):
            points = Points(np.floor(steps[group]).astype(np.int64), times[group], values[group])
            builder.add_points(names[codes[group[0]]], points)


def _status(system: dict[str, Any]) -> RunStatus:
    if system.get("failed"):
        return "failed"
    return "succeeded" if str(system.get("state", "")).lower() == "inactive" else "unknown"


def _seconds(moment: Any) -> float | None:
    return None if moment is None else float(moment.timestamp())

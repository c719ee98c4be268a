"""Reads the Parquet files of neptune-exporter: `PROJECT/RUN_part_N.parquet`, a row per attribute or point."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assay.records.run import ImportedFrom, RunStatus
from assay.store.metrics.segment import Points
from assay.trackers.importers.foreign_run import ForeignRun, Losses, Series, named_series

_PART = re.compile(r"(?P<run>.+)_part_(?P<part>\d+)\.parquet")
_VALUES = {
    "float": "float_value", "int": "int_value", "string": "string_value", "bool": "bool_value",
    "datetime": "datetime_value", "string_set": "string_set_value",
}  # fmt: skip
"""Type of an attribute -> column of its value."""
_COLUMNS = ["project_id", "run_id", "attribute_path", "attribute_type", "step", "timestamp", *_VALUES.values()]


def read_neptune(folder: Path) -> Iterator[ForeignRun]:
    """Yield a run for each set of part files."""
    runs: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        if match := _PART.fullmatch(path.name):
            runs.setdefault((path.parent, match["run"]), []).append((int(match["part"]), path))
    for parts in runs.values():
        losses = Losses()
        tables = [table for _, path in sorted(parts) if (table := _table(path, losses)) is not None]
        if tables:
            yield _read_run(pa.concat_tables(tables), parts[0][1], losses)


def _table(path: Path, losses: Losses) -> pa.Table | None:
    try:
        return pq.read_table(path, columns=_COLUMNS)
    except (pa.ArrowException, OSError):
        losses["{} damaged Parquet files"] += 1
        return None


def _read_run(table: pa.Table, path: Path, losses: Losses) -> ForeignRun:
    is_series = pc.equal(table["attribute_type"], "float_series")
    series = _series(table.filter(is_series), losses)
    params: dict[str, Any] = {}
    for row in table.filter(pc.invert(is_series)).to_pylist():
        if (column := _VALUES.get(row["attribute_type"])) is None:
            losses[f"{{}} rows of {row['attribute_type']}"] += 1
        elif row[column] is not None:
            params[row["attribute_path"]] = row[column]
    system = {name.removeprefix("sys/"): params.pop(name) for name in [*params] if name.startswith("sys/")}
    run_id, project = str(table["run_id"][0]), str(table["project_id"][0])
    facts = ImportedFrom(
        tool="neptune",
        source=str(path),
        tool_run_id=f"{project}/{run_id}",
        name=str(system.get("name") or system.get("custom_run_id") or run_id),
        status=_status(system),
        tool_status=str(system.get("state", "")),
        tags={name: str(value) for name, value in system.items()},
        started_s=_seconds(system.get("creation_time")),
        ended_s=_seconds(system.get("modification_time")),
        left_out=losses.sentences(),
    )
    return ForeignRun(facts, project, params, [series])


def _series(table: pa.Table, losses: Losses) -> Series:
    steps = pc.cast(table["step"], pa.float64()).to_numpy()
    has_step = np.isfinite(steps)
    losses["{} points without a whole step"] += int((~has_step).sum())
    losses["{} points with their fractional step rounded down"] += int((steps[has_step] % 1 != 0).sum())
    # A null and a NaN are one: Neptune had no points without a value.
    values = table["float_value"].to_numpy()
    times = pc.cast(pc.cast(table["timestamp"], pa.timestamp("ms")), pa.int64()).to_numpy().astype(float) / 1000
    paths = table["attribute_path"].combine_chunks().dictionary_encode()
    codes, names = paths.indices.to_numpy(), paths.dictionary.to_pylist()
    order = np.flatnonzero(has_step)
    order = order[np.argsort(codes[order], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    return named_series(
        (
            (names[codes[group[0]]], Points(np.floor(steps[group]).astype(np.int64), times[group], values[group]))
            for group in groups
            if len(group)
        ),
        losses,
    )


def _status(system: dict[str, Any]) -> RunStatus:
    if system.get("failed"):
        return "failed"
    return "succeeded" if str(system.get("state", "")).lower() == "inactive" else "unknown"


def _seconds(moment: Any) -> float | None:
    return None if moment is None else float(moment.timestamp())

"""From segments to the ledger: what ranks appended is folded into tables that are quick to read.

    segment --(frames behind the stored position)--> chunks of 1024 points + an overview per series + levels
                                                     and the new position, in one transaction

Folding is idempotent and may stop anywhere: points and position become visible together. Two folders of one run
(the supervisor, and somebody's `assay runs show`) take turns. All of it can be deleted and folded anew.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.records.run import Run
from assay.store.ledger import tables
from assay.store.ledger.database import Connection
from assay.store.ledger.ledger import Ledger, insertion, upsert
from assay.store.metrics.extremes import STEP, VALUE, Overview, Table, extended_overviews, no_points
from assay.store.metrics.levels import CHUNK_POINTS, curve_states, extend_levels
from assay.store.metrics.segment import (
    Points,
    Position,
    SegmentData,
    SegmentHeader,
    read_segment,
    segment_paths,
)

_BATCH_POINTS = 1 << 16
"""New points whose overviews are made at once."""


class SeriesRow(NamedTuple):
    """A row of `tables.metric_series`: one metric of one rank of one attempt."""

    series_id: int
    attempt: int
    name: str
    num_points: int
    num_nan: int
    first_step: int
    last_step: int
    last_value: float | None
    minimum: float | None
    maximum: float | None
    bucket_points: int
    overview: bytes


class _SegmentRow(NamedTuple):
    position: str
    num_bytes: int
    num_events: int
    last_at_s: float


def fold_run(ledger: Ledger, run: Run) -> int:
    """Fold new data of the run's local segments into the ledger; cheap without new data.

    Returns the number of new points.
    """
    folder = Path(run.run_dir) / "metrics"
    query = "SELECT path, num_bytes FROM metric_segments WHERE run_id = :run_id"
    with ledger.reading() as connection:
        folded_bytes = dict(connection.execute(query, {"run_id": run.run_id}))
    num_points = 0
    for path in segment_paths(Path(run.run_dir)):
        name = path.relative_to(folder).as_posix()
        if path.stat().st_size != folded_bytes.get(name):
            num_points += _fold_segment(ledger, run.run_id, path, name)
    return num_points


def segment_sizes(run_dir: Path) -> str | None:
    """Return a text that changes when a rank of the latest attempt writes; None if the run has no local segments."""
    try:
        with os.scandir(run_dir / "metrics") as folders:
            latest = max(folder.name for folder in folders if folder.name.startswith("attempt-"))
        with os.scandir(run_dir / "metrics" / latest) as files:
            return f"{latest} {sum(file.stat().st_size for file in files)}"
    except (OSError, ValueError):
        return None


def _fold_segment(ledger: Ledger, run_id: str, path: Path, name: str) -> int:
    with ledger.writing() as connection:
        before = _claim(connection, run_id, name)
        data = read_segment(path, Position.from_json(before.position))
        if data.header is None or data.next.offset == before.num_bytes:
            return 0
        append_points(connection, run_id, data.header, data.metrics)
        _append_events(connection, run_id, name, before.num_events, data)
        row = {
            "run_id": run_id,
            "path": name,
            "position": data.next.to_json(),
            "num_bytes": data.next.offset,
            "num_events": before.num_events + len(data.events),
            "last_at_s": max(before.last_at_s, data.last_at_s()),
        }
        upsert(connection, tables.metric_segments, [row])
    return sum(len(points.steps) for points in data.metrics.values())


def _claim(connection: Connection, run_id: str, name: str) -> "_SegmentRow":
    """Return the segment's row, created if missing; it stays locked until the transaction ends."""
    first = {"position": Position().to_json(), "num_bytes": 0, "num_events": 0, "last_at_s": 0.0}
    row = {"run_id": run_id, "path": name, **first}
    columns = ", ".join(_SegmentRow._fields)
    # Written again where it is there, as it is: that makes others wait, in PostgreSQL too.
    ((*found,),) = connection.execute(
        f"{insertion(tables.metric_segments, row)} ON CONFLICT (run_id, path) "
        f"DO UPDATE SET num_bytes = metric_segments.num_bytes RETURNING {columns}",
        row,
    )
    return _SegmentRow(*found)


def series_rows(
    connection: Connection, *, order: str = "series_id", attempts: Iterable[int] | None = None, **ours: object
) -> "list[SeriesRow]":
    """Return the series that match these column values. `attempts`: those of the run; with them, the rows of one of
    many metrics are found at once."""
    where = " AND ".join(f"{column} = :{column}" for column in ours)
    if attempts is not None:
        where += f" AND attempt IN ({', '.join(map(str, attempts)) or -1})"
    columns = ", ".join(SeriesRow._fields)
    rows = connection.execute(f"SELECT {columns} FROM metric_series WHERE {where} ORDER BY {order}", ours)
    return [SeriesRow(*row) for row in rows]


def append_points(connection: Connection, run_id: str, header: SegmentHeader, metrics: dict[str, Points]) -> None:
    """Append points of a rank to its series, with their chunks and levels."""
    table = tables.metric_series
    ours: dict[str, Any] = {"run_id": run_id, "attempt": header.attempt, "rank": header.rank}
    known = {row.name: row for row in series_rows(connection, **ours)}
    for name, new, overview in _continued(known, header, metrics):
        row = known.get(name)
        summary = _summary_with(row, new, overview)
        changes = ", ".join(f"{column} = :{column}" for column in summary)
        if row is None:
            fields = {**ours, "name": name, **summary}
            # A statement that comes in twice, because its answer was lost, writes what it wrote.
            again = f"ON CONFLICT ({', '.join(table.unique)}) DO UPDATE SET {changes}"
            query = f"{insertion(table, fields)} {again} RETURNING series_id"
            ((series_id,),) = connection.execute(query, fields)
            num_before = 0
        else:
            series_id, num_before = row.series_id, row.num_points
            values = {**summary, "series_id": series_id}
            connection.execute(f"UPDATE metric_series SET {changes} WHERE series_id = :series_id", values)
        _append_chunks(connection, series_id, num_before, new)
        has_new_chunk = num_before // CHUNK_POINTS != (num_before + len(new)) // CHUNK_POINTS
        if header.rank == 0 and (has_new_chunk or (row is None and header.attempt > 1)):
            (state,) = curve_states(connection, [run_id], name)
            if state.is_stale:
                extend_levels(connection, state)


def _continued(
    known: dict[str, SeriesRow], header: SegmentHeader, metrics: dict[str, Points]
) -> Iterator[tuple[str, Table, Overview]]:
    """Yield name, new points and new overview of each metric: of short ones many at once, of long ones one by one."""
    logged = [(name.replace("\x00", "�"), points) for name, points in metrics.items()]  # PostgreSQL stores no NUL
    size = max(1, _BATCH_POINTS // max((len(points.steps) for _, points in logged), default=1))
    for start in range(0, len(logged), size):
        names, new, before = [], [], []
        for name, points in logged[start : start + size]:
            row = known.get(name)
            names.append(name)
            new.append(np.stack([points.steps.astype(float), header.wall_of(points.at_s), points.values], axis=1))
            before.append(
                Overview(row.num_points, row.bucket_points, decoded_points(row.overview)) if row else Overview()
            )
        yield from zip(names, new, extended_overviews(before, new), strict=True)


def _summary_with(row: "SeriesRow | None", new: Table, after: Overview) -> dict[str, Any]:
    """Return the series' columns after `new` is appended; `row` is None for a new series."""
    steps, values, extremes = new[:, STEP], new[:, VALUE], after.extremes[:, VALUE]
    numbers = extremes[~np.isnan(extremes)]
    return {
        "num_points": after.num_points,
        "num_nan": int(np.isnan(values).sum()) + (0 if row is None else row.num_nan),
        "first_step": int(steps.min() if row is None else min(steps.min(), row.first_step)),
        "last_step": int(steps.max() if row is None else max(steps.max(), row.last_step)),
        "last_value": None if np.isnan(values[-1]) else float(values[-1]),
        "minimum": float(numbers.min()) if len(numbers) else None,
        "maximum": float(numbers.max()) if len(numbers) else None,
        "bucket_points": after.bucket_points,
        "overview": encoded_points(after.extremes),
    }


def _append_chunks(connection: Connection, series_id: int, num_before: int, new: Table) -> None:
    """Fill the last chunk and append new ones."""
    table = tables.metric_chunks
    first_index = num_before // CHUNK_POINTS
    partial_chunk = no_points()
    if num_before % CHUNK_POINTS:
        last = {"series_id": series_id, "chunk_index": first_index}
        query = "SELECT points FROM metric_chunks WHERE series_id = :series_id AND chunk_index = :chunk_index"
        ((points_before,),) = connection.execute(query, last)
        partial_chunk = decoded_points(points_before)
    points = np.concatenate([partial_chunk, new])
    rows = [
        {
            "series_id": series_id,
            "chunk_index": first_index + start // CHUNK_POINTS,
            "first_step": int(points[start : start + CHUNK_POINTS, STEP].min()),
            "last_step": int(points[start : start + CHUNK_POINTS, STEP].max()),
            "points": encoded_points(points[start : start + CHUNK_POINTS]),
        }
        for start in range(0, len(points), CHUNK_POINTS)
    ]
    upsert(connection, table, rows)


def _append_events(connection: Connection, run_id: str, name: str, num_before: int, data: SegmentData) -> None:
    assert data.header is not None, "events stand behind a header"
    at_s = data.header.wall_of(np.array([event.at_s for event in data.events]))
    rows = [
        {
            "run_id": run_id,
            "path": name,
            "event_index": num_before + index,
            "at_s": float(at_s[index]),
            "text": event.text.replace("\x00", "�"),
        }
        for index, event in enumerate(data.events)
    ]
    if rows:
        upsert(connection, tables.metric_events, rows)


def encoded_points(points: Table) -> bytes:
    """Encode points for the ledger: step i64, seconds f64, value f64, by column."""
    steps = points[:, STEP].astype("<i8").tobytes()
    return steps + np.ascontiguousarray(points[:, 1:].T, "<f8").tobytes()


def decoded_points(data: bytes) -> Table:
    """Decode `encoded_points`. Steps are exact up to 2^53."""
    num_points = len(data) // 24
    steps = np.frombuffer(data, "<i8", num_points).astype(float)
    others = np.frombuffer(data, "<f8", 2 * num_points, 8 * num_points).reshape(2, num_points)
    return np.stack([steps, *others], axis=1)

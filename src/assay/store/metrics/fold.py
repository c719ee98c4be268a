"""From segments to the ledger: what ranks appended is folded into tables that are quick to read.

    segment --(frames behind the stored position)--> chunks of 1024 points + an overview per series
                                                     and the new position, in one transaction

Folding is idempotent and may stop anywhere: points and position become visible together. Two folders of one run
(the supervisor, and somebody's `assay show`) take turns. All of it can be deleted and folded anew.
"""

from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.engine import Connection

from assay.records.run import Run
from assay.store.ledger import tables
from assay.store.ledger.ledger import Ledger, insert_into, upsert
from assay.store.metrics.extremes import STEP, VALUE, Overview, Table, no_points
from assay.store.metrics.segment import (
    Points,
    Position,
    SegmentData,
    SegmentHeader,
    read_segment,
    segment_paths,
)

CHUNK_POINTS = 1024
"""Points of one series that lie in one row of the ledger."""


def fold_run(ledger: Ledger, run: Run) -> int:
    """Bring the ledger up to date with the run's segments on this machine; cheap where nothing is new.

    Returns the number of new points.
    """
    folder = Path(run.run_dir) / "metrics"
    table = tables.metric_segments
    with ledger.reading() as connection:
        rows = connection.execute(select(table.c.path, table.c.num_bytes).where(table.c.run_id == run.run_id))
        folded_bytes = {row.path: row.num_bytes for row in rows}
    num_points = 0
    for path in segment_paths(Path(run.run_dir)):
        name = path.relative_to(folder).as_posix()
        if path.stat().st_size != folded_bytes.get(name):
            num_points += _fold_segment(ledger, run.run_id, path, name)
    return num_points


def _fold_segment(ledger: Ledger, run_id: str, path: Path, name: str) -> int:
    with ledger.writing() as connection:
        before = _claim(connection, run_id, name)
        data = read_segment(path, Position.from_json(before.position))
        if data.header is None or data.next.offset == before.num_bytes:
            return 0
        _append_series(connection, run_id, data.header, data.metrics)
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


def _claim(connection: Connection, run_id: str, name: str) -> Any:
    """The segment's row, made if there is none; nobody else folds it until this transaction ends."""
    table = tables.metric_segments
    insert = insert_into(connection, table)
    first = {"position": Position().to_json(), "num_bytes": 0, "num_events": 0, "last_at_s": 0.0}
    connection.execute(insert.on_conflict_do_nothing(), {"run_id": run_id, "path": name, **first})
    query = select(table).where(table.c.run_id == run_id, table.c.path == name).with_for_update()
    return connection.execute(query).one()


def _append_series(
    connection: Connection, run_id: str, header: SegmentHeader, metrics: dict[str, Points]
) -> None:
    table = tables.metric_series
    ours = (table.c.run_id == run_id, table.c.attempt == header.attempt, table.c.rank == header.rank)
    known: dict[str, Any] = {row.name: row for row in connection.execute(select(table).where(*ours))}
    for logged_name, points in metrics.items():
        name = logged_name.replace("\x00", "�")  # which PostgreSQL cannot store
        new = np.stack([points.steps.astype(float), header.wall_of(points.at_s), points.values], axis=1)
        row = known.get(name)
        summary = _summary_with(row, new)
        if row is None:
            fields = {"run_id": run_id, "attempt": header.attempt, "rank": header.rank, "name": name}
            query = table.insert().values(**fields, **summary).returning(table.c.series_id)
            series_id, num_before = connection.execute(query).scalar_one(), 0
        else:
            series_id, num_before = row.series_id, row.num_points
            connection.execute(table.update().where(table.c.series_id == series_id).values(**summary))
        _append_chunks(connection, series_id, num_before, new)


def _summary_with(row: Any, new: Table) -> dict[str, Any]:
    """The series' columns after `new` is appended; `row` is None for a new series."""
    before = (
        Overview() if row is None else Overview(row.num_points, row.bucket_points, decoded_points(row.overview))
    )
    after = before.extended(new)
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
    """Fill the last chunk up and add further ones."""
    table = tables.metric_chunks
    first_index = num_before // CHUNK_POINTS
    kept = no_points()
    if num_before % CHUNK_POINTS:
        is_last = (table.c.series_id == series_id, table.c.chunk_index == first_index)
        kept = decoded_points(connection.execute(select(table.c.points).where(*is_last)).scalar_one())
    points = np.concatenate([kept, new])
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
    """Points as the ledger holds them: step i64, seconds f64, value f64, column by column."""
    steps = points[:, STEP].astype("<i8").tobytes()
    return steps + np.ascontiguousarray(points[:, 1:].T, "<f8").tobytes()


def decoded_points(data: bytes) -> Table:
    """What `encoded_points` wrote. Steps are exact up to 2^53."""
    num_points = len(data) // 24
    steps = np.frombuffer(data, "<i8", num_points).astype(float)
    others = np.frombuffer(data, "<f8", 2 * num_points, 8 * num_points).reshape(2, num_points)
    return np.stack([steps, *others], axis=1)

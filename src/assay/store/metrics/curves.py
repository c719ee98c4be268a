"""Reading metrics back: one curve in detail, or the last value of each.

Where an attempt resumed at step s, what earlier attempts measured behind s was rolled back with their work: it
is kept, but belongs to no curve unless asked for (`lost=True`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.store.ledger.database import Connection
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.attempt_limits import attempt_limits, placeholders
from assay.store.metrics.extremes import (
    AT_S,
    MAX_BUCKETS,
    STEP,
    VALUE,
    Table,
    downsampled,
    drop_repeated,
    no_points,
)
from assay.store.metrics.fold import SeriesRow, decoded_points, series_rows
from assay.store.metrics.segment import attempt_and_rank

MAX_EXACT_POINTS = 100_000


class Curve(NamedTuple):
    """A metric by step: three arrays of equal length, sorted by step."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    at_s: npt.NDArray[np.float64]
    """Time of measurement, seconds since the epoch."""


class MetricSummary(NamedTuple):
    """One metric of one rank over all attempts."""

    name: str
    num_points: int
    num_nan: int
    last_step: int
    last_value: float | None
    """None for NaN."""
    minimum: float | None
    maximum: float | None


class RankEvent(NamedTuple):
    """A log message of a rank."""

    at_s: float
    """Seconds since the epoch."""
    attempt: int
    rank: int
    text: str


def metric_series(
    ledger: Ledger,
    run_id: str,
    name: str,
    *,
    rank: int = 0,
    x0: int | None = None,
    x1: int | None = None,
    max_points: int = 2_000,
    lost: bool = False,
) -> Curve:
    """A metric's points with steps in [x0, x1], at most `max_points`; highest and lowest values always show.

    Empty where the run never logged it. `lost` gives the points that were rolled back instead.
    """
    with ledger.reading() as connection:
        limits = attempt_limits(connection, [run_id])[run_id]
        ours = {"run_id": run_id, "rank": rank, "name": name}
        parts = []
        for series in series_rows(connection, order="attempt", attempts=limits, **ours):
            limit = limits[series.attempt]
            low, high = (limit + 1, np.inf) if lost else (-np.inf, limit)
            low, high = max(low, -np.inf if x0 is None else x0), min(high, np.inf if x1 is None else x1)
            parts.append(_points_between(connection, series, low, high, max_points))
    return _curve(parts, max_points)


def outlined_series(ledger: Ledger, run_id: str, name: str) -> Curve:
    """A metric's committed points on rank 0; of attempts with more than `MAX_EXACT_POINTS` the extremes of 512 buckets
    and all points near both ends. Reads a few blobs for each of these attempts."""
    with ledger.reading() as connection:
        limits = attempt_limits(connection, [run_id])[run_id]
        parts = []
        for series in series_rows(connection, order="attempt", attempts=limits, run_id=run_id, rank=0, name=name):
            limit = limits[series.attempt]
            if series.num_points <= MAX_EXACT_POINTS:
                parts.append(_points_between(connection, series, -np.inf, limit, MAX_EXACT_POINTS))
            elif series.first_step <= limit:
                parts.append(_outline(connection, series, limit))
    return _curve(parts, sum(map(len, parts)))


def _outline(connection: Connection, series: SeriesRow, limit: float) -> Table:
    chunks = "SELECT points FROM metric_chunks WHERE series_id = :series_id AND first_step <= :last ORDER BY first_step"
    values = {"series_id": series.series_id, "last": int(min(limit, series.last_step))}
    blobs = [*connection.execute(f"{chunks} LIMIT 1", values), *connection.execute(f"{chunks} DESC LIMIT 2", values)]
    points = np.concatenate([decoded_points(series.overview), *(decoded_points(blob) for (blob,) in blobs)])
    points = points[points[:, STEP] <= limit]
    return drop_repeated(points[np.argsort(points[:, STEP], kind="stable")])


def metric_summaries(
    ledger: Ledger, run_id: str, names: Sequence[str] | None = None, *, prefixes: Sequence[str] = ()
) -> list[MetricSummary]:
    """Each metric's last value and range on rank 0, by name. Ranges include points that were rolled back.

    `names`: of at most 500 metrics, to which those that begin with one of `prefixes` are added; by default all.
    """
    # The overviews stay unread: with thousands of metrics they are most of the table.
    query = f"SELECT {', '.join(MetricSummary._fields)} FROM metric_series WHERE run_id = :run_id AND rank = 0"
    values: dict[str, object] = {"run_id": run_id}
    if names is not None:
        marks, values = placeholders(names)
        chosen = [f"name IN ({marks})"] if marks else []
        for index, prefix in enumerate(prefixes):
            chosen.append(f"SUBSTR(name, 1, {len(prefix)}) = :prefix{index}")
            values[f"prefix{index}"] = prefix
        query = f"{query} AND ({' OR '.join(chosen) or 'FALSE'})"
        values["run_id"] = run_id
    by_name: dict[str, list[MetricSummary]] = {}
    with ledger.reading() as connection:
        for row in connection.execute(f"{query} ORDER BY name, attempt", values):
            by_name.setdefault(row[0], []).append(MetricSummary(*row))
    return [
        MetricSummary(
            name=name,
            num_points=sum(row.num_points for row in rows),
            num_nan=sum(row.num_nan for row in rows),
            last_step=rows[-1].last_step,
            last_value=rows[-1].last_value,
            minimum=min((row.minimum for row in rows if row.minimum is not None), default=None),
            maximum=max((row.maximum for row in rows if row.maximum is not None), default=None),
        )
        for name, rows in by_name.items()
    ]


def last_steps(ledger: Ledger, run_id: str, name: str) -> dict[int, int]:
    """Return the last step at which rank 0 logged the metric, by attempt, including rolled-back steps."""
    with ledger.reading() as connection:
        attempts = attempt_limits(connection, [run_id])[run_id]
        rows = series_rows(connection, attempts=attempts, run_id=run_id, rank=0, name=name)
    return {row.attempt: row.last_step for row in rows}


def events(ledger: Ledger, run_id: str) -> list[RankEvent]:
    """Return the log messages of a run's ranks in order of time."""
    query = "SELECT at_s, path, text FROM metric_events WHERE run_id = :run_id ORDER BY at_s, path, event_index"
    with ledger.reading() as connection:
        rows = connection.execute(query, {"run_id": run_id})
    return [RankEvent(at_s, *attempt_and_rank(Path(path)), text) for at_s, path, text in rows]


def last_sign_of_life_s(ledger: Ledger, run_id: str) -> float | None:
    """When a rank of the run was last heard of, seconds since the epoch; None where none ever was."""
    query = "SELECT MAX(last_at_s) FROM metric_segments WHERE run_id = :run_id AND last_at_s > 0"
    with ledger.reading() as connection:
        ((seen_s,),) = connection.execute(query, {"run_id": run_id})
    return None if seen_s is None else float(seen_s)


def _points_between(connection: Connection, series: SeriesRow, low: float, high: float, max_points: int) -> Table:
    """Return points with steps in [low, high], from the overview if it is fine enough, else from chunks."""
    if series.first_step > high or series.last_step < low:
        return no_points()
    is_whole = low <= series.first_step and series.last_step <= high
    if series.bucket_points == 1 or (is_whole and max_points <= MAX_BUCKETS):
        points = drop_repeated(decoded_points(series.overview))
    else:
        first, last = max(low, series.first_step), min(high, series.last_step)
        blobs = connection.execute(
            "SELECT points FROM metric_chunks WHERE series_id = :series_id AND last_step >= :first "
            "AND first_step <= :last ORDER BY chunk_index",
            {"series_id": series.series_id, "first": int(first), "last": int(last)},
        )
        points = np.concatenate([no_points(), *(decoded_points(blob) for (blob,) in blobs)])
    steps = points[:, STEP]
    return points[(steps >= low) & (steps <= high)]


def _curve(parts: list[Table], max_points: int) -> Curve:
    points = np.concatenate([no_points(), *parts])
    points = downsampled(points[np.argsort(points[:, STEP], kind="stable")], max_points)
    return Curve(points[:, STEP].astype(np.int64), points[:, VALUE].copy(), points[:, AT_S].copy())

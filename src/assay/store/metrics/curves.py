"""Reading metrics back: one curve in detail, or the last value of each.

Where an attempt resumed at step s, what earlier attempts measured behind s was rolled back with their work: it
is kept, but belongs to no curve unless asked for (`lost=True`).
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from assay.store.ledger import tables
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.extremes import (
    AT_S,
    MAX_BUCKETS,
    STEP,
    VALUE,
    Table,
    downsampled,
    no_points,
    without_repeats,
)
from assay.store.metrics.fold import decoded_points
from assay.store.metrics.segment import attempt_and_rank


class Curve(NamedTuple):
    """A metric by step: three arrays of one length, the steps never falling."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    at_s: npt.NDArray[np.float64]
    """When each was measured, seconds since the epoch."""


class MetricSummary(NamedTuple):
    """One metric of one rank over all attempts."""

    name: str
    num_points: int
    num_nan: int
    last_step: int
    last_value: float | None
    """None where it is no number."""
    minimum: float | None
    maximum: float | None


class RankEvent(NamedTuple):
    """A sentence that a rank wrote down."""

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
        kept_up_to = _kept_up_to(connection, run_id)
        table = tables.metric_series
        ours = (table.c.run_id == run_id, table.c.rank == rank, table.c.name == name)
        parts = []
        for series in connection.execute(select(table).where(*ours).order_by(table.c.attempt)):
            limit = kept_up_to[series.attempt]
            low, high = (limit + 1, np.inf) if lost else (-np.inf, limit)
            low, high = max(low, -np.inf if x0 is None else x0), min(high, np.inf if x1 is None else x1)
            parts.append(_points_between(connection, series, low, high, max_points))
    return _curve(parts, max_points)


def metric_summaries(ledger: Ledger, run_id: str) -> list[MetricSummary]:
    """Each metric's last value and range on rank 0, by name. Ranges include points that were rolled back."""
    table = tables.metric_series
    query = select(table).where(table.c.run_id == run_id, table.c.rank == 0)
    by_name: dict[str, list[Any]] = {}
    with ledger.reading() as connection:
        for row in connection.execute(query.order_by(table.c.name, table.c.attempt)):
            by_name.setdefault(row.name, []).append(row)
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
    """Attempt -> the last step at which its rank 0 logged the metric, be that rolled back or not."""
    table = tables.metric_series
    query = select(table.c.attempt, table.c.last_step).where(
        table.c.run_id == run_id, table.c.rank == 0, table.c.name == name
    )
    with ledger.reading() as connection:
        return {attempt: step for attempt, step in connection.execute(query)}  # noqa: C416


def events(ledger: Ledger, run_id: str) -> list[RankEvent]:
    """What the ranks of a run wrote down, in the order in which it happened."""
    table = tables.metric_events
    query = select(table.c.at_s, table.c.path, table.c.text).where(table.c.run_id == run_id)
    with ledger.reading() as connection:
        rows = connection.execute(query.order_by(table.c.at_s, table.c.path, table.c.event_index)).all()
    return [RankEvent(at_s, *attempt_and_rank(Path(path)), text) for at_s, path, text in rows]


def last_sign_of_life_s(ledger: Ledger, run_id: str) -> float | None:
    """When a rank of the run was last heard of, seconds since the epoch; None where none ever was."""
    table = tables.metric_segments
    query = select(table.c.last_at_s).where(table.c.run_id == run_id, table.c.last_at_s > 0)
    with ledger.reading() as connection:
        return max(connection.execute(query).scalars(), default=None)


def _kept_up_to(connection: Connection, run_id: str) -> dict[int, float]:
    """Attempt -> the last of its steps that later attempts did not roll back.

    An attempt begins where its record says, or else (a ledger that was built from segments alone) a step before
    the first that it logged.
    """
    series, attempts = tables.metric_series.c, tables.attempts.c
    logged = select(series.attempt, func.min(series.first_step) - 1).where(series.run_id == run_id)
    recorded = select(attempts.attempt, attempts.start_step).where(attempts.run_id == run_id)
    begins: dict[int, int] = {}
    for query in (logged.group_by(series.attempt), recorded):
        begins.update((attempt, step) for attempt, step in connection.execute(query))
    kept_up_to: dict[int, float] = {}
    limit = np.inf
    for attempt in sorted(begins, reverse=True):
        kept_up_to[attempt] = limit
        limit = min(limit, begins[attempt])
    return kept_up_to


def _points_between(connection: Connection, series: Any, low: float, high: float, max_points: int) -> Table:
    """Points with steps in [low, high]: from the overview where it is fine enough, else from chunks."""
    if series.first_step > high or series.last_step < low:
        return no_points()
    is_whole = low <= series.first_step and series.last_step <= high
    if series.bucket_points == 1 or (is_whole and max_points <= MAX_BUCKETS):
        points = without_repeats(decoded_points(series.overview))
    else:
        table = tables.metric_chunks
        query = select(table.c.points).where(table.c.series_id == series.series_id)
        if np.isfinite(low):
            query = query.where(table.c.last_step >= int(low))
        if np.isfinite(high):
            query = query.where(table.c.first_step <= int(high))
        blobs = connection.execute(query.order_by(table.c.chunk_index)).scalars()
        points = np.concatenate([no_points(), *map(decoded_points, blobs)])
    steps = points[:, STEP]
    return points[(steps >= low) & (steps <= high)]


def _curve(parts: list[Table], max_points: int) -> Curve:
    points = np.concatenate([no_points(), *parts])
    points = downsampled(points[np.argsort(points[:, STEP], kind="stable")], max_points)
    return Curve(points[:, STEP].astype(np.int64), points[:, VALUE].copy(), points[:, AT_S].copy())

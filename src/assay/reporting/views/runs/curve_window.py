"""Curves in as many columns as a plot has: any window of a metric of one run, or of a group of runs.

A column is a range of steps whose length is a power of two and that begins at a multiple of it, so columns of
different runs and of later calls coincide. A window is widened to whole columns. Each column gives the exact
minimum and maximum of all points in it; no spike is lost.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from assay.base.errors import ConfigError
from assay.store.ledger.database import Connection
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.attempt_limits import attempt_limits, placeholders
from assay.store.metrics.levels import CurveState, first_step_after, open_curves
from assay.store.metrics.windows import WindowNodes, affordable_level, level_of, read_window

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

MAX_COLUMNS = 4096
_FARTHEST_STEP = 2**61
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


class CurveColumns(NamedTuple):
    """Non-empty columns by step: arrays of equal length."""

    steps: Numbers
    """First step of the column's range."""
    minimum: Numbers
    """Smallest finite value; NaN if a column has none, as in the next two."""
    maximum: Numbers
    last: Numbers
    """The finite value at the largest step; of several, the one that was logged last."""
    num_points: Counts
    num_nan: Counts
    num_positive_infinity: Counts
    num_negative_infinity: Counts


class CurveCursor(NamedTuple):
    """What a page has seen of a window, to fetch only what is new."""

    step_width: int
    series_id: int
    num_points: int
    digest: str
    """Digest of the request and of all that cannot grow: if it differs, the whole window is sent."""

    def to_text(self) -> str:
        """Return the cursor as text without characters that a URL escapes."""
        return "-".join(map(str, self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the output of `to_text`. Raises `ConfigError` for other text."""
        try:
            width, series_id, num_points, digest = text.split("-")
            return cls(int(width), int(series_id), int(num_points), digest)
        except ValueError:
            raise ConfigError(
                f"since={text[:80]}: expected the cursor of an earlier answer. Leave it out to fetch the whole window."
            ) from None


class CurveWindow(NamedTuple):
    """A window of one metric of a run."""

    step_width: int
    """Steps of a column."""
    committed: CurveColumns
    lost: CurveColumns
    """Columns of points that were rolled back."""
    num_points: int
    """Points of the whole metric, including those that were rolled back."""
    replaces_from: int | None
    """With a cursor: columns from this step on replace those that the page has. None: all are replaced."""
    cursor: CurveCursor
    etag: str


class GroupCurve(NamedTuple):
    """A metric over all runs of a group, in columns that all runs share; arrays of equal length."""

    step_width: int
    steps: Numbers
    num_runs: Counts
    """Runs with a finite value in the column."""
    mean: Numbers
    """Over runs, of each run's last value in the column."""
    quantiles: Numbers
    """One row for each of `QUANTILES`, over the same values."""
    minimum: Numbers
    """Over all finite points of all runs."""
    maximum: Numbers
    etag: str


class RunColumns(NamedTuple):
    """A metric of several runs in shared columns: arrays by run and column, NaN where a run has no finite value."""

    step_width: int
    steps: Numbers
    minimum: Numbers
    maximum: Numbers
    last: Numbers


def window_curve(
    ledger: Ledger,
    run_id: str,
    name: str,
    *,
    first_step: int | None = None,
    last_step: int | None = None,
    columns: int = 1000,
    since: CurveCursor | None = None,
) -> CurveWindow:
    """Return a window of a metric of rank 0 in at most `columns` columns.

    Reads at most 64 blobs. A bound that is None is the first or last step of the metric. With `since`, only the
    columns that changed are returned, or all of them if the request, the width of columns or the attempts changed.
    """
    request = (run_id, name, first_step, last_step, columns)
    with open_curves(ledger, [run_id], name) as (connection, (state,)):
        first, last = _span([state], first_step, last_step)
        level = affordable_level(connection, [state], first, last, level_of(first, last, _checked(columns)))
        replaces_from = _replaces_from(connection, since, _cursor(state, level, request), last)
        if replaces_from is not None:
            first = max(first, replaces_from)
        window = read_window(connection, [state], first, last, level)
    assert window.lost is not None, "it was asked for"
    columns_of = (_columns(window.committed, level), _columns(window.lost, level))
    num_points = sum(series.num_points for series in state.series)
    cursor = _cursor(state, level, request)
    etag = _digest(cursor, num_points, replaces_from, *columns_of[0], *columns_of[1])
    return CurveWindow(1 << level, *columns_of, num_points, replaces_from, cursor, etag)


def curve_bytes(window: CurveWindow) -> bytes:
    """Return a window as little-endian float64, one column of the table after the other, each of the same length.

    The columns: step, minimum, maximum, last, number of NaN, of infinity, of -infinity, then minimum, maximum and
    last of the points that were rolled back. NaN stands where a step has no value.
    """
    steps = np.union1d(window.committed.steps, window.lost.steps)
    table = np.full((10, len(steps)), np.nan)
    table[0] = steps
    for row, columns, names in (
        (1, window.committed, CurveColumns._fields[1:4] + CurveColumns._fields[5:]),
        (7, window.lost, CurveColumns._fields[1:4]),
    ):
        index = np.searchsorted(steps, columns.steps)
        for offset, name in enumerate(names):
            table[row + offset, index] = getattr(columns, name)
    return table.astype("<f8").tobytes()


def run_columns(
    ledger: Ledger,
    run_ids: Sequence[str],
    name: str,
    *,
    first_step: int | None = None,
    last_step: int | None = None,
    columns: int = 488,
) -> RunColumns:
    """Return the committed points of a metric of several runs in shared columns, without empty columns."""
    with open_curves(ledger, run_ids, name) as (connection, states):
        first, last = _span(states, first_step, last_step)
        level = affordable_level(connection, states, first, last, level_of(first, last, _checked(columns)))
        window = read_window(connection, states, first, last, level, with_lost=False).committed
    buckets = np.unique(window.buckets)
    index = np.searchsorted(buckets, window.buckets)
    tables = np.full((3, len(run_ids), len(buckets)), np.nan)
    for table, field in zip(tables, ("minimum", "maximum", "last"), strict=True):
        table[window.curves, index] = window.nodes[field]
    return RunColumns(1 << level, (buckets << level).astype(float), *tables)


def grouped(runs: RunColumns) -> GroupCurve:
    """Return mean, quantiles and range over all runs of a group, without columns in which no run has a finite value."""
    num_runs = np.count_nonzero(~np.isnan(runs.last), axis=0)
    chosen = np.flatnonzero(num_runs)
    num_runs, last = num_runs[chosen], np.sort(runs.last[:, chosen], axis=0)  # NaN sorts to the end
    mean = np.nansum(last, axis=0) / num_runs
    positions = np.multiply.outer(QUANTILES, num_runs - 1)
    below = np.floor(positions).astype(int)
    column = np.arange(len(chosen))
    low, high = last[below, column], last[np.minimum(below + 1, num_runs - 1), column]
    quantiles = low + (high - low) * (positions - below)
    minimum = np.fmin.reduce(runs.minimum[:, chosen], axis=0, initial=np.nan)
    maximum = np.fmax.reduce(runs.maximum[:, chosen], axis=0, initial=np.nan)
    steps = runs.steps[chosen]
    etag = _digest(runs.step_width, steps, num_runs, mean, quantiles, minimum, maximum)
    return GroupCurve(runs.step_width, steps, num_runs, mean, quantiles, minimum, maximum, etag)


class MetricNames(NamedTuple):
    """A page of the names of a run's metrics."""

    names: tuple[str, ...]
    num_names: int
    """Names with the prefix, on all pages."""


def metric_names(ledger: Ledger, run_id: str, *, prefix: str = "", offset: int = 0, limit: int = 100) -> MetricNames:
    """Return names of metrics of rank 0 that begin with a prefix, in the ledger's order."""
    with ledger.reading() as connection:
        marks, values = placeholders(sorted(attempt_limits(connection, [run_id])[run_id]))
        where = (
            f"FROM metric_series WHERE run_id = :run_id AND attempt IN ({marks or -1}) AND rank = 0 "
            "AND SUBSTR(name, 1, :length) = :prefix"
        )
        values |= {"run_id": run_id, "length": len(prefix), "prefix": prefix}
        ((num_names,),) = connection.execute(f"SELECT COUNT(DISTINCT name) {where}", values)
        page = f"SELECT DISTINCT name {where} ORDER BY name LIMIT :limit OFFSET :offset"
        names = connection.execute(page, {**values, "limit": limit, "offset": offset})
    return MetricNames(tuple(name for (name,) in names), num_names)


def _checked(columns: int) -> int:
    if columns < 1:
        raise ConfigError(f"columns={columns}: a curve needs at least 1.")
    # Steps of both signs need two columns at any width.
    return min(max(columns, 2), MAX_COLUMNS)


def _span(states: Sequence[CurveState], first_step: int | None, last_step: int | None) -> tuple[int, int]:
    """Return the first and last step of a window; without points, the first step twice."""
    series = [series for state in states for series in state.series]
    first = min((item.first_step for item in series), default=0) if first_step is None else first_step
    last = max((item.last_step for item in series), default=first) if last_step is None else last_step
    if first_step is not None and last_step is not None and first > last:
        raise ConfigError(f"the window begins at step {first} and ends at step {last}: swap them.")
    first = min(max(first, -_FARTHEST_STEP), _FARTHEST_STEP)
    return first, min(max(first, last), _FARTHEST_STEP)


def _columns(window: WindowNodes, level: int) -> CurveColumns:
    nodes = window.nodes
    counts = (nodes[name].astype(np.int64) for name in ("num_points", "num_nan", "num_high", "num_low"))
    values = (nodes[name].copy() for name in ("minimum", "maximum", "last"))
    return CurveColumns((window.buckets << level).astype(float), *values, *counts)


def _cursor(state: CurveState, level: int, request: tuple[object, ...]) -> CurveCursor:
    if not state.series:
        return CurveCursor(1 << level, 0, 0, _digest(request))
    *earlier, growing = state.series
    return CurveCursor(
        1 << level, growing.series_id, growing.num_points, _digest(request, *map(tuple, earlier), growing.limit)
    )


def _replaces_from(connection: Connection, since: CurveCursor | None, now: CurveCursor, last: int) -> int | None:
    """Return the first step of the columns that changed since a cursor; None for all."""
    if since is None or since._replace(num_points=0) != now._replace(num_points=0) or since.num_points > now.num_points:
        return None
    if since.num_points == now.num_points:
        return (last // now.step_width + 1) * now.step_width
    return first_step_after(connection, now.series_id, since.num_points) // now.step_width * now.step_width


def _digest(*parts: object) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()

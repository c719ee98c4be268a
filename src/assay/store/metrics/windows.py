"""Reading windows of curves from stored levels and chunks, for one curve or many at once."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from assay.store.ledger.database import Connection
from assay.store.metrics.attempt_limits import batches, placeholders
from assay.store.metrics.levels import CHUNK_POINTS, CurveState, decoded_chunks
from assay.store.metrics.nodes import NODE, Keys, Nodes, group_starts, merged_nodes, no_nodes, point_nodes, sort_order

MAX_RAW_CHUNKS = 60
"""Most chunks that a window reads; a window with more is read from the base level."""
MEAN_RAW_CHUNKS = 1
"""The same for many curves at once: chunks per curve."""


class WindowNodes(NamedTuple):
    """Nodes of a window by curve and column, each at most once, in this order."""

    nodes: Nodes
    curves: Keys
    """Index of the curve."""
    buckets: Keys
    """Index of the column: its steps begin at `bucket << level`."""


class ColumnWindow(NamedTuple):
    """A window of one or several curves in shared columns."""

    level: int
    """A column spans 2^level steps."""
    committed: WindowNodes
    lost: WindowNodes | None = None


def level_of(first: int, last: int, columns: int) -> int:
    """Return the finest level that needs at most this number of columns, at least 2, for the steps [first, last]."""
    assert columns >= 2, "steps of both signs need two columns at any level"
    level = 0
    while (last >> level) - (first >> level) >= columns:
        level += 1
    return level


def affordable_level(connection: Connection, states: Sequence[CurveState], first: int, last: int, level: int) -> int:
    """Return this level, or a coarser one if the points of its columns lie in too many chunks."""
    raw = [state for state in _sources(states, level)[0] if state.stored.top >= state.stored.base]
    edges = _Edges(level, first >> level, last >> level)
    ids = [series.series_id for state in raw for series in state.series]
    counts = dict(_rows_of_series(connection, "series_id, COUNT(*)", ids, edges, "GROUP BY series_id"))
    by_curve = [sum(counts.get(series.series_id, 0) for series in state.series) for state in raw]
    is_large = sum(by_curve) > MAX_RAW_CHUNKS + MEAN_RAW_CHUNKS * len(states)
    bases = [state.stored.base for state, num in zip(raw, by_curve, strict=True) if is_large or num > MAX_RAW_CHUNKS]
    return max([level, *bases])


def read_window(
    connection: Connection,
    states: Sequence[CurveState],
    first: int,
    last: int,
    level: int,
    *,
    with_lost: bool = True,
) -> ColumnWindow:
    """Read the columns of 2^level steps that intersect the steps [first, last]; the stored levels are up to date."""
    edges = _Edges(level, first >> level, last >> level)
    raw, by_level = _sources(states, level)
    rows = _chunks(connection, [series.series_id for state in raw for series in state.series], edges)
    num_covered = {
        state.series[-1].series_id: state.stored.num_covered(state.series[-1])
        for group in by_level.values()
        for state in group
    }
    growing = [
        series.series_id
        for state in states
        for series in state.series
        if series.num_points > num_covered.get(series.series_id, series.num_points)
    ]
    rows += _incomplete_chunks(connection, growing, edges)
    points = _chunk_nodes(states, rows, num_covered, edges)
    curve_index = {state.curve_id: index for index, state in enumerate(states) if state.series}
    streams = []
    for is_lost in range(2 if with_lost else 1):
        parts = [
            _stored_nodes(
                connection, {state.curve_id: curve_index[state.curve_id] for state in group}, (is_lost, stored), edges
            )
            for stored, group in by_level.items()
        ]
        parts.append(points[is_lost])  # behind the stored ones: they were logged later
        streams.append(_merged_columns(parts, edges))
    return ColumnWindow(level, *streams)


class _Edges(NamedTuple):
    """The columns of a window."""

    level: int
    first_bucket: int
    last_bucket: int

    @property
    def first_step(self) -> int:
        return self.first_bucket << self.level

    @property
    def last_step(self) -> int:
        return (self.last_bucket + 1 << self.level) - 1

    @property
    def num_columns(self) -> int:
        return self.last_bucket - self.first_bucket + 1

    def keys(self, curves: Keys, steps: Keys) -> tuple[Keys, npt.NDArray[np.bool_]]:
        """Return a number by curve and column for each step, and whether the step is in the window."""
        columns = (steps >> self.level) - self.first_bucket
        return curves * self.num_columns + columns, (columns >= 0) & (columns < self.num_columns)


_KeyedNodes = tuple[Keys, Nodes]
"""Nodes by curve and column, and the key of each."""
_ChunkRow = tuple[int, int, bytes]
"""Series, index of the chunk, and points."""


def _sources(states: Sequence[CurveState], level: int) -> tuple[list[CurveState], dict[int, list[CurveState]]]:
    """Return the curves to read point by point, and the others by the stored level to read."""
    raw: list[CurveState] = []
    by_level: dict[int, list[CurveState]] = {}
    for state in states:
        if state.stored.base <= min(level, state.stored.top):
            by_level.setdefault(min(level, state.stored.top), []).append(state)
        else:
            raw.append(state)
    return raw, by_level


def _chunks(connection: Connection, series_ids: Sequence[int], edges: _Edges) -> list[_ChunkRow]:
    return _rows_of_series(connection, "series_id, chunk_index, points", series_ids, edges)


def _rows_of_series(
    connection: Connection, columns: str, series_ids: Sequence[int], edges: _Edges, tail: str = ""
) -> list[tuple[Any, ...]]:
    rows = []
    for batch in batches(series_ids):
        marks, values = placeholders(batch)
        query = (
            f"SELECT {columns} FROM metric_chunks WHERE series_id IN ({marks}) AND first_step <= :last "
            f"AND last_step >= :first {tail}"
        )
        rows += connection.execute(query, {**values, "first": edges.first_step, "last": edges.last_step})
    return rows


def _incomplete_chunks(connection: Connection, series_ids: Sequence[int], edges: _Edges) -> list[_ChunkRow]:
    """Return the last chunks of series, of those whose last chunk is not complete."""
    rows = []
    for batch in batches(series_ids):
        marks, values = placeholders(batch)
        query = (
            "SELECT chunk.series_id, chunk.chunk_index, chunk.points FROM metric_series AS series "
            "JOIN metric_chunks AS chunk ON chunk.series_id = series.series_id "
            f"AND chunk.chunk_index = series.num_points / {CHUNK_POINTS} "
            f"WHERE series.series_id IN ({marks}) AND chunk.first_step <= :last AND chunk.last_step >= :first"
        )
        rows += connection.execute(query, {**values, "first": edges.first_step, "last": edges.last_step})
    return rows


def _chunk_nodes(
    states: Sequence[CurveState], rows: list[_ChunkRow], num_covered: Mapping[int, int], edges: _Edges
) -> tuple[_KeyedNodes, _KeyedNodes]:
    """Return the nodes of the points in chunks, committed and lost, without those that stored levels cover."""
    owners = {
        series.series_id: (index, series.attempt, series.limit)
        for index, state in enumerate(states)
        for series in state.series
    }
    rows.sort(key=lambda row: (*owners[row[0]][:2], row[1]))
    if not rows:
        nothing = (np.zeros(0, np.int64), no_nodes())
        return nothing, nothing
    steps, values, sizes = decoded_chunks([blob for _, _, blob in rows])
    keys, is_inside = edges.keys(np.repeat([owners[series_id][0] for series_id, _, _ in rows], sizes), steps)
    is_lost = steps > np.repeat([owners[series_id][2] for series_id, _, _ in rows], sizes)
    ends = np.cumsum(sizes)
    for (series_id, chunk_index, _), start, end in zip(rows, ends - sizes, ends, strict=True):
        is_inside[start : min(end, start + max(0, num_covered.get(series_id, 0) - chunk_index * CHUNK_POINTS))] = False
    committed, lost = (
        point_nodes(steps[chosen], values[chosen], keys[chosen])
        for chosen in (is_inside & ~is_lost, is_inside & is_lost)
    )
    return committed, lost


def _stored_nodes(
    connection: Connection, curve_index: Mapping[int, int], key: tuple[int, int], edges: _Edges
) -> _KeyedNodes:
    """Return the nodes of one stored level of curves; `key` says whether points are lost, and the level."""
    is_lost, level = key
    bounds = {"is_lost": is_lost, "level": level, "low": edges.first_step >> level, "high": edges.last_step >> level}
    rows = []
    for batch in batches(list(curve_index)):
        marks, values = placeholders(batch)
        query = (
            f"SELECT curve_id, first_bucket, nodes FROM metric_levels WHERE curve_id IN ({marks}) "
            "AND is_lost = :is_lost AND level = :level AND first_bucket <= :high AND last_bucket >= :low"
        )
        rows += connection.execute(query, {**values, **bounds})
    rows.sort(key=lambda row: (curve_index[row[0]], row[1]))
    sizes = [len(blob) // NODE.itemsize for _, _, blob in rows]
    curves = np.repeat(np.array([curve_index[curve_id] for curve_id, _, _ in rows], np.int64), sizes)
    nodes = np.frombuffer(b"".join(blob for _, _, blob in rows), NODE)
    keys, is_inside = edges.keys(curves, nodes["last_step"])
    return (keys, nodes) if is_inside.all() else (keys[is_inside], nodes[is_inside])


def _merged_columns(parts: Sequence[_KeyedNodes], edges: _Edges) -> WindowNodes:
    """Merge the nodes of each curve and column."""
    keys = np.concatenate([keys for keys, _ in parts])
    nodes = np.concatenate([nodes for _, nodes in parts])
    order = sort_order(keys, nodes["last_step"])
    if order is not None:
        keys, nodes = keys[order], nodes[order]
    found = keys[group_starts(keys)]
    return WindowNodes(
        merged_nodes(nodes, keys), found // edges.num_columns, found % edges.num_columns + edges.first_bucket
    )

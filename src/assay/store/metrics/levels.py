"""Stored levels of a metric: a pyramid of nodes over ranges of 2^level steps, built from chunks.

Any window of a curve in any number of columns is read from a few blobs: from the level whose ranges are a column
wide, or from the points if a column is narrower than the finest level.

    metric_chunks --(complete chunks; all points of earlier attempts)--> base level -> base + 1 -> ... -> top
                                                                         (about 16 points a node)   (at most 128 nodes)

The levels join all attempts of a run; committed points and points that were rolled back are kept apart. The last
chunk may be ahead of the levels, so that folding a point does not rewrite them; readers add its points. The levels
are a cache: what they cover is recorded, and readers extend or rebuild what is behind the chunks and attempts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.store.ledger import tables
from assay.store.ledger.database import Connection
from assay.store.ledger.ledger import Ledger, upsert
from assay.store.metrics.attempt_limits import attempt_limits, batches, placeholders
from assay.store.metrics.nodes import NODE, Keys, Nodes, group_starts, no_nodes, nodes_of_level, point_nodes

CHUNK_POINTS = 1024
"""Points of one series in one row of `metric_chunks`."""
BLOCK_NODES = 1024
"""Most nodes in one row of `metric_levels`."""
NODE_POINTS = 16
"""Points that a node of the base level stands for, about."""
TOP_NODES = 128
"""Most nodes of the coarsest level when the levels are chosen."""
CHOSEN_EVERY = 4
"""The levels are chosen again after this growth of a curve, as the density of steps may have changed."""
_BATCH_CHUNKS = 64
_LAST_STEP = 2**62

Numbers = npt.NDArray[np.float64]


class CurveSeries(NamedTuple):
    """The metric in one attempt."""

    series_id: int
    attempt: int
    num_points: int
    first_step: int
    last_step: int
    limit: float
    """The last step that was not rolled back."""
    num_complete: int
    """Points that the levels have to cover; they may cover more."""


class StoredLevels(NamedTuple):
    """What the stored levels of a curve cover."""

    base: int = 0
    top: int = -1
    """Below `base`: there are no levels."""
    chosen_at_points: int = 0
    covered: Mapping[int, tuple[int, float]] = {}
    """By series: the number of points, and the limit of the attempt at that time."""

    def to_json(self) -> str:
        """Serialize the state as JSON."""
        covered = {str(series_id): entry for series_id, entry in self.covered.items()}
        return json.dumps([self.base, self.top, self.chosen_at_points, covered])

    @classmethod
    def from_json(cls, text: str) -> "StoredLevels":
        """Parse the output of `to_json`."""
        base, top, chosen_at_points, covered = json.loads(text)
        entries = {int(series_id): (points, limit) for series_id, (points, limit) in covered.items()}
        return cls(base, top, chosen_at_points, entries)

    def num_covered(self, series: CurveSeries) -> int:
        """Return how many of the series' points are covered."""
        return self.covered.get(series.series_id, (0, 0.0))[0]


class CurveState(NamedTuple):
    """A metric of rank 0 of a run: its series by attempt, and the levels over them."""

    run_id: str
    series: tuple[CurveSeries, ...]
    stored: StoredLevels

    @property
    def curve_id(self) -> int:
        """The key of its levels: the oldest series."""
        return min(series.series_id for series in self.series)

    @property
    def is_stale(self) -> bool:
        """Whether the levels are behind the chunks or the attempts."""
        has_grown = any(self.stored.num_covered(series) < series.num_complete for series in self.series)
        return has_grown or self.changed_from() is not None

    def changed_from(self) -> int | None:
        """Return the first step from which covered points were rolled back since; None if none were."""
        changed: list[int] = []
        for series in self.series:
            num_covered, limit = self.stored.covered.get(series.series_id, (0, series.limit))
            first_changed = min(limit, series.limit) + 1
            if num_covered and limit != series.limit and series.last_step >= first_changed:
                changed.append(int(first_changed))
        return min(changed, default=None)


@contextmanager
def open_curves(ledger: Ledger, run_ids: Sequence[str], name: str) -> Iterator[tuple[Connection, list[CurveState]]]:
    """Open a transaction with the runs' curves, in this order, after bringing their levels up to date.

    A run that never logged the metric has no series.
    """
    with ledger.reading() as connection:
        states = curve_states(connection, run_ids, name)
        if not any(state.series and state.is_stale for state in states):
            yield connection, states
            return
    with ledger.writing() as connection:
        for state in curve_states(connection, run_ids, name):
            if state.series and state.is_stale:
                extend_levels(connection, state)
        yield connection, curve_states(connection, run_ids, name)


def curve_states(connection: Connection, run_ids: Sequence[str], name: str) -> list[CurveState]:
    """Return each run's curve, in this order."""
    limits = attempt_limits(connection, run_ids)
    rows: dict[str, list[tuple[int, int, int, int, int]]] = {run_id: [] for run_id in run_ids}
    columns = "run_id, series_id, attempt, num_points, first_step, last_step"
    query = f"SELECT {columns} FROM metric_series WHERE rank = 0 AND name = :name"
    values: dict[str, object] = {"name": name}
    if len(run_ids) == 1 and limits[run_ids[0]]:
        marks, attempts = placeholders(sorted(limits[run_ids[0]]))
        query += f" AND run_id = :run_id AND attempt IN ({marks})"
        values |= {"run_id": run_ids[0], **attempts}
    for run_id, *fields in connection.execute(query, values):
        if run_id in rows:
            rows[run_id].append(tuple(fields))
    stored = _stored_levels(connection, [min(found)[0] for found in rows.values() if found])
    states = []
    for run_id, found in rows.items():
        found.sort(key=lambda row: row[1])
        series = []
        for row in found:
            num_points, is_growing = row[2], row is found[-1]
            num_complete = num_points - num_points % CHUNK_POINTS if is_growing else num_points
            series.append(CurveSeries(*row, limit=limits[run_id].get(row[1], np.inf), num_complete=num_complete))
        levels = stored.get(min(found)[0], StoredLevels()) if found else StoredLevels()
        states.append(CurveState(run_id, tuple(series), levels))
    return states


def _stored_levels(connection: Connection, curve_ids: Sequence[int]) -> dict[int, StoredLevels]:
    stored: dict[int, StoredLevels] = {}
    for batch in batches(curve_ids):
        marks, values = placeholders(batch)
        query = f"SELECT curve_id, covered FROM metric_curves WHERE curve_id IN ({marks})"
        stored |= {curve_id: StoredLevels.from_json(text) for curve_id, text in connection.execute(query, values)}
    return stored


def extend_levels(connection: Connection, state: CurveState) -> None:
    """Bring a curve's stored levels up to date, within the transaction that read its state."""
    stored = _claimed(connection, state.curve_id)
    num_points = sum(series.num_points for series in state.series)
    state = state._replace(stored=stored)
    from_step = _rebuilt_from(connection, state)
    is_chosen_again = num_points >= CHOSEN_EVERY * stored.chosen_at_points
    if is_chosen_again or _num_top_nodes(connection, state) > BLOCK_NODES:
        key = {"curve_id": state.curve_id}
        connection.execute("DELETE FROM metric_levels WHERE curve_id = :curve_id", key)
        base = _base_level(connection, state, num_points)
        state, from_step = state._replace(stored=StoredLevels(base)), None
    base, top = state.stored.base, state.stored.top
    if from_step is not None:
        from_step = from_step >> base << base
    streams = _new_nodes(connection, state, from_step)
    if top < base:
        top = _top_level(base, streams)
        # A power, so that the levels do not depend on when points were folded.
        chosen_at_points = CHOSEN_EVERY ** int(np.log2(num_points) / np.log2(CHOSEN_EVERY))
        state = state._replace(stored=StoredLevels(base, top, chosen_at_points))
    for is_lost, nodes in enumerate(streams):
        for level in range(base, top + 1):
            if from_step is not None and level > base:
                finer = from_step >> level << 1
                nodes = _read_blocks(connection, (state.curve_id, is_lost, level - 1), finer, _LAST_STEP)
                nodes = nodes[nodes["last_step"] >> (level - 1) >= finer]
            nodes = nodes_of_level(nodes, level)
            first_replaced = None if from_step is None else from_step >> level
            _merge_blocks(connection, (state.curve_id, is_lost, level), nodes, first_replaced)
    covered = {series.series_id: (series.num_points, series.limit) for series in state.series}
    row = {"curve_id": state.curve_id, "covered": state.stored._replace(covered=covered).to_json()}
    upsert(connection, tables.metric_curves, [row])


def _rebuilt_from(connection: Connection, state: CurveState) -> int | None:
    """Return the first step from which levels have to be rebuilt from points; None if new points can be added."""
    changed_from = state.changed_from()
    grown = [series for series in state.series if state.stored.num_covered(series) < series.num_points]
    # Of equal steps the later attempt's value is the last one, so it cannot be added before the earlier one's.
    newest = max((series.attempt for series in state.series if state.stored.num_covered(series)), default=0)
    if changed_from is None and all(series.attempt >= newest for series in grown):
        return None
    starts = [first_step_after(connection, series.series_id, state.stored.num_covered(series)) for series in grown]
    return min([*starts, *([] if changed_from is None else [changed_from])])


def _claimed(connection: Connection, curve_id: int) -> StoredLevels:
    """Return what is stored; the curve's row stays locked until the transaction ends."""
    ((text,),) = connection.execute(
        "INSERT INTO metric_curves (curve_id, covered) VALUES (:curve_id, :covered) ON CONFLICT (curve_id) "
        "DO UPDATE SET covered = metric_curves.covered RETURNING covered",
        {"curve_id": curve_id, "covered": StoredLevels().to_json()},
    )
    return StoredLevels.from_json(text)


def _num_top_nodes(connection: Connection, state: CurveState) -> int:
    query = "SELECT SUM(LENGTH(nodes)) FROM metric_levels WHERE curve_id = :curve_id AND level = :level"
    ((num_bytes,),) = connection.execute(query, {"curve_id": state.curve_id, "level": state.stored.top})
    return (num_bytes or 0) // NODE.itemsize


def _base_level(connection: Connection, state: CurveState, num_points: int) -> int:
    """Return the level whose ranges hold about `NODE_POINTS` points, by the median chunk: steps may have gaps."""
    steps_per_point = []
    for series in state.series:
        query = "SELECT last_step - first_step + 1 FROM metric_chunks WHERE series_id = :series_id"
        spans = connection.execute(query, {"series_id": series.series_id})
        steps_per_point += [span / min(CHUNK_POINTS, series.num_points) for (span,) in spans]
    first = min(series.first_step for series in state.series)
    last = max(series.last_step for series in state.series)
    density = min(float(np.median(steps_per_point)), (last - first + 1) / num_points)
    return max(0, int(np.ceil(np.log2(NODE_POINTS * density))))


def _top_level(base: int, streams: Sequence[Nodes]) -> int:
    level = base
    while any(len(group_starts(nodes["last_step"] >> level)) > TOP_NODES for nodes in streams):
        level += 1
    return level


def _new_nodes(connection: Connection, state: CurveState, from_step: int | None) -> list[Nodes]:
    """Return nodes of the base level, committed and lost: of points that are not covered yet, or of all from a step."""
    parts: tuple[list[Nodes], list[Nodes]] = ([no_nodes()], [no_nodes()])
    for series in state.series:
        first_index = state.stored.num_covered(series) if from_step is None else 0
        for index in range(first_index // CHUNK_POINTS, -(-series.num_points // CHUNK_POINTS), _BATCH_CHUNKS):
            query = (
                "SELECT chunk_index, points FROM metric_chunks WHERE series_id = :series_id AND last_step >= :step "
                "AND chunk_index >= :first AND chunk_index < :end"
            )
            values = {
                "series_id": series.series_id,
                "step": -_LAST_STEP if from_step is None else from_step,
                "first": index,
                "end": index + _BATCH_CHUNKS,
            }
            rows = sorted(connection.execute(query, values))
            if not rows:
                continue
            steps, points, sizes = decoded_chunks([blob for _, blob in rows])
            offsets = np.array([chunk for chunk, _ in rows]) * CHUNK_POINTS - (np.cumsum(sizes) - sizes)
            indices = np.arange(len(steps)) + np.repeat(offsets, sizes)
            is_new = (indices >= first_index) & (indices < series.num_points)
            if from_step is not None:
                is_new &= steps >= from_step
            is_lost = steps > series.limit
            for part, is_chosen in zip(parts, (is_new & ~is_lost, is_new & is_lost), strict=True):
                part.append(point_nodes(steps[is_chosen], points[is_chosen], steps[is_chosen] >> state.stored.base)[1])
    return [nodes_of_level(np.concatenate(part), state.stored.base) for part in parts]


_LevelKey = tuple[int, int, int]
"""Curve, whether its points are lost, and level."""


def _merge_blocks(connection: Connection, key: _LevelKey, new: Nodes, first_replaced: int | None) -> None:
    """Merge nodes into a level's blocks; nodes from the bucket `first_replaced` on are replaced."""
    curve_id, is_lost, level = key
    if not len(new) and first_replaced is None:
        return
    low = int(new["last_step"][0]) >> level if first_replaced is None else first_replaced
    high = int(new["last_step"][-1]) >> level if first_replaced is None else _LAST_STEP
    where = "curve_id = :curve_id AND is_lost = :is_lost AND level = :level"
    values = {"curve_id": curve_id, "is_lost": is_lost, "level": level, "low": low}
    # The block before is taken along: it may have room.
    query = f"SELECT MAX(first_bucket) FROM metric_levels WHERE {where} AND first_bucket <= :low"
    ((before,),) = connection.execute(query, values)
    low = low if before is None else before
    old = _read_blocks(connection, key, low, high)
    if first_replaced is not None:
        old = old[old["last_step"] >> level < first_replaced]
    nodes = nodes_of_level(np.concatenate([old, new]), level)
    delete = f"DELETE FROM metric_levels WHERE {where} AND first_bucket >= :low AND first_bucket <= :high"
    connection.execute(delete, {**values, "low": low, "high": high})
    # Blocks of about equal size: a node that is added to a full block must not become a block of its own.
    num_blocks = -(-len(nodes) // BLOCK_NODES)
    rows = [
        {
            "curve_id": curve_id,
            "is_lost": is_lost,
            "level": level,
            "first_bucket": int(block["last_step"][0]) >> level,
            "last_bucket": int(block["last_step"][-1]) >> level,
            "nodes": block.tobytes(),
        }
        for block in (np.array_split(nodes, num_blocks) if num_blocks else [])
    ]
    if rows:
        upsert(connection, tables.metric_levels, rows)


def _read_blocks(connection: Connection, key: _LevelKey, low: int, high: int) -> Nodes:
    """Return the nodes of all blocks of a level that intersect a range of buckets."""
    query = (
        "SELECT first_bucket, nodes FROM metric_levels WHERE curve_id = :curve_id AND is_lost = :is_lost "
        "AND level = :level AND first_bucket <= :high AND last_bucket >= :low"
    )
    values = dict(zip(("curve_id", "is_lost", "level"), key, strict=True)) | {"low": low, "high": high}
    return np.frombuffer(b"".join(blob for _, blob in sorted(connection.execute(query, values))), NODE)


def decoded_chunks(blobs: Sequence[bytes]) -> tuple[Keys, Numbers, Keys]:
    """Return steps and values of chunks, and the number of points of each."""
    sizes = [len(blob) // 24 for blob in blobs]
    steps = [np.frombuffer(blob, "<i8", size) for blob, size in zip(blobs, sizes, strict=True)]
    values = [np.frombuffer(blob, "<f8", size, 16 * size) for blob, size in zip(blobs, sizes, strict=True)]
    return np.concatenate(steps), np.concatenate(values), np.array(sizes)


def first_step_after(connection: Connection, series_id: int, num_points: int) -> int:
    """Return the smallest step of the points behind the first `num_points` of a series, which has more."""
    values = {"series_id": series_id, "chunk_index": num_points // CHUNK_POINTS}
    where = "FROM metric_chunks WHERE series_id = :series_id AND chunk_index"
    steps: list[int | None] = [
        step for (step,) in connection.execute(f"SELECT MIN(first_step) {where} > :chunk_index", values)
    ]
    for (blob,) in connection.execute(f"SELECT points {where} = :chunk_index", values):
        steps += decoded_chunks([blob])[0][num_points % CHUNK_POINTS :].tolist()
    return min(step for step in steps if step is not None)

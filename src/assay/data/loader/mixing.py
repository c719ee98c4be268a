"""Measures how far the loader's row order is from a uniform shuffle, and which settings would fix it.

    row groups of two epochs            --> correlation of a row's position in one epoch and in the next
    sampled windows of an epoch         --> variance of step means per column, and correlation of adjacent steps
    the same windows in the next epoch  --> how often two rows of a step share a step again

If a file is sorted, a window that covers few row groups contains few kinds of rows, and so do its steps.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from assay.base.shapes import Bool, Float64, Int, Int32, Int64, UInt64
from assay.data.dataset.columns import sequences_of
from assay.data.dataset.profile import NUM_TOP_VALUES
from assay.data.dataset.split import DatasetView
from assay.data.loader.config import LoaderConfig, PaddedLayout
from assay.data.loader.loader import Loader
from assay.data.loader.order import WindowIndex
from assay.records.dataset import ColumnProfile

MAX_LANES = 8
MAX_WINDOWS = 32
MAX_ROWS = 1 << 17
"""Approximate limit of rows that are read; at least two windows of each lane are, with their segments."""
NUM_POSITIONS = 4096
MIN_STEPS = 20
"""With fewer steps the statistics mean nothing."""
LENGTH = "tokens a row"
GOOD_EXCESS = 0.5
"""Target excess variance (see `TraitMixing.excess`) of a proposed fix."""
BAD_EXCESS = 1.0
"""Excess variance from which a fix is proposed."""
GOOD_CORRELATION = 0.25
MIN_GROUPS = 4
"""Row groups that a lane or window needs, so that a row's position changes between epochs."""


class TraitMixing(NamedTuple):
    """How well one column (or the row length) is mixed."""

    name: str
    variation: float
    """Standard deviation of a step's mean relative to a uniform shuffle; 1 is uniform."""
    neighbours: float
    """Correlation of consecutive steps; 0 is uniform."""

    @property
    def excess(self) -> float:
        """Variance shared by consecutive steps, relative to a uniform shuffle. It leaves out the variance that
        bucketing adds when kinds of rows differ in length, which affects single steps only."""
        return self.neighbours * self.variation**2


class OrderFix(NamedTuple):
    """Two alternative settings; either one fixes the order."""

    window_rows: int
    rows_per_group: int


class Mixing(NamedTuple):
    """Mixing of the row order. Under a uniform shuffle the correlation is 0 and the ratios are 1."""

    position_correlation: float
    """Correlation of a row's step in one epoch with its step in the next."""
    traits: tuple[TraitMixing, ...]
    """Worst first; empty if there were too few steps."""
    pair_recurrence: float
    """How often two rows of a step share a step in the next epoch, relative to chance."""
    fix: OrderFix | None
    """None if the order is well mixed."""


class _Sample(NamedTuple):
    """The rows of one window of several lanes, concatenated by lane."""

    window: WindowIndex
    lanes: range
    num_rows: list[int]
    """Rows of each lane."""
    row_ids: UInt64[np.ndarray, "row"]
    lengths: Int32[np.ndarray, "row"]
    present: Bool[np.ndarray, "row"]
    columns: list[pa.Table]
    """Columns of the rows that are present, by lane."""


def measure_mixing(view: DatasetView, config: LoaderConfig) -> Mixing:
    """Measure the row order of a view; reads sampled windows of the first epoch."""
    profiles = {profile.name: profile for profile in view.dataset.manifest.column_profiles}
    columns = [name for name, profile in profiles.items() if _is_informative(profile)]
    loader = Loader(view, config, [*columns, *sequences_of(view.dataset.manifest.columns)])
    samples = list(_samples(loader))
    steps = [_steps(loader, sample, np.arange(len(sample.row_ids)), epoch=0) for sample in samples]
    traits = []
    if sum(len(np.unique(step[step >= 0])) for step in steps) >= MIN_STEPS:
        tables = [table for sample in samples for table in sample.columns]
        values = {
            name: _as_numbers(pa.chunked_array(chunks), is_text=bool(profiles[name].top_values))
            for name in columns
            if (chunks := [chunk for table in tables for chunk in table[name].chunks])
        }
        if isinstance(config.layout, PaddedLayout):
            values[LENGTH] = _ranks(pa.array(np.concatenate([s.lengths[s.present] for s in samples])))
        traits = [_trait(name, numbers, steps) for name, numbers in values.items() if np.ptp(numbers)]
    positions = _position_correlation(loader, view)
    recurrence = _pair_recurrence(loader, samples, steps) * _window_recurrence(loader, view, samples, steps)
    fix = _order_fix(loader, view, positions, max((trait.excess for trait in traits), default=0.0))
    return Mixing(positions, tuple(sorted(traits, key=lambda trait: -trait.variation)), recurrence, fix)


def _is_informative(profile: ColumnProfile) -> bool:
    if profile.top_values:  # a shorter list than the limit holds all values
        return len(profile.top_values) < NUM_TOP_VALUES and (len(profile.top_values) > 1 or profile.missing_rate > 0)
    return profile.minimum != profile.maximum


def _samples(loader: Loader) -> Iterator[_Sample]:
    """Read windows spaced over an epoch, of lanes spaced over all lanes.

    The first and last windows have fewer segments within the radius, so they are used only if there are no others.
    """
    geometry, config = loader.geometry, loader.config
    lanes = range(0, config.lanes, max(1, config.lanes // MAX_LANES))
    per_window = len(lanes) * config.window_steps * config.rows_per_lane * geometry.num_slices
    target = max(2, min(MAX_WINDOWS, MAX_ROWS // per_window))
    first = min(geometry.radius, (geometry.num_windows - 1) // 3)
    last = geometry.num_windows - 1 - first
    for window in np.unique(np.linspace(first, last, target).astype(int)).tolist():
        index, windows = WindowIndex(0, window), loader.lane_windows(lanes)
        rows = [windows[lane].read(index) for lane in lanes]
        yield _Sample(
            index,
            lanes,
            [len(row.row_ids) for row in rows],
            np.concatenate([row.row_ids for row in rows]),
            np.concatenate([loader.lengths(row) for row in rows]),
            np.concatenate([row.present for row in rows]),
            [row.columns for row in rows if row.columns.num_columns],
        )


def _steps(
    loader: Loader, sample: _Sample, row_order: Int[np.ndarray, "row"], *, epoch: int
) -> Int64[np.ndarray, "row"]:
    """Return each row's step in its window, if the lanes receive the rows in the order `row_order`; -1 if none."""
    steps = np.full(len(row_order), -1, np.int64)
    start = 0
    for lane, num_rows in zip(sample.lanes, sample.num_rows, strict=True):
        lane_rows = row_order[start : start + num_rows]
        start += num_rows
        index = sample.window._replace(epoch=epoch)
        order, of_steps = loader.arrange(
            sample.row_ids[lane_rows], sample.lengths[lane_rows], sample.present[lane_rows], index, lane
        )
        for step, pieces in enumerate(of_steps):
            for piece in pieces:
                steps[lane_rows[order[piece.start : piece.stop]]] = step
    return steps


def _trait(
    name: str, values: Float64[np.ndarray, "present kind"], steps: Sequence[Int64[np.ndarray, "_"]]
) -> TraitMixing:
    """Compute the variation of step sums; under a uniform shuffle they vary as the square root of the step's rows."""
    centred = values - values.mean(axis=0)
    squares, products, start = [], [], 0
    for step in steps:
        served = step[step >= 0]
        lane_rows = centred[start : start + len(served)]
        start += len(served)
        num_rows = np.bincount(served)
        sums = np.stack([np.bincount(served, kind) for kind in lane_rows.T], axis=1)[num_rows > 0]
        scaled = sums / np.sqrt(num_rows[num_rows > 0])[:, None]
        squares += (scaled**2).sum(axis=1).tolist()
        products += (scaled[1:] * scaled[:-1]).sum(axis=1).tolist()
    variance = float(np.mean(squares))
    uniform = float((centred**2).mean(axis=0).sum())
    return TraitMixing(
        name,
        variation=float(np.sqrt(variance / uniform)),
        neighbours=float(np.mean(products)) / variance if products and variance else 0.0,
    )


def _as_numbers(column: pa.ChunkedArray, *, is_text: bool) -> Float64[np.ndarray, "row kind"]:
    """Encode text as one-hot columns, numbers and times as ranks; nulls are a category, or the highest rank."""
    if not is_text:
        return _ranks(column.cast(pa.float32()) if pa.types.is_float16(column.type) else column)
    codes = column.combine_chunks().cast(pa.string()).dictionary_encode().indices
    codes = pc.fill_null(codes, -1).to_numpy()
    kinds: Float64[np.ndarray, "row kind"] = (codes[:, None] == np.unique(codes)).astype(np.float64)
    return kinds


def _ranks(column: pa.ChunkedArray | pa.Array) -> Float64[np.ndarray, "row kind"]:
    ranks: Float64[np.ndarray, "row"] = pc.rank(column, tiebreaker="min").to_numpy().astype(np.float64)
    return ranks[:, None]


def _position_correlation(loader: Loader, view: DatasetView) -> float:
    """Correlate positions in two epochs, over rows of all files; the step within a window is drawn at random."""
    geometry = loader.geometry
    if geometry.steps_per_epoch < MIN_STEPS:
        return 0.0
    rows = np.linspace(0, geometry.num_rows - 1, min(NUM_POSITIONS, geometry.num_rows)).astype(np.int64)
    rng = np.random.default_rng(0)
    positions = []
    for epoch in (0, 1):
        window = _windows_of(loader, view, rows, epoch)
        first = window * geometry.window_steps
        steps = np.minimum(geometry.window_steps, geometry.steps_per_epoch - first)
        positions.append(first + rng.random(len(rows)) * steps)
    return float(np.corrcoef(positions)[0, 1])


def _windows_of(
    loader: Loader, view: DatasetView, rows: Int64[np.ndarray, "row"], epoch: int
) -> Int64[np.ndarray, "row"]:
    """Return the window of each row, where rows are numbered in file order among the selected ones."""
    ends = np.cumsum(view.num_rows)
    groups = np.searchsorted(ends, rows, side="right")
    positions = loader.order(epoch).positions(groups, rows - (ends - view.num_rows)[groups])
    return loader.windows_at(epoch, positions)


def _pair_recurrence(loader: Loader, samples: Sequence[_Sample], steps: Sequence[Int64[np.ndarray, "_"]]) -> float:
    """Return how often two rows of a step share a step again if their window recurs, relative to chance."""
    rng = np.random.default_rng(0)
    recurrence, by_chance = 0.0, 0.0
    for sample, before in zip(samples, steps, strict=True):
        after = _steps(loader, sample, rng.permutation(len(before)), epoch=1)
        served = before >= 0
        before, after = before[served], after[served]
        recurrence += _num_pairs(before * loader.geometry.window_steps + after)
        by_chance += _num_pairs(before) * _num_pairs(after) / max(1.0, _num_pairs(np.zeros_like(before)))
    return recurrence / by_chance if by_chance else 1.0


def _num_pairs(kinds: Int64[np.ndarray, "row"]) -> float:
    counts = np.unique(kinds, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1) / 2).sum())


def _window_recurrence(
    loader: Loader, view: DatasetView, samples: Sequence[_Sample], steps: Sequence[Int64[np.ndarray, "_"]]
) -> float:
    """Return how often two rows of a step are in one window of the next epoch, relative to chance."""
    rng = np.random.default_rng(0)
    first_row = view.dataset.groups.first_row
    same: list[bool] = []
    for sample, step in zip(samples, steps, strict=True):
        order = np.lexsort([rng.random(len(step)), step])
        row_ids = sample.row_ids[order].astype(np.int64)
        groups = np.searchsorted(first_row + view.dataset.groups.num_rows, row_ids, side="right")
        # An approximate index among the selected rows of the group is enough to find the window.
        share = (row_ids - first_row[groups]) / view.dataset.groups.num_rows[groups]
        rows = (np.cumsum(view.num_rows) - view.num_rows)[groups] + (share * view.num_rows[groups]).astype(int)
        windows = _windows_of(loader, view, rows, epoch=1)
        pairs = (step[order][1:] == step[order][:-1]) & (step[order][1:] >= 0)
        same += (windows[1:] == windows[:-1])[pairs].tolist()
    return float(np.mean(same)) * loader.geometry.num_windows if same else 1.0


def _order_fix(loader: Loader, view: DatasetView, positions: float, excess: float) -> OrderFix | None:
    """Propose settings; the excess variance of a window falls in proportion to its number of row groups."""
    if excess < BAD_EXCESS and positions < GOOD_CORRELATION:
        return None
    geometry = loader.geometry
    lane_rows = -(-geometry.num_rows // geometry.lanes)
    mixed_rows = geometry.window_steps * geometry.rows_per_lane * geometry.num_slices
    group_rows = float((view.num_rows.astype(float) ** 2).sum() / view.num_rows.sum())
    factor = max(1.0, excess / GOOD_EXCESS)
    target = max(group_rows, mixed_rows) * factor
    if positions >= GOOD_CORRELATION:
        target = max(target, MIN_GROUPS * group_rows)
    return OrderFix(
        # A window as long as its lane is the maximum: it shuffles the whole lane.
        window_rows=min(lane_rows, 1 << int(np.ceil(np.log2(target / geometry.num_slices)))),
        rows_per_group=max(1, int(min(group_rows, mixed_rows, lane_rows / MIN_GROUPS) / factor)),
    )

"""The row order: which rows each step reads, as a pure function of (row group identities, seed, epoch).

    row groups --keyed hash--> virtual sequence of N rows
                               |--- lane 0 ---|--- lane 1 ---| ... |--- lane L-1 ---|   (sizes differ by <= 1 row)
    a lane:                    |segment 0|segment 1|...|last|
    a segment:                 cut into equal slices, one for each window within the shuffle radius
    a window:                  the rows of its slices, permuted by keyed hash, laid out (see `layouts`) and
                               assigned to its steps

Every window of a lane except the last holds `window_steps * rows_per_lane` rows, as a segment does, and feeds
exactly `window_steps` steps under any layout. So the rows of a step are found without computing earlier steps.
Slice p of segment s goes to window s + p - radius. Window indices below 0 or above the last whole window are
reflected, so every whole window receives the same number of slices.
"""

from typing import NamedTuple

import numpy as np

from assay.base.seeds import derive_key, keyed_order, mix64
from assay.base.shapes import Int, Int64, UInt64


class WindowIndex(NamedTuple):
    """The epoch and number of a window; segments are numbered in the same way."""

    epoch: int
    window: int


class Span(NamedTuple):
    """Rows [first, stop) of a row group's selected rows."""

    group: int
    first: int
    stop: int


class EpochOrder:
    """The virtual sequence of one epoch."""

    def __init__(
        self, identities: UInt64[np.ndarray, "group"], num_rows: Int[np.ndarray, "group"], *, seed: int, epoch: int
    ) -> None:
        self._groups = keyed_order(identities, derive_key(seed, "row groups", epoch))
        self._boundaries = np.concatenate([[0], np.cumsum(num_rows[self._groups], dtype=np.int64)])

    @property
    def num_rows(self) -> int:
        return int(self._boundaries[-1])

    def positions(self, groups: Int[np.ndarray, "row"], in_group: Int[np.ndarray, "row"]) -> Int[np.ndarray, "row"]:
        index_of_group = np.empty(len(self._groups), np.int64)
        index_of_group[self._groups] = np.arange(len(self._groups))
        positions: Int[np.ndarray, "row"] = self._boundaries[index_of_group[groups]] + in_group
        return positions

    def spans(self, start: int, stop: int) -> list[Span]:
        spans = []
        index = int(np.searchsorted(self._boundaries, start, side="right")) - 1
        while start < stop:
            boundary, next_boundary = int(self._boundaries[index]), int(self._boundaries[index + 1])
            end = min(stop, next_boundary)
            if end > start:
                spans.append(Span(int(self._groups[index]), start - boundary, end - boundary))
            start, index = end, index + 1
        return spans


class Geometry(NamedTuple):
    """The sizes that determine lanes, windows and steps by arithmetic alone."""

    num_rows: int
    lanes: int
    rows_per_lane: int
    """Rows of one lane in one step."""
    window_steps: int
    shuffle_radius: int = 0
    """Windows on each side of a segment that receive its slices; see `radius`."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per epoch. The last step may be short; no row is dropped."""
        return -(-self.num_rows // (self.lanes * self.rows_per_lane))

    @property
    def num_windows(self) -> int:
        return -(-self.steps_per_epoch // self.window_steps)

    def steps_in_window(self, window: int) -> int:
        return min(self.window_steps, self.steps_per_epoch - window * self.window_steps)

    def lane_range(self, lane: int) -> tuple[int, int]:
        """Return the lane's positions [start, stop) in the virtual sequence. Lane sizes differ by at most one row."""
        return lane * self.num_rows // self.lanes, (lane + 1) * self.num_rows // self.lanes

    def rows_in_step(self, lane: int, step_in_epoch: int) -> int:
        """Return the rows of a lane in one step, for layouts that do not depend on row lengths."""
        start, stop = self.lane_range(lane)
        return min(self.rows_per_lane, max(0, stop - start - step_in_epoch * self.rows_per_lane))

    def step_rows(self, lane: int, window: int) -> list[int]:
        first = window * self.window_steps
        return [self.rows_in_step(lane, first + step) for step in range(self.steps_in_window(window))]

    def window_range(self, lane: int, window: int) -> tuple[int, int]:
        """Return the positions [start, stop) in the virtual sequence of the lane's segment number `window`."""
        lane_start, lane_stop = self.lane_range(lane)
        start = min(lane_stop, lane_start + window * self.window_steps * self.rows_per_lane)
        stop = min(lane_stop, start + self.window_steps * self.rows_per_lane)
        return start, stop

    @property
    def num_whole(self) -> int:
        """The number of windows that are full in every lane. A last partial window reads its own segment whole."""
        return self.num_rows // self.lanes // (self.window_steps * self.rows_per_lane)

    @property
    def radius(self) -> int:
        """The shuffle radius, limited by the number of whole windows."""
        return max(0, min(self.shuffle_radius, self.num_whole - 1))

    @property
    def num_slices(self) -> int:
        return 2 * self.radius + 1

    def windows_of(
        self, segments: Int64[np.ndarray, "slice"], numbers: Int64[np.ndarray, "slice"]
    ) -> Int64[np.ndarray, "slice"]:
        targets = segments + numbers - self.radius
        folded = np.maximum(targets, -1 - targets)
        windows: Int64[np.ndarray, "slice"] = np.minimum(folded, 2 * self.num_whole - 1 - folded)
        return windows

    def slices_of_window(self, window: int) -> list[tuple[int, int]]:
        """Return segment and slice index of the slices that make up a window, in the order of the virtual sequence."""
        if window >= self.num_whole:
            return [(window, 0)]
        first, stop = max(0, window - self.radius), min(self.num_whole, window + self.radius + 1)
        segments = np.repeat(np.arange(first, stop), self.num_slices)
        numbers = np.tile(np.arange(self.num_slices), stop - first)
        is_own = self.windows_of(segments, numbers) == window
        return list(zip(segments[is_own].tolist(), numbers[is_own].tolist(), strict=True))

    def slice_indices(
        self, starts: Int64[np.ndarray, "row"], offsets: Int64[np.ndarray, "row"], key: int
    ) -> Int64[np.ndarray, "row"]:
        """Return the slice index of rows, from the start of their whole segment and their offset in it.

        Each run of `num_slices` neighbouring rows puts one row into each slice, in an order that depends on the
        key. The rows that remain at the end of the segment go to the middle slice.
        """
        count = self.num_slices
        rounds, turns = np.divmod(offsets, count)
        turned = mix64((starts + rounds).astype(np.uint64) ^ np.uint64(key)) % np.uint64(count)
        numbers: Int64[np.ndarray, "row"] = (turns + turned.astype(np.int64)) % count
        numbers[rounds == self.window_steps * self.rows_per_lane // count] = self.radius
        return numbers

    def windows_at(self, positions: Int64[np.ndarray, "row"], key: int) -> Int64[np.ndarray, "row"]:
        lane_starts = np.array([self.lane_range(lane)[0] for lane in range(self.lanes)])
        in_lane = positions - lane_starts[np.searchsorted(lane_starts, positions, side="right") - 1]
        windows: Int64[np.ndarray, "row"]
        windows, offsets = np.divmod(in_lane, self.window_steps * self.rows_per_lane)
        whole = windows < self.num_whole
        numbers = self.slice_indices((positions - offsets)[whole], offsets[whole], key)
        windows[whole] = self.windows_of(windows[whole], numbers)
        return windows


def lanes_of_reader(reader: int, num_readers: int, num_lanes: int) -> range:
    """Return the lanes of one of `num_readers` readers: contiguous runs whose sizes differ by at most one."""
    return range(reader * num_lanes // num_readers, (reader + 1) * num_lanes // num_readers)

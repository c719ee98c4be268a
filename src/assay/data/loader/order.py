"""Which rows stand behind each step: a function of (identities of the row groups, seed, epoch), not a state.

    row groups --keyed hash--> virtual sequence of N rows
                               |--- lane 0 ---|--- lane 1 ---| ... |--- lane L-1 ---|   (equal, but for one row)
    a lane:                    |stretch 0|stretch 1|...|last|
    a stretch:                 cut into equal portions, one for each of the windows around it
    a window:                  rows of its portions, permuted by keyed hash, laid out (see `layouts`), dealt to
                               its steps

Every window of a lane but the last holds `window_steps * rows_per_lane` rows, as a stretch does, whatever the
layout, and feeds exactly `window_steps` steps. So the rows of any step are found without looking at any step
before it. Portion p of stretch s goes to window s + p - spread; what would fall before the first window or
behind the last whole one is folded back, so that each window has as many portions as any other.
"""

from typing import NamedTuple

import numpy as np

from assay.base.seeds import derive_key, keyed_order, mix64
from assay.base.shapes import Int, Int64, UInt64


class WindowIndex(NamedTuple):
    """Names a window, or a stretch, of every lane."""

    epoch: int
    window: int


class SegmentSlice(NamedTuple):
    """What one window has of one stretch."""

    segment: int
    number: int
    """Among the portions of the stretch."""


class Span(NamedTuple):
    """Rows [first, stop) of a row group, counted among its selected rows."""

    group: int
    first: int
    stop: int


class EpochOrder:
    """The virtual sequence of one epoch."""

    def __init__(
        self,
        identities: UInt64[np.ndarray, "group"],
        num_rows: Int[np.ndarray, "group"],
        *,
        seed: int,
        epoch: int,
    ) -> None:
        self._groups = keyed_order(identities, derive_key(seed, "row groups", epoch))
        self._borders = np.concatenate([[0], np.cumsum(num_rows[self._groups], dtype=np.int64)])

    @property
    def num_rows(self) -> int:
        """In the epoch."""
        return int(self._borders[-1])

    def positions(self, groups: Int[np.ndarray, "row"], in_group: Int[np.ndarray, "row"]) -> Int[np.ndarray, "row"]:
        """Where rows stand in the virtual sequence, by row group and place among its selected rows."""
        index_of_group = np.empty(len(self._groups), np.int64)
        index_of_group[self._groups] = np.arange(len(self._groups))
        positions: Int[np.ndarray, "row"] = self._borders[index_of_group[groups]] + in_group
        return positions

    def spans(self, start: int, stop: int) -> list[Span]:
        """The row groups behind the positions [start, stop) of the virtual sequence, in its order."""
        spans = []
        index = int(np.searchsorted(self._borders, start, side="right")) - 1
        while start < stop:
            border, next_border = int(self._borders[index]), int(self._borders[index + 1])
            end = min(stop, next_border)
            if end > start:
                spans.append(Span(int(self._groups[index]), start - border, end - border))
            start, index = end, index + 1
        return spans


class Geometry(NamedTuple):
    """Sizes from which each step's place follows by arithmetic."""

    num_rows: int
    lanes: int
    rows_per_lane: int
    """Rows of one lane in one step."""
    window_steps: int
    shuffle_radius: int = 0
    """Windows before and behind it that a stretch gives portions to, where there are as many."""

    @property
    def steps_per_epoch(self) -> int:
        """The last one may be short; no row is dropped."""
        return -(-self.num_rows // (self.lanes * self.rows_per_lane))

    @property
    def num_windows(self) -> int:
        """The number of windows of each lane."""
        return -(-self.steps_per_epoch // self.window_steps)

    def steps_in_window(self, window: int) -> int:
        """The last window of an epoch feeds what is left."""
        return min(self.window_steps, self.steps_per_epoch - window * self.window_steps)

    def lane_range(self, lane: int) -> tuple[int, int]:
        """Positions [start, stop) of the virtual sequence of a lane. Lanes differ by one row at most."""
        return lane * self.num_rows // self.lanes, (lane + 1) * self.num_rows // self.lanes

    def rows_in_step(self, lane: int, step_in_epoch: int) -> int:
        """Rows of a lane in a step of the epoch, for layouts that do not depend on lengths."""
        start, stop = self.lane_range(lane)
        return min(self.rows_per_lane, max(0, stop - start - step_in_epoch * self.rows_per_lane))

    def step_rows(self, lane: int, window: int) -> list[int]:
        """Rows of a lane in each step of a window."""
        first = window * self.window_steps
        return [self.rows_in_step(lane, first + step) for step in range(self.steps_in_window(window))]

    def window_range(self, lane: int, window: int) -> tuple[int, int]:
        """Positions [start, stop) of the virtual sequence that a lane's stretch holds: as many as a window."""
        lane_start, lane_stop = self.lane_range(lane)
        start = min(lane_stop, lane_start + window * self.window_steps * self.rows_per_lane)
        stop = min(lane_stop, start + self.window_steps * self.rows_per_lane)
        return start, stop

    @property
    def num_whole(self) -> int:
        """Windows that are whole in every lane. The one behind them, if there is one, keeps its own stretch."""
        return self.num_rows // self.lanes // (self.window_steps * self.rows_per_lane)

    @property
    def radius(self) -> int:
        """How many windows away a row may go: `spread`, or what there are."""
        return max(0, min(self.shuffle_radius, self.num_whole - 1))

    @property
    def num_slices(self) -> int:
        """Into which each whole stretch is cut."""
        return 2 * self.radius + 1

    def windows_of(
        self, segments: Int64[np.ndarray, "portion"], numbers: Int64[np.ndarray, "portion"]
    ) -> Int64[np.ndarray, "portion"]:
        """The window of each of some portions of whole stretches."""
        targets = segments + numbers - self.radius
        folded = np.maximum(targets, -1 - targets)
        windows: Int64[np.ndarray, "portion"] = np.minimum(folded, 2 * self.num_whole - 1 - folded)
        return windows

    def slices_of_window(self, window: int) -> list[SegmentSlice]:
        """What a window is put together from, in the order of the virtual sequence."""
        if window >= self.num_whole:
            return [SegmentSlice(window, 0)]
        first, stop = max(0, window - self.radius), min(self.num_whole, window + self.radius + 1)
        segments = np.repeat(np.arange(first, stop), self.num_slices)
        numbers = np.tile(np.arange(self.num_slices), stop - first)
        is_own = self.windows_of(segments, numbers) == window
        return [
            SegmentSlice(segment, number)
            for segment, number in zip(segments[is_own].tolist(), numbers[is_own].tolist(), strict=True)
        ]

    def slice_indices(
        self, starts: Int64[np.ndarray, "row"], offsets: Int64[np.ndarray, "row"], key: int
    ) -> Int64[np.ndarray, "row"]:
        """The portion of each of some rows, by where its whole stretch starts and its place in there.

        Of neighbours, as many as there are portions, each is in another; which one in which, the key decides.
        Those left over are in the middle portion.
        """
        count = self.num_slices
        rounds, turns = np.divmod(offsets, count)
        turned = mix64((starts + rounds).astype(np.uint64) ^ np.uint64(key)) % np.uint64(count)
        numbers: Int64[np.ndarray, "row"] = (turns + turned.astype(np.int64)) % count
        numbers[rounds == self.window_steps * self.rows_per_lane // count] = self.radius
        return numbers

    def windows_at(self, positions: Int64[np.ndarray, "row"], key: int) -> Int64[np.ndarray, "row"]:
        """The window that has each of some positions of the virtual sequence."""
        lane_starts = np.array([self.lane_range(lane)[0] for lane in range(self.lanes)])
        in_lane = positions - lane_starts[np.searchsorted(lane_starts, positions, side="right") - 1]
        windows: Int64[np.ndarray, "row"]
        windows, offsets = np.divmod(in_lane, self.window_steps * self.rows_per_lane)
        whole = windows < self.num_whole
        numbers = self.slice_indices((positions - offsets)[whole], offsets[whole], key)
        windows[whole] = self.windows_of(windows[whole], numbers)
        return windows


def lanes_of_reader(reader: int, num_readers: int, num_lanes: int) -> range:
    """Any number of readers share the lanes out, in runs that differ by at most one lane."""
    return range(reader * num_lanes // num_readers, (reader + 1) * num_lanes // num_readers)

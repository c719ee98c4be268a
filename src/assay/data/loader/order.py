"""Which rows stand behind each step: a function of (identities of the row groups, seed, epoch), not a state.

    row groups --keyed hash--> virtual sequence of N rows
                               |--- lane 0 ---|--- lane 1 ---| ... |--- lane L-1 ---|   (equal, but for one row)
    a lane:                    |window 0|window 1|...|last|
    a window:                  rows permuted by keyed hash, laid out (see `layouts`), dealt to its steps

Every window of a lane but the last holds `window_steps * rows_per_lane` rows, whatever the layout, and feeds
exactly `window_steps` steps. So the rows of any step are found without looking at any step before it.
"""

from typing import NamedTuple

import numpy as np

from assay.base.seeds import derive_key, keyed_order
from assay.base.shapes import Int, UInt64


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

    def positions(
        self, groups: Int[np.ndarray, "row"], in_group: Int[np.ndarray, "row"]
    ) -> Int[np.ndarray, "row"]:
        """Where rows stand in the virtual sequence, by row group and place among its selected rows."""
        place_of_group = np.empty(len(self._groups), np.int64)
        place_of_group[self._groups] = np.arange(len(self._groups))
        positions: Int[np.ndarray, "row"] = self._borders[place_of_group[groups]] + in_group
        return positions

    def spans(self, start: int, stop: int) -> list[Span]:
        """The row groups behind the positions [start, stop) of the virtual sequence, in its order."""
        spans = []
        place = int(np.searchsorted(self._borders, start, side="right")) - 1
        while start < stop:
            border, next_border = int(self._borders[place]), int(self._borders[place + 1])
            end = min(stop, next_border)
            if end > start:
                spans.append(Span(int(self._groups[place]), start - border, end - border))
            start, place = end, place + 1
        return spans


class Geometry(NamedTuple):
    """Sizes from which each step's place follows by arithmetic."""

    num_rows: int
    lanes: int
    rows_per_lane: int
    """Rows of one lane in one step."""
    window_steps: int

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
        """Positions [start, stop) of the virtual sequence that a lane's window holds."""
        lane_start, lane_stop = self.lane_range(lane)
        start = min(lane_stop, lane_start + window * self.window_steps * self.rows_per_lane)
        stop = min(lane_stop, start + self.window_steps * self.rows_per_lane)
        return start, stop


def lanes_of_reader(reader: int, num_readers: int, num_lanes: int) -> range:
    """Any number of readers share the lanes out, in runs that differ by at most one lane."""
    return range(reader * num_lanes // num_readers, (reader + 1) * num_lanes // num_readers)

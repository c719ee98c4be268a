"""The windows of one lane, assembled from slices of the segments around them; each segment is read once.

    segment s --read, cut---> slices for the windows s - radius .. s + radius
    window w  <--concatenate- its slices, which are then freed

Windows are read in order. Because slices are freed with their window, about half of the rows of the segments
within the radius are in memory. A reader that starts mid-epoch drops the slices of earlier windows.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from assay.base.shapes import Int64
from assay.data.loader.order import Geometry, SegmentSlice, Span, WindowIndex
from assay.data.loader.windows import LaneReader, WindowRows


class LaneWindows:
    """Reads the windows of one lane in order."""

    def __init__(
        self,
        reader: LaneReader,
        geometry: Geometry,
        spans: Callable[[WindowIndex], Sequence[Span]],
        numbers: Callable[[WindowIndex], Int64[np.ndarray, "row"]],
    ) -> None:
        """`spans` returns the rows of a segment; `numbers` the slice index of each row."""
        self._reader, self._geometry = reader, geometry
        self._spans, self._numbers = spans, numbers
        self._epoch = -1
        self._slices: dict[SegmentSlice, WindowRows] = {}
        self._skipped: set[int] = set()

    def read(self, index: WindowIndex, skipped: Collection[int] = ()) -> WindowRows:
        """Return the rows of a window. Rows of `skipped` row groups count as damaged until the epoch ends.

        Without that, a row group that spans two segments could be damaged in one and intact in the other.
        """
        if index.epoch != self._epoch:
            self._epoch = index.epoch
            self._slices.clear()
            self._skipped.clear()
        self._skipped.update(skipped)
        parts = []
        for segment_slice in self._geometry.slices_of_window(index.window):
            if segment_slice not in self._slices:
                self._read_segment(segment_slice.segment, index.window)
            parts.append(self._slices.pop(segment_slice))
        return WindowRows.concatenate(parts)

    def _read_segment(self, segment: int, window: int) -> None:
        index = WindowIndex(self._epoch, segment)
        rows = self._reader.read(self._spans(index), self._skipped)
        if segment >= self._geometry.num_whole or self._geometry.num_slices == 1:
            self._slices[SegmentSlice(segment, 0)] = rows
            return
        numbers = np.arange(self._geometry.num_slices)
        windows = self._geometry.windows_of(np.full(len(numbers), segment), numbers)
        slices = rows.slices(self._numbers(index), len(numbers))
        for number in np.flatnonzero(windows >= window).tolist():
            self._slices[SegmentSlice(segment, number)] = self._with_its_damage(slices[number])

    def _with_its_damage(self, segment_slice: WindowRows) -> WindowRows:
        """Keep only the quarantined row groups that have rows in the slice."""
        row_ids = self._reader.source.row_ids
        own = (
            item for item in segment_slice.quarantined if np.isin(row_ids(item.row_group), segment_slice.row_ids).any()
        )
        return replace(segment_slice, quarantined=tuple(own)) if segment_slice.quarantined else segment_slice

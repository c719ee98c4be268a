"""The windows of one lane, put together from portions of the stretches around them; each stretch is read once.

    stretch s --read, cut--> portions for the windows s - reach .. s + reach
    window w  <--together--- its portions; then they are gone

Windows are asked for one after another. A portion goes with its window, so about half of what was read of the
stretches around is kept. A reader that begins in the midst drops what earlier windows would have had.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from assay.base.shapes import Int64
from assay.data.loader.order import Geometry, SegmentSlice, Span, WindowIndex
from assay.data.loader.windows import LaneReader, WindowRows


class LaneWindows:
    """Reads one lane's windows."""

    def __init__(
        self,
        reader: LaneReader,
        geometry: Geometry,
        spans: Callable[[WindowIndex], Sequence[Span]],
        numbers: Callable[[WindowIndex], Int64[np.ndarray, "row"]],
    ) -> None:
        """`spans` and `numbers`: the rows of a stretch, and the portion of each."""
        self._reader, self._geometry = reader, geometry
        self._spans, self._numbers = spans, numbers
        self._epoch = -1
        self._slices: dict[SegmentSlice, WindowRows] = {}
        self._skipped: set[int] = set()

    def read(self, index: WindowIndex, skipped: Collection[int] = ()) -> WindowRows:
        """The rows of a window; those of `skipped` row groups count as damaged, here and up to the epoch's end.

        A row group that stood in two stretches would else be damaged in one and whole in the other.
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
        return WindowRows.together(parts)

    def _read_segment(self, segment: int, window: int) -> None:
        """Keep its portions for the window and those behind it."""
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
        """Only what it has rows of is quarantined in it."""
        row_ids = self._reader.source.row_ids
        own = (
            item for item in segment_slice.quarantined if np.isin(row_ids(item.row_group), segment_slice.row_ids).any()
        )
        return replace(segment_slice, quarantined=tuple(own)) if segment_slice.quarantined else segment_slice

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
from assay.data.loader.order import Geometry, Portion, Span, WindowPlace
from assay.data.loader.windows import LaneReader, WindowRows


class LaneWindows:
    """Reads one lane's windows."""

    def __init__(
        self,
        reader: LaneReader,
        geometry: Geometry,
        spans: Callable[[WindowPlace], Sequence[Span]],
        numbers: Callable[[WindowPlace], Int64[np.ndarray, "row"]],
    ) -> None:
        """`spans` and `numbers`: the rows of a stretch, and the portion of each."""
        self._reader, self._geometry = reader, geometry
        self._spans, self._numbers = spans, numbers
        self._epoch = -1
        self._kept: dict[Portion, WindowRows] = {}
        self._skipped: set[int] = set()

    def read(self, place: WindowPlace, skipped: Collection[int] = ()) -> WindowRows:
        """The rows of a window; those of `skipped` row groups count as damaged, here and up to the epoch's end.

        A row group that stood in two stretches would else be damaged in one and whole in the other.
        """
        if place.epoch != self._epoch:
            self._epoch = place.epoch
            self._kept.clear()
            self._skipped.clear()
        self._skipped.update(skipped)
        parts = []
        for portion in self._geometry.portions_of_window(place.window):
            if portion not in self._kept:
                self._read_stretch(portion.stretch, place.window)
            parts.append(self._kept.pop(portion))
        return WindowRows.together(parts)

    def _read_stretch(self, stretch: int, window: int) -> None:
        """Keep its portions for the window and those behind it."""
        place = WindowPlace(self._epoch, stretch)
        rows = self._reader.read(self._spans(place), self._skipped)
        if stretch >= self._geometry.num_whole or self._geometry.num_portions == 1:
            self._kept[Portion(stretch, 0)] = rows
            return
        numbers = np.arange(self._geometry.num_portions)
        windows = self._geometry.windows_of(np.full(len(numbers), stretch), numbers)
        portions = rows.portions(self._numbers(place), len(numbers))
        for number in np.flatnonzero(windows >= window).tolist():
            self._kept[Portion(stretch, number)] = self._with_its_damage(portions[number])

    def _with_its_damage(self, portion: WindowRows) -> WindowRows:
        """Only what it has rows of is quarantined in it."""
        row_ids = self._reader.source.row_ids
        mine = (item for item in portion.quarantined if np.isin(row_ids(item.row_group), portion.row_ids).any())
        return replace(portion, quarantined=tuple(mine)) if portion.quarantined else portion

"""Reads an object by ranges, several at once: each has a time limit of its own, and little is held in memory.

One request for a whole checkpoint would have to end within the limit of a request, however slow the line is.
"""

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.base.errors import StoreAwayError
from assay.base.units import bytes_text

RANGE_BYTES = 4 << 20
AT_ONCE = 4
"""Ranges under way together share the line: four are read within 30 s at 0.6 MB/s."""
NOTIFY_EVERY_S = 30.0


class RangeReader(io.RawIOBase):
    """A seekable file over `get_range(start, end)`; as much memory as is asked for, and `AT_ONCE` ranges."""

    def __init__(
        self,
        name: str,
        num_bytes: int,
        get_range: Callable[[int, int], memoryview],
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`say` hears how far a long reading is."""
        self._name = name
        self._num_bytes = num_bytes
        self._get_range = get_range
        self._notify = notify
        self._notify_at_s = time.monotonic() + NOTIFY_EVERY_S
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Costs nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._num_bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Where the next byte comes from."""
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer as far as there are bytes."""
        view = memoryview(buffer).cast("B")
        begin, end = self._at, max(self._at, min(self._at + len(view), self._num_bytes))

        def fetch(start: int) -> None:
            stop = min(start + RANGE_BYTES, end)
            part = self._get_range(start, stop)
            if len(part) != stop - start:
                raise StoreAwayError(f"{self._name}: of bytes {start} to {stop} only {len(part)} came.")
            view[start - begin : stop - begin] = part
            self._notify_if_due(stop)

        starts = range(begin, end, RANGE_BYTES)
        if len(starts) > 1:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(fetch, starts))
        else:
            for start in starts:
                fetch(start)
        self._at = end
        return end - begin

    def readall(self) -> bytes:
        """The rest."""
        rest = bytearray(max(0, self._num_bytes - self._at))
        self.readinto(rest)
        return bytes(rest)

    def _notify_if_due(self, at: int) -> None:
        now_s = time.monotonic()
        if now_s > self._notify_at_s:
            self._notify_at_s = now_s + NOTIFY_EVERY_S
            self._notify(f"reading {self._name}: {bytes_text(at)} of {bytes_text(self._num_bytes)}")

"""A large object over a slow line: in ranges, a few at once, in bounded memory, with word of how far it is."""

import io
import threading
import time
import tracemalloc

import pytest

from assay.base.errors import StoreAwayError
from assay.store.remote import range_reader
from assay.store.remote.range_reader import AT_ONCE, RANGE_BYTES, RangeReader

ZEROS = memoryview(bytes(RANGE_BYTES))


class Line:
    """Notes how much is asked for at once; `seconds` for each range."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.most_at_once = self.under_way = self.num_bytes = 0
        self._seconds = seconds
        self._lock = threading.Lock()

    def get_range(self, start: int, end: int) -> memoryview:
        with self._lock:
            self.under_way += end - start
            self.most_at_once = max(self.most_at_once, self.under_way)
            self.num_bytes += end - start
        time.sleep(self._seconds)
        with self._lock:
            self.under_way -= end - start
        return ZEROS[: end - start]


@pytest.mark.slow
def test_three_gigabytes_are_read_in_little_memory_by_few_ranges_at_once() -> None:
    line, num_bytes = Line(), 3_000_000_001
    with io.BufferedReader(RangeReader("x", num_bytes, line.get_range), RANGE_BYTES) as reader:
        tracemalloc.start()
        read = 0
        while block := reader.read(8 * RANGE_BYTES):
            read += len(block)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert read == line.num_bytes == num_bytes
    assert line.most_at_once <= AT_ONCE * RANGE_BYTES
    assert peak < 24 * RANGE_BYTES


def test_a_long_reading_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "NOTIFY_EVERY_S", 0.05)
    output: list[str] = []
    RangeReader("s3://b/x", 8 * RANGE_BYTES, Line(0.04).get_range, output.append).readall()
    assert output and output[0].startswith("reading s3://b/x: ") and output[0].endswith(" of 33.6 MB")


def test_a_range_that_ends_early_is_not_taken_for_bytes() -> None:
    reader = RangeReader("x", 100, lambda start, end: ZEROS[: end - start - 1])
    with pytest.raises(StoreAwayError, match="of bytes 0 to 100 only 99 came"):
        reader.readall()

"""A shard's bytes made readable piece by piece: only the column chunks that are wanted are fetched.

pyarrow decodes from something that looks like a file. `SparseFile` looks like the whole shard, but holds only
the ranges that were fetched and verified.
"""

import io
from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC = b"PAR1"


class SparseFile(io.RawIOBase):
    """A read-only file of which only some ranges are there."""

    def __init__(self, starts: Sequence[int], parts: Sequence[memoryview], num_bytes: int) -> None:
        order = sorted(range(len(starts)), key=lambda index: starts[index])
        self._starts = [starts[index] for index in order]
        self._parts = [parts[index] for index in order]
        self._num_bytes = num_bytes
        self._place = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._num_bytes}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """The bytes at the present place; they must have been fetched."""
        index = bisect_right(self._starts, self._place) - 1
        assert index >= 0, f"byte {self._place} was not fetched"
        begin = self._place - self._starts[index]
        part = self._parts[index][begin : begin + size]
        assert len(part) == size, f"bytes {self._place} to {self._place + size} were not fetched"
        self._place += size
        return part  # type: ignore[return-value]


def footer_of(tail: memoryview) -> bytes | None:
    """The footer (metadata, its length, magic) at the end of a file's last bytes; None if there is none."""
    if len(tail) < 12 or tail[-4:] != MAGIC:
        return None
    size = int.from_bytes(tail[-8:-4], "little") + 8
    return bytes(tail[-size:]) if size <= len(tail) else None


def parse_footer(footer: bytes) -> pq.FileMetaData:
    """The metadata in a footer's bytes."""
    return pq.read_metadata(pa.BufferReader(footer))


def chunk_ranges(metadata: pq.FileMetaData, group: int) -> tuple[list[int], list[int]]:
    """First byte and number of bytes of each leaf column's chunk in a row group."""
    starts, sizes = [], []
    for column in range(metadata.num_columns):
        chunk = metadata.row_group(group).column(column)
        start = chunk.data_page_offset
        if chunk.dictionary_page_offset is not None:
            start = min(start, chunk.dictionary_page_offset)
        starts.append(start)
        sizes.append(chunk.total_compressed_size)
    return starts, sizes

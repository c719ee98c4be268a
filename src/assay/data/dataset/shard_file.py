"""Reads single column chunks of a Parquet shard.

pyarrow decodes from a file object. `SparseFile` looks like the whole shard, but holds only the byte ranges that were
fetched and verified. Indexing reads through it too, so every indexed dataset can be read in training.
"""

import io
from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from assay.data.dataset.columns import plain

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
_SIGNATURE_BYTES = 28
"""Length of the signature after the metadata in a plaintext footer of an encrypted file."""


class SparseFile(io.RawIOBase):
    """A read-only file that holds only some byte ranges."""

    def __init__(self, starts: Sequence[int], parts: Sequence[memoryview], num_bytes: int) -> None:
        order = sorted(range(len(starts)), key=lambda index: starts[index])
        self._starts = [starts[index] for index in order]
        self._parts = [parts[index] for index in order]
        self._num_bytes = num_bytes
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Read bytes at the current position; raises `OSError` if they were not fetched."""
        index = bisect_right(self._starts, self._position) - 1
        begin = self._position - self._starts[index] if index >= 0 else 0
        part = self._parts[index][begin : begin + size] if index >= 0 else memoryview(b"")
        if len(part) != size:
            raise OSError(f"bytes {self._position} to {self._position + size} are in no chunk of these columns")
        self._position += size
        return part  # type: ignore[return-value]


def footer_of(tail: memoryview) -> bytes | None:
    """Return the footer (metadata, its length, magic) from a file's last bytes; None if there is none."""
    if len(tail) < 12 or tail[-4:] != MAGIC:
        return None
    size = int.from_bytes(tail[-8:-4], "little") + 8
    return bytes(tail[-size:]) if size <= len(tail) else None


def parse_footer(footer: bytes) -> pq.FileMetaData:
    """Parse the metadata of a footer."""
    return pq.read_metadata(pa.BufferReader(footer))


def is_encrypted(tail: memoryview) -> bool:
    """Return whether a file with these last bytes has encrypted columns, with or without a readable footer.

    Checked first, because pyarrow aborts the process if the offsets of an encrypted column are read.
    """
    footer = footer_of(tail)
    if footer is None:
        return tail[-4:] == ENCRYPTED_MAGIC
    num_bytes: int = parse_footer(footer).serialized_size
    return len(footer) - 8 - num_bytes == _SIGNATURE_BYTES


def read_group(metadata: pq.FileMetaData, group: int, chunks: SparseFile, columns: Sequence[str]) -> pa.Table:
    """Decode columns of a row group from their chunks, with the types of `columns.plain_schema`."""
    file = pq.ParquetFile(pa.PythonFile(chunks, mode="r"), metadata=metadata, pre_buffer=False)
    if metadata.row_group(group).num_rows == 0:  # offsets of empty chunks are arbitrary
        table = file.schema_arrow.empty_table()
    else:
        table = file.read_row_group(group, columns=list(columns), use_threads=False)
    # pyarrow also reads a dotted name as the field of a struct, so select the columns again.
    return plain(table.select(list(columns)))


def chunk_ranges(metadata: pq.FileMetaData, group: int) -> tuple[list[int], list[int]]:
    """Return first byte and size of each leaf column's chunk in a row group."""
    starts, sizes = [], []
    for column in range(metadata.num_columns):
        chunk = metadata.row_group(group).column(column)
        start = chunk.data_page_offset
        # Some writers use 0 for a missing dictionary page.
        if chunk.dictionary_page_offset:
            start = min(start, chunk.dictionary_page_offset)
        starts.append(start)
        sizes.append(chunk.total_compressed_size)
    return starts, sizes

"""Reads held-out rows from a compact copy next to the dataset's manifest.

Held-out rows may be scattered over all row groups, e.g. for a time split of unordered rows; then an evaluation of
50,000 rows decodes 42 million. The copy holds the same rows in the same order, so the held-out rows of a group
are a slice of it, and row ids, evaluation order and batches are the same with and without the copy.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from assay.base.errors import DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.manifest_file import MANIFEST_FILE

FOLDER = "_held-out"
"""Folder next to the manifest; the leading `_` hides it from indexing."""
CACHE_BYTES = 64 << 20
"""Cache of decoded row groups, because an evaluation reads rows in shuffled order."""


def copy_folder(folder: Path, split_sha256: str) -> Path:
    """Return the folder of the copy of a split's held-out rows."""
    return folder / FOLDER / split_sha256[:16]


class HeldOutCopy:
    """The held-out rows of a dataset, read from their copy."""

    def __init__(self, copy: Dataset, num_rows: npt.NDArray[np.int64]) -> None:
        """`num_rows` are the held-out rows of each row group of the parent."""
        self.manifest = copy.manifest
        self._copy = copy
        # Lists, because scalar access to NumPy arrays is slow.
        self._starts: list[int] = [0, *np.cumsum(num_rows).tolist()]
        self._firsts: list[int] = copy.groups.first_row.tolist()
        self._cache: OrderedDict[tuple[int, tuple[str, ...]], pa.Table] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    @classmethod
    def find(cls, parent: Dataset, split_sha256: str, num_rows: npt.NDArray[np.int64]) -> Self | None:
        """Open the copy of a split's held-out rows; None if there is none."""
        folder = copy_folder(parent.folder, split_sha256)
        if not (folder / MANIFEST_FILE).is_file():
            return None
        copy = Dataset.open(folder)
        of = copy.manifest.held_out_of
        if of is None or (of.fingerprint, of.split_sha256) != (parent.fingerprint, split_sha256):
            raise DataError(
                f"{folder}: not the held-out rows of '{parent.manifest.name}' by this split. Delete it; "
                "'assay data hold-out' writes it again."
            )
        if copy.manifest.num_rows != (total := int(num_rows.sum())):
            raise DataError(
                f"{folder}: {copy.manifest.num_rows:,} rows, and {total:,} are held out. Delete the folder; "
                "'assay data hold-out' writes it again."
            )
        return cls(copy, num_rows)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        begin, end = self._starts[group], self._starts[group + 1]
        parts = []
        first, stop = bisect_right(self._firsts, begin) - 1, bisect_left(self._firsts, max(end, begin + 1))
        for index in range(first, stop):
            at = self._firsts[index]
            table = self._decoded(index, tuple(columns))
            parts.append(table.slice(max(0, begin - at), min(end - at, len(table)) - max(0, begin - at)))
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def _decoded(self, group: int, columns: tuple[str, ...]) -> pa.Table:
        key = group, columns
        with self._lock:
            if (table := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                return table
        table = self._copy.read_row_group(group, columns)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = table
                self._cached_bytes += table.nbytes
            while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
                self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
        return table

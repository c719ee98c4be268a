"""The table of row groups: byte ranges, digests and row counts.

One entry per row group, ordered by (shard path, index in the shard). A row's id is its group's `first_row` plus
its index in the group: unique in the dataset, and stable as long as the shards are.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from assay.base.errors import DataError
from assay.base.seeds import Keys

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowGroups:
    """Arrays with one entry per row group; chunk arrays are [row group, column]."""

    shard_index: Integers
    group_index: Integers
    """Index within the shard."""
    first_row: Integers
    num_rows: Integers
    num_tokens: Integers
    chunk_start: Integers
    """First byte of each column's chunk in the shard."""
    chunk_bytes: Integers
    chunk_digest: Keys
    """xxh3 of each column's chunk."""

    def __len__(self) -> int:
        return len(self.num_rows)

    def table(self) -> pa.Table:
        columns = {name: pa.array(getattr(self, name)) for name in _SCALARS}
        for name in _PER_COLUMN:
            values = getattr(self, name)
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        return pa.table(columns)


_SCALARS = ("shard_index", "group_index", "first_row", "num_rows", "num_tokens")
_PER_COLUMN = ("chunk_start", "chunk_bytes", "chunk_digest")


def read_row_groups(path: Path) -> RowGroups:
    """Read a file written from `RowGroups.table`."""
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}). Index the dataset again: 'assay data index'.") from error
    arrays = {name: table[name].to_numpy() for name in _SCALARS}
    for name in _PER_COLUMN:
        column = table[name].combine_chunks()
        arrays[name] = column.values.to_numpy().reshape(len(table), -1)
    return RowGroups(**arrays)


def row_group_identities(paths: list[str], groups: RowGroups) -> Keys:
    """Return 64-bit keys of row groups from shard path and index; appended shards do not change other keys."""
    names = [
        xxhash.xxh3_64_intdigest(f"{paths[shard]}\x1f{group}".encode())
        for shard, group in zip(groups.shard_index.tolist(), groups.group_index.tolist(), strict=True)
    ]
    return np.array(names, np.uint64)

"""A dataset in memory whose rows say who they are, and which counts what is read of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from assay.base.errors import DamagedDataError
from assay.base.seeds import mix64


class FakeSource:
    """Row r has tokens r+1, r+1, ..., r % 3 spans, the label r % 2, a rejected sequence of r % 5 tokens; every
    seventh one has no `language`."""

    fingerprint = "f" * 64

    def __init__(self, group_sizes: Sequence[int], *, keep=lambda row: True, max_length=9) -> None:
        borders = np.cumsum([0, *group_sizes])
        self._rows = [
            np.array([row for row in range(start, stop) if keep(row)], np.uint64) for start, stop in pairwise(borders)
        ]
        self.identities = mix64(np.arange(len(group_sizes), dtype=np.uint64))
        self.num_rows = np.array([len(rows) for rows in self._rows], np.int64)
        self.max_length = max_length
        self.damaged: set[int] = set()
        self.reads: Counter[int] = Counter()

    @property
    def all_rows(self) -> list[int]:
        return np.concatenate(self._rows).tolist()

    def length_of(self, row: int) -> int:
        return 1 + int(mix64(np.array([row], np.uint64))[0] % np.uint64(self.max_length))

    def row_ids(self, group: int) -> np.ndarray:
        return self._rows[group]

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        self.reads[group] += 1
        if group in self.damaged:
            raise DamagedDataError(f"shard-{group}.parquet: row group 0 has digest 1, the manifest says 2")
        rows = self._rows[group].tolist()
        table = pa.table(
            {
                "input_ids": pa.array([[row + 1] * self.length_of(row) for row in rows], pa.list_(pa.int32())),
                "spans": pa.array([list(range(row % 3)) for row in rows], pa.large_list(pa.int64())),
                "rejected_ids": pa.array([[row + 1] * (row % 5) for row in rows], pa.list_(pa.int32())),
                "label": pa.array([row % 2 for row in rows], pa.int64()),
                "language": pa.array([None if row % 7 == 0 else f"l{row % 3}" for row in rows], pa.string()),
            }
        )
        return table.select(list(columns))

    def shard_of(self, group: int) -> str:
        return f"shard-{group}.parquet"


@pytest.fixture(scope="session")
def fake_source() -> Callable[..., FakeSource]:
    return FakeSource

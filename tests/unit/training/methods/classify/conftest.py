"""Rows of a table as the loader would hand them over in one micro-batch."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from assay.data.loader.batch import MicroBatch
from assay.data.loader.config import LoaderConfig, PaddedLayout
from assay.data.loader.loader import Loader
from assay.records.cursor import Cursor


class TableSource:
    """One row group in memory."""

    fingerprint = "0" * 64
    identities = np.zeros(1, np.uint64)

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.num_rows = np.array([table.num_rows])

    def row_ids(self, group: int) -> np.ndarray:
        return np.arange(self._table.num_rows, dtype=np.uint64)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        return self._table.select(list(columns))

    def shard_of(self, group: int) -> str:
        return "memory"


@pytest.fixture(scope="session")
def as_micro_batch() -> Callable[..., MicroBatch]:
    """`as_micro_batch(column=[...], ...)`: all rows at once, in the loader's order; `row_ids` says which."""

    def make(**columns: Sequence[object]) -> MicroBatch:
        num_rows = len(next(iter(columns.values())))
        filled = {"input_ids": [[1]] * num_rows, "label": [0] * num_rows, **columns}
        table = pa.table({name: pa.array(values, from_pandas=False) for name, values in filled.items()})
        table = table.set_column(
            table.schema.get_field_index("input_ids"), "input_ids",
            table["input_ids"].cast(pa.list_(pa.int32())),
        )  # fmt: skip
        config = LoaderConfig(
            lanes=1, global_batch_size=num_rows, window_rows=num_rows, threads=1, layout=PaddedLayout()
        )
        loader = Loader(TableSource(table), config, tuple(filled))
        [share] = loader.shares(Cursor(), range(1), 1)
        [micro_batch] = share.lanes[0].micro_batches
        return micro_batch

    return make

"""The interface that the loader reads from: row group sizes and identities, and their rows."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from assay.base.shapes import Int, UInt64


class RowSource(Protocol):
    """Selected rows of a dataset, by row group."""

    @property
    def fingerprint(self) -> str:
        """Digest that identifies the rows and their bytes."""
        ...

    @property
    def identities(self) -> UInt64[np.ndarray, "group"]:
        """Keys that determine the order of the row groups."""
        ...

    @property
    def num_rows(self) -> Int[np.ndarray, "group"]: ...

    def row_ids(self, group: int) -> UInt64[np.ndarray, "row"]:
        """Return dataset-wide ids of a group's selected rows, in file order; reads no data."""
        ...

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return a group's selected rows, in file order. Raises `DamagedDataError` if its bytes changed."""
        ...

    def shard_of(self, group: int) -> str: ...

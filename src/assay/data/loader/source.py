"""What the loader asks of a dataset: the sizes and identities of its row groups, and their rows."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from assay.base.shapes import Int, UInt64


class RowSource(Protocol):
    """Selected rows of a dataset, by row group."""

    @property
    def fingerprint(self) -> str:
        """Names the rows and their bytes."""
        ...

    @property
    def identities(self) -> UInt64[np.ndarray, "group"]:
        """What the order of the row groups hangs on."""
        ...

    @property
    def num_rows(self) -> Int[np.ndarray, "group"]:
        """Selected rows."""
        ...

    def row_ids(self, group: int) -> UInt64[np.ndarray, "row"]:
        """Dataset-wide ids of the selected rows of a group, in file order; reads no data."""
        ...

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """The selected rows of a group, in file order. Raises `DamagedDataError` for changed bytes."""
        ...

    def shard_of(self, group: int) -> str:
        """The file that holds a group, for messages."""
        ...

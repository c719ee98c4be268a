"""Digests of rows' tokens, by which equal texts are found."""

from functools import reduce
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from assay.base.seeds import Keys, mix64
from assay.data.dataset.columns import SEQUENCES, TOKENS
from assay.data.dataset.dataset import Dataset


def token_digests(dataset: Dataset) -> Keys:
    """Return the xxh3 digest of each row's tokens, indexed by row id, for any integer type. Reads all tokens.

    For preference pairs the digest covers both sequences.
    """
    names = SEQUENCES if dataset.manifest.format == "pairs" else (TOKENS,)

    def of_group(group: int) -> Keys:
        table = dataset.read_row_group(group, names)
        return reduce(lambda one, other: mix64(one) ^ other, (digests_of(table[name]) for name in names))

    return np.concatenate(dataset.map_groups(of_group))


def digests_of(column: pa.ChunkedArray) -> Keys:
    """Return the digests of a column's token lists."""
    boundaries = np.concatenate([[0], np.cumsum(pc.list_value_length(column).to_numpy())]).tolist()
    tokens: npt.NDArray[np.int64] = pc.list_flatten(column).to_numpy().astype(np.int64)
    data = tokens.data.cast("B")
    digests = [xxhash.xxh3_64_intdigest(data[8 * start : 8 * stop]) for start, stop in pairwise(boundaries)]
    return np.array(digests, np.uint64)

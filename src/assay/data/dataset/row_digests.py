"""A digest of every row's tokens: what two rows must share to be the same text."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from assay.base.seeds import Keys
from assay.data.dataset.columns import TOKENS
from assay.data.dataset.dataset import Dataset


def token_digests(dataset: Dataset) -> Keys:
    """xxh3 of each row's tokens, by row id; whatever integer type the column has. Reads all of `input_ids`."""
    return np.concatenate(
        dataset.each_group(lambda group: digests_of(dataset.read_row_group(group, [TOKENS])[TOKENS]))
    )


def digests_of(column: pa.ChunkedArray) -> Keys:
    """Of the lists of tokens in a column."""
    borders = np.concatenate([[0], np.cumsum(pc.list_value_length(column).to_numpy())]).tolist()
    tokens: npt.NDArray[np.int64] = pc.list_flatten(column).to_numpy().astype(np.int64)
    data = tokens.data.cast("B")
    digests = [xxhash.xxh3_64_intdigest(data[8 * start : 8 * stop]) for start, stop in pairwise(borders)]
    return np.array(digests, np.uint64)

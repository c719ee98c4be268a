"""A digest of every row's tokens: what two rows must share to be the same text."""

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
    """xxh3 of each row's tokens, by row id; whatever integer type the column has. Reads all of `input_ids`.

    Of a pair, of both sequences: the same prompt and answer beside another answer is another row.
    """
    names = SEQUENCES if dataset.manifest.format == "pairs" else (TOKENS,)

    def of_group(group: int) -> Keys:
        table = dataset.read_row_group(group, names)
        return reduce(lambda one, other: mix64(one) ^ other, (digests_of(table[name]) for name in names))

    return np.concatenate(dataset.map_groups(of_group))


def digests_of(column: pa.ChunkedArray) -> Keys:
    """Digests of the lists of tokens in a column."""
    boundaries = np.concatenate([[0], np.cumsum(pc.list_value_length(column).to_numpy())]).tolist()
    tokens: npt.NDArray[np.int64] = pc.list_flatten(column).to_numpy().astype(np.int64)
    data = tokens.data.cast("B")
    digests = [xxhash.xxh3_64_intdigest(data[8 * start : 8 * stop]) for start, stop in pairwise(boundaries)]
    return np.array(digests, np.uint64)

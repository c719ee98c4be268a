"""Measures label leakage: how well each metadata column predicts the label by itself."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from assay.data.dataset.columns import LABEL, holds_lists, holds_numbers
from assay.data.dataset.dataset import Dataset

QUICK_ROWS = 5_000_000
"""Largest dataset that is searched automatically, which takes some seconds."""

Codes = npt.NDArray[np.int64]


def label_leakage_of(dataset: Dataset, columns: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return how well each of `columns` that is not a list predicts the label, in rows.

    First the rows predicted correctly from the other rows with this value, or from the row with the next smaller
    number; then the rows with the most common label, which is the baseline without any column.
    Empty if labels are not classes, or if the dataset has more than `QUICK_ROWS` rows.
    """
    manifest = dataset.manifest
    columns = [name for name in columns if not holds_lists(manifest.columns[name])]
    if not columns or not manifest.label_counts or manifest.num_rows > QUICK_ROWS:
        return {}
    table = pa.concat_tables(dataset.map_groups(lambda group: dataset.read_row_group(group, (LABEL, *columns))))
    labels = _codes(table[LABEL])
    found = {}
    for name in columns:
        right = right_by_value(labels, _codes(table[name]))
        if holds_numbers(manifest.columns[name]):
            right = max(right, _right_by_neighbour(labels, table[name]))
        found[name] = right, int(np.bincount(labels).max())
    return found


def _codes(column: pa.ChunkedArray) -> Codes:
    """Encode values (nulls included) as integers from 0."""
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    codes: Codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def right_by_value(labels: Codes, values: Codes) -> int:
    """Count rows whose label is the majority among the *other* rows with their value; ties count as wrong."""
    num_labels = int(labels.max()) + 1
    pairs, counts = np.unique(values * num_labels + labels, return_counts=True)
    order = np.lexsort((counts, pairs // num_labels))  # of each value, the commonest label last
    pairs, counts = pairs[order], counts[order]
    is_last = np.append(pairs[1:] // num_labels != pairs[:-1] // num_labels, True)
    last = np.flatnonzero(is_last)
    has_second = np.append(False, ~is_last[:-1])[last]
    second = np.where(has_second, counts[last - 1], 0)
    return int(counts[last][counts[last] - 1 > second].sum())


def _right_by_neighbour(labels: Codes, numbers: pa.ChunkedArray) -> int:
    """Count rows with the label of the preceding row when sorted by number.

    Ties are broken at random, because source rows are often sorted by label.
    """
    shuffled = np.random.default_rng(0).permutation(len(labels))
    order = pc.sort_indices(numbers.combine_chunks().take(pa.array(shuffled))).to_numpy()
    sorted_labels = labels[shuffled[order]]
    return int(np.count_nonzero(sorted_labels[1:] == sorted_labels[:-1]))

"""Finds leaks: validation rows with exactly the tokens of a training row.

A split by key keeps the rows of a key together, but two keys may hold the same text. Evaluation on such rows
measures memorization.
"""

from typing import NamedTuple

import numpy as np

from assay.data.dataset.dataset import Dataset
from assay.data.dataset.row_digests import token_digests
from assay.data.dataset.split import DatasetView, SplitConfig, split_view

QUICK_TOKENS = 50_000_000
"""Largest dataset that is searched automatically, which takes some seconds."""


class Leak(NamedTuple):
    """Held-out rows that are also trained on."""

    num_rows: int
    """Validation rows with the tokens of a training row."""
    num_validation_rows: int
    examples: tuple[int, ...]
    """Ids of the first 5 such rows."""


def find_leaks(train: DatasetView, validation: DatasetView) -> Leak:
    """Compare the token digests of two parts of one dataset."""
    digests = token_digests(train.dataset)
    train_ids, held_out_ids = (
        np.concatenate([view.row_ids(group) for group in range(len(view.num_rows))]) for view in (train, validation)
    )
    leaked = held_out_ids[np.isin(digests[held_out_ids], digests[train_ids])]
    return Leak(len(leaked), len(held_out_ids), tuple(leaked[:5].tolist()))


def quick_leaks(dataset: Dataset, split: SplitConfig) -> Leak | None:
    """Find the leaks of a dataset of at most `QUICK_TOKENS` tokens; None for a larger one."""
    if dataset.manifest.num_tokens > QUICK_TOKENS:
        return None
    return find_leaks(split_view(dataset, split, "train"), split_view(dataset, split, "validation"))

"""Rows that stand on both sides of a split although no key or time puts them there: copies of the same text.

A split by key keeps a key's rows together; it cannot know that two keys hold the same text. Whoever evaluates
on such rows measures memory.
"""

from typing import NamedTuple

import numpy as np

from assay.data.dataset.dataset import Dataset
from assay.data.dataset.row_digests import token_digests
from assay.data.dataset.split import DatasetView, SplitConfig, split_view

QUICK_TOKENS = 50_000_000
"""What a dataset may have that is searched without being asked: some seconds."""


class Leak(NamedTuple):
    """What is held out and was trained on all the same."""

    num_rows: int
    """Rows of the validation part whose tokens are those of some training row."""
    num_validation_rows: int
    examples: tuple[int, ...]
    """Ids of the first such rows, at most 5."""


def find_leaks(train: DatasetView, validation: DatasetView) -> Leak:
    """Compare the tokens of all rows of two parts of one dataset, by digest."""
    digests = token_digests(train.dataset)
    train_ids, held_out_ids = (
        np.concatenate([view.row_ids(group) for group in range(len(view.num_rows))]) for view in (train, validation)
    )
    leaked = held_out_ids[np.isin(digests[held_out_ids], digests[train_ids])]
    return Leak(len(leaked), len(held_out_ids), tuple(leaked[:5].tolist()))


def quick_leaks(dataset: Dataset, split: SplitConfig) -> Leak | None:
    """What leaks in a dataset of at most `QUICK_TOKENS` tokens; None of a larger one, which nobody searched."""
    if dataset.manifest.num_tokens > QUICK_TOKENS:
        return None
    return find_leaks(split_view(dataset, split, "train"), split_view(dataset, split, "validation"))

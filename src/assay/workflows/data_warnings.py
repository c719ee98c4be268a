"""Warnings about a dataset and its split before training, for `train new` and `--check`."""

from assay.data.dataset.columns import LABEL, TOKENS
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.held_out.leaks import quick_leaks
from assay.data.dataset.label_leakage import label_leakage_of
from assay.data.dataset.split import HashSplit, split_view
from assay.statistics.warnings import (
    Warned,
    warnings_of_column,
    warnings_of_cuts,
    warnings_of_leaks,
    warnings_of_split,
)
from assay.training.recipe import Recipe


def data_warnings(recipe: Recipe, dataset: Dataset) -> list[Warned]:
    """Return warnings about a dataset.

    They are about cut rows, leaking rows (if they are found quickly), a split that misses its target, and
    columns that give away the label.
    """
    manifest, split = dataset.manifest, recipe.data.split
    num_cut = manifest.build.num_cut if manifest.build is not None else None
    found = warnings_of_cuts(manifest.lengths, num_rows=manifest.num_rows, num_cut=num_cut)
    if (leak := quick_leaks(dataset, split)) is not None:
        found += warnings_of_leaks(leak.num_rows, leak.num_validation_rows)
    if isinstance(split, HashSplit):
        whole = split.model_copy(update={"drop_leaks": False})
        held_out = int(split_view(dataset, whole, "validation").num_rows.sum())
        dropped = held_out - int(split_view(dataset, split, "validation").num_rows.sum()) if split.drop_leaks else 0
        found += warnings_of_split(
            held_out, manifest.num_rows, target_share=split.validation_fraction, num_dropped=dropped
        )
    metadata = [name for name in recipe.method.columns if name not in (TOKENS, LABEL)]
    for name, (num_correct, num_majority) in label_leakage_of(dataset, metadata).items():
        found += warnings_of_column(
            name, num_correct=num_correct, num_majority=num_majority, num_rows=manifest.num_rows
        )
    return found

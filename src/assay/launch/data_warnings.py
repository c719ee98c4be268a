"""What a dataset and its split warn of before anything is trained on them: `recipe new`, `--check`."""

from assay.data.dataset.dataset import Dataset
from assay.data.dataset.leaks import quick_leaks
from assay.data.dataset.split import HashSplit, TimeSplit, split_view
from assay.evaluation.evidence.warnings import (
    Warned,
    warnings_of_cuts,
    warnings_of_leaks,
    warnings_of_split,
)


def data_warnings(dataset: Dataset, split: HashSplit | TimeSplit) -> list[Warned]:
    """What rows that were cut, that leak (where that is searched quickly), and a split that is off warn of."""
    manifest = dataset.manifest
    num_cut = manifest.build.num_cut if manifest.build is not None else None
    found = warnings_of_cuts(manifest.lengths, num_rows=manifest.num_rows, num_cut=num_cut)
    if (leak := quick_leaks(dataset, split)) is not None:
        found += warnings_of_leaks(leak.num_rows, leak.num_validation_rows)
    if isinstance(split, HashSplit) and not split.drop_leaks:
        held_out = int(split_view(dataset, split, "validation").num_rows.sum())
        found += warnings_of_split(held_out, manifest.num_rows, asked=split.validation_fraction)
    return found

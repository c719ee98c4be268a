"""The two sides of a dataset split, and rows that leak between them."""

from typing import Any

from assay.data.dataset.held_out.leaks import Leak
from assay.data.dataset.split import DatasetView, SplitConfig
from assay.reporting.views.view import View


class SideView(View):
    """One side of a split."""

    num_rows: int
    num_positive: int | None
    """With label 1."""


class LeakView(View):
    """Validation rows that are also in training."""

    num_rows: int
    """With the tokens of a training row."""
    num_validation_rows: int
    examples: tuple[int, ...]
    """Up to five ids."""


class SplitView(View):
    """The two sides of a split."""

    train: SideView
    validation: SideView
    split: dict[str, Any]
    """Recipe lines for `data:`."""
    num_dropped: int
    """Validation rows removed by `drop_leaks`."""
    leak: LeakView | None
    """Null without `--check-leaks`."""


def dataset_split_view(
    train: DatasetView, validation: DatasetView, config: SplitConfig, leak: Leak | None
) -> SplitView:
    """Return the view of the two sides that `config` makes."""
    sides = (_side(train), _side(validation))
    return SplitView(
        train=sides[0],
        validation=sides[1],
        num_dropped=train.dataset.manifest.num_rows - sum(side.num_rows for side in sides),
        split=config.model_dump(mode="json"),
        leak=LeakView.of(leak) if leak else None,
    )


def _side(view: DatasetView) -> SideView:
    counts = view.dataset.manifest.label_counts
    is_binary = bool(counts) and counts.keys() <= {"0", "1"}
    return SideView(num_rows=int(view.num_rows.sum()), num_positive=view.sum_of("label") if is_binary else None)

"""Labels and probabilities of rows, checked once so that no metric checks them again."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from assay.base.errors import DataError
from assay.base.shapes import Bool, Float64, Int
from assay.base.units import number_of
from assay.statistics.interval import Clusters
from assay.statistics.predictions import clusters_of


class ScoredRows(NamedTuple):
    """Rows with their true class and the model's probability of the positive class."""

    is_positive: Bool[np.ndarray, "row"]
    probabilities: Float64[np.ndarray, "row"]
    clusters: Clusters | None = None
    """Cluster of each row; None if each row is its own."""

    @property
    def num_rows(self) -> int:
        return int(self.is_positive.size)

    @property
    def num_positive(self) -> int:
        return int(np.count_nonzero(self.is_positive))

    @property
    def has_two_classes(self) -> bool:
        return 0 < self.num_positive < self.num_rows

    @property
    def has_distinct_scores(self) -> bool:
        return bool(np.ptp(self.probabilities) > 0.0)

    @property
    def class_weights(self) -> Float64[np.ndarray, "row"]:
        """Weight of each row if both classes count the same: 1 over the size of its class."""
        num_negative = self.num_rows - self.num_positive
        weights: np.ndarray = np.where(self.is_positive, 1.0 / self.num_positive, 1.0 / num_negative)
        return weights

    def where(self, chosen: Bool[np.ndarray, "row"] | Int[np.ndarray, "chosen"]) -> "ScoredRows":
        clusters = None if self.clusters is None else self.clusters[chosen]
        return ScoredRows(self.is_positive[chosen], self.probabilities[chosen], clusters)


def scored_rows(labels: ArrayLike, probabilities: ArrayLike, *, source: str) -> ScoredRows:
    """Pair labels with probabilities after checking both; errors name `source`.

    Raises `DataError` for no rows, unequal lengths, labels outside {0, 1}, and probabilities that are not finite or lie
    outside [0, 1].
    """
    label_values = np.asarray(labels)
    scores = np.asarray(probabilities, dtype=np.float64)
    if label_values.shape != scores.shape or scores.ndim != 1:
        raise DataError(
            f"{source}: {label_values.shape} labels for {scores.shape} probabilities; expected one of each per row."
        )
    if scores.size == 0:
        raise DataError(f"{source}: no rows, so nothing can be measured. Evaluate a split that has rows.")
    wrong_labels = np.flatnonzero((label_values != 0) & (label_values != 1))
    if wrong_labels.size:
        raise DataError(
            f"{source}: {number_of(wrong_labels.size, 'label is', 'labels are')} outside {{0, 1}}, the first "
            f"is {label_values[wrong_labels[0]]} in row {wrong_labels[0]}. Map the labels to 0 and 1."
        )
    # Not (0 <= p <= 1) is true for NaN too.
    wrong_scores = np.flatnonzero(~((scores >= 0.0) & (scores <= 1.0)))
    if wrong_scores.size:
        raise DataError(
            f"{source}: {wrong_scores.size} probabilities are not numbers in [0, 1], the first is "
            f"{scores[wrong_scores[0]]} in row {wrong_scores[0]}. The model that wrote them has "
            "diverged, or they are logits."
        )
    return ScoredRows(label_values.astype(bool), scores)


def scores_of(table: Any, *, source: str) -> ScoredRows:
    """Return the checked labels, probabilities and clusters of a table of predictions."""
    rows = scored_rows(table["label"].to_numpy(), table["probability"].to_numpy(), source=source)
    return rows._replace(clusters=clusters_of(table))

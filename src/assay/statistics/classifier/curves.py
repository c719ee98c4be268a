"""Curves and histograms of predictions, thinned to the few hundred points that a plot needs."""

from typing import NamedTuple

import numpy as np

from assay.base.shapes import Float64, Int64
from assay.statistics.classifier.rows import ScoredRows


class RocCurve(NamedTuple):
    """True against false positive rate, from (0, 0) to (1, 1)."""

    false_positive_rate: Float64[np.ndarray, "point"]
    true_positive_rate: Float64[np.ndarray, "point"]


class ScoreHistogram(NamedTuple):
    """Rows of each class by predicted probability; bin k holds [edges[k], edges[k + 1])."""

    edges: Float64[np.ndarray, "edge"]
    positive_rows: Int64[np.ndarray, "bin"]
    negative_rows: Int64[np.ndarray, "bin"]


def roc_curve(rows: ScoredRows, *, max_points: int = 200) -> RocCurve | None:
    """Return the ROC curve, thinned to `max_points` evenly along its length; None if a class is missing."""
    if not rows.has_two_classes:
        return None
    ordered = rows.where(np.argsort(-rows.probabilities, kind="stable"))
    ends = np.flatnonzero(np.append(np.diff(ordered.probabilities) != 0, True))
    found = np.cumsum(ordered.is_positive)[ends] / rows.num_positive
    flagged = (ends + 1 - np.cumsum(ordered.is_positive)[ends]) / (rows.num_rows - rows.num_positive)
    found, flagged = np.concatenate([[0.0], found]), np.concatenate([[0.0], flagged])
    if found.size > max_points:
        distances = np.linspace(0.0, 2.0, max_points)
        points = np.unique(np.searchsorted(found + flagged, distances).clip(max=found.size - 1))
        found, flagged = found[points], flagged[points]
    return RocCurve(flagged, found)


def score_histogram(rows: ScoredRows, *, num_bins: int = 30) -> ScoreHistogram:
    """Count the rows of each class in `num_bins` equal bins of [0, 1]."""
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    positive, _ = np.histogram(rows.probabilities[rows.is_positive], edges)
    negative, _ = np.histogram(rows.probabilities[~rows.is_positive], edges)
    return ScoreHistogram(edges, positive.astype(np.int64), negative.astype(np.int64))

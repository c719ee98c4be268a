"""Average precision, log-loss and calibration of a classifier's predictions, each in O(n log n).

Average precision is the mean, over the positives, of the precision at that positive's score. Its interval is the
infinitesimal jackknife (Jaeckel 1972; Efron 1982): the derivative of the statistic by each row's weight is that row's
influence, and the sum of the squared influences is the variance of the statistic. A bootstrap over rows converges to
the same variance, at the cost of a thousand samples.
"""

from typing import Any

import numpy as np

from assay.base.shapes import Float64, Int, Num
from assay.records.evaluation import CalibrationBin, ClassifierMetrics, Estimate, SliceMetrics
from assay.statistics.classifier.auc import auc_estimate, on_logit_scale
from assay.statistics.classifier.rows import ScoredRows
from assay.statistics.interval import clustered, normal_quantile, one_cluster, symmetric
from assay.statistics.predictions import BINARY_COLUMNS
from assay.statistics.slices import MIN_ROWS, metadata_slices

CALIBRATION_BINS = 10


def classifier_metrics(rows: ScoredRows, *, min_rows_to_rank: int = 0) -> ClassifierMetrics:
    """Return all metrics of a binary classifier; AUC and AP are None with fewer than `min_rows_to_rank` rows."""
    can_rank = rows.num_rows >= min_rows_to_rank
    bins = calibration_bins(rows)
    return ClassifierMetrics(
        num_rows=rows.num_rows,
        num_positive=rows.num_positive,
        auc=auc_estimate(rows) if can_rank else None,
        average_precision=average_precision(rows) if can_rank else None,
        log_loss=log_loss(rows),
        expected_calibration_error=expected_calibration_error(bins),
        calibration=bins,
    )


def slice_metrics(table: Any, rows: ScoredRows) -> tuple[SliceMetrics, ...]:
    """Return the metrics of each slice of a table of predictions; small slices have no AUC and AP."""
    return tuple(
        SliceMetrics(
            column=slice_part.column,
            value=slice_part.value,
            metrics=classifier_metrics(rows.where(slice_part.chosen), min_rows_to_rank=MIN_ROWS),
        )
        for slice_part in metadata_slices(table, scores=BINARY_COLUMNS)
    )


def average_precision(rows: ScoredRows) -> Estimate | None:
    """Return average precision with its interval on the logit scale; None if a class is missing.

    Rows with equal scores share one threshold, as in scikit-learn. There is no interval if a class has one row or the
    classes are perfectly separated.
    """
    if not rows.has_two_classes:
        return None
    ordered = rows.where(np.argsort(-rows.probabilities, kind="stable"))
    last_of_tie = _last_of_tie(ordered.probabilities)
    true_positives = np.cumsum(ordered.is_positive, dtype=np.float64)[last_of_tie]
    predicted = (last_of_tie + 1).astype(np.float64)
    precision = true_positives / predicted
    value = float(precision[ordered.is_positive].mean())
    if min(rows.num_positive, rows.num_rows - rows.num_positive) < 2 or value >= 1.0:
        return Estimate(value=value, method="infinitesimal jackknife: undefined")
    influence, method = _influence(ordered, last_of_tie, precision, predicted), "infinitesimal jackknife"
    if ordered.clusters is None:
        return on_logit_scale(value, float(influence @ influence), method=method)
    if (error := clustered(influence, ordered.clusters, ordered.class_weights)) is None:
        return Estimate(value=value, method=one_cluster(method))
    method = f"{method}, {error.num_clusters:,} clusters"
    return on_logit_scale(value, error.variance, method=method, quantile=error.quantile)


def log_loss(rows: ScoredRows) -> Estimate:
    """Return the mean negative log-likelihood in nats, with the normal interval of a mean.

    Probabilities stay one float64 epsilon away from 0 and 1, so a confident error costs 36 nats, not infinity.
    """
    smallest = np.finfo(np.float64).eps
    probabilities = np.clip(rows.probabilities, smallest, 1.0 - smallest)
    losses = -np.log(np.where(rows.is_positive, probabilities, 1.0 - probabilities))
    value = float(losses.mean())
    if rows.num_rows < 2:
        return Estimate(value=value, method="normal: undefined, one row")
    if rows.clusters is not None:
        if (error := clustered((losses - value) / rows.num_rows, rows.clusters)) is None:
            return Estimate(value=value, method=one_cluster("normal"))
        method = f"normal, {error.num_clusters:,} clusters"
        return symmetric(value, error.half_width, method=method, lowest=0.0)
    margin = normal_quantile() * float(losses.std(ddof=1) / np.sqrt(rows.num_rows))
    return symmetric(value, margin, method="normal", lowest=0.0)


def calibration_bins(rows: ScoredRows) -> tuple[CalibrationBin, ...]:
    """Return bins of equal count by probability, lowest first.

    Rows with equal probability stay in one bin, so there may be fewer than `CALIBRATION_BINS`.
    """
    ordered = rows.where(np.argsort(rows.probabilities, kind="stable"))
    target_ends = (np.arange(1, CALIBRATION_BINS + 1) * rows.num_rows) // CALIBRATION_BINS
    last = _last_of_tie(ordered.probabilities)
    ends = np.unique(last[np.maximum(target_ends, 1) - 1] + 1)
    starts = np.concatenate([[0], ends[:-1]])
    counts = ends - starts
    predicted = np.add.reduceat(ordered.probabilities, starts) / counts
    observed = np.add.reduceat(ordered.is_positive.astype(np.float64), starts) / counts
    return tuple(
        CalibrationBin(num_rows=int(count), mean_predicted=float(mean), observed_rate=float(rate))
        for count, mean, rate in zip(counts, predicted, observed, strict=True)
    )


def expected_calibration_error(bins: tuple[CalibrationBin, ...]) -> float:
    """Return the mean distance between predicted and observed rate over the rows; 0 is perfect."""
    num_rows = sum(bin_.num_rows for bin_ in bins)
    return sum(bin_.num_rows * abs(bin_.mean_predicted - bin_.observed_rate) for bin_ in bins) / num_rows


def _influence(
    ordered: ScoredRows,
    last_of_tie: Int[np.ndarray, "row"],
    precision: Float64[np.ndarray, "row"],
    predicted: Num[np.ndarray, "row"],
) -> Float64[np.ndarray, "row"]:
    """Return each row's influence on AP; `ordered` is sorted by falling score. The sum of squares is the variance.

    With A_i positives and B_i negatives at or above positive i's score, AP = mean_i A_i / (A_i + B_i). A row enters
    every A_i (or B_i) of a positive at or below its own score; a positive also enters as a term.
    """
    is_positive = ordered.is_positive
    num_positive = ordered.num_positive
    by_positive = np.where(is_positive, (1.0 - precision) / predicted, 0.0)
    by_negative = np.where(is_positive, -precision / predicted, 0.0)
    first_of_tie = _first_of_tie(last_of_tie)
    gains = _sum_from(by_positive)[first_of_tie][is_positive]
    losses = _sum_from(by_negative)[first_of_tie][~is_positive]
    positive = precision[is_positive] + gains - precision[is_positive].mean()
    # Influences sum to zero over all rows, as the statistic does not change when every weight is doubled.
    influence = np.empty(ordered.num_rows)
    influence[is_positive], influence[~is_positive] = positive / num_positive, losses / num_positive
    return influence


def _sum_from(values: Float64[np.ndarray, "row"]) -> Float64[np.ndarray, "row"]:
    """Return the sum of `values[k:]` for each k."""
    return np.cumsum(values[::-1])[::-1]


def _last_of_tie(ordered: Float64[np.ndarray, "row"]) -> Int[np.ndarray, "row"]:
    """Return, for each position, the last position that holds the same value; `ordered` is sorted either way."""
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    return np.repeat(ends, np.diff(ends, prepend=-1))


def _first_of_tie(last_of_tie: Int[np.ndarray, "row"]) -> Int[np.ndarray, "row"]:
    ends, lengths = np.unique(last_of_tie, return_counts=True)
    return np.repeat(ends - lengths + 1, lengths)

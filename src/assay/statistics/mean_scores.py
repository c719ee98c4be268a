"""Means of row scores with intervals, whole and by slice, and paired differences.

    predictions.parquet: row_id, squared_error, ..., metadata --> mean of each score +- t s / sqrt(n)

Each row is one draw, or each cluster of rows. A paired difference on the same rows removes the variance that comes from
easy and hard rows.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import betaincinv, stdtrit

from assay.base.errors import DataError
from assay.base.shapes import Bool, Float64
from assay.base.units import number_of
from assay.records.evaluation import Estimate, Measured, Metric, ScoreComparison, ScoreMetrics, ScoreSlice
from assay.statistics.failure_rate import independent_trials
from assay.statistics.interval import (
    CONFIDENCE,
    LARGEST_SCORE,
    NONE_DIFFERS,
    Clusters,
    cluster_sums,
    clustered,
    clustered_variance,
    normal_quantile,
    one_cluster,
    symmetric,
    wilson_interval,
    within,
)
from assay.statistics.predictions import PREDICTED, clusters_of, require_same_labels, require_same_rows
from assay.statistics.slices import metadata_slices, slice_differences
from assay.statistics.verdict import SliceDifference, verdict_of

Ranges = Mapping[str, tuple[float, float]]
"""Name of a metric -> lowest and highest possible score of a row."""

ANY = (-math.inf, math.inf)

_SHARE_UNITS = ("share", "rewards")
"""Units of scores that are often 0 or 1 in every row."""


def mean_estimate(values: Float64[np.ndarray, "row"], clusters: Clusters | None = None) -> Estimate:
    """Return the mean with Student's interval; no interval for a single row or cluster."""
    mean = float(values.mean())
    if clusters is not None:
        if (error := clustered((values - mean) / values.size, clusters)) is None:
            return Estimate(value=mean, method=one_cluster("normal theory (t)"))
        return symmetric(mean, error.half_width, method=f"normal theory (t), {error.num_clusters:,} clusters")
    if values.size < 2:
        return Estimate(value=mean, method="normal theory (t): undefined, one row")
    quantile = float(stdtrit(values.size - 1, 0.5 + CONFIDENCE / 2))
    return symmetric(mean, quantile * float(values.std(ddof=1)) / np.sqrt(values.size), method="normal theory (t)")


def share_estimate(hits: Float64[np.ndarray, "row"], clusters: Clusters | None = None) -> Estimate:
    """Return the share of ones among zeros and ones with Wilson's interval, valid for few rows and for equal rows.

    Clustered rows count as their equivalent number of independent ones (`independent_trials`, of the rarer value).
    """
    share, worth, method = float(hits.mean()), float(hits.size), "Wilson"
    if clusters is not None:
        worth = independent_trials(hits < 0.5 if share > 0.5 else hits > 0.5, clusters).number
        worth_text = f" worth {worth:,.0f} independent rows" if round(worth) < hits.size else ""
        method = f"{method}, {len(np.unique(clusters)):,} clusters{worth_text}"
    low, high = wilson_interval(share, worth, normal_quantile())
    return Estimate(value=share, low=low, high=high, method=method)


def score_metrics(table: Any, metrics: Sequence[Metric], ranges: Ranges) -> ScoreMetrics:
    """Return the mean of each metric's column, with an interval within the possible scores."""
    clusters = clusters_of(table)
    return ScoreMetrics(
        num_rows=len(table),
        measured=tuple(
            Measured(
                metric=metric,
                estimate=within(_estimate(_scores(table, metric), metric, clusters), *ranges.get(metric.name, ANY)),
            )
            for metric in metrics
        ),
    )


def score_slices(table: Any, metrics: Sequence[Metric], ranges: Ranges) -> tuple[ScoreSlice, ...]:
    """Return the score metrics of each slice."""
    return tuple(
        ScoreSlice(
            column=slice_part.column,
            value=slice_part.value,
            metrics=score_metrics(table.filter(slice_part.chosen), metrics, ranges),
        )
        for slice_part in metadata_slices(table, scores=_names(metrics))
    )


def compare_scores(
    baseline: Any,
    candidate: Any,
    metric: Metric,
    *,
    baseline_run_id: str,
    candidate_run_id: str,
    weights_equal: bool,
    allowed_loss: float,
) -> ScoreComparison:
    """Compare two tables of predictions by the mean of one score; raise `DataError` if their rows differ."""
    names = f"{baseline_run_id} and {candidate_run_id}"
    require_same_rows(baseline, candidate, names)
    require_same_labels(baseline, candidate, names)
    before, after = _scores(baseline, metric), _scores(candidate, metric)
    difference = _paired(after - before, clusters_of(baseline), metric, weights_equal=weights_equal)
    verdict = verdict_of(difference, allowed_loss=allowed_loss, higher_is_better=metric.higher_is_better)
    return ScoreComparison(
        baseline_run_id=baseline_run_id,
        candidate_run_id=candidate_run_id,
        num_rows=before.size,
        metric=metric,
        baseline_value=float(before.mean()),
        candidate_value=float(after.mean()),
        difference=difference,
        allowed_loss=allowed_loss,
        # Equal weights have a difference of exactly zero, which passes any rule.
        verdict="pass" if weights_equal else verdict,
        weights_equal=weights_equal,
    )


def compare_score_slices(
    baseline: Any, candidate: Any, metrics: Sequence[Metric], *, weights_equal: bool
) -> tuple[SliceDifference, ...]:
    """Return the paired difference of the first score in each slice."""
    differences = _scores(candidate, metrics[0]) - _scores(baseline, metrics[0])
    clusters = clusters_of(baseline)

    def paired(chosen: Bool[np.ndarray, "row"]) -> Estimate:
        chosen_clusters = None if clusters is None else clusters[chosen]
        return _paired(differences[chosen], chosen_clusters, metrics[0], weights_equal=weights_equal)

    return slice_differences(baseline, paired, scores=_names(metrics))


def _estimate(scores: Float64[np.ndarray, "row"], metric: Metric, clusters: Clusters | None) -> Estimate:
    if metric.unit not in _SHARE_UNITS:
        return mean_estimate(scores, clusters)
    if np.isin(scores, (0.0, 1.0)).all():
        return share_estimate(scores, clusters)
    found = mean_estimate(scores, clusters)
    return within(found, 0.0, 1.0) if metric.unit == "share" else found


def _paired(
    differences: Float64[np.ndarray, "row"], clusters: Clusters | None, metric: Metric, *, weights_equal: bool
) -> Estimate:
    """Return the paired difference of one score.

    As in campaigns, an unobserved row of a share may differ by 1. If no row differs and the score is unbounded, there
    is no interval, unless the weights are equal.
    """
    found = mean_estimate(differences, clusters)
    if not weights_equal and found.low is not None:
        if metric.unit == "share":
            found = _share_difference(differences, clusters, method=found.method)
        elif not differences.any():
            found = Estimate(value=0.0, method=f"{found.method}: undefined, {NONE_DIFFERS}")
    return found.model_copy(update={"method": f"paired, {found.method}"})


def _share_difference(differences: Float64[np.ndarray, "row"], clusters: Clusters | None, *, method: str) -> Estimate:
    mean, counts = float(differences.mean()), None if clusters is None else np.ones(differences.size)
    error = clustered_variance((differences - mean) / differences.size, clusters, counts, largest=1.0)
    half_width = float(stdtrit(error.degrees, 0.5 + CONFIDENCE / 2) * np.sqrt(error.variance))
    lost, gained = _exact_bounds(differences, np.arange(differences.size) if clusters is None else clusters)
    return symmetric(mean, half_width, method=method, lowest=min(mean, -lost), highest=max(mean, gained))


def _exact_bounds(differences: Float64[np.ndarray, "row"], clusters: Clusters) -> tuple[float, float]:
    """Return the largest plausible loss and gain of a share (Clopper & Pearson 1934), for few rows that differ.

    Trials are clusters, as many as would weigh the same, or fewer if those that differ are larger. One that differs
    does so in at most the share of its rows that an observed one does, or the least one of `interval`; without any, in
    all. If half of the trials differ, there is no bound: a few clusters do not show by how much others do.
    """
    sizes, tail = cluster_sums(np.ones(differences.size), clusters), 0.5 + CONFIDENCE / 2
    size = float(sizes @ sizes) / differences.size
    changed = [cluster_sums(np.maximum(sign * differences, 0.0), clusters) / sizes for sign in (-1.0, 1.0)]
    most = max(float(part.max()) for part in changed)
    amount, bounds = max(most, size**-0.5) if most else 1.0, []
    for differing in (sizes[part > 0.0] for part in changed):
        own_size, count = float(differing @ differing) / max(float(differing.sum()), 1.0), differing.size
        trials = differences.size / max(size, own_size)
        bounds.append(amount * float(betaincinv(count + 1, trials - count, tail)) if 2 * count < trials else 1.0)
    return bounds[0], bounds[1]


def _scores(table: Any, metric: Metric) -> Float64[np.ndarray, "row"]:
    scores = np.asarray(table[metric.name].to_numpy(), np.float64)
    if not (is_number := np.abs(scores) <= LARGEST_SCORE).all():
        raise DataError(
            f"{metric.title} is {scores[~is_number][0]:.3g} in {number_of(int((~is_number).sum()), 'row')}: "
            "the model has diverged. Train it with a lower learning rate."
        )
    return scores


def _names(metrics: Sequence[Metric]) -> list[str]:
    return [*(metric.name for metric in metrics), *PREDICTED]

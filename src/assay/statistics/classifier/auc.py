"""AUC with its interval, and the paired difference of two AUCs.

The AUC is the probability that a random positive scores above a random negative; a tie counts one half. DeLong, DeLong
& Clarke-Pearson (1988) write its variance, and the covariance of two AUCs on the same rows, in terms of each row's
*placement*: the share of the other class that the row beats. Sun & Xu (2014), "Fast implementation of DeLong's
algorithm", compute all placements from midranks, so 42 M rows cost three sorts:

    placement of a positive = (midrank among all rows - midrank among positives) / number of negatives

Rows of one cluster are one draw (Obuchowski 1997). A row's influence is its placement minus the AUC, divided by the
size of its class; influences are summed within clusters.

One AUC gets its interval on the logit scale, which stays inside (0, 1) and covers better near 1 than the plain
interval. A difference gets the plain, symmetric interval.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from assay.base.shapes import Float64
from assay.records.evaluation import Estimate
from assay.statistics.classifier.rows import ScoredRows, scored_rows
from assay.statistics.interval import clustered, normal_quantile, one_cluster, symmetric


class Placements(NamedTuple):
    """Share of the other class that each row beats; a tie counts one half."""

    positive: Float64[np.ndarray, "positive"]
    negative: Float64[np.ndarray, "negative"]

    @property
    def auc(self) -> float:
        return float(self.positive.mean())


def placements(rows: ScoredRows) -> Placements:
    """Return the placements of all rows, at the cost of three sorts. Both classes must be present."""
    positives, negatives = rows.probabilities[rows.is_positive], rows.probabilities[~rows.is_positive]
    assert positives.size and negatives.size, "an AUC needs both classes"
    among_all = midranks(rows.probabilities)
    return Placements(
        (among_all[rows.is_positive] - midranks(positives)) / negatives.size,
        1.0 - (among_all[~rows.is_positive] - midranks(negatives)) / positives.size,
    )


def midranks(values: Float64[np.ndarray, " value"]) -> Float64[np.ndarray, " value"]:
    """Return ranks from 1; equal values share their mean rank. Uses NumPy only, because training ranks import this."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Float64[np.ndarray, " value"] = (last - (counts - 1) / 2)[index]
    return shared


def auc(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Return the AUC without an interval. Both classes must be present."""
    return placements(scored_rows(labels, probabilities, source="the scored rows")).auc


def auc_estimate(rows: ScoredRows) -> Estimate | None:
    """Return the AUC with DeLong's interval on the logit scale; None if a class is missing.

    There is no interval if a class has one row, or if the classes are perfectly separated: DeLong's variance is then
    undefined, or 0.
    """
    if not rows.has_two_classes:
        return None
    placement = placements(rows)
    if min(placement.positive.size, placement.negative.size) < 2:
        return Estimate(value=placement.auc, method="DeLong: undefined, one row of a class")
    if placement.auc in (0.0, 1.0):
        return Estimate(value=placement.auc, method="DeLong: undefined, perfect separation")
    if rows.clusters is None:
        return on_logit_scale(placement.auc, _variance(placement.positive, placement.negative), method="DeLong")
    error = clustered(_influence(rows, placement), rows.clusters, rows.class_weights)
    if error is None:
        return Estimate(value=placement.auc, method=one_cluster("DeLong"))
    method = f"DeLong, {error.num_clusters:,} clusters"
    return on_logit_scale(placement.auc, error.variance, method=method, quantile=error.quantile)


def auc_difference(baseline: ScoredRows, candidate: ScoredRows) -> Estimate | None:
    """Return the candidate's AUC minus the baseline's on the same rows, with the paired DeLong interval.

    Both must list the same rows in the same order. Returns None if a class is missing. There is no interval if a class
    has one row, unless all placements agree: then the difference and both ends are exactly 0.
    """
    assert np.array_equal(baseline.is_positive, candidate.is_positive), "paired rows must have one label each"
    if not baseline.has_two_classes:
        return None
    before, after = placements(baseline), placements(candidate)
    positive = after.positive - before.positive
    negative = after.negative - before.negative
    difference = float(after.auc - before.auc)
    if min(positive.size, negative.size) < 2 and (positive.any() or negative.any()):
        return Estimate(value=difference, method="paired DeLong: undefined, one row of a class")
    # The variance of a difference is the variance of the differences of placements: no covariance needed.
    if baseline.clusters is not None and (positive.any() or negative.any()):
        influence = _influence(baseline, Placements(positive, negative))
        error = clustered(influence, baseline.clusters, baseline.class_weights)
        if error is None:
            return Estimate(value=difference, method=one_cluster("paired DeLong"))
        method = f"paired DeLong, {error.num_clusters:,} clusters"
        return symmetric(difference, error.half_width, method=method, lowest=-1.0, highest=1.0)
    margin = normal_quantile() * float(np.sqrt(_variance(positive, negative)))
    return symmetric(difference, margin, method="paired DeLong", lowest=-1.0, highest=1.0)


def on_logit_scale(share: float, variance: float, *, method: str, quantile: float | None = None) -> Estimate:
    """Return a share strictly inside (0, 1) with an interval that is symmetric on the logit scale.

    `quantile` is the number of standard errors of a 95% interval; None uses the normal distribution.
    """
    from scipy.special import expit, logit  # imported here: training ranks compute AUCs without SciPy

    half_width = (normal_quantile() if quantile is None else quantile) * np.sqrt(variance)
    margin = half_width / (share * (1.0 - share))
    low, high = float(expit(logit(share) - margin)), float(expit(logit(share) + margin))
    return Estimate(value=share, low=low, high=high, method=method)


def _influence(rows: ScoredRows, placement: Placements) -> Float64[np.ndarray, "row"]:
    influence = np.empty(rows.num_rows)
    for of_class, values in ((rows.is_positive, placement.positive), (~rows.is_positive, placement.negative)):
        influence[of_class] = (values - values.mean()) / values.size
    return influence


def _variance(positive: Float64[np.ndarray, "positive"], negative: Float64[np.ndarray, "negative"]) -> float:
    if not (positive.any() or negative.any()):
        return 0.0
    return float(positive.var(ddof=1) / positive.size + negative.var(ddof=1) / negative.size)

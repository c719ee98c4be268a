"""The area under the ROC curve, how sure we are of it, and how sure we are of a difference of two.

The AUC is the chance that a random positive scores above a random negative, ties counting one half. DeLong,
DeLong & Clarke-Pearson (1988) write its variance, and the covariance of two AUCs on the same rows, in terms
of each row's *placement*: the share of the other class that it beats. Sun & Xu (2014), "Fast implementation
of DeLong's algorithm", get all placements from midranks, so 42 M rows cost three sorts:

    placement of a positive = (midrank among all rows - midrank among positives) / number of negatives

Rows of one cluster are one draw (Obuchowski 1997): a row's placement, less the AUC, over the number of its
class is its influence, and influences are added within clusters.

One AUC gets its interval on the logit scale, which stays inside (0, 1) and covers better near 1 than the
plain one; a difference gets the plain, symmetric one.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.shapes import Float64
from assay.records.evaluation import Estimate
from assay.statistics.classifier.rows import ScoredRows, scored_rows
from assay.statistics.interval import clustered, normal_quantile, one_cluster, symmetric


class Placements(NamedTuple):
    """For each row the share of the other class that it beats, ties counting one half."""

    of_positives: Float64[np.ndarray, "positive"]
    of_negatives: Float64[np.ndarray, "negative"]

    @property
    def auc(self) -> float:
        """Mean placement of the positives."""
        return float(self.of_positives.mean())


def placements(rows: ScoredRows) -> Placements:
    """Placements of all rows in three sorts. Needs both classes."""
    positives, negatives = rows.probabilities[rows.is_positive], rows.probabilities[~rows.is_positive]
    assert positives.size and negatives.size, "an AUC needs both classes"
    among_all = midranks(rows.probabilities)
    return Placements(
        (among_all[rows.is_positive] - midranks(positives)) / negatives.size,
        1.0 - (among_all[~rows.is_positive] - midranks(negatives)) / positives.size,
    )


def midranks(values: Float64[np.ndarray, " value"]) -> Float64[np.ndarray, " value"]:
    """Ranks from 1; equal values share the mean of theirs. By NumPy alone: who trains computes AUCs, too."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Float64[np.ndarray, " value"] = (last - (counts - 1) / 2)[place]
    return shared


def auc(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """AUC alone, without its interval, of arrays that hold both classes."""
    return placements(scored_rows(labels, probabilities, source="the scored rows")).auc


def auc_estimate(rows: ScoredRows) -> Estimate | None:
    """AUC with DeLong's interval on the logit scale; None where a class is absent.

    The interval is None where DeLong's variance cannot be had (one row of a class) or says nothing (classes
    perfectly separated: its estimate of the variance is 0).
    """
    if not rows.has_both_classes:
        return None
    placed = placements(rows)
    if min(placed.of_positives.size, placed.of_negatives.size) < 2:
        return Estimate(value=placed.auc, method="DeLong: undefined, one row of a class")
    if placed.auc in (0.0, 1.0):
        return Estimate(value=placed.auc, method="DeLong: undefined, perfect separation")
    if rows.clusters is None:
        return on_logit_scale(placed.auc, _variance(placed.of_positives, placed.of_negatives), method="DeLong")
    spread = clustered(_influences(rows, placed), rows.clusters, rows.class_weights)
    if spread is None:
        return Estimate(value=placed.auc, method=one_cluster("DeLong"))
    method = f"DeLong, {spread.num_clusters:,} clusters"
    return on_logit_scale(placed.auc, spread.variance, method=method, quantile=spread.quantile)


def auc_difference(baseline: ScoredRows, candidate: ScoredRows) -> Estimate | None:
    """Candidate's AUC minus the baseline's on the same rows, with the paired DeLong interval.

    Both must list the same rows in the same order. None where a class is absent; the interval is None where
    a class has one row, unless all placements agree: then the difference is exactly 0, and so are both ends.
    """
    assert np.array_equal(baseline.is_positive, candidate.is_positive), "paired rows must have one label each"
    if not baseline.has_both_classes:
        return None
    before, after = placements(baseline), placements(candidate)
    of_positives = after.of_positives - before.of_positives
    of_negatives = after.of_negatives - before.of_negatives
    difference = float(after.auc - before.auc)
    if min(of_positives.size, of_negatives.size) < 2 and (of_positives.any() or of_negatives.any()):
        return Estimate(value=difference, method="paired DeLong: undefined, one row of a class")
    # The variance of a difference is the variance of the differences of placements: no covariance needed.
    if baseline.clusters is not None and (of_positives.any() or of_negatives.any()):
        influences = _influences(baseline, Placements(of_positives, of_negatives))
        spread = clustered(influences, baseline.clusters, baseline.class_weights)
        if spread is None:
            return Estimate(value=difference, method=one_cluster("paired DeLong"))
        method = f"paired DeLong, {spread.num_clusters:,} clusters"
        return symmetric(difference, spread.reach, method=method, lowest=-1.0, highest=1.0)
    margin = normal_quantile() * float(np.sqrt(_variance(of_positives, of_negatives)))
    return symmetric(difference, margin, method="paired DeLong", lowest=-1.0, highest=1.0)


def on_logit_scale(share: float, variance: float, *, method: str, quantile: float | None = None) -> Estimate:
    """A share strictly inside (0, 1) with its interval, symmetric on the logit scale; `quantile` is of a 95%
    interval, the normal law's unless given."""
    from scipy.special import expit, logit  # here, for ranks compute AUCs, too

    reach = (normal_quantile() if quantile is None else quantile) * np.sqrt(variance)
    margin = reach / (share * (1.0 - share))
    low, high = float(expit(logit(share) - margin)), float(expit(logit(share) + margin))
    return Estimate(value=share, low=low, high=high, method=method)


def _influences(rows: ScoredRows, placed: Placements) -> Float64[np.ndarray, "row"]:
    influences = np.empty(rows.num_rows)
    for of_class, values in ((rows.is_positive, placed.of_positives), (~rows.is_positive, placed.of_negatives)):
        influences[of_class] = (values - values.mean()) / values.size
    return influences


def _variance(
    of_positives: Float64[np.ndarray, "positive"], of_negatives: Float64[np.ndarray, "negative"]
) -> float:
    if not (of_positives.any() or of_negatives.any()):
        return 0.0
    return float(of_positives.var(ddof=1) / of_positives.size + of_negatives.var(ddof=1) / of_negatives.size)

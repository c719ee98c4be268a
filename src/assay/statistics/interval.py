"""How sure an interval is, how wide that makes it under a normal law, and symmetric ones as records.

Rows that the split kept together are one draw: those of one file are wrong together. Each metric is, nearly,
a sum of its rows' influences, so that one rule serves all: they are added within a cluster, and clusters are
independent (Liang & Zeger 1986; for AUCs Obuchowski 1997). The number of clusters stands in the method's name.

A cluster that holds much of the weight draws the mean to itself: it seems to vary less than it does, and there
are fewer draws than there are clusters. With g for a cluster's share of the weight and Q for the sum of g^2,
of clusters whose means vary alike its square is too small by 1 - 2 g + Q, and is divided by that (Bell &
McCaffrey 2002, CR2); Student's quantile has the degrees of freedom of such a sum of squares (Satterthwaite). Of
G clusters that count the same that is G / (G - 1), and G - 1. With a dozen degrees of freedom or more 95%
intervals cover 94 to 97%, with fewer up to all: one cluster then says next to nothing of the others.

Where few clusters have most of the squares (two of a thousand items differ, or some differ by very much), their
sum is itself hardly known, and what is rarer was not seen at all. `allowing_for_unseen` therefore counts one
further cluster: of one item, it may differ by all that can be; of m items, by as much as the cluster that told
most, and by m^(-1/2) of all at the least, which is what independent items come to. It lessens the degrees of
freedom by the kurtosis k of the clusters' deviations, for the variance of a sum of squares is (k - 1) / 2 times
the normal one's; and where they are skewed it widens by what skewness g does to Student's t of n draws,
g (1 + 2 t^2) / (6 n^(1/2)) (Johnson 1978).
"""

import math
from typing import NamedTuple

import numpy as np

from assay.base.shapes import Float64, Int64, Shaped
from assay.records.evaluation import Estimate

CONFIDENCE = 0.95
"""The confidence of every interval that names no other."""

ONE_SIDED = 0.95
"""Confidence of guardrails and safety bounds. All must pass, so they share no error (an intersection-union
test)."""

LARGEST_SCORE = 1e100
"""A score beyond it is that of a model that has diverged: its square is no number."""

NONE_DIFFERS = "no row differs"
"""Why there is no interval where nothing bounds by how much a row that was not seen could differ."""

_ALL = 1.0 - 1e-9
"""A cluster with this share of the weight leaves the others none."""

Clusters = Int64[np.ndarray, "row"]
"""Rows of one number are one draw."""


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Half-width of a two-sided interval in standard errors: 1.96 for 0.95."""
    from scipy.special import ndtri  # here, for ranks import this module, too

    return float(ndtri(0.5 + confidence / 2.0))


def symmetric(
    value: float,
    half_width: float,
    *,
    method: str,
    confidence: float = CONFIDENCE,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> Estimate:
    """`value` with an interval that reaches as far on either side, within what is possible."""
    low, high = max(value - half_width, lowest), min(value + half_width, highest)
    return Estimate(value=value, low=low, high=high, confidence=confidence, method=method)


def within(estimate: Estimate, lowest: float, highest: float) -> Estimate:
    """The estimate with an interval of values that are possible: no mean lies beyond what it is a mean of."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return estimate.model_copy(update={"low": max(estimate.low, lowest), "high": min(estimate.high, highest)})


def wilson_interval(rate: float, count: float, quantile: float) -> tuple[float, float]:
    """Wilson's (1927) interval of a rate of `count` independent trials; never leaves [0, 1]."""
    shrink = 1 + quantile**2 / count
    centre = (rate + quantile**2 / (2 * count)) / shrink
    half_width = quantile / shrink * math.sqrt(rate * (1 - rate) / count + quantile**2 / (4 * count**2))
    return max(0.0, min(rate, centre - half_width)), min(1.0, max(rate, centre + half_width))


class ClusteredError(NamedTuple):
    """How far a sum of influences may lie from its expectation."""

    variance: float
    quantile: float
    """Standard errors that a 95% interval reaches each way."""
    num_clusters: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return self.quantile * float(np.sqrt(self.variance))


def clustered(
    influence: Float64[np.ndarray, "row"],
    clusters: Clusters,
    weights: Float64[np.ndarray, "row"] | None = None,
) -> ClusteredError | None:
    """The error of a sum of influences that is expected to be 0; None where one cluster holds all rows.

    `weights`: what each row counts for; None for one each.
    """
    from scipy.special import stdtrit  # here, for ranks import this module, too

    if (count := len(np.unique(clusters))) < 2:
        return None
    found = clustered_variance(influence, clusters, np.ones(clusters.size) if weights is None else weights)
    quantile = float(stdtrit(found.degrees, 0.5 + CONFIDENCE / 2))
    return ClusteredError(float(found.variance), quantile, count)


def one_cluster(method: str) -> str:
    """What is said in place of a method where no interval can be had."""
    return f"{method}: undefined, one cluster"


def cluster_sums(
    values: Float64[np.ndarray, "*leading item"], clusters: Shaped[np.ndarray, "item"] | None
) -> Float64[np.ndarray, "*leading cluster"]:
    """Sums of [..., item] over the items of each cluster: [..., cluster]; unchanged without clusters."""
    if clusters is None:
        return values
    assert clusters.shape == values.shape[-1:], f"{clusters.shape} clusters for {values.shape[-1]} items"
    order = np.argsort(clusters, kind="stable")
    starts = np.flatnonzero(np.append(True, clusters[order][1:] != clusters[order][:-1]))
    return np.add.reduceat(values[..., order], starts, axis=-1)


class ClusteredVariance(NamedTuple):
    """The variance of sums of deviations, and how much is known of it."""

    variance: Float64[np.ndarray, "*leading"]
    degrees: float | Float64[np.ndarray, "*leading"]
    """Degrees of freedom."""


def clustered_variance(
    deviations: Float64[np.ndarray, "*leading item"],
    clusters: Shaped[np.ndarray, "item"] | None,
    weights: Float64[np.ndarray, "item"] | None,
    *,
    largest: float | None = None,
    copies: int = 1,
) -> ClusteredVariance:
    """The variance of the sum of [..., item] weighted deviations, a cluster being one draw; infinite with one.

    `weights` [item]: what each counts for in the mean that the deviations are from, in any unit; None: as if
    all clusters counted the same. `largest`: by what an item that was not seen may deviate; infinite: by as
    much as those that were, in the mean of squares; None: what was not seen does not count. `copies`: times
    that each item is there, with several scores.
    """
    sums = cluster_sums(deviations, clusters)
    count = sums.shape[-1]
    if count < 2:
        return ClusteredVariance(np.full(deviations.shape[:-1], np.inf), 0.0)
    if weights is None:
        variance: np.ndarray = np.einsum("...c,...c->...", sums, sums) * (count / (count - 1.0))
        found = ClusteredVariance(variance, count - 1.0)
        if largest is None:
            return found
        return allow_for_rare_events(found, sums, np.full(count, 1.0 / count), np.ones(count), largest=largest)
    of_clusters = cluster_sums(weights, clusters)
    shares = of_clusters / of_clusters.sum()
    if shares.max() >= _ALL:
        return ClusteredVariance(np.full(deviations.shape[:-1], np.inf), 0.0)
    factors, degrees = _correction(shares)
    found = ClusteredVariance(np.einsum("...c,...c,c->...", sums, sums, factors), degrees)
    if largest is None:
        return found
    items = np.full(deviations.shape[-1], 1.0 / copies)
    numbers = cluster_sums(items, clusters)
    return allow_for_rare_events(found, sums, shares, numbers, largest=largest)


def allow_for_rare_events(
    found: ClusteredVariance,
    sums: Float64[np.ndarray, "*leading cluster"],
    shares: Float64[np.ndarray, "cluster"],
    numbers: Float64[np.ndarray, "cluster"],
    *,
    largest: float,
) -> ClusteredVariance:
    """What few clusters that differ leave open; see the module. `sums`: weighted deviations of each cluster;
    `numbers`: its items.

    Of clusters of unequal size, their means may vary alike or as independent items' do: what is nearer to a
    normal law is believed.
    """
    from scipy.special import stdtrit  # here, for ranks import this module, too

    counts = shares > 0.0
    sums, shares, numbers = sums[..., counts], shares[counts], numbers[counts]
    squared_share = float(shares @ shares)
    deviations = sums / shares
    scaled = [sums / np.sqrt(shares * squared_share), deviations]
    sizes = [np.sqrt(np.square(deviations).mean(axis=-1))] * 2
    if np.isfinite(largest):
        in_one = (float(numbers @ numbers) / float(numbers.sum()), float(numbers.mean()))
        sizes = [
            _max_extra_deviation(deviation, number, largest)
            for deviation, number in zip(scaled, in_one, strict=True)
        ]
    moments = [_skewness_and_kurtosis(*pair) for pair in zip(scaled, sizes, strict=True)]
    skewness, kurtosis = (np.minimum(first, second) for first, second in zip(*moments, strict=True))
    least = np.minimum(found.degrees, 1.0)
    degrees = np.maximum(found.degrees * np.minimum(1.0, 2.0 / np.maximum(kurtosis - 1.0, 1e-300)), least)
    student = stdtrit(degrees, 0.5 + CONFIDENCE / 2.0)
    excess_skewness = np.maximum(skewness - np.sqrt(6.0 * squared_share), 0.0)
    wider = 1.0 + excess_skewness * np.sqrt(squared_share) / 6.0 * (1.0 / student + 2.0 * student)
    variance: np.ndarray = (found.variance + np.square(sizes[0] * squared_share)) * np.square(wider)
    return ClusteredVariance(variance, degrees)


def _max_extra_deviation(
    deviations: Float64[np.ndarray, "*leading cluster"], number: float, largest: float
) -> Float64[np.ndarray, "*leading"]:
    """By what one further cluster of so many items may deviate; by all, where none that was seen does."""
    most = np.abs(deviations).max(axis=-1)
    least = largest / math.sqrt(number)
    return np.where(most > 0.0, np.clip(most, least, largest), largest)


def _skewness_and_kurtosis(
    deviations: Float64[np.ndarray, "*leading cluster"], extra_deviation: Float64[np.ndarray, "*#leading"]
) -> tuple[Float64[np.ndarray, "*leading"], Float64[np.ndarray, "*leading"]]:
    """Without its sign, of the clusters; and with one more that deviates by `unseen`. A normal law's where none
    deviates."""
    squares = np.square(deviations)
    second, count = squares.mean(axis=-1), deviations.shape[-1]
    with_extra = (second * count + np.square(extra_deviation)) / (count + 1.0)
    fourth = (np.square(squares).sum(axis=-1) + np.square(np.square(extra_deviation))) / (count + 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        skewness = np.abs((squares * deviations).mean(axis=-1)) / second**1.5
        kurtosis = fourth / np.square(with_extra)
    return np.where(second > 0.0, skewness, 0.0), np.where(with_extra > 0.0, kurtosis, 3.0)


def _correction(shares: Float64[np.ndarray, "cluster"]) -> tuple[Float64[np.ndarray, "cluster"], float]:
    """What each cluster's squared sum is multiplied by, and the degrees of freedom of their sum.

    The latter are (tr B)^2 / tr(B^2) of the quadratic form B of the clusters' means, written out.
    """
    squared = float(shares @ shares)
    factors = 1.0 / (1.0 - 2.0 * shares + squared)
    parts = factors * np.square(shares)
    total, first, second = (float(parts @ shares**power) for power in (0, 1, 2))
    trace = total * (1.0 + squared) - 2.0 * first
    of_square = (squared * total) ** 2 + 2.0 * total * second - 4.0 * squared * total * first + 2.0 * first**2
    of_square += float(np.square(parts) @ (1.0 + 2.0 * squared - 4.0 * shares))
    return factors, trace**2 / of_square

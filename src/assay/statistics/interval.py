"""Clustered variances, normal intervals, and symmetric intervals as records.

Rows that the split kept together are one draw, because rows of one file tend to be wrong together. Every metric is
approximately a sum of its rows' influences, so one rule serves all: influences are summed within a cluster, and
clusters are independent (Liang & Zeger 1986; for AUCs Obuchowski 1997). The method's name states the number of
clusters.

A cluster that holds much of the weight pulls the mean towards itself: it seems to vary less than it does, and there are
fewer independent draws than clusters. Let g be a cluster's share of the weight and Q the sum of g^2. If cluster means
vary alike, the square of a cluster is too small by the factor 1 - 2 g + Q, and is divided by it (Bell & McCaffrey 2002,
CR2). Student's quantile uses the degrees of freedom of such a sum of squares (Satterthwaite). For G clusters of equal
weight, these are the factor G / (G - 1), and G - 1 degrees. With a dozen degrees of freedom or more, 95% intervals
cover 94 to 97%; with fewer, up to 100%.

If few clusters hold most of the squares (two of a thousand items differ, or some differ by much), their sum is itself
uncertain, and rarer differences may be unobserved. `allow_for_rare_events` therefore adds one cluster. With one item,
it may differ by the largest possible amount; with m items, by as much as the cluster that deviated most, and at least
by m^(-1/2) of the largest amount, as independent items would. The kurtosis k of the clusters' deviations reduces the
degrees of freedom, because the variance of a sum of squares is (k - 1) / 2 times that of normal deviations, but not
below twice (sum of squares)^2 / sum of squares^2. If deviations are skewed, the interval is wider by the effect of
skewness g on Student's t of n draws, g (1 + 2 t^2) / (6 n^(1/2)) (Johnson 1978).
"""

import math
from typing import NamedTuple

import numpy as np

from assay.base.shapes import Float64, Int64, Shaped
from assay.records.evaluation import Estimate

CONFIDENCE = 0.95
"""Default confidence of all intervals."""

ONE_SIDED = 0.95
"""Confidence of guardrails and safety bounds. All of them must pass, so they need no correction for multiplicity (an
intersection-union test)."""

LARGEST_SCORE = 1e100
"""Larger scores come from a diverged model, and their squares may overflow."""

NONE_DIFFERS = "no row differs"
"""Reason for a missing interval: no row differs, and nothing bounds by how much another row could."""

_ALL = 1.0 - 1e-9
"""A cluster with at least this share leaves no weight to the others."""

Clusters = Int64[np.ndarray, "row"]
"""Rows with equal numbers are one draw."""


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Return the half-width of a two-sided interval in standard errors: 1.96 for 0.95."""
    from scipy.special import ndtri  # imported here: training ranks import this module without SciPy

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
    """Return `value` with the interval `value` +- `half_width`, clipped to `lowest` and `highest`."""
    low, high = max(value - half_width, lowest), min(value + half_width, highest)
    return Estimate(value=value, low=low, high=high, confidence=confidence, method=method)


def within(estimate: Estimate, lowest: float, highest: float) -> Estimate:
    """Return the estimate with its interval clipped to the range of possible values."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return estimate.model_copy(update={"low": max(estimate.low, lowest), "high": min(estimate.high, highest)})


def wilson_interval(rate: float, count: float, quantile: float) -> tuple[float, float]:
    """Return Wilson's (1927) interval of a rate over `count` independent trials; it stays in [0, 1]."""
    shrink = 1 + quantile**2 / count
    centre = (rate + quantile**2 / (2 * count)) / shrink
    half_width = quantile / shrink * math.sqrt(rate * (1 - rate) / count + quantile**2 / (4 * count**2))
    return max(0.0, min(rate, centre - half_width)), min(1.0, max(rate, centre + half_width))


class ClusteredError(NamedTuple):
    """Error of a sum of influences."""

    variance: float
    quantile: float
    """Standard errors on each side of a 95% interval."""
    num_clusters: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95% interval."""
        return self.quantile * float(np.sqrt(self.variance))


def clustered(
    influence: Float64[np.ndarray, "row"], clusters: Clusters, weights: Float64[np.ndarray, "row"] | None = None
) -> ClusteredError | None:
    """Return the error of a sum of influences whose expectation is 0; None if one cluster holds all rows.

    `weights` are the rows' weights in the mean; None: all equal.
    """
    from scipy.special import stdtrit  # imported here: training ranks import this module without SciPy

    if (count := len(np.unique(clusters))) < 2:
        return None
    found = clustered_variance(influence, clusters, np.ones(clusters.size) if weights is None else weights)
    quantile = float(stdtrit(found.degrees, 0.5 + CONFIDENCE / 2))
    return ClusteredError(float(found.variance), quantile, count)


def one_cluster(method: str) -> str:
    """Return the method's name for an estimate without an interval."""
    return f"{method}: undefined, one cluster"


def cluster_sums(
    values: Float64[np.ndarray, "*leading item"], clusters: Shaped[np.ndarray, "item"] | None
) -> Float64[np.ndarray, "*leading cluster"]:
    """Sum [..., item] over each cluster: [..., cluster]; unchanged without clusters."""
    if clusters is None:
        return values
    assert clusters.shape == values.shape[-1:], f"{clusters.shape} clusters for {values.shape[-1]} items"
    order = np.argsort(clusters, kind="stable")
    starts = np.flatnonzero(np.append(True, clusters[order][1:] != clusters[order][:-1]))
    return np.add.reduceat(values[..., order], starts, axis=-1)


class ClusteredVariance(NamedTuple):
    """Variance of sums of deviations, with its degrees of freedom."""

    variance: Float64[np.ndarray, "*leading"]
    degrees: float | Float64[np.ndarray, "*leading"]
    """Degrees of freedom of the variance."""


def clustered_variance(
    deviations: Float64[np.ndarray, "*leading item"],
    clusters: Shaped[np.ndarray, "item"] | None,
    weights: Float64[np.ndarray, "item"] | None,
    *,
    largest: float | None = None,
    copies: int = 1,
) -> ClusteredVariance:
    """Return the variance of the sum of [..., item] weighted deviations with clusters as draws; infinite with one.

    `weights` [item] are the weights in the mean that the deviations are taken from, in any unit; None: all clusters
    count the same. `largest` is the most that an unobserved item may deviate by; infinite: as much as the observed ones
    in the mean of squares; None: unobserved items are ignored. `copies` is how often each item occurs, with several
    scores.
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
    """Widen the variance for rare differences that few clusters show; see the module docstring.

    `sums` are the weighted deviations of the clusters, `numbers` their item counts. If clusters differ in size, their
    means may vary alike or as means of independent items do; the variant closer to a normal distribution is used.
    """
    from scipy.special import stdtrit  # imported here: training ranks import this module without SciPy

    counts = shares > 0.0
    sums, shares, numbers = sums[..., counts], shares[counts], numbers[counts]
    squared_share = float(shares @ shares)
    deviations = sums / shares
    scaled = [sums / np.sqrt(shares * squared_share), deviations]
    sizes = [np.sqrt(np.square(deviations).mean(axis=-1))] * 2
    if np.isfinite(largest):
        in_one = (float(numbers @ numbers) / float(numbers.sum()), float(numbers.mean()))
        sizes = [
            _max_extra_deviation(deviation, number, largest) for deviation, number in zip(scaled, in_one, strict=True)
        ]
    moments = [_skewness_and_kurtosis(*pair) for pair in zip(scaled, sizes, strict=True)]
    skewness, kurtosis = (np.minimum(first, second) for first, second in zip(*moments, strict=True))
    squares = np.square(np.append(sums, np.expand_dims(sizes[0] * squared_share, -1), axis=-1))
    least = 2.0 * np.square(squares.sum(axis=-1)) / np.maximum(np.square(squares).sum(axis=-1), 1e-300)
    degrees = np.minimum(found.degrees, np.maximum(2.0 * found.degrees / np.maximum(kurtosis - 1.0, 1e-300), least))
    student = stdtrit(degrees, 0.5 + CONFIDENCE / 2.0)
    excess_skewness = np.maximum(skewness - np.sqrt(6.0 * squared_share), 0.0)
    wider = 1.0 + excess_skewness * np.sqrt(squared_share) / 6.0 * (1.0 / student + 2.0 * student)
    variance: np.ndarray = (found.variance + np.square(sizes[0] * squared_share)) * np.square(wider)
    return ClusteredVariance(variance, degrees)


def _max_extra_deviation(
    deviations: Float64[np.ndarray, "*leading cluster"], number: float, largest: float
) -> Float64[np.ndarray, "*leading"]:
    """Return how much one further cluster of `number` items may deviate; by `largest` if no observed cluster
    deviates."""
    most = np.abs(deviations).max(axis=-1)
    least = largest / math.sqrt(number)
    return np.where(most > 0.0, np.clip(most, least, largest), largest)


def _skewness_and_kurtosis(
    deviations: Float64[np.ndarray, "*leading cluster"], extra_deviation: Float64[np.ndarray, "*#leading"]
) -> tuple[Float64[np.ndarray, "*leading"], Float64[np.ndarray, "*leading"]]:
    """Return the absolute skewness of the clusters, and their kurtosis with one more that deviates by
    `extra_deviation`.

    They are those of a normal distribution if no cluster deviates.
    """
    squares = np.square(deviations)
    second, count = squares.mean(axis=-1), deviations.shape[-1]
    with_extra = (second * count + np.square(extra_deviation)) / (count + 1.0)
    fourth = (np.square(squares).sum(axis=-1) + np.square(np.square(extra_deviation))) / (count + 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        skewness = np.abs((squares * deviations).mean(axis=-1)) / second**1.5
        kurtosis = fourth / np.square(with_extra)
    return np.where(second > 0.0, skewness, 0.0), np.where(with_extra > 0.0, kurtosis, 3.0)


def _correction(shares: Float64[np.ndarray, "cluster"]) -> tuple[Float64[np.ndarray, "cluster"], float]:
    """Return the factor for each cluster's squared sum, and the degrees of freedom of the corrected total.

    The degrees are (tr B)^2 / tr(B^2) of the quadratic form B of the clusters' means, written out.
    """
    squared = float(shares @ shares)
    factors = 1.0 / (1.0 - 2.0 * shares + squared)
    parts = factors * np.square(shares)
    total, first, second = (float(parts @ shares**power) for power in (0, 1, 2))
    trace = total * (1.0 + squared) - 2.0 * first
    of_square = (squared * total) ** 2 + 2.0 * total * second - 4.0 * squared * total * first + 2.0 * first**2
    of_square += float(np.square(parts) @ (1.0 + 2.0 * squared - 4.0 * shares))
    return factors, trace**2 / of_square

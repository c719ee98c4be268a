"""Exact bounds of failure rates, and of means that rare failures dominate.

Safety benchmarks have few failures, for which normal intervals are wrong. The bounds are Clopper & Pearson's (1934),
which hold for every n and rate, at one look. `mean_upper` generalises them to trials with values between right and
wrong.

Items in clusters (prompts from one template) fail together. `independent_trials` converts them to an equivalent number
of independent trials, for which the bounds are computed.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, betaincinv, ndtri, stdtrit

from assay.base.shapes import Bool, Float64, Int, Real
from assay.statistics.interval import ONE_SIDED, cluster_sums, clustered_variance

_HALVINGS = 45
"""Bisection steps: the bound is known to 3e-14 of its range."""

Counts = float | Real[np.ndarray, "*#case"]


class Trials(NamedTuple):
    """Equivalent number of independent trials and failures; may be fractional."""

    failures: float
    number: float


def independent_trials(failed: Bool[np.ndarray, "item"], clusters: Int[np.ndarray, "item"]) -> Trials:
    """Return the independent trials that are equivalent to clustered items; `failed` and `clusters` are [item].

    Korn & Graubard (1998): the number of independent trials whose rate has the variance of the clustered rate, r (1 -
    r) / var, times (z / t)^2 for the error of var itself. Few failing clusters estimate var poorly, so t has one degree
    of freedom less than there are failing clusters. A large cluster without failures contributes nothing to var, but
    its items agree: the trials are therefore limited to Kish's (1965) effective number for the correlation rho of two
    items of a cluster, n^2 / sum m (1 + (m - 1) rho) over clusters of m items. There are at least n^2 / sum m^2 trials,
    one for each of clusters of one size; exactly so many without failures, because then nothing shows how alike items
    are.
    """
    num_items = len(failed)
    sizes, failures = (cluster_sums(of, clusters) for of in (np.ones(num_items), failed.astype(np.float64)))
    total, count = float(failures.sum()), len(sizes)
    if count == num_items:
        return Trials(total, float(num_items))
    least = num_items**2 / float(np.square(sizes).sum())
    rate, num_failing = total / num_items, int(np.count_nonzero(failures))
    number = least
    if 0.0 < rate < 1.0 and count > 1:
        variance, degrees = clustered_variance((failed - rate) / num_items, clusters, np.ones(num_items))
        surety = (ndtri(ONE_SIDED) / stdtrit(max(min(num_failing - 1, degrees), 1.0), ONE_SIDED)) ** 2
        number = rate * (1.0 - rate) / float(variance) * float(surety) if variance else math.inf
        number = min(number, _by_likeness(failures, sizes))
    number = min(max(number, least), float(num_items))
    return Trials(rate * number, number)


def _by_likeness(failures: Float64[np.ndarray, "cluster"], sizes: Float64[np.ndarray, "cluster"]) -> float:
    """Return Kish's effective number; 1 - rho is how often two items of a cluster differ, relative to any two items."""
    num_items, total = sizes.sum(), failures.sum()
    pair_difference = 2.0 * failures @ (sizes - failures) / (sizes @ (sizes - 1.0))
    overall_difference = 2.0 * total * (num_items - total) / (num_items * (num_items - 1.0))
    likeness = min(max(1.0 - pair_difference / overall_difference, 0.0), 1.0)
    return float(num_items**2 / (sizes @ (1.0 + (sizes - 1.0) * likeness)))


def rate_upper(failures: Counts, trials: Counts) -> Float64[np.ndarray, "*#case"]:
    """Return the one-sided upper bound of the failure rate; 1 without trials."""
    failures, trials = np.asarray(failures), np.asarray(trials)
    passed = trials - failures
    bound = betaincinv(failures + 1.0, np.maximum(passed, 1e-300), ONE_SIDED)
    return np.where(passed > 0, bound, 1.0)


def rate_lower(failures: Counts, trials: Counts) -> Float64[np.ndarray, "*#case"]:
    """Return the one-sided lower bound of the failure rate; 0 without failures."""
    failures, trials = np.asarray(failures), np.asarray(trials)
    bound = betaincinv(np.maximum(failures, 1e-300), trials - failures + 1.0, 1.0 - ONE_SIDED)
    return np.where(failures > 0, bound, 0.0)


def mean_upper(
    values: Float64[np.ndarray, "*leading trial"],
    shares: Float64[np.ndarray, "trial"],
    largest: float | Float64[np.ndarray, "*#leading"],
) -> Float64[np.ndarray, "*leading"]:
    """Return the one-sided upper bound of the mean of independent trials that are at most `largest`.

    Gaffke's (2005) bound: each trial, and one more at `largest`, gets an exponential random weight, and the bound is
    the 95th percentile of the weighted mean. For zeros and ones it equals Clopper & Pearson's bound; for many trials it
    approaches the normal one. At that percentile, the weighted sum above it exceeds the sum below it with probability
    5%. Both sums are approximated by gamma variables with their mean and variance (exact for equal terms), so that
    their ratio is a beta variable.

    `shares` [trial] are the weights in the mean and sum to 1. The additional trial has the expected weight of a random
    item's trial.
    """
    extra_share = float(np.square(shares).sum())
    largest = np.maximum(np.broadcast_to(largest, values.shape[:-1]), values.max(axis=-1))
    low, high = values.min(axis=-1), np.where(np.isfinite(largest), largest, 0.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        distance = shares * (values - middle[..., None])
        above, below = np.maximum(distance, 0.0), np.maximum(-distance, 0.0)
        new = extra_share * np.maximum(largest - middle, 0.0)
        more, more_squared = above.sum(axis=-1) + new, np.square(above).sum(axis=-1) + new**2
        less, less_squared = below.sum(axis=-1), np.square(below).sum(axis=-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = (more_squared / more) / (more_squared / more + less_squared / less)
            exceeds = betainc(less**2 / less_squared, more**2 / more_squared, scale)
        is_below = (exceeds > 1.0 - ONE_SIDED) | (less <= 0.0)
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return np.where(np.isfinite(largest), high, np.inf)


def trials_needed(highest_rate: float, *, failures: float = 0) -> int:
    """Return the trials after which `failures` failures still bound the rate by `highest_rate`.

    0.5% needs 598 clean trials. Size for the expected rate: a true rate of 0.3% passes those only one time in six.
    """
    assert 0.0 < highest_rate < 1.0, highest_rate
    if failures == 0:
        return math.ceil(math.log1p(-ONE_SIDED) / math.log1p(-highest_rate))
    low, high = math.floor(failures), max(2 * math.ceil(failures), 2)
    while float(rate_upper(failures, high)) > highest_rate:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = float(rate_upper(failures, middle)) <= highest_rate
        low, high = (low, middle) if is_enough else (middle, high)
    return high

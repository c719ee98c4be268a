"""How often does it fail, at most? Exact bounds for rare failures, and for means that rare failures move.

Safety benchmarks have few failures, where normal intervals are wrong. The bounds are Clopper & Pearson's
(1934): they hold for every n and rate. They are for one look. `mean_upper` is their generalisation to trials
that are not only right or wrong.

Items that come in clusters (prompts from one template) fail together. `independent_trials` says how many
independent ones they are worth, and the bounds are asked for those.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int, Real
from scipy.special import betainc
from scipy.stats import beta, norm, t

from assay.evaluation.evidence.interval import ONE_SIDED, cluster_sums

_HALVINGS = 45
"""So often the range is halved: a bound is then known to 3e-14 of it."""

Counts = float | Real[np.ndarray, "*#case"]


class Trials(NamedTuple):
    """Independent ones that say as much as some items do; fractions count."""

    failures: float
    number: float


def independent_trials(failed: Bool[np.ndarray, "item"], clusters: Int[np.ndarray, "item"]) -> Trials:
    """What items in clusters are worth as evidence of a failure rate; `failed` and `clusters` are [item].

    Korn & Graubard (1998): the number of independent trials whose rate would vary as the clustered one does,
    r (1 - r) / var, times (z / t)^2 for the error of var itself. Few failing clusters tell var badly, so t has
    one degree of freedom less than there are of them. A cluster is worth one trial at least; and no more where
    nothing failed, since then nothing says how alike its items are.

    Simulated for 20 to 400 clusters of equal size, rates of 0.1 to 10% and items from unrelated to all alike,
    one-sided 95% bounds hold in 93.8 to 100% of cases; with items taken as independent, in as few as 10%.
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
        spread = float(np.square(failures - rate * sizes).sum()) * count / (count - 1)
        surety = (norm.ppf(0.95) / t.ppf(0.95, max(num_failing - 1, 1))) ** 2
        number = rate * (1.0 - rate) * num_items**2 / spread * float(surety) if spread else math.inf
    number = min(max(number, least), float(num_items))
    return Trials(rate * number, number)


def rate_upper(failures: Counts, trials: Counts) -> Float64[np.ndarray, "*#case"]:
    """One-sided upper bound of the failure rate; 1 without trials."""
    failures, trials = np.asarray(failures), np.asarray(trials)
    passed = trials - failures
    bound = beta.ppf(ONE_SIDED, failures + 1.0, np.maximum(passed, 1e-300))
    return np.where(passed > 0, bound, 1.0)


def rate_lower(failures: Counts, trials: Counts) -> Float64[np.ndarray, "*#case"]:
    """One-sided lower bound of the failure rate; 0 without failures."""
    failures, trials = np.asarray(failures), np.asarray(trials)
    bound = beta.ppf(1.0 - ONE_SIDED, np.maximum(failures, 1e-300), trials - failures + 1.0)
    return np.where(failures > 0, bound, 0.0)


def mean_upper(
    values: Float64[np.ndarray, "*leading trial"],
    shares: Float64[np.ndarray, "trial"],
    largest: float | Float64[np.ndarray, "*#leading"],
) -> Float64[np.ndarray, "*leading"]:
    """One-sided upper bound of the mean of independent trials, none of which can be above `largest`.

    Gaffke's (2005): every trial, and one more that came out at `largest`, weighs as much as an exponential
    draw, and the bound is the 95th percentile of their weighted mean. Of zeros and ones this is Clopper &
    Pearson's, of many draws the normal one. That percentile is where the sum of what lies above it exceeds
    the sum of what lies below in 5% of the draws; either sum is taken as the gamma variable of its mean and
    variance, which it is where its terms are equal, so that their ratio is a beta variable.

    `shares` [trial]: what each counts in the mean; they sum to 1. The trial that was not seen counts as much as
    the trial of an item chosen at random.
    """
    unseen = float(np.square(shares).sum())
    largest = np.maximum(np.broadcast_to(largest, values.shape[:-1]), values.max(axis=-1))
    low, high = values.min(axis=-1), np.where(np.isfinite(largest), largest, 0.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        distance = shares * (values - middle[..., None])
        above, below = np.maximum(distance, 0.0), np.maximum(-distance, 0.0)
        new = unseen * np.maximum(largest - middle, 0.0)
        more, more_squared = above.sum(axis=-1) + new, np.square(above).sum(axis=-1) + new**2
        less, less_squared = below.sum(axis=-1), np.square(below).sum(axis=-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = (more_squared / more) / (more_squared / more + less_squared / less)
            exceeds = betainc(less**2 / less_squared, more**2 / more_squared, scale)
        is_below = (exceeds > 1.0 - ONE_SIDED) | (less <= 0.0)
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return np.where(np.isfinite(largest), high, np.inf)


def trials_needed(highest_rate: float, *, failures: float = 0) -> int:
    """Trials after which `failures` failures still bound the rate by `highest_rate`.

    0.5% needs 598 clean trials. Size for the rate you hope for: 0.3% passes those only one time in six.
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

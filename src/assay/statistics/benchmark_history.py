"""Benchmark scores over checkpoints, the best score so far, and whether the best one is luck.

The best of many checkpoints looks better than it is, because it was picked. A history therefore shows when the best
score moved and how high the luckiest of equally good checkpoints would score, but decisions compare declared
checkpoints over seeds.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from assay.base.shapes import Bool, Float64
from assay.statistics.interval import normal_quantile


class BestOfMany(NamedTuple):
    """The best of several scores, and what chance alone would do to equally good checkpoints.

    Errors of scores count as independent. Scores on the same items vary together, so chance does less than this.
    """

    num_scores: int
    """Scores with an interval; others are left out."""
    low: float
    high: float
    """95% interval of the best score if all checkpoints were as good as their mean."""
    may_be_chance: bool
    """The best score is not beyond that interval."""
    num_candidates: int
    """Checkpoints that may be the best one: with 95% confidence, the truly best is among them."""


def frontier(
    values: Float64[np.ndarray, "point"], *, higher_is_better: bool
) -> tuple[Float64[np.ndarray, "point"], Bool[np.ndarray, "point"]]:
    """Return the best value up to each point, and whether the point itself made it better."""
    best = (np.maximum if higher_is_better else np.minimum).accumulate(values)
    return best, np.append(True, best[1:] != best[:-1])[: len(values)]


def best_of_many(
    values: Float64[np.ndarray, "point"],
    lows: Float64[np.ndarray, "point"],
    highs: Float64[np.ndarray, "point"],
    *,
    higher_is_better: bool,
) -> BestOfMany | None:
    """Compare the best score with the luckiest of equally good checkpoints; `lows` and `highs` are 95% intervals,
    NaN without one. None for fewer than two scores with an interval."""
    errors = (highs - lows) / (2 * normal_quantile())
    is_known = np.isfinite(values) & np.isfinite(errors) & (errors > 0)
    sign = 1.0 if higher_is_better else -1.0
    scores, errors = sign * values[is_known], errors[is_known]
    if len(scores) < 2:
        return None
    mean, best = float(scores.mean()), int(scores.argmax())
    unlucky, luckiest = (mean + _quantile_of_largest(errors, chance) for chance in (0.025, 0.975))
    distances = (scores[best] - scores) / np.hypot(errors, errors[best])
    return BestOfMany(
        num_scores=len(scores),
        low=min(sign * unlucky, sign * luckiest),
        high=max(sign * unlucky, sign * luckiest),
        may_be_chance=bool(scores[best] <= luckiest),
        num_candidates=int((distances <= _least_distance(len(scores))).sum()),
    )


def _quantile_of_largest(errors: Float64[np.ndarray, "point"], chance: float) -> float:
    """Return the quantile of the largest of independent normal draws around zero: P(all <= x) is a product."""
    from scipy.special import log_ndtr, ndtri  # here, for short commands import this module

    # The quantile is no less than that of each draw alone, and than that of equal draws with the least of these
    # errors (the largest, below zero). The logarithm of P is concave, so Newton's steps from there do not pass it.
    ends = np.array([errors.min(), errors.max()])
    value = max((ndtri(chance) * ends).max(), (ndtri(chance ** (1 / len(errors))) * ends).min())
    for _ in range(100):
        scaled = value / errors
        logs = log_ndtr(scaled)
        slope = (np.exp(-(scaled**2) / 2 - logs) / errors).sum() / math.sqrt(2 * math.pi)
        step = (math.log(chance) - logs.sum()) / slope
        value += step
        if abs(step) <= 1e-12 * max(abs(value), ends[0]):
            break
    return float(value)


@cache
def _least_distance(num_scores: int) -> float:
    """Return by how many standard errors of a difference a score must be below the best one to be ruled out.

    Gupta's rule (1965): of `num_scores` equal ones, each stays with 95% probability: the integral of
    Phi(z + d sqrt(2))^(num_scores - 1) over the standard normal density of z is 0.95.
    """
    from scipy.special import ndtr  # here, for short commands import this module

    draws = np.linspace(-8.0, 8.0, 2001)
    density = np.exp(-(draws**2) / 2)
    low, high = 0.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        if density @ ndtr(draws + middle * math.sqrt(2)) ** (num_scores - 1) < 0.95 * density.sum():
            low = middle
        else:
            high = middle
    return (low + high) / 2

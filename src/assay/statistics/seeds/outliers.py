"""Check the assumptions that intervals over seeds make: independent runs of one kind.

Gains are assumed to scatter over seeds like a normal distribution, with independent seeds. Three or five runs show
little of that. Two violations can be detected: a run that is an outlier within its arm (it crashed, or was lucky), and
seeds that agree more than independent runs could. A correlation that all seeds share cannot be seen in one campaign,
because it moves them together as an effect would.
"""

from typing import Final, NamedTuple

import numpy as np
from scipy.special import fdtr, stdtr

from assay.base.shapes import Float64
from assay.statistics.effect import Effect

OUTLIER_LEVEL: Final = 0.05
"""Probability that a comparison of clean runs reports an outlier."""
UNDERDISPERSION_LEVEL: Final = 0.01
"""Probability that independent seeds are reported as underdispersed."""

MIN_SEEDS: Final = 3


class OutlierRun(NamedTuple):
    """A run that differs from the others of its arm."""

    arm: int
    """0 is the baseline, 1 the candidate."""
    seed_index: int
    distance: float
    """Distance from the mean of the arm's other runs, in the score's unit."""


def outlier_runs(scores: Float64[np.ndarray, "2 seed"], effect: Effect) -> list[OutlierRun]:
    """Return outliers by externally studentized residuals with Bonferroni's correction.

    The scatter is pooled over both arms, and is at least what the noise of a run's own items implies.
    """
    num_seeds = scores.shape[1]
    if num_seeds < MIN_SEEDS:
        return []
    residuals = scores - scores.mean(axis=1, keepdims=True)
    left = 1.0 - 1.0 / num_seeds
    degrees = 2 * (num_seeds - 1) - 1
    others = np.maximum(np.square(residuals).sum() - np.square(residuals) / left, 0.0) / degrees
    scatter = np.maximum(others, float(effect.residual_variance) * num_seeds / 2.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        studentized = np.abs(residuals) / np.sqrt(scatter * left)
    p_values = 2.0 * stdtr(degrees, -studentized) * scores.size
    return [
        OutlierRun(int(arm), int(seed_index), float(residuals[arm, seed_index] / left))
        for arm, seed_index in np.argwhere(p_values < OUTLIER_LEVEL)
    ]


def is_underdispersed(effect: Effect) -> bool:
    """Return whether the seeds' gains scatter less than the noise of each seed's own items implies."""
    expected, seen = float(effect.residual_variance), float(effect.seed_variance)
    degrees = float(effect.seed_degrees)
    if degrees < MIN_SEEDS - 1 or not expected > 0.0:
        return False
    p_values = fdtr(degrees, degrees * float(np.mean(effect.item_degrees)), seen / expected)
    return bool(p_values < UNDERDISPERSION_LEVEL)

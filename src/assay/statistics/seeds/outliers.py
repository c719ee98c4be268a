"""What a table of scores shows against what its intervals take for granted: runs of their own, of one kind.

Gains are taken to scatter over seeds like a normal law, each seed a draw of its own. Little of that can be seen
in three or five runs, and what can is said: a run that stands apart from the others of its arm (it crashed, or
was lucky), and seeds that agree more than runs of their own could. A correlation that all seeds have alike
cannot be seen in one campaign: it moves them together, as an effect would.

    scores[seed] of either arm, Effect --> who stands apart, whether they agree too well
"""

from typing import Final, NamedTuple

import numpy as np
from scipy.special import fdtr, stdtr

from assay.base.shapes import Float64
from assay.statistics.effect import Effect

OUTLIER_LEVEL: Final = 0.05
"""How often some run of a comparison stands apart by luck."""
UNDERDISPERSION_LEVEL: Final = 0.01
"""How often seeds agree so well by luck."""

MIN_SEEDS: Final = 3


class OutlierRun(NamedTuple):
    """One run that is unlike the others of its arm."""

    arm: int
    """0 is the baseline, 1 the candidate."""
    seed_index: int
    """Its seed's, from 0."""
    distance: float
    """From the mean of the others, in the score's unit."""


def outlier_runs(scores: Float64[np.ndarray, "2 seed"], effect: Effect) -> list[OutlierRun]:
    """Runs that stand apart by the outlier test of a linear model (externally studentized residuals,
    Bonferroni).

    Both arms say how much runs scatter, and they scatter by the luck of their own items at least.
    """
    num_seeds = scores.shape[1]
    if num_seeds < MIN_SEEDS:
        return []
    deviations = scores - scores.mean(axis=1, keepdims=True)
    left = 1.0 - 1.0 / num_seeds
    degrees = 2 * (num_seeds - 1) - 1
    others = np.maximum(np.square(deviations).sum() - np.square(deviations) / left, 0.0) / degrees
    scatter = np.maximum(others, float(effect.residual_variance) * num_seeds / 2.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        studentized = np.abs(deviations) / np.sqrt(scatter * left)
    chance = 2.0 * stdtr(degrees, -studentized) * scores.size
    return [
        OutlierRun(int(arm), int(seed_index), float(deviations[arm, seed_index] / left))
        for arm, seed_index in np.argwhere(chance < OUTLIER_LEVEL)
    ]


def is_underdispersed(effect: Effect) -> bool:
    """Whether the gains of the seeds scatter less than the luck that each has on its items would make them."""
    expected, seen = float(effect.residual_variance), float(effect.seed_variance)
    degrees = float(effect.seed_degrees)
    if degrees < MIN_SEEDS - 1 or not expected > 0.0:
        return False
    chance = fdtr(degrees, degrees * float(np.mean(effect.item_degrees)), seen / expected)
    return bool(chance < UNDERDISPERSION_LEVEL)

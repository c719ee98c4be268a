"""Power of a design with n seeds and m items: the detectable effect, and the size needed for a given effect.

The noise of a paired comparison has three sources (`effect`): seeds, items and their interaction. Their variances give
the standard error of any design:

    SE^2 = seed / S + item / n + residual / (S n)

The planned test is one-sided at `LEVEL` with the quantile of `effect.Effect.quantile`. Its power is integrated over the
distribution of the estimated variances, which matters most with three seeds. More items do not replace seeds: as n
grows, the error falls to sqrt(seed / S) only, and the same holds for seeds.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincinv, ndtr, ndtri

from assay.base.shapes import Float64
from assay.statistics.effect import Effect
from assay.statistics.seeds.trimmed import OverSeeds, normal_seeds

POWER = 0.80
LEVEL = 0.95
"""One-sided confidence of the planned test."""
MAX_SEEDS = 200
_CHI2_POINTS = 64


class VarianceComponents(NamedTuple):
    """Variance components of one paired difference, in the score's unit squared."""

    seed: float
    """Variance between seeds, common to all items of a seed."""
    item: float
    """Variance between items, common to all seeds of an item; with clusters, times the design effect."""
    residual: float
    """Variance of one seed on one item; with clusters, times the design effect."""
    rare_variance: float = 0.0
    """Squared largest difference of an unobserved item: 1 for shares, 0 if ignored. It is not part of the noise, but
    intervals allow for it."""
    item_information: float = 1.0
    """Each item's weight in estimating the item variance: less than 1 if clusters differ in size, or few items
    differ."""

    def variance(self, *, num_seeds: int, num_items: int) -> float:
        """Return the variance of the mean difference over this many seeds and items."""
        return self.seed / num_seeds + self.item / num_items + self.residual / (num_seeds * num_items)

    def standard_error(self, *, num_seeds: int, num_items: int) -> float:
        return math.sqrt(self.variance(num_seeds=num_seeds, num_items=num_items))


def components_from_discordance(
    *, discordance: float, seed_sd: float, seed_correlation: float = 0.0
) -> VarianceComponents:
    """Return components for right-or-wrong items from two numbers, before there is any record.

    `discordance` is the share of items on which the two models differ (0.3 is usual), `seed_sd` the standard deviation
    of one recipe's score over seeds, as a share. `seed_correlation` is what pairing seeds gains; 0 is cautious.
    """
    assert 0.0 < discordance <= 1.0 and seed_sd >= 0.0, (discordance, seed_sd)
    return VarianceComponents(2.0 * seed_sd**2 * (1.0 - seed_correlation), discordance, 0.0, rare_variance=1.0)


def power(
    effect: float | Float64[np.ndarray, "*effect"], components: VarianceComponents, *, num_seeds: int, num_items: int
) -> Float64[np.ndarray, "*effect"]:
    """Return the probability that the design's lower bound exceeds 0 if the true gain is `effect`."""
    scatter = variance_scatter(components, num_seeds=num_seeds, num_items=num_items)
    if num_seeds < 2:
        return np.zeros(np.shape(effect))
    bound = scatter.quantile(LEVEL) * scatter.standard_error
    truth = components.standard_error(num_seeds=num_seeds, num_items=num_items)
    if truth == 0.0:
        return (np.asarray(effect) > 0.0).astype(np.float64)
    found: np.ndarray = ndtr((np.asarray(effect)[..., None] - bound) / truth).mean(axis=-1)
    return found


def minimum_detectable_effect(
    components: VarianceComponents, *, num_seeds: int, num_items: int, target_power: float = POWER
) -> float:
    """Return the smallest true gain that the design finds with `target_power`; infinite with one seed."""
    if num_seeds < 2:
        return math.inf
    unit = components.standard_error(num_seeds=num_seeds, num_items=num_items)
    if unit == 0.0:
        return 0.0

    def shortfall(multiple: float) -> float:
        found = power(multiple * unit, components, num_seeds=num_seeds, num_items=num_items)
        return float(found) - target_power

    highest = 8.0
    while shortfall(highest) < 0.0:
        highest *= 2.0
    return unit * float(brentq(shortfall, 0.0, highest, xtol=1e-6))


def detectable_by(effect: Effect, *, target_power: float = POWER) -> float:
    """Return the smallest true gain that a measurement like `effect` (no leading axes) finds with `target_power`.

    The variances of seeds and items scatter by their degrees of freedom, so a few clusters of unequal size detect
    little. Infinite if one of the variances is unknown.
    """
    error = float(effect.standard_error)
    if not math.isfinite(error) or error == 0.0:
        return error
    of_seeds, of_items = (_chi2_points(float(degrees)) for degrees in (effect.seed_degrees, effect.item_degrees))
    seen = effect._replace(
        seed_variance=effect.seed_variance * of_seeds[:, None],
        item_variance=effect.item_variance * of_items,
        residual_variance=effect.residual_variance * of_items,
    )
    bounds = seen.half_width(LEVEL) / error

    def shortfall(multiple: float) -> float:
        return float(ndtr(multiple - bounds).mean()) - target_power

    return error * float(brentq(shortfall, 0.0, float(bounds.max()) + 8.0, xtol=1e-6))


def seeds_needed(
    effect: float, components: VarianceComponents, *, num_items: int, target_power: float = POWER
) -> int | None:
    """Return the fewest seed pairs that find `effect` with `target_power`.

    None if no number up to 200 does, because there are too few items.
    """
    for num_seeds in range(2, MAX_SEEDS + 1):
        if float(power(effect, components, num_seeds=num_seeds, num_items=num_items)) >= target_power:
            return num_seeds
    return None


def detectable_difference(num_items: int, *, discordance: float, target_power: float = POWER) -> float:
    """Return the smallest two-sided difference of two fixed models that `num_items` items detect.

    McNemar's test needs n = (z_level + z_power)^2 (p - d^2) / d^2 items for a difference d, with discordance p. This is
    a statement about two sets of weights, not about a method. Infinite if even the largest possible difference, the
    discordance, would be missed too often.
    """
    square = float(ndtri(1.0 - (1.0 - LEVEL) / 2) + ndtri(target_power)) ** 2
    difference = math.sqrt(square * discordance / (num_items + square))
    return difference if difference <= discordance else math.inf


def error_of_design(
    components: VarianceComponents, *, num_seeds: int, num_items: int, over_seeds: OverSeeds = "mean"
) -> float:
    """Return the standard error of the design's estimate: the mean over seeds, or the trimmed mean."""
    variance = components.variance(num_seeds=num_seeds, num_items=num_items)
    if over_seeds == "trimmed":
        of_seeds = components.seed / num_seeds + components.residual / (num_seeds * num_items)
        trimmed, _ = normal_seeds(num_seeds)
        variance += of_seeds * (trimmed - 1.0)
    return math.sqrt(variance)


def variance_scatter(
    components: VarianceComponents, *, num_seeds: int, num_items: int, over_seeds: OverSeeds = "mean"
) -> Effect:
    """Return the design's possible estimates if there is no effect: equally likely values of the seed variance.

    They follow a chi-squared distribution, or that of a Winsorized variance. The scatter of the item variance is
    ignored, because there are many items.
    """
    points, left = _chi2_points(max(num_seeds - 1, 1)), num_seeds
    if over_seeds == "trimmed":
        (_, points), left = normal_seeds(num_seeds), num_seeds - 2
    residual = components.residual / (left * num_items)
    of_seeds = components.seed / num_seeds + components.residual / (num_seeds * num_items)
    return Effect(
        mean=np.zeros(_CHI2_POINTS),
        seed_variance=of_seeds * points,
        item_variance=np.asarray(components.item / num_items + residual + components.rare_variance / num_items**2),
        residual_variance=np.asarray(residual),
        seed_degrees=np.asarray(left - 1.0),
        item_degrees=_item_degrees(components, num_items),
    )


def _chi2_points(degrees: float) -> Float64[np.ndarray, "point"]:
    """Return equally likely values of an estimated variance, in units of the true one."""
    levels = (np.arange(_CHI2_POINTS) + 0.5) / _CHI2_POINTS
    points: np.ndarray = 2.0 * gammaincinv(degrees / 2.0, levels) / degrees
    return points


def _item_degrees(components: VarianceComponents, num_items: int) -> float:
    """Return the degrees that `interval.allow_for_rare_events` leaves if few items differ: kurtosis is 1 /
    discordance."""
    degrees = max(components.item_information * num_items - 1.0, 0.0)
    if components.rare_variance <= 3.0 * components.item or num_items < 3:
        return degrees
    kurtosis = min(components.rare_variance / max(components.item, 1e-300), float(num_items))
    return degrees * min(1.0, 2.0 / max(kurtosis - 1.0, 1e-300))

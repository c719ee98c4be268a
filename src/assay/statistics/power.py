"""What n seeds on m items could detect, and what a wanted effect would need, before anything runs or after.

The luck of a paired comparison has three sources (`effect`): seeds, items, and their interaction. Their
variances give the standard error of any design:

    SE^2 = seed / S + item / n + residual / (S n)

The test that will be made is one-sided at `level` with the quantile of `effect.Effect.quantile`; its power
is integrated over the scatter of the estimated variances: with three seeds that is most of the story. More
items do not replace seeds: as n grows the error stops at sqrt(seed / S), and the other way round.
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
"""One-sided, of the test that will be made."""
MAX_SEEDS = 200
_CHI2_POINTS = 64


class VarianceComponents(NamedTuple):
    """The variances of one paired difference, in the score's unit squared."""

    seed: float
    """Between seeds: what all items of a seed have in common."""
    item: float
    """Between items: what all seeds of an item have in common; with clusters, times the design effect."""
    residual: float
    """What belongs to one seed on one item; with clusters, times the design effect."""
    rare_variance: float = 0.0
    """The square of what an item may differ by that is not seen: 1 of a share; 0 where that does not count. It
    is no part of the luck, but of what an interval allows for it."""
    item_information: float = 1.0
    """What each item is worth in telling the items' variance: less than 1 where they are of unequal size, or
    few differ."""

    def variance(self, *, num_seeds: int, num_items: int) -> float:
        """The variance of the mean difference over so many seeds and items."""
        return self.seed / num_seeds + self.item / num_items + self.residual / (num_seeds * num_items)

    def standard_error(self, *, num_seeds: int, num_items: int) -> float:
        """Its square root."""
        return math.sqrt(self.variance(num_seeds=num_seeds, num_items=num_items))


def components_from_discordance(
    *, discordance: float, seed_sd: float, seed_correlation: float = 0.0
) -> VarianceComponents:
    """Components of right-or-wrong items before any record: a pilot's two numbers.

    `discordance`: share of items on which the two differ (0.3 is usual). `seed_sd`: of one recipe's score over
    its seeds, as a share. `seed_correlation`: what pairing seeds wins; 0 is the cautious choice.
    """
    assert 0.0 < discordance <= 1.0 and seed_sd >= 0.0, (discordance, seed_sd)
    return VarianceComponents(2.0 * seed_sd**2 * (1.0 - seed_correlation), discordance, 0.0, rare_variance=1.0)


def power(
    effect: float | Float64[np.ndarray, "*effect"],
    components: VarianceComponents,
    *,
    num_seeds: int,
    num_items: int,
) -> Float64[np.ndarray, "*effect"]:
    """The chance that the lower bound of a design exceeds 0, if the gain is truly `effect`."""
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
    """The smallest true gain that the design finds with `wanted_power`; infinite with one seed."""
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
    """The smallest true gain that a measurement like `effect` (no leading axes) finds with `wanted_power`.

    As little as its interval knows of its luck, so little is known here: the variances of seeds and of items
    scatter by the degrees of freedom that each has, and a few clusters of unequal size have hardly any.
    Infinite where nothing is known of one of them.
    """
    error = float(effect.standard_error)
    if not math.isfinite(error) or error == 0.0:
        return error
    of_seeds, of_items = (
        _chi2_points(float(degrees)) for degrees in (effect.seed_degrees, effect.item_degrees)
    )
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
    """The fewest seed pairs that find `effect` with `wanted_power`.

    None where no number does (up to 200): the items alone are too few.
    """
    for num_seeds in range(2, MAX_SEEDS + 1):
        if float(power(effect, components, num_seeds=num_seeds, num_items=num_items)) >= target_power:
            return num_seeds
    return None


def detectable_difference(num_items: int, *, discordance: float, target_power: float = POWER) -> float:
    """The smallest difference of two fixed models that a benchmark of `num_items` items could find, two-sided.

    McNemar's test of n items needs n = (z_level + z_power)^2 (p - d^2) / d^2 for a difference d, with p the
    discordance; no claim about a method, only about these two sets of weights. Infinite where even the largest
    possible difference, the discordance, would be missed too often.
    """
    square = float(ndtri(1.0 - (1.0 - LEVEL) / 2) + ndtri(target_power)) ** 2
    difference = math.sqrt(square * discordance / (num_items + square))
    return difference if difference <= discordance else math.inf


def error_of_design(
    components: VarianceComponents, *, num_seeds: int, num_items: int, over_seeds: OverSeeds = "mean"
) -> float:
    """The standard error of what the design measures: of the mean over seeds, or without both ends of them."""
    variance = components.variance(num_seeds=num_seeds, num_items=num_items)
    if over_seeds == "trimmed":
        of_seeds = components.seed / num_seeds + components.residual / (num_seeds * num_items)
        variance += of_seeds * (normal_seeds(num_seeds).variance - 1.0)
    return math.sqrt(variance)


def variance_scatter(
    components: VarianceComponents, *, num_seeds: int, num_items: int, over_seeds: OverSeeds = "mean"
) -> Effect:
    """What a design will estimate of no effect: equally likely points of the seed part, beside the item part.

    The scatter of the seed part is a chi-square's, or that of a Winsorized variance; items are many, so theirs
    is left out.
    """
    points, left = _chi2_points(max(num_seeds - 1, 1)), num_seeds
    if over_seeds == "trimmed":
        points, left = normal_seeds(num_seeds).estimates, num_seeds - 2
    residual = components.residual / (left * num_items)
    of_seeds = components.seed / num_seeds + components.residual / (num_seeds * num_items)
    return Effect(
        mean=np.zeros(_CHI2_POINTS),
        seed_variance=of_seeds * points,
        item_variance=np.asarray(
            components.item / num_items + residual + components.rare_variance / num_items**2
        ),
        residual_variance=np.asarray(residual),
        seed_degrees=np.asarray(left - 1.0),
        item_degrees=_item_degrees(components, num_items),
    )


def _chi2_points(degrees: float) -> Float64[np.ndarray, "point"]:
    """Equally likely values of an estimated variance, in units of the true one."""
    levels = (np.arange(_CHI2_POINTS) + 0.5) / _CHI2_POINTS
    points: np.ndarray = 2.0 * gammaincinv(degrees / 2.0, levels) / degrees
    return points


def _item_degrees(components: VarianceComponents, num_items: int) -> float:
    """As few as `interval.allowing_for_unseen` has of items that hardly differ: their kurtosis is 1 /
    discordance."""
    degrees = max(components.item_information * num_items - 1.0, 0.0)
    if components.rare_variance <= 3.0 * components.item or num_items < 3:
        return degrees
    kurtosis = min(components.rare_variance / max(components.item, 1e-300), float(num_items))
    return degrees * min(1.0, 2.0 / max(kurtosis - 1.0, 1e-300))

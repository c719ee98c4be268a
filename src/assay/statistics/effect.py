"""How much better is the candidate, and how sure can we be? Seeds and items are both random.

A score has two sources of luck. Another seed of the same recipe would score differently on the same items;
other items would score differently with the same weights. A claim about a *method* needs both, so with
y[s, i] = candidate - baseline for seed s on item i, the variance of the mean D of all y is

    V = var_s(mean_i y) / S  +  clustered var_i(mean_s y) / n  -  residual / (S n)

The first two terms each hold the seed-by-item residual once, the truth holds it once: hence the third. Items
that share a cluster (questions on one passage) are one draw (Liang & Zeger 1986). V is never below either
of its first two terms.

Intervals are q W^(1/2) wide each way. W is V without the bound by the second term. Prudent as that is for a
standard error (that of a few seeds which agree by luck is too small), 95% intervals of three seeds would with
it cover up to 100% where all is residual, since Student's quantile pays for that luck already. W is only held
above the second term / t^2 (with t for 95%), so that seeds which agree to the last digit do not give an
interval without width. The quantile q is the normal's, z, plus for each source what Student's, t, is above z
by the source's share w of W to the power c (`share_power`): q = z + sum (t - z) w^c. The share of the seeds
holds the residual, because its estimate has the seeds' few degrees of freedom.

With c = 1 this is Cochran & Cox (1950), who are never too narrow (to 97.3% with three seeds); Satterthwaite's
degrees of freedom are never too wide (down to 92%). c = 1.35 for 95% intervals was chosen between them by
simulation (docs/evidence.md): with three seeds or more and 30 clusters or more every mixture of seeds, items
and residual is covered 94.6 to 96.5%, with ten clusters 94.4 to 96.9%. Beyond that is where one estimate has
so few degrees of freedom that the tables hardly say which mixture they come from, and none of these forms
serves all: five clusters are covered 93.2 to 97.6%, two seeds 92.8 to 97.9%. One seed gives no interval at all.

    scores[seed, item] x 2 --> differences[seed, item] --> Effect --> Estimate

No interval and no bound reaches beyond what the mean can differ by (`limit`). Where no item differs at all, and
nothing bounds by how much one could, there is no interval.

All functions work on leading axes at once (checkpoints, campaigns) and know no files.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from assay.base.errors import DataError
from assay.base.shapes import Float64, Shaped
from assay.records.evaluation import Estimate
from assay.statistics.interval import CONFIDENCE, NONE_DIFFERS, clustered_variance, symmetric

Leading = Float64[np.ndarray, "*#leading"]
"""One number for each checkpoint, campaign or the like; or one that broadcasts to them."""
Level = float | Leading
"""One-sided confidence."""


class Effect(NamedTuple):
    """A mean difference with the pieces of its variance, all over the same leading axes.

    Unit: the score's own (a share of items, usually); variances are in its square and are of the mean.
    """

    mean: Leading
    seed_variance: Leading
    """What redrawing the seeds would do; infinite with one seed, which cannot say."""
    item_variance: Leading
    """What redrawing the items (clusters) would do, with these seeds."""
    residual_variance: Leading
    """The seed-by-item part, that the two above both hold."""
    seed_degrees: Leading
    """Degrees of freedom of the first: S - 1, or Welch's where seeds are not paired."""
    item_degrees: float | Leading
    """Those of the second: clusters - 1, fewer where they are of unequal size (`interval`)."""
    limit: float = math.inf
    """By what the mean can differ at the most, either way: 1 of shares, infinite where nothing bounds it."""

    @property
    def variance(self) -> Leading:
        """V of the module: of `mean`, over seeds and items together; infinite where a source cannot say."""
        variance: np.ndarray = np.maximum(self.seed_variance + self.items_alone, self.item_variance)
        return variance

    @property
    def items_alone(self) -> Leading:
        """The items' part without the residual; not below 0, infinite where there is one cluster."""
        with np.errstate(invalid="ignore"):
            alone = np.maximum(np.subtract(self.item_variance, self.residual_variance), 0.0)
        return np.where(np.isinf(self.item_variance), np.inf, alone)

    @property
    def degrees(self) -> Leading:
        """How surely `variance` is known: Satterthwaite's degrees of freedom of seeds and items together."""
        with np.errstate(invalid="ignore", divide="ignore"):
            scatter = self.seed_variance**2 / self.seed_degrees + self.items_alone**2 / self.item_degrees
            found = np.square(self.seed_variance + self.items_alone) / scatter
        return np.where(np.isnan(found), 1.0, found)

    @property
    def standard_error(self) -> Leading:
        """Square root of `variance`."""
        error: np.ndarray = np.sqrt(self.variance)
        return error

    def quantile(self, level: Level) -> Leading:
        """How many standard errors hold `level` of the luck on one side: q (W / V)^(1/2) of the module.

        Infinite where no degree of freedom is left to a source (one seed); 1 where nothing varies at all.
        """
        of_seeds, items, variance = np.asarray(self.seed_variance), self.items_alone, self.variance
        normal = ndtri(level)
        with np.errstate(invalid="ignore", divide="ignore"):
            from_seeds = stdtrit(np.maximum(self.seed_degrees, 1e-300), level) - normal
            from_items = stdtrit(np.maximum(self.item_degrees, 1e-300), level) - normal
            share, power = np.where(of_seeds > 0.0, of_seeds / (of_seeds + items), 0.0), share_power(level)
            mixed = normal + share**power * from_seeds + (1.0 - share) ** power * from_items
            narrowest = self.item_variance / stdtrit(self.seed_degrees, 0.5 + CONFIDENCE / 2.0) ** 2
            of_errors = mixed * np.sqrt(np.maximum(of_seeds + items, narrowest) / variance)
        missing = (np.asarray(self.seed_degrees) <= 0) | (self.item_degrees <= 0)
        return np.where(missing, np.inf, np.where(variance > 0.0, of_errors, 1.0))

    def lower(self, level: Level) -> Leading:
        """The one-sided lower bound that the truth exceeds with probability `level`."""
        return self._possible(self.mean - self.half_width(level))

    def upper(self, level: Level) -> Leading:
        """The one-sided upper bound."""
        return self._possible(self.mean + self.half_width(level))

    def _possible(self, bound: Leading) -> Leading:
        """Within the limit; infinite where nothing is known."""
        return np.where(np.isfinite(bound), np.clip(bound, -self.limit, self.limit), bound)

    def half_width(self, level: Level) -> Leading:
        """From the mean to a bound; infinite where quantile or error is, also where the other is 0."""
        quantile, error = self.quantile(level), self.standard_error
        finite = np.isfinite(quantile) & np.isfinite(error)
        return np.where(finite, np.where(finite, quantile, 0.0) * np.where(finite, error, 0.0), np.inf)


def share_power(level: Level) -> Leading:
    """The power of a source's share in the quantile: 1.35 up to a one-sided level of 97.5%, then towards 1.

    Far out, where a gate of three seeds stands (99.8%), Student's tail is all that matters, and 1.35 would
    double the error; 1 keeps it within 1.4 times for every mixture, and below its level for most.
    """
    tail = 1.0 - np.asarray(level, dtype=np.float64)
    return 1.0 + 0.35 * np.clip(tail / 0.025, 0.0, 1.0)


def paired_effect(
    differences: Float64[np.ndarray, "*leading seed item"],
    clusters: Shaped[np.ndarray, "item"] | None = None,
    weights: Float64[np.ndarray, "weight"] | None = None,
    *,
    largest: float | None = None,
) -> Effect:
    """Mean and variance of [..., seed, item] differences whose seeds are paired.

    `clusters` [item]: which cluster each item belongs to; any values, equal for items of one cluster. `weights`
    [item]: what each item counts for, e.g. its bytes; None for one each. `largest`: by what an item that was
    not seen may differ: 1 for a share, infinite where nothing bounds it; None: what was not seen does not count
    (`interval.allowing_for_unseen`).
    """
    num_seeds, num_items = differences.shape[-2:]
    share = item_shares(weights, num_items)
    seed_means, item_means = differences @ share, differences.mean(axis=-2)
    mean = seed_means.mean(axis=-1)
    counted = None if clusters is None and weights is None else share
    deviations = (item_means - mean[..., None]) * share
    of_items = clustered_variance(deviations, clusters, counted, largest=largest)
    residuals = differences - seed_means[..., None] - item_means[..., None, :] + mean[..., None, None]
    of_residuals = clustered_variance(residuals * share, clusters, counted).variance.sum(axis=-1)
    return Effect(
        mean=mean,
        seed_variance=variance_of_seeds(seed_means),
        item_variance=of_items.variance,
        residual_variance=of_residuals / max(num_seeds * (num_seeds - 1), 1),
        seed_degrees=np.full(mean.shape, float(num_seeds - 1)),
        item_degrees=of_items.degrees,
    )


def estimate_of(effect: Effect) -> Estimate:
    """The record of one effect (no leading axes) with its two-sided interval; none with one seed."""
    mean, half, method = (
        float(effect.mean),
        float(effect.half_width(0.5 + CONFIDENCE / 2.0)),
        "crossed seeds x items",
    )
    if not np.isfinite(half):
        reason = "one seed" if float(effect.seed_degrees) <= 0 else "one item"
        return Estimate(value=mean, method=f"{method}: undefined, {reason}")
    if mean == half == 0.0:
        return Estimate(value=mean, method=f"{method}: undefined, {NONE_DIFFERS}")
    return symmetric(mean, half, method=method, lowest=-effect.limit, highest=effect.limit)


def item_shares(weights: Float64[np.ndarray, "weight"] | None, num_items: int) -> Float64[np.ndarray, "item"]:
    """Each item's share in the mean; they sum to 1. Raises `DataError` for weights that cannot be."""
    if weights is None:
        return np.full(num_items, 1.0 / num_items)
    values = np.asarray(weights, dtype=np.float64)
    if (
        values.shape != (num_items,)
        or not np.isfinite(values).all()
        or (values < 0.0).any()
        or not values.any()
    ):
        raise DataError(
            f"weights of shape {values.shape} for {num_items} items; expected one each, at least 0, "
            "finite, and not all 0."
        )
    shares: np.ndarray = values / values.sum()
    return shares


def variance_of_seeds(seed_means: Float64[np.ndarray, "*leading seed"]) -> Float64[np.ndarray, "*leading"]:
    """The variance of the mean of [..., seed]; infinite with one seed, which cannot say."""
    num_seeds = seed_means.shape[-1]
    if num_seeds < 2:
        return np.full(seed_means.shape[:-1], np.inf)
    variance: np.ndarray = seed_means.var(axis=-1, ddof=1) / num_seeds
    return variance

"""The effect of a candidate on a score, with its variance over both seeds and items.

A score varies for two reasons: another seed of the same recipe would score differently on the same items, and other
items would score differently with the same weights. A claim about a *method* must cover both. With y[s, i] = candidate
- baseline for seed s on item i, the variance of the mean D of all y is

    V = var_s(mean_i y) / S  +  clustered var_i(mean_s y) / n  -  residual / (S n)

Each of the first two terms contains the seed-by-item residual once, and the true variance contains it once; the third
term corrects this. Items that share a cluster (questions on one passage) are one draw (Liang & Zeger 1986). V is at
least the larger of its first two terms.

Intervals are q W^(1/2) wide on each side. W is V without the bound by the second term. The bound suits a standard
error, because that of a few seeds that agree by accident is too small. In an interval, Student's quantile already
accounts for this, and with the bound 95% intervals of three seeds would cover up to 100% if all variance is residual. W
is at least the second term / t^2 (with t for 95%), so that seeds that agree exactly do not give an interval of width
zero. The quantile q is the normal quantile z plus, for each source, the excess of Student's t over z, weighted by the
source's share w of W to the power c (`share_power`): q = z + sum (t - z) w^c. The seeds' share includes the residual,
because its estimate has the seeds' few degrees of freedom.

c = 1 is Cochran & Cox (1950), whose intervals are never too narrow (up to 97.3% with three seeds); Satterthwaite's
degrees of freedom are never too wide (down to 92%). c = 1.35 for 95% intervals was chosen between them by simulation
(docs/evidence.md). With three seeds or more and 30 clusters or more, every mixture of seeds, items and residual is
covered 94.6 to 96.5%; with ten clusters, 94.4 to 96.9%. With fewer degrees of freedom the data hardly identify the
mixture, and no such form fits all: five clusters are covered 93.2 to 97.6%, two seeds 92.8 to 97.9%. One seed gives no
interval.

    scores[seed, item] x 2 --> differences[seed, item] --> Effect --> Estimate

Intervals and bounds never exceed the largest possible difference of the mean (`limit`). There is no interval if no item
differs and nothing bounds by how much one could. All functions work on leading axes (checkpoints, campaigns).
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
"""One number for each checkpoint, campaign or the like, or one that broadcasts to them."""
Level = float | Leading
"""One-sided confidence."""


class Effect(NamedTuple):
    """A mean difference with the components of its variance, all over the same leading axes.

    The mean is in the score's unit (usually a share of items); variances are in the unit's square, and are of the mean.
    """

    mean: Leading
    seed_variance: Leading
    """Variance over new seeds; infinite with one seed."""
    item_variance: Leading
    """Variance over new items (clusters) with these seeds."""
    residual_variance: Leading
    """The seed-by-item part that both variances above contain."""
    seed_degrees: Leading
    """Degrees of freedom of the seed variance: S - 1, or Welch's if seeds are not paired."""
    item_degrees: float | Leading
    """Degrees of freedom of the item variance: clusters - 1, fewer if they differ in size (`interval`)."""
    limit: float = math.inf
    """Largest possible absolute mean difference: 1 for shares, infinite if unbounded."""

    @property
    def variance(self) -> Leading:
        """Variance of `mean` over seeds and items, V of the module docstring; infinite if a source has one draw."""
        variance: np.ndarray = np.maximum(self.seed_variance + self.items_alone, self.item_variance)
        return variance

    @property
    def items_alone(self) -> Leading:
        """Item variance without the residual; at least 0, infinite with one cluster."""
        with np.errstate(invalid="ignore"):
            alone = np.maximum(np.subtract(self.item_variance, self.residual_variance), 0.0)
        return np.where(np.isinf(self.item_variance), np.inf, alone)

    @property
    def degrees(self) -> Leading:
        """Satterthwaite's degrees of freedom of seeds and items together."""
        with np.errstate(invalid="ignore", divide="ignore"):
            scatter = self.seed_variance**2 / self.seed_degrees + self.items_alone**2 / self.item_degrees
            found = np.square(self.seed_variance + self.items_alone) / scatter
        return np.where(np.isnan(found), 1.0, found)

    @property
    def standard_error(self) -> Leading:
        error: np.ndarray = np.sqrt(self.variance)
        return error

    def quantile(self, level: Level) -> Leading:
        """Return a one-sided bound's distance in standard errors: q (W / V)^(1/2) of the module docstring.

        Infinite if a source has no degree of freedom (one seed); 1 if nothing varies.
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
        """Return the one-sided lower bound at confidence `level`."""
        return self._possible(self.mean - self.half_width(level))

    def upper(self, level: Level) -> Leading:
        """Return the one-sided upper bound at confidence `level`."""
        return self._possible(self.mean + self.half_width(level))

    def _possible(self, bound: Leading) -> Leading:
        """Clip to `limit`; infinite bounds stay infinite."""
        return np.where(np.isfinite(bound), np.clip(bound, -self.limit, self.limit), bound)

    def half_width(self, level: Level) -> Leading:
        """Return the distance from the mean to a bound; infinite if quantile or error is, even if the other is 0."""
        quantile, error = self.quantile(level), self.standard_error
        finite = np.isfinite(quantile) & np.isfinite(error)
        return np.where(finite, np.where(finite, quantile, 0.0) * np.where(finite, error, 0.0), np.inf)


def share_power(level: Level) -> Leading:
    """Return the power of a source's share in the quantile: 1.35 up to a one-sided level of 97.5%, then falling to 1.

    At the extreme levels of a three-seed gate (99.8%), the tail of Student's t dominates, and 1.35 would double the
    error rate. The power 1 keeps it within 1.4 times the nominal rate for every mixture.
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
    """Return mean and variance of [..., seed, item] differences whose seeds are paired.

    `clusters` [item] holds equal values for items of one cluster. `weights` [item] are the items' weights, e.g. their
    bytes; None: all equal. `largest` is the most that an unobserved item may differ by: 1 for a share, infinite if
    unbounded; None ignores unobserved items (`interval.allow_for_rare_events`).
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
    """Return the record of one effect (no leading axes) with its two-sided interval; none with one seed."""
    mean, half = float(effect.mean), float(effect.half_width(0.5 + CONFIDENCE / 2.0))
    method = "crossed seeds x items"
    if not np.isfinite(half):
        reason = "one seed" if float(effect.seed_degrees) <= 0 else "one item"
        return Estimate(value=mean, method=f"{method}: undefined, {reason}")
    if mean == half == 0.0:
        return Estimate(value=mean, method=f"{method}: undefined, {NONE_DIFFERS}")
    return symmetric(mean, half, method=method, lowest=-effect.limit, highest=effect.limit)


def item_shares(weights: Float64[np.ndarray, "weight"] | None, num_items: int) -> Float64[np.ndarray, "item"]:
    """Return each item's share of the mean; they sum to 1. Raises `DataError` for invalid weights."""
    if weights is None:
        return np.full(num_items, 1.0 / num_items)
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (num_items,) or not np.isfinite(values).all() or (values < 0.0).any() or not values.any():
        raise DataError(
            f"weights of shape {values.shape} for {num_items} items; expected one each, at least 0, "
            "finite, and not all 0."
        )
    shares: np.ndarray = values / values.sum()
    return shares


def variance_of_seeds(seed_means: Float64[np.ndarray, "*leading seed"]) -> Float64[np.ndarray, "*leading"]:
    """Return the variance of the mean of [..., seed]; infinite with one seed."""
    num_seeds = seed_means.shape[-1]
    if num_seeds < 2:
        return np.full(seed_means.shape[:-1], np.inf)
    variance: np.ndarray = seed_means.var(axis=-1, ddof=1) / num_seeds
    return variance

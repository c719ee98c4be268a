"""Shrinkage of a pilot's gain, given its replications, and the probability that another replication succeeds.

A pilot is reported because it looked good, so its gain is too large on average (the winner's curse). Shrinkage corrects
this. Effects of this lab's candidates have the prior N(0, prior_sd^2); after a difference D with variance V, the
posterior is

    w = prior_sd^2 / (prior_sd^2 + V)      mean = w D      sd = sqrt(w V)

V itself is estimated, with few seeds poorly: three seeds that agree by accident would make the posterior too confident
("over 99%" for 7% of candidates whose gain equals the least effect, instead of 0.8%). The true variance is V times f /
chi-squared with V's f degrees of freedom, and `GainPosterior` averages the posterior over it. The observed gain does
not inform the variance: a gain that the prior considers unlikely would otherwise increase the variance, so that a
larger gain would be trusted less.

If the prior describes all candidates that were tried, the posterior holds for the best of them too (Bayes' conditions
on the data, not on why they were looked at). If the prior describes only this candidate, and the pilot would not have
been reported below a threshold, its likelihood must be divided by the probability of exceeding the threshold: give
`selection_threshold`. All replications are pooled; the worse one is never dropped.

    pilot + replications --> Posterior --> P(effect > x), P(replicates)
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv, log_ndtr, ndtr, ndtri

from assay.base.errors import ConfigError
from assay.base.shapes import Float64

Leading = Float64[np.ndarray, "*#leading"]
"""One number for each comparison, or one that broadcasts to them."""

PRIOR_SD = 0.02
"""Two points of accuracy: the usual scatter of one lab's candidates, used if its record does not say otherwise."""

_GRID_POINTS = 4001
_POINTS = 24
"""Variances over which a posterior is averaged."""
_MOST_STEPS, _TOLERANCE = 60, 1e-9
"""Maximum steps of Newton's method or bisection, and the tolerance of the quantile."""


class Posterior(NamedTuple):
    """Distribution of the true effect on an even grid; `weights` sum to 1."""

    grid: Float64[np.ndarray, "point"]
    weights: Float64[np.ndarray, "point"]

    @property
    def mean(self) -> float:
        """The shrunken effect, in the score's unit."""
        return float(self.grid @ self.weights)

    @property
    def sd(self) -> float:
        return math.sqrt(float((self.grid - self.mean) ** 2 @ self.weights))

    def probability_above(self, least: float) -> float:
        """Return P(true effect > least); linear inside a grid cell."""
        half = (self.grid[1] - self.grid[0]) / 2.0
        edges = np.append(self.grid - half, self.grid[-1] + half)
        total = np.append(0.0, np.cumsum(self.weights))
        return 1.0 - float(np.interp(least, edges, total / total[-1]))

    def replication_probability(self, standard_error: float, *, level: float = 0.95) -> float:
        """Return the probability that an experiment of this standard error finds a gain at one-sided `level`."""
        passes = ndtr(self.grid / standard_error - ndtri(level))
        return float(passes @ self.weights)


def shrink(
    effect: float | Float64[np.ndarray, "*#leading"],
    variance: float | Float64[np.ndarray, "*#leading"],
    *,
    prior_sd: float = PRIOR_SD,
) -> tuple[Float64[np.ndarray, "*#leading"], Float64[np.ndarray, "*#leading"]]:
    """Return mean and standard deviation of the true effect after one estimate, element by element.

    An infinite variance (one seed) leaves the prior.
    """
    with np.errstate(divide="ignore"):
        weight = 1.0 / (1.0 + np.asarray(variance, dtype=np.float64) / prior_sd**2)
    return weight * effect, prior_sd * np.sqrt(1.0 - weight)


class GainPosterior(NamedTuple):
    """Posterior of a true gain as a function of the mean difference: normals [..., point], one for each possible true
    variance."""

    slope: Float64[np.ndarray, "*leading point"]
    """Shrinkage factor of the mean difference: w."""
    sd: Float64[np.ndarray, "*leading point"]
    weights: Float64[np.ndarray, "point"]
    """They sum to 1."""

    def probability_above(
        self, limit: float | Leading, mean: float | Leading, *, noise_variance: float | Leading = 0.0
    ) -> Leading:
        """Return P(true gain, or its noisy replication, exceeds the limit), given the mean difference."""
        probability, _ = self._above(_column(limit), _column(mean), _column(noise_variance))
        return probability

    def least_mean(
        self, limit: float | Leading, probability: float, *, noise_variance: float | Leading = 0.0
    ) -> Leading:
        """Return the mean difference for which the probability of exceeding the limit is `probability`.

        Newton's method on the quantile, which is nearly linear in the mean, with bisection if a step leaves the
        bracket. The solution lies between those of the single normals.
        """
        target_quantile, limits, noise = float(ndtri(probability)), _column(limit), _column(noise_variance)
        median = int(np.searchsorted(np.cumsum(self.weights), 0.5))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            per_variance = (limits + target_quantile * np.sqrt(np.square(self.sd) + noise)) / self.slope
            low, high, found = per_variance.min(axis=-1), per_variance.max(axis=-1), per_variance[..., median]
            for _ in range(_MOST_STEPS):
                above, rise = self._above(limits, found[..., None], noise)
                error_ = ndtri(np.clip(above, 1e-15, 1.0 - 1e-15)) - target_quantile
                if not np.any(np.abs(error_) > _TOLERANCE):
                    break
                low, high = np.where(error_ < 0, found, low), np.where(error_ < 0, high, found)
                found = found - error_ * np.exp(-0.5 * np.square(error_ + target_quantile)) / rise
                found = np.where((found >= low) & (found <= high), found, (low + high) / 2.0)
        least: np.ndarray = found
        return least

    def _above(
        self,
        limit: Float64[np.ndarray, "*#leading 1"],
        mean: Float64[np.ndarray, "*#leading 1"],
        noise: Float64[np.ndarray, "*#leading 1"],
    ) -> tuple[Leading, Leading]:
        """Return the probability, and its derivative by the mean times (2 pi)^(1/2)."""
        total_sd = np.maximum(np.sqrt(np.square(self.sd) + noise), 1e-300)
        distance = (self.slope * mean - limit) / total_sd
        probability: np.ndarray = ndtr(distance) @ self.weights
        rise: np.ndarray = (np.exp(-0.5 * np.square(distance)) * self.slope / total_sd) @ self.weights
        return probability, rise


def gain_posterior(variance: float | Leading, degrees: float | Leading | None, *, prior_sd: float) -> GainPosterior:
    """Return the posterior of the true gain for a mean difference of this variance.

    `degrees`: degrees of freedom of the variance; None if it is known exactly.
    """
    variance = _column(variance)
    if degrees is None:
        slope, sd = shrink(np.ones_like(variance), variance, prior_sd=prior_sd)
        return GainPosterior(slope, sd, np.ones(1))
    # Points are denser at chi-squared's lower end, where the true variance is large.
    edges = (np.arange(_POINTS) + 0.5) / _POINTS
    scale = _column(degrees) / (2.0 * gammaincinv(_column(degrees) / 2.0, np.square(edges)))
    slope, sd = shrink(np.ones_like(scale), variance * scale, prior_sd=prior_sd)
    return GainPosterior(slope, sd, edges / edges.sum())


def _column(values: float | Leading) -> Float64[np.ndarray, "*leading 1"]:
    return np.asarray(values, dtype=np.float64)[..., None]


def posterior_after(
    effects: Sequence[float],
    variances: Sequence[float],
    *,
    prior_sd: float = PRIOR_SD,
    selection_threshold: float | None = None,
) -> Posterior:
    """Return the posterior after a pilot (first) and its replications (the rest), each with its own variance.

    `selection_threshold`: the pilot would not have been reported below this effect; None: no such selection. Raises
    `ConfigError` if the pilot itself is below it, or the lists differ in length.
    """
    if not effects or len(effects) != len(variances):
        raise ConfigError(f"{len(effects)} effects for {len(variances)} variances; expected one of each per run.")
    if any(not math.isfinite(value) or value <= 0.0 for value in [*variances, prior_sd]):
        raise ConfigError(f"variances {list(variances)} and prior_sd {prior_sd} must be finite and above 0.")
    if selection_threshold is not None and effects[0] < selection_threshold:
        raise ConfigError(
            f"the pilot's effect {effects[0]} is below selection_threshold={selection_threshold}, but it was "
            "reported. Lower the threshold."
        )
    grid = _grid(effects, variances, prior_sd, is_filtered=selection_threshold is not None)
    log_density = -0.5 * (grid / prior_sd) ** 2
    for effect, variance in zip(effects, variances, strict=True):
        log_density -= 0.5 * (effect - grid) ** 2 / variance
    if selection_threshold is not None:
        log_density -= log_ndtr((grid - selection_threshold) / math.sqrt(variances[0]))
    weights = np.exp(log_density - log_density.max())
    return Posterior(grid, weights / weights.sum())


def _grid(
    effects: Sequence[float], variances: Sequence[float], prior_sd: float, *, is_filtered: bool
) -> Float64[np.ndarray, "point"]:
    """Return even points that hold all of the posterior; with selection, low effects stay as likely as in the prior."""
    precision = 1.0 / prior_sd**2 + sum(1.0 / variance for variance in variances)
    middle = sum(effect / variance for effect, variance in zip(effects, variances, strict=True)) / precision
    half_width = 9.0 / math.sqrt(precision)
    lowest = min(middle - half_width, -8.0 * prior_sd) if is_filtered else middle - half_width
    return np.linspace(lowest, middle + half_width, _GRID_POINTS)

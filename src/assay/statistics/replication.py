"""What to believe of a pilot's gain, given its reruns; and how likely a replication is to succeed.

A pilot is heard of because it looked good, so its gain is too large (the winner's curse). Shrinkage is the
cure: before anybody looked, the effects of candidates in this lab were N(0, prior_sd^2), most of them small;
after D with variance V the belief is

    w = prior_sd^2 / (prior_sd^2 + V)      mean = w D      sd = sqrt(w V)

V itself is an estimate, of few seeds a poor one: three that agree by luck would make the belief too sure ("over
99%" of 7% of candidates whose gain is just the least effect, of 0.8% as it is). The true variance is V times
f / chi-squared with V's f degrees of freedom, and `GainBelief` is the mean of the beliefs over that. The gain
that was seen does not count for the variance: one that the prior takes for unlikely would only make it seem
larger, and a larger gain would be believed less.

If the prior describes all that was tried, this holds for the best of them as for any (Bayes conditions on
what was seen, not on why it was looked at). If nobody would have told us of a pilot below some threshold and
the prior describes only this candidate, the pilot's likelihood must be divided by the chance of passing that
threshold: give `heard_above`. All reruns are pooled; the worse one is never dropped.

    pilot + reruns --> Belief --> P(effect > x), P(replicates)
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
"""Two points of accuracy: what candidates of one lab differ by, where its record does not say otherwise."""

_GRID_POINTS = 4001
_POINTS = 24
"""Variances over which a belief is averaged."""
_MOST_STEPS, _TOLERANCE = 60, 1e-9
"""Steps of Newton's method, or halvings; how close the quantile comes."""


class Posterior(NamedTuple):
    """A distribution of the true effect, on an even grid; `weights` sum to 1."""

    grid: Float64[np.ndarray, "point"]
    weights: Float64[np.ndarray, "point"]

    @property
    def mean(self) -> float:
        """The shrunken effect, in the score's unit."""
        return float(self.grid @ self.weights)

    @property
    def sd(self) -> float:
        """Standard deviation of the true effect, given what was seen."""
        return math.sqrt(float((self.grid - self.mean) ** 2 @ self.weights))

    def probability_above(self, least: float) -> float:
        """P(true effect > least); exact for grid cells, linear inside one."""
        half = (self.grid[1] - self.grid[0]) / 2.0
        edges = np.append(self.grid - half, self.grid[-1] + half)
        total = np.append(0.0, np.cumsum(self.weights))
        return 1.0 - float(np.interp(least, edges, total / total[-1]))

    def replication_probability(self, standard_error: float, *, level: float = 0.95) -> float:
        """The chance that a new experiment of this standard error finds a gain at one-sided `level`."""
        passes = ndtr(self.grid / standard_error - ndtri(level))
        return float(passes @ self.weights)


def shrink(
    effect: float | Float64[np.ndarray, "*#leading"],
    variance: float | Float64[np.ndarray, "*#leading"],
    *,
    prior_sd: float = PRIOR_SD,
) -> tuple[Float64[np.ndarray, "*#leading"], Float64[np.ndarray, "*#leading"]]:
    """Mean and standard deviation of the true effect after one estimate, element by element.

    Infinite variance (one seed) leaves the prior.
    """
    with np.errstate(divide="ignore"):
        weight = 1.0 / (1.0 + np.asarray(variance, dtype=np.float64) / prior_sd**2)
    return weight * effect, prior_sd * np.sqrt(1.0 - weight)


class GainPosterior(NamedTuple):
    """The belief in a true gain, whatever mean difference is seen: normals [..., point], one for each true
    variance that the estimated one may stand for."""

    slope: Float64[np.ndarray, "*leading point"]
    """What is left of the mean difference: w."""
    sd: Float64[np.ndarray, "*leading point"]
    weights: Float64[np.ndarray, "point"]
    """They sum to 1."""

    def probability_above(
        self, limit: float | Leading, mean: float | Leading, *, noise_variance: float | Leading = 0.0
    ) -> Leading:
        """P(the true gain, or what is seen of it with further noise, is above the limit), given the mean."""
        probability, _ = self._above(_column(limit), _column(mean), _column(noise_variance))
        return probability

    def least_mean(
        self, limit: float | Leading, probability: float, *, noise_variance: float | Leading = 0.0
    ) -> Leading:
        """The mean difference with which that probability is `probability`.

        By Newton's method on its quantile, which is nearly linear in the mean. It lies between those of the
        single normals: where a step of Newton's leaves what is known to hold it, that is halved.
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
        """The probability, and its slope in the mean times (2 pi)^(1/2)."""
        total_sd = np.maximum(np.sqrt(np.square(self.sd) + noise), 1e-300)
        distance = (self.slope * mean - limit) / total_sd
        probability: np.ndarray = ndtr(distance) @ self.weights
        rise: np.ndarray = (np.exp(-0.5 * np.square(distance)) * self.slope / total_sd) @ self.weights
        return probability, rise


def gain_posterior(
    variance: float | Leading, degrees: float | Leading | None, *, prior_sd: float
) -> GainPosterior:
    """What a mean difference of this variance says of the true gain.

    `degrees`: of freedom, of which the variance is known; None where it is known for sure.
    """
    variance = _column(variance)
    if degrees is None:
        slope, sd = shrink(np.ones_like(variance), variance, prior_sd=prior_sd)
        return GainPosterior(slope, sd, np.ones(1))
    # Chi-squared's lower end is where the variance is large: the points lie closer there.
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
    """The belief after a pilot (first) and its replications (the rest), each with its own variance.

    `heard_above`: the pilot's effect below which nobody would have told us; None for no such filter. Raises
    `ConfigError` where the pilot itself is below it, or the lists do not match.
    """
    if not effects or len(effects) != len(variances):
        raise ConfigError(
            f"{len(effects)} effects for {len(variances)} variances; expected one of each per run."
        )
    if any(not math.isfinite(value) or value <= 0.0 for value in [*variances, prior_sd]):
        raise ConfigError(f"variances {list(variances)} and prior_sd {prior_sd} must be finite and above 0.")
    if selection_threshold is not None and effects[0] < selection_threshold:
        raise ConfigError(
            f"the pilot's effect {effects[0]} is below heard_above={selection_threshold}, yet we heard of it."
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
    """Even points that hold all of the posterior's weight; a filter leaves low effects as likely as before."""
    precision = 1.0 / prior_sd**2 + sum(1.0 / variance for variance in variances)
    middle = sum(effect / variance for effect, variance in zip(effects, variances, strict=True)) / precision
    half_width = 9.0 / math.sqrt(precision)
    lowest = min(middle - half_width, -8.0 * prior_sd) if is_filtered else middle - half_width
    return np.linspace(lowest, middle + half_width, _GRID_POINTS)

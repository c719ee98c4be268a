"""What to believe of a pilot's gain, given its reruns; and how likely a replication is to succeed.

A pilot is heard of because it looked good, so its gain is too large (the winner's curse). Shrinkage is the
cure: before anybody looked, the effects of candidates in this lab were N(0, prior_sd^2), most of them small;
after D with variance V the belief is

    w = prior_sd^2 / (prior_sd^2 + V)      mean = w D      sd = sqrt(w V)

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
from jaxtyping import Float64
from scipy.special import ndtr
from scipy.stats import norm

from assay.base.errors import ConfigError

PRIOR_SD = 0.02
"""Two points of accuracy: what candidates of one lab differ by, where its record does not say otherwise."""

_GRID_POINTS = 4001


class Belief(NamedTuple):
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
        passes = ndtr(self.grid / standard_error - norm.ppf(level))
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


def belief_after(
    effects: Sequence[float],
    variances: Sequence[float],
    *,
    prior_sd: float = PRIOR_SD,
    heard_above: float | None = None,
) -> Belief:
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
    if heard_above is not None and effects[0] < heard_above:
        raise ConfigError(
            f"the pilot's effect {effects[0]} is below heard_above={heard_above}, yet we heard of it."
        )
    grid = _grid(effects, variances, prior_sd, is_filtered=heard_above is not None)
    log_density = -0.5 * (grid / prior_sd) ** 2
    for effect, variance in zip(effects, variances, strict=True):
        log_density -= 0.5 * (effect - grid) ** 2 / variance
    if heard_above is not None:
        log_density -= norm.logsf((heard_above - grid) / math.sqrt(variances[0]))
    weights = np.exp(log_density - log_density.max())
    return Belief(grid, weights / weights.sum())


def _grid(
    effects: Sequence[float], variances: Sequence[float], prior_sd: float, *, is_filtered: bool
) -> Float64[np.ndarray, "point"]:
    """Even points that hold all of the posterior's weight; a filter leaves low effects as likely as before."""
    precision = 1.0 / prior_sd**2 + sum(1.0 / variance for variance in variances)
    middle = sum(each / variance for each, variance in zip(effects, variances, strict=True)) / precision
    reach = 9.0 / math.sqrt(precision)
    lowest = min(middle - reach, -8.0 * prior_sd) if is_filtered else middle - reach
    return np.linspace(lowest, middle + reach, _GRID_POINTS)

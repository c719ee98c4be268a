"""The mean over seeds without the best and the worst one, and its variance.

One run that crashed moves the mean of eight seeds by an eighth of its fall, and widens the interval by more, so a gain
that seven seeds show is lost. The trimmed mean is a claim about the typical seed. Its variance is Winsorized (Tukey &
McLaughlin 1963): the extremes are replaced by their neighbours, and with h = S - 2 seeds left

    V = (S - 1) s_w^2 / (h (h - 1)),  with h - 1 degrees of freedom.

For normal scatter it needs about a tenth more seeds than the mean from eight seeds on, and half as many again at five,
where two of four degrees of freedom are lost. It must therefore be declared beforehand, and `assay decide run
--check` reports its power.
"""

from functools import lru_cache
from typing import Final, Literal

import numpy as np

from assay.base.shapes import Bool, Float64
from assay.statistics.effect import Effect

OverSeeds = Literal["mean", "trimmed"]
"""How the gains of seeds are averaged."""

MIN_SEEDS: Final = 5
"""Three seeds remain after trimming; fewer would say nothing about the scatter."""

_NUM_SAMPLES, _NUM_POINTS = 40_000, 64


def inner_seeds(by_seed: Float64[np.ndarray, "*leading seed"]) -> Bool[np.ndarray, "*leading seed"]:
    """Return which seeds are neither the best nor the worst; of equal seeds, the first counts as extreme."""
    ranks = np.argsort(np.argsort(by_seed, axis=-1, kind="stable"), axis=-1)
    inner: np.ndarray = (ranks > 0) & (ranks < by_seed.shape[-1] - 1)
    return inner


def trimmed_variance(by_seed: Float64[np.ndarray, "*leading seed"]) -> Float64[np.ndarray, "*leading"]:
    """Return V of the module docstring."""
    num_seeds = by_seed.shape[-1]
    assert num_seeds >= MIN_SEEDS, f"{num_seeds} seeds: three must be left"
    ordered = np.sort(by_seed, axis=-1)
    winsorized = np.clip(by_seed, ordered[..., 1:2], ordered[..., -2:-1])
    num_inner = num_seeds - 2
    variance: np.ndarray = winsorized.var(axis=-1, ddof=1) * (num_seeds - 1) / (num_inner * (num_inner - 1))
    return variance


def trimmed_effect(inner_effect: Effect, by_seed: Float64[np.ndarray, "*leading seed"]) -> Effect:
    """Return the effect of the inner seeds with the trimmed mean's variance over seeds."""
    degrees = np.full(by_seed.shape[:-1], by_seed.shape[-1] - 3.0)
    return inner_effect._replace(seed_variance=trimmed_variance(by_seed), seed_degrees=degrees)


@lru_cache(maxsize=64)
def normal_seeds(num_seeds: int) -> tuple[float, Float64[np.ndarray, "point"]]:
    """Return the trimmed mean's variance (above 1) and equally likely values of V, simulated for normal seeds.

    Both are in units of the variance of the seeds' mean. The random seed is fixed.
    """
    samples = np.random.default_rng(1963).normal(size=(_NUM_SAMPLES, num_seeds)) * np.sqrt(num_seeds)
    means = np.mean(samples, axis=1, where=inner_seeds(samples))
    points = (np.arange(_NUM_POINTS) + 0.5) / _NUM_POINTS
    return float(np.mean(np.square(means))), np.quantile(trimmed_variance(samples), points)

"""The mean over seeds without the best and the worst of them, and how much it varies.

One run that crashed moves the mean of eight seeds by an eighth of its fall, and widens the interval by more: a
gain that seven seeds show is lost. What is said without both ends is a claim about the typical seed. Its
variance is Winsorized (Tukey & McLaughlin 1963): both ends are drawn in to their neighbours, and with h = S - 2
seeds left

    V = (S - 1) s_w^2 / (h (h - 1)),  with h - 1 degrees of freedom.

Under a normal law it needs about a tenth more seeds than the mean does, from eight on; at five, where two of
four degrees of freedom are lost, half as many again. So it is declared beforehand, and its power stands beside.

    scores of seeds --> which are kept, V
"""

from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np

from assay.base.shapes import Bool, Float64
from assay.statistics.effect import Effect

OverSeeds = Literal["mean", "trimmed"]
"""How the gains of seeds are put together."""

MIN_SEEDS: Final = 5
"""Three are left then; of fewer nothing would be known of their luck."""

_NUM_SAMPLES, _NUM_POINTS = 40_000, 64


def inner_seeds(by_seed: Float64[np.ndarray, "*leading seed"]) -> Bool[np.ndarray, "*leading seed"]:
    """All but the best and the worst; of equals the first."""
    ranks = np.argsort(np.argsort(by_seed, axis=-1, kind="stable"), axis=-1)
    inner: np.ndarray = (ranks > 0) & (ranks < by_seed.shape[-1] - 1)
    return inner


def trimmed_variance(by_seed: Float64[np.ndarray, "*leading seed"]) -> Float64[np.ndarray, "*leading"]:
    """V of the module."""
    num_seeds = by_seed.shape[-1]
    assert num_seeds >= MIN_SEEDS, f"{num_seeds} seeds: three must be left"
    ordered = np.sort(by_seed, axis=-1)
    winsorized = np.clip(by_seed, ordered[..., 1:2], ordered[..., -2:-1])
    num_inner = num_seeds - 2
    variance: np.ndarray = winsorized.var(axis=-1, ddof=1) * (num_seeds - 1) / (num_inner * (num_inner - 1))
    return variance


def trimmed_effect(inner_effect: Effect, by_seed: Float64[np.ndarray, "*leading seed"]) -> Effect:
    """The effect of the kept seeds, with what leaving out the others does to the variance of seeds."""
    degrees = np.full(by_seed.shape[:-1], by_seed.shape[-1] - 3.0)
    return inner_effect._replace(seed_variance=trimmed_variance(by_seed), seed_degrees=degrees)


class NormalSeeds(NamedTuple):
    """What is seen of seeds whose luck is normal, in units of the variance of their mean."""

    variance: float
    """The trimmed mean's: above 1."""
    estimates: Float64[np.ndarray, "point"]
    """Equally likely values of V."""


@lru_cache(maxsize=64)
def normal_seeds(num_seeds: int) -> NormalSeeds:
    """From draws that are always the same."""
    samples = np.random.default_rng(1963).normal(size=(_NUM_SAMPLES, num_seeds)) * np.sqrt(num_seeds)
    means = np.mean(samples, axis=1, where=inner_seeds(samples))
    points = (np.arange(_NUM_POINTS) + 0.5) / _NUM_POINTS
    return NormalSeeds(float(np.mean(np.square(means))), np.quantile(trimmed_variance(samples), points))

"""The variance of any statistic of a seed-by-item table, by drawing its seeds and its items anew.

Seeds are drawn, and item clusters are drawn, independently, and a cell counts as often as its seed and its
cluster together (the pigeonhole bootstrap: McCullagh 2000; Owen 2007). A plain bootstrap of S seeds
understates their variance by (S - 1) / S, a third with three seeds. Each draw therefore takes S - 1 of S
and weights them by S / (S - 1), which makes the variance of a mean exact (Rao & Wu 1988).

What it gives is a standard error. Percentiles of a few seeds cannot reach beyond the best and the worst of
them, so intervals take their quantile from Student (`effect.Effect.quantile`).
"""

import math

import numpy as np
import numpy.typing as npt

from assay.records.evaluation import Estimate
from assay.statistics.effect import estimate_of, item_shares, paired_effect
from assay.statistics.interval import CONFIDENCE, cluster_sums, symmetric

NUM_RESAMPLES = 2000


def resampled_weights(count: int, num_resamples: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Weights [resample, unit] of mean 1: `count - 1` draws of `count` units, scaled (Rao & Wu)."""
    assert count >= 2, f"{count} unit cannot be resampled"
    draws = rng.integers(count, size=(num_resamples, count - 1))
    flat = (draws + np.arange(num_resamples)[:, None] * count).ravel()
    counts = np.bincount(flat, minlength=num_resamples * count).astype(np.float64)
    return counts.reshape(num_resamples, count) * (count / (count - 1.0))


def bootstrap_means(
    differences: npt.NDArray[np.float64],
    clusters: npt.NDArray[np.generic] | None = None,
    weights: npt.NDArray[np.float64] | None = None,
    *,
    rng: np.random.Generator,
    num_resamples: int = NUM_RESAMPLES,
) -> npt.NDArray[np.float64]:
    """Means of [..., seed, item] in each resample: [resample, ...]. Needs two seeds and two clusters."""
    num_seeds, num_items = differences.shape[-2:]
    share = item_shares(weights, num_items)
    sizes = cluster_sums(share, clusters)
    of_seeds = resampled_weights(num_seeds, num_resamples, rng)
    of_clusters = resampled_weights(sizes.size, num_resamples, rng)
    by_seed = np.tensordot(of_clusters, cluster_sums(differences * share, clusters), axes=([1], [-1]))
    leading = [1] * (differences.ndim - 2)
    totals = (by_seed * of_seeds.reshape(num_resamples, *leading, num_seeds)).mean(axis=-1)
    means: npt.NDArray[np.float64] = totals / (of_clusters @ sizes).reshape(num_resamples, *leading)
    return means


def bootstrap_estimate(
    differences: npt.NDArray[np.float64],
    clusters: npt.NDArray[np.generic] | None = None,
    weights: npt.NDArray[np.float64] | None = None,
    *,
    rng: np.random.Generator,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """The mean of [seed, item] differences with a hierarchical bootstrap's interval.

    The pigeonhole bootstrap counts the residual three times (Owen 2007); the excess, known from the variance's
    pieces, is taken out.
    """
    effect = paired_effect(differences, clusters, weights)
    if effect.item_degrees < 1 or float(effect.seed_degrees) < 1:
        return estimate_of(effect)
    means = bootstrap_means(differences, clusters, weights, rng=rng, num_resamples=num_resamples)
    counted = float(effect.seed_variance + effect.item_variance + effect.residual_variance)
    excess = math.sqrt(float(effect.variance) / counted) if counted > 0.0 else 1.0
    half = float(effect.quantile(0.5 + CONFIDENCE / 2.0)) * float(means.std(ddof=1)) * excess
    return symmetric(float(effect.mean), half, method=f"hierarchical bootstrap, {num_resamples} resamples")

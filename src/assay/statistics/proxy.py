"""How well small runs predict which recipe wins at a large scale, and the cheapest scale that predicts well enough.

The input is a record of several recipes at several scales. A scale's *decision accuracy* is the share of pairs of
recipes that one run at that scale orders as the largest scale's mean does (DataDecide, arXiv 2504.11393, found about
80% at 150 M parameters for 1 B). Its *rank correlation* is Spearman's. Both get a bootstrap over recipes and over
seeds: future decisions are about new recipes, so recipes are sampled too. Pairs of one recipe with itself are left out.

The recommended scale is the cheapest one whose decision accuracy has a lower bound of at least `min_accuracy`; there
may be none. A scale at which all recipes tie gives no information.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from assay.base.errors import DataError
from assay.base.shapes import Float64, Int64
from assay.records.evaluation import Estimate
from assay.statistics.interval import CONFIDENCE, LARGEST_SCORE

NUM_RESAMPLES = 1000
MIN_RECIPES = 4


class ProxyScale(NamedTuple):
    """Decision accuracy and rank correlation of one scale."""

    scale: float
    """Parameters, tokens or FLOP, as given."""
    num_recipes: int
    num_seeds: int
    decision_accuracy: Estimate
    """Share of pairs in the right order, from one run of each recipe. 0.5 is random. No interval if all recipes tie
    here or at the largest scale."""
    rank_correlation: Estimate
    """Spearman's correlation of one run of each recipe with the largest scale's mean."""


class ProxyAdvice(NamedTuple):
    """All smaller scales, ascending, and the recommended one."""

    scales: tuple[ProxyScale, ...]
    target_scale: float
    recommended: ProxyScale | None
    """None if no smaller scale's lower bound reaches `min_accuracy`."""


def proxy_advice(
    scores: Mapping[float, Float64[np.ndarray, "recipe _"]],
    *,
    rng: np.random.Generator,
    min_accuracy: float = 0.80,
    num_resamples: int = NUM_RESAMPLES,
) -> ProxyAdvice:
    """Compare each scale with the largest, from scores[recipe, seed] by scale; higher is better.

    Recipes are in the same order at all scales; the number of seeds may differ. Raises `DataError` for fewer than two
    scales or four recipes, unequal recipes, or scores that are not numbers.
    """
    checked = _checked(scores)
    target_scale = max(checked)
    target = checked.pop(target_scale)
    scales = tuple(_proxy_scale(scale, checked[scale], target, rng, num_resamples) for scale in sorted(checked))
    good = [scale for scale in scales if (scale.decision_accuracy.low or 0.0) >= min_accuracy]
    return ProxyAdvice(scales, target_scale, good[0] if good else None)


def decision_accuracy(
    small: Float64[np.ndarray, "recipe seed"], large: Float64[np.ndarray, "recipe large_seed"]
) -> float:
    """Return the share of pairs of recipes that one small run each orders as the large scale's means do.

    `small` and `large` are [recipe, seed]. Averaged over the small seeds; a tie on either side counts one half.
    """
    agreement = _agreement(small[None], large.mean(axis=1)[None])[0]
    upper = np.triu_indices(small.shape[0], k=1)
    return float(agreement[upper].mean())


def rank_correlation(
    small: Float64[np.ndarray, "recipe seed"], large: Float64[np.ndarray, "recipe large_seed"]
) -> float:
    """Return Spearman's correlation of one small run each with the large means, averaged over small seeds."""
    return float(_spearman(small[None], large.mean(axis=1)[None])[0])


def all_tie(scores: Float64[np.ndarray, "recipe seed"]) -> bool:
    """Return whether all recipes have equal means up to rounding: the benchmark is at its ceiling or floor."""
    means = scores.mean(axis=1)
    return bool(np.ptp(means) <= 1e-12 * np.abs(scores).max())


def _proxy_scale(
    scale: float,
    small: Float64[np.ndarray, "recipe seed"],
    large: Float64[np.ndarray, "recipe large_seed"],
    rng: np.random.Generator,
    num_resamples: int,
) -> ProxyScale:
    tied = [name for name, of in (("this", small), ("the largest", large)) if all_tie(of)]
    if tied:
        unknown = Estimate(value=0.5, method=f"all recipes tie at {tied[-1]} scale: nothing is known")
        none = unknown.model_copy(update={"value": 0.0})
        return ProxyScale(scale, small.shape[0], small.shape[1], unknown, none)
    accuracies, correlations = [], []
    for size in _chunks(num_resamples, small.shape[0]):
        recipe_index = rng.integers(small.shape[0], size=(size, small.shape[0]))
        few, many = _resampled(small, recipe_index, rng), _resampled(large, recipe_index, rng).mean(axis=-1)
        accuracies.append(_pair_mean(_agreement(few, many), recipe_index))
        correlations.append(_spearman(few, many))
    method = f"bootstrap over recipes and seeds, {num_resamples} resamples"
    return ProxyScale(
        scale=scale,
        num_recipes=small.shape[0],
        num_seeds=small.shape[1],
        decision_accuracy=_estimate(decision_accuracy(small, large), np.concatenate(accuracies), method),
        rank_correlation=_estimate(rank_correlation(small, large), np.concatenate(correlations), method),
    )


def _resampled(
    scores: Float64[np.ndarray, "recipe seed"],
    recipe_index: Int64[np.ndarray, "resample place"],
    rng: np.random.Generator,
) -> Float64[np.ndarray, "resample place seed"]:
    """Return scores [sample, recipe, seed] of the sampled recipes, with seeds sampled within each."""
    num_seeds = scores.shape[1]
    seeds = rng.integers(num_seeds, size=(*recipe_index.shape, num_seeds))
    resampled: np.ndarray = scores[recipe_index[..., None], seeds]
    return resampled


def _agreement(
    small: Float64[np.ndarray, "resample recipe seed"], large: Float64[np.ndarray, "resample recipe"]
) -> Float64[np.ndarray, "resample recipe recipe"]:
    """[sample, recipe, recipe]: agreement of one small run each with the large means on the order of two recipes."""
    of_large = np.sign(large[:, :, None] - large[:, None, :])
    of_small = np.sign(small[:, :, None, :] - small[:, None, :, :])
    agreement: np.ndarray = (1.0 + (of_small * of_large[..., None]).mean(axis=-1)) / 2.0
    return agreement


def _pair_mean(
    agreement: Float64[np.ndarray, "resample place place"], recipe_index: Int64[np.ndarray, "resample place"]
) -> Float64[np.ndarray, "resample"]:
    """Return the mean over the pairs of different recipes in each sample."""
    is_pair = recipe_index[:, :, None] != recipe_index[:, None, :]
    share: np.ndarray = (agreement * is_pair).sum(axis=(1, 2)) / np.maximum(is_pair.sum(axis=(1, 2)), 1)
    return share


def _spearman(
    small: Float64[np.ndarray, "resample recipe seed"], large: Float64[np.ndarray, "resample recipe"]
) -> Float64[np.ndarray, "resample"]:
    """[sample]: correlation of ranks, averaged over seeds; 0 if either side is constant."""
    ranks = rankdata(small, axis=1)
    target_ranks = rankdata(large, axis=1)[..., None]
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    target_ranks = target_ranks - target_ranks.mean(axis=1, keepdims=True)
    scale_ = np.sqrt((ranks**2).sum(axis=1) * (target_ranks**2).sum(axis=1))
    correlation: np.ndarray = ((ranks * target_ranks).sum(axis=1) / np.where(scale_ > 0.0, scale_, 1.0)).mean(axis=-1)
    return correlation


def _estimate(value: float, replicates: Float64[np.ndarray, "resample"], method: str) -> Estimate:
    low, high = np.quantile(replicates, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return Estimate(value=value, low=float(low), high=float(high), method=method)


def _chunks(num_resamples: int, num_recipes: int) -> Sequence[int]:
    """Return how many samples to process at a time, so that the pairs of a chunk fit in memory."""
    size = max(1, min(num_resamples, 2_000_000 // num_recipes**2))
    whole, rest = divmod(num_resamples, size)
    return [size] * whole + ([rest] if rest else [])


def _checked(scores: Mapping[float, Float64[np.ndarray, "recipe _"]]) -> dict[float, Float64[np.ndarray, "recipe _"]]:
    if len(scores) < 2:
        raise DataError(f"{len(scores)} scale on record; a proxy needs runs at two scales or more.")
    checked = {scale: np.asarray(values, dtype=np.float64) for scale, values in scores.items()}
    shapes = {scale: values.shape for scale, values in checked.items()}
    if any(len(shape) != 2 or not shape[1] for shape in shapes.values()) or len({s[0] for s in shapes.values()}) > 1:
        raise DataError(f"scores by scale have shapes {shapes}; expected [recipe, seed] with the same recipes.")
    count = next(iter(shapes.values()))[0]
    if count < MIN_RECIPES:
        raise DataError(f"{count} recipes on record; a proxy's accuracy needs {MIN_RECIPES} or more.")
    for scale, values in checked.items():
        if not np.isfinite(values).all():
            raise DataError(f"scale {scale:g}: a score is not a number. Leave that recipe out at all scales.")
        if np.abs(values).max() > LARGEST_SCORE:
            raise DataError(
                f"scale {scale:g}: a score is beyond {LARGEST_SCORE:g}: a run that diverged, or another unit. "
                "Leave that recipe out at all scales."
            )
    return checked

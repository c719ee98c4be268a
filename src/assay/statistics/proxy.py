"""The smallest scale that tells the truth: how well small runs predict which recipe wins at a large one.

From runs on record, several recipes at several scales. A scale's *decision accuracy* is the share of pairs of
recipes that one run at that scale puts in the order of the largest scale's mean (DataDecide, arXiv
2504.11393, found about 80% at 150 M parameters for 1 B); its *rank correlation* is Spearman's. Both get a
bootstrap over recipes and over seeds: recipes are what the next decision will be about, so they are drawn
anew; a pair of one recipe with itself is no pair.

The recommended scale is the cheapest whose decision accuracy has a lower bound of at least the wanted one; if
there is none, the answer is none, not the best of the bad. Where all recipes tie at a scale, it says nothing.
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
    """What one scale's runs say of the largest scale's."""

    scale: float
    """As given: parameters, tokens, FLOP."""
    num_recipes: int
    num_seeds: int
    decision_accuracy: Estimate
    """Share of pairs in the right order, from one run of each; 0.5 is a coin, without an interval where all
    recipes tie here or at the largest scale."""
    rank_correlation: Estimate
    """Spearman's, of one run of each with the largest scale's mean."""


class ProxyAdvice(NamedTuple):
    """All smaller scales, ascending, and the recommended one."""

    scales: tuple[ProxyScale, ...]
    target_scale: float
    recommended: ProxyScale | None
    """None where no smaller scale's lower bound reaches what was wanted."""


def proxy_advice(
    scores: Mapping[float, Float64[np.ndarray, "recipe _"]],
    *,
    rng: np.random.Generator,
    min_accuracy: float = 0.80,
    num_resamples: int = NUM_RESAMPLES,
) -> ProxyAdvice:
    """Judge each scale against the largest, from scores[recipe, seed] by scale; higher is better.

    Recipes stand in the same order at all scales, seeds may differ in number. Raises `DataError` with fewer
    than two scales or four recipes, unequal recipes, or scores that are not numbers.
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
    """Share of pairs of recipes that one small run each orders as the large scale's means do.

    `small` and `large`: [recipe, seed]. Averaged over the small seeds; a tie on either side counts one half.
    """
    agreement = _agreement(small[None], large.mean(axis=1)[None])[0]
    upper = np.triu_indices(small.shape[0], k=1)
    return float(agreement[upper].mean())


def rank_correlation(
    small: Float64[np.ndarray, "recipe seed"], large: Float64[np.ndarray, "recipe large_seed"]
) -> float:
    """Spearman's correlation of one small run each with the large means, averaged over small seeds."""
    return float(_spearman(small[None], large.mean(axis=1)[None])[0])


def all_tie(scores: Float64[np.ndarray, "recipe seed"]) -> bool:
    """Whether no recipe is better than another, but for rounding: a benchmark at its ceiling or floor."""
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
        recipes = rng.integers(small.shape[0], size=(size, small.shape[0]))
        few, many = _resampled(small, recipes, rng), _resampled(large, recipes, rng).mean(axis=-1)
        accuracies.append(_pair_mean(_agreement(few, many), recipes))
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
    recipes: Int64[np.ndarray, "resample place"],
    rng: np.random.Generator,
) -> Float64[np.ndarray, "resample place seed"]:
    """Scores [resample, recipe, seed] of the drawn recipes, with seeds drawn anew within each."""
    num_seeds = scores.shape[1]
    seeds = rng.integers(num_seeds, size=(*recipes.shape, num_seeds))
    resampled: np.ndarray = scores[recipes[..., None], seeds]
    return resampled


def _agreement(
    small: Float64[np.ndarray, "resample recipe seed"], large: Float64[np.ndarray, "resample recipe"]
) -> Float64[np.ndarray, "resample recipe recipe"]:
    """[resample, recipe, recipe]: how far one small run each agrees with the large means on their order."""
    of_large = np.sign(large[:, :, None] - large[:, None, :])
    of_small = np.sign(small[:, :, None, :] - small[:, None, :, :])
    agreement: np.ndarray = (1.0 + (of_small * of_large[..., None]).mean(axis=-1)) / 2.0
    return agreement


def _pair_mean(
    agreement: Float64[np.ndarray, "resample place place"], recipes: Int64[np.ndarray, "resample place"]
) -> Float64[np.ndarray, "resample"]:
    """Mean over the pairs of different recipes in each resample."""
    is_pair = recipes[:, :, None] != recipes[:, None, :]
    share: np.ndarray = (agreement * is_pair).sum(axis=(1, 2)) / np.maximum(is_pair.sum(axis=(1, 2)), 1)
    return share


def _spearman(
    small: Float64[np.ndarray, "resample recipe seed"], large: Float64[np.ndarray, "resample recipe"]
) -> Float64[np.ndarray, "resample"]:
    """[resample]: correlation of ranks, averaged over seeds; 0 where either side is constant."""
    ranks = rankdata(small, axis=1)
    target_ranks = rankdata(large, axis=1)[..., None]
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    target_ranks = target_ranks - target_ranks.mean(axis=1, keepdims=True)
    scale_ = np.sqrt((ranks**2).sum(axis=1) * (target_ranks**2).sum(axis=1))
    correlation: np.ndarray = ((ranks * target_ranks).sum(axis=1) / np.where(scale_ > 0.0, scale_, 1.0)).mean(
        axis=-1
    )
    return correlation


def _estimate(value: float, replicates: Float64[np.ndarray, "resample"], method: str) -> Estimate:
    low, high = np.quantile(replicates, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return Estimate(value=value, low=float(low), high=float(high), method=method)


def _chunks(num_resamples: int, num_recipes: int) -> Sequence[int]:
    """Resamples at a time, so that the pairs of a chunk fit in memory."""
    size = max(1, min(num_resamples, 2_000_000 // num_recipes**2))
    whole, rest = divmod(num_resamples, size)
    return [size] * whole + ([rest] if rest else [])


def _checked(
    scores: Mapping[float, Float64[np.ndarray, "recipe _"]],
) -> dict[float, Float64[np.ndarray, "recipe _"]]:
    if len(scores) < 2:
        raise DataError(f"{len(scores)} scale on record; a proxy needs runs at two scales or more.")
    checked = {scale: np.asarray(values, dtype=np.float64) for scale, values in scores.items()}
    shapes = {scale: values.shape for scale, values in checked.items()}
    if (
        any(len(shape) != 2 or not shape[1] for shape in shapes.values())
        or len({s[0] for s in shapes.values()}) > 1
    ):
        raise DataError(f"scores by scale have shapes {shapes}; expected [recipe, seed] with the same recipes.")
    num_recipes = next(iter(shapes.values()))[0]
    if num_recipes < MIN_RECIPES:
        raise DataError(f"{num_recipes} recipes on record; a proxy's accuracy needs {MIN_RECIPES} or more.")
    for scale, values in checked.items():
        if not np.isfinite(values).all():
            raise DataError(f"scale {scale:g}: a score is not a number. Leave that recipe out at all scales.")
        if np.abs(values).max() > LARGEST_SCORE:
            raise DataError(
                f"scale {scale:g}: a score is beyond {LARGEST_SCORE:g}: a run that diverged, or another unit. "
                "Leave that recipe out at all scales."
            )
    return checked

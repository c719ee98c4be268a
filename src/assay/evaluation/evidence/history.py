"""The whole story of a candidate: every checkpoint on every benchmark against the baseline, in one call.

For looking, not for claiming: the best of two hundred checkpoints is better than the truth, and its interval
does not know that it was picked. Claims are made at the declared checkpoint (`campaign_rule`). Each
benchmark's checkpoints are one array operation, so 200 checkpoints x 20 benchmarks x 2,000 items take seconds.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.errors import DataError
from assay.evaluation.evidence.effect import Clusters, Effect
from assay.evaluation.evidence.interval import CONFIDENCE, Floats
from assay.evaluation.evidence.several import Composites, composites, holm, one_sided_p


class ScoreHistory(NamedTuple):
    """Differences to the baseline over checkpoints; arrays are [checkpoint, benchmark] unless said."""

    benchmarks: tuple[str, ...]
    difference: Floats
    low: Floats
    high: Floats
    is_items_only: bool
    """One seed: the intervals are about these very models, not about the method."""
    adjusted_p: Floats
    """One-sided, by Holm over the benchmarks of a checkpoint; 1 with one seed."""
    composite: Effect
    """[checkpoint]: the mean over benchmarks."""
    composite_low: Floats
    composite_high: Floats
    least_without_one: Floats
    """[checkpoint]: the smallest composite when any one benchmark is left out."""
    best_so_far: npt.NDArray[np.int64]
    """[checkpoint]: which checkpoint up to here has the largest composite."""


def score_history(
    baseline: Mapping[str, Floats],
    candidate: Mapping[str, Floats],
    clusters: Mapping[str, Clusters] | None = None,
    weights: Mapping[str, Floats] | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> ScoreHistory:
    """Compare [checkpoint, seed, item] scores with the baseline's [seed, item], benchmark by benchmark.

    Seeds are paired. Raises `DataError` where the two have other benchmarks, seeds or items, or where
    benchmarks have other checkpoints.
    """
    differences = _differences(baseline, candidate)
    found = composites(differences, clusters, weights)
    is_items_only = bool((found.composite.seed_degrees <= 0).any())
    intervals = [_interval(effect, confidence, is_items_only) for effect in found.of_benchmarks.values()]
    composite_low, composite_high = _interval(found.composite, confidence, is_items_only)
    mean = found.composite.mean
    p_values = np.stack([one_sided_p(effect) for effect in found.of_benchmarks.values()], axis=-1)
    return ScoreHistory(
        benchmarks=tuple(differences),
        difference=np.stack([effect.mean for effect in found.of_benchmarks.values()], axis=-1),
        low=np.stack([low for low, _ in intervals], axis=-1),
        high=np.stack([high for _, high in intervals], axis=-1),
        is_items_only=is_items_only,
        adjusted_p=holm(p_values),
        composite=found.composite,
        composite_low=composite_low,
        composite_high=composite_high,
        least_without_one=_least_without_one(found),
        best_so_far=_best_so_far(mean),
    )


def _differences(baseline: Mapping[str, Floats], candidate: Mapping[str, Floats]) -> dict[str, Floats]:
    if set(baseline) != set(candidate):
        only = sorted(set(baseline) ^ set(candidate))
        raise DataError(f"Benchmarks {only} are on one side only. Evaluate both sides on each.")
    differences = {}
    for name, before in baseline.items():
        after = candidate[name]
        if after.ndim != 3 or after.shape[1:] != before.shape:
            raise DataError(
                f"{name}: baseline {before.shape} (seeds, items), candidate {after.shape} (checkpoints, "
                "seeds, items). Evaluate both on the same seeds and items."
            )
        differences[name] = after - before
    checkpoints = {name: values.shape[0] for name, values in differences.items()}
    if len(set(checkpoints.values())) > 1:
        raise DataError(f"Benchmarks have unequal numbers of checkpoints: {checkpoints}.")
    return differences


def _interval(effect: Effect, confidence: float, is_items_only: bool) -> tuple[Floats, Floats]:
    if is_items_only:
        silent = np.zeros_like(effect.mean)
        effect = effect._replace(seed_variance=silent, residual_variance=silent, seed_degrees=silent + 1.0)
    level = 0.5 + confidence / 2.0
    return effect.lower(level), effect.upper(level)


def _least_without_one(found: Composites) -> Floats:
    means = np.stack([effect.mean for effect in found.of_benchmarks.values()], axis=-1)
    count = means.shape[-1]
    if count == 1:
        return found.composite.mean
    least: Floats = ((means.sum(axis=-1, keepdims=True) - means) / (count - 1)).min(axis=-1)
    return least


def _best_so_far(mean: Floats) -> npt.NDArray[np.int64]:
    is_best = mean >= np.maximum.accumulate(mean)
    return np.maximum.accumulate(np.where(is_best, np.arange(mean.size), 0))

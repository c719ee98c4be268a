"""Several benchmarks at once: one composite, and every benchmark left out in turn.

The composite is the plain mean of the benchmarks' mean differences, so that a long benchmark does not outvote
a short one. Its seeds are common to all benchmarks (a lucky seed is lucky on several), its items usually are
not: the seed variance is taken of the composite itself, the item variances add. Where benchmarks score the same
items (`shared_items`), theirs is taken of the composite, too.

A gain that one benchmark alone carries is no gain of the method. So each benchmark is left out in turn, and
the verdict must stand (`campaign_rule`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from assay.base.errors import DataError
from assay.evaluation.evidence.effect import (
    Effect,
    clustered_variance,
    item_shares,
    num_clusters,
    paired_effect,
)
from assay.evaluation.evidence.shared_items import sharing_groups


class Breadth(NamedTuple):
    """Whether a composite gain rests on more than one benchmark."""

    composite: Effect
    left_out: dict[str, Effect]
    """The composite of the others, by the benchmark that was left out; empty with one benchmark."""
    of_benchmarks: dict[str, Effect]

    @property
    def least_without_one(self) -> float:
        """The smallest composite that any one benchmark's absence leaves; the composite itself with one."""
        return min(
            (float(effect.mean) for effect in self.left_out.values()), default=float(self.composite.mean)
        )

    @property
    def share_positive(self) -> float:
        """Share of the benchmarks on which the candidate is better."""
        means = [float(effect.mean) for effect in self.of_benchmarks.values()]
        return sum(mean > 0.0 for mean in means) / len(means)


def breadth(
    differences: Mapping[str, Float64[np.ndarray, "*leading seed _"]],
    clusters: Mapping[str, Shaped[np.ndarray, "_"]] | None = None,
    weights: Mapping[str, Float64[np.ndarray, "_"]] | None = None,
    draws: Mapping[str, Int64[np.ndarray, "_"]] | None = None,
) -> Breadth:
    """The composite of [seed, item] differences, and of the rest when each benchmark is left out.

    `draws`: which items of different benchmarks are one draw (`shared_items.common_draws`); None: none are.
    """
    effects = _each_effect(differences, clusters, weights)
    seed_means = _seed_means(differences, weights)

    def composite_of(names: Sequence[str]) -> Effect:
        found = _composite({name: effects[name] for name in names}, {name: seed_means[name] for name in names})
        if draws is None:
            return found
        return _with_shared_items(
            found,
            {name: effects[name] for name in names},
            {name: differences[name] for name in names},
            draws={name: draws[name] for name in names},
            weights=weights,
        )

    left_out = {
        name: composite_of([other for other in effects if other != name])
        for name in (effects if len(effects) > 1 else ())
    }
    return Breadth(composite_of(list(effects)), left_out, effects)


def _each_effect(
    differences: Mapping[str, Float64[np.ndarray, "*leading seed _"]],
    clusters: Mapping[str, Shaped[np.ndarray, "_"]] | None,
    weights: Mapping[str, Float64[np.ndarray, "_"]] | None,
) -> dict[str, Effect]:
    if not differences:
        raise DataError("No benchmark to compare on. Evaluate baseline and candidate on at least one.")
    seeds = {name: values.shape[-2] for name, values in differences.items()}
    if len(set(seeds.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in seeds.items())
        raise DataError(f"Benchmarks differ in their number of seeds: {listed}. Evaluate each seed on each.")
    return {
        name: paired_effect(values, (clusters or {}).get(name), (weights or {}).get(name))
        for name, values in differences.items()
    }


def _seed_means(
    differences: Mapping[str, Float64[np.ndarray, "*leading seed _"]],
    weights: Mapping[str, Float64[np.ndarray, "_"]] | None,
) -> dict[str, Float64[np.ndarray, "*leading seed"]]:
    return {
        name: values @ item_shares((weights or {}).get(name), values.shape[-1])
        for name, values in differences.items()
    }


def _composite(
    effects: Mapping[str, Effect], seed_means: Mapping[str, Float64[np.ndarray, "*leading seed"]]
) -> Effect:
    count = len(effects)
    by_seed = np.mean(np.stack(list(seed_means.values())), axis=0)
    num_seeds = by_seed.shape[-1]
    seed_variance = (
        by_seed.var(axis=-1, ddof=1) / num_seeds if num_seeds > 1 else np.full(by_seed.shape[:-1], np.inf)
    )
    return Effect(
        mean=by_seed.mean(axis=-1),
        seed_variance=seed_variance,
        item_variance=np.asarray(sum(effect.item_variance for effect in effects.values()) / count**2),
        residual_variance=np.asarray(sum(effect.residual_variance for effect in effects.values()) / count**2),
        seed_degrees=np.full(by_seed.shape[:-1], float(num_seeds - 1)),
        item_degrees=sum(effect.item_degrees for effect in effects.values()),
    )


def _with_shared_items(
    composite: Effect,
    effects: Mapping[str, Effect],
    differences: Mapping[str, Float64[np.ndarray, "*leading seed _"]],
    *,
    draws: Mapping[str, Int64[np.ndarray, "_"]],
    weights: Mapping[str, Float64[np.ndarray, "_"]] | None,
) -> Effect:
    """The composite's item and residual variance where groups of benchmarks score the same items."""
    groups = sharing_groups(draws)
    if len(groups) == len(effects):
        return composite
    parts = []
    for group in groups:
        if len(group) == 1:
            parts.append(effects[group[0]])
            continue
        of_items, residuals = zip(
            *(_deviations(differences[n], (weights or {}).get(n)) for n in group), strict=True
        )
        joined, num_seeds = np.concatenate([draws[name] for name in group]), residuals[0].shape[-2]
        of_seeds = clustered_variance(np.concatenate(residuals, axis=-1), joined).sum(axis=-1)
        parts.append(
            effects[group[0]]._replace(
                item_variance=clustered_variance(np.concatenate(of_items, axis=-1), joined),
                residual_variance=of_seeds / max(num_seeds * (num_seeds - 1), 1),
                item_degrees=num_clusters(joined, joined.size) - 1,
            )
        )
    count = len(effects)
    return composite._replace(
        item_variance=np.asarray(sum(part.item_variance for part in parts) / count**2),
        residual_variance=np.asarray(sum(part.residual_variance for part in parts) / count**2),
        item_degrees=sum(part.item_degrees for part in parts),
    )


def _deviations(
    differences: Float64[np.ndarray, "*leading seed item"], weights: Float64[np.ndarray, "item"] | None
) -> tuple[Float64[np.ndarray, "*leading item"], Float64[np.ndarray, "*leading seed item"]]:
    """Of the items' means [..., item], and of each seed's item from both means [..., seed, item], weighted."""
    share = item_shares(weights, differences.shape[-1])
    of_items = differences.mean(axis=-2)
    of_items = of_items - (of_items @ share)[..., None]
    residuals = differences - (differences @ share)[..., None] - of_items[..., None, :]
    return of_items * share, residuals * share

"""The composite effect over several benchmarks, with and without each of them.

The composite is the plain mean of the benchmarks' mean differences, so that a long benchmark does not outweigh a short
one. Its seeds are common to all benchmarks (a good seed is good on several), while its items usually are not. The seed
variance is therefore that of the composite, and the item variances are added. If benchmarks score the same items
(`shared_items`), their item variance is that of the composite too.

A gain on one benchmark alone is not a gain of the method. Each benchmark is therefore left out in turn, and the verdict
must hold (`campaign.rule`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from assay.base.errors import DataError
from assay.base.shapes import Float64, Int64, Shaped
from assay.statistics.effect import Effect, Leading, item_shares, paired_effect, variance_of_seeds
from assay.statistics.interval import clustered_variance
from assay.statistics.shared_items import sharing_groups


class Breadth(NamedTuple):
    """A composite effect, and the effects that show whether it rests on more than one benchmark."""

    composite: Effect
    left_out: dict[str, Effect]
    """Composite of the others, by the benchmark that was left out; empty with one benchmark."""
    of_benchmarks: dict[str, Effect]

    @property
    def least_without_one(self) -> float:
        """Smallest composite with one benchmark left out; the composite itself if there is one benchmark."""
        return min((float(effect.mean) for effect in self.left_out.values()), default=float(self.composite.mean))

    @property
    def share_positive(self) -> float:
        """Share of the benchmarks on which the candidate is better."""
        means = [float(effect.mean) for effect in self.of_benchmarks.values()]
        return sum(mean > 0.0 for mean in means) / len(means)

    def within(self, limit: float) -> "Breadth":
        """Return the same with bounds clipped to +-`limit`."""

        def limited(effects: Mapping[str, Effect]) -> dict[str, Effect]:
            return {name: effect._replace(limit=limit) for name, effect in effects.items()}

        composite = self.composite._replace(limit=limit)
        return Breadth(composite, limited(self.left_out), limited(self.of_benchmarks))


def breadth(
    differences: Mapping[str, Float64[np.ndarray, "*leading seed _"]],
    clusters: Mapping[str, Shaped[np.ndarray, "_"]] | None = None,
    weights: Mapping[str, Float64[np.ndarray, "_"]] | None = None,
    joint_clusters: Mapping[str, Int64[np.ndarray, "_"]] | None = None,
    *,
    largest: Mapping[str, float] | None = None,
) -> Breadth:
    """Return the composite of [seed, item] differences, and the composites with each benchmark left out.

    `joint_clusters` tells which items of different benchmarks are one draw (`shared_items.joint_clusters`); None: none
    are. `largest` by benchmark: see `effect.paired_effect`.
    """
    if not differences:
        raise DataError("No benchmark to compare on. Evaluate baseline and candidate on at least one.")
    seeds = {name: values.shape[-2] for name, values in differences.items()}
    if len(set(seeds.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in seeds.items())
        raise DataError(f"Benchmarks differ in their number of seeds: {listed}. Evaluate each seed on each.")
    found = {
        name: _benchmark(
            values,
            (clusters or {}).get(name),
            (weights or {}).get(name),
            (joint_clusters or {}).get(name),
            largest=None if largest is None else largest[name],
        )
        for name, values in differences.items()
    }
    left_out = {
        name: _composite({other: benchmark for other, benchmark in found.items() if other != name})
        for name in (found if len(found) > 1 else ())
    }
    return Breadth(_composite(found), left_out, {name: benchmark.effect for name, benchmark in found.items()})


class _Benchmark(NamedTuple):
    """One benchmark's part of a composite."""

    effect: Effect
    seed_means: Float64[np.ndarray, "*leading seed"]
    differences: Float64[np.ndarray, "*leading seed item"]
    share: Float64[np.ndarray, "item"]
    joint_clusters: Int64[np.ndarray, "item"] | None
    largest: float | None


def _benchmark(
    differences: Float64[np.ndarray, "*leading seed item"],
    clusters: Shaped[np.ndarray, "item"] | None,
    weights: Float64[np.ndarray, "item"] | None,
    joint_clusters: Int64[np.ndarray, "item"] | None,
    *,
    largest: float | None,
) -> _Benchmark:
    share = item_shares(weights, differences.shape[-1])
    effect = paired_effect(differences, clusters, weights, largest=largest)
    return _Benchmark(effect, differences @ share, differences, share, joint_clusters, largest)


def _composite(benchmarks: Mapping[str, _Benchmark]) -> Effect:
    count = len(benchmarks)
    by_seed = np.mean(np.stack([benchmark.seed_means for benchmark in benchmarks.values()]), axis=0)
    joint_clusters = {
        name: benchmark.joint_clusters for name, benchmark in benchmarks.items() if benchmark.joint_clusters is not None
    }
    groups = sharing_groups(joint_clusters) if joint_clusters else [[name] for name in benchmarks]
    parts = [_of_group([benchmarks[name] for name in group]) for group in groups]
    variance = np.asarray(sum(part.item_variance for part in parts))
    return Effect(
        mean=by_seed.mean(axis=-1),
        seed_variance=variance_of_seeds(by_seed),
        item_variance=variance / count**2,
        residual_variance=np.asarray(sum(part.residual_variance for part in parts) / count**2),
        seed_degrees=np.full(by_seed.shape[:-1], float(by_seed.shape[-1] - 1)),
        item_degrees=_degrees(parts, variance),
    )


def _degrees(parts: Sequence[Effect], variance: Leading) -> Leading:
    """Return Satterthwaite's degrees of a sum of variances; the total degrees if nothing varies."""
    if len(parts) == 1:
        return np.asarray(parts[0].item_degrees)
    with np.errstate(invalid="ignore", divide="ignore"):
        scatter = sum(np.square(part.item_variance) / part.item_degrees for part in parts)
        found = np.square(variance) / scatter
    most = np.asarray(sum(part.item_degrees for part in parts))
    return np.where(np.isinf(variance), 0.0, np.where(variance > 0.0, found, most))


def _of_group(group: Sequence[_Benchmark]) -> Effect:
    """Return an effect with the item and residual variance of the sum over benchmarks that score the same items."""
    first, first_largest = group[0].effect, group[0].largest
    if len(group) == 1:
        return first
    item_deviations, residuals = zip(*(_deviations(benchmark) for benchmark in group), strict=True)
    joined = np.concatenate([benchmark.joint_clusters for benchmark in group if benchmark.joint_clusters is not None])
    shares = np.concatenate([benchmark.share for benchmark in group])
    num_seeds = group[0].differences.shape[-2]
    of_seeds = clustered_variance(np.concatenate(residuals, axis=-1), joined, shares).variance.sum(axis=-1)
    largest = None if first_largest is None else sum(benchmark.largest or 0.0 for benchmark in group)
    together = clustered_variance(
        np.concatenate(item_deviations, axis=-1), joined, shares, largest=largest, copies=len(group)
    )
    return first._replace(
        item_variance=together.variance,
        residual_variance=of_seeds / max(num_seeds * (num_seeds - 1), 1),
        item_degrees=together.degrees,
    )


def _deviations(
    benchmark: _Benchmark,
) -> tuple[Float64[np.ndarray, "*leading item"], Float64[np.ndarray, "*leading seed item"]]:
    """Return weighted deviations of item means [..., item], and of each seed on each item [..., seed, item]."""
    item_deviations = benchmark.differences.mean(axis=-2)
    item_deviations = item_deviations - (item_deviations @ benchmark.share)[..., None]
    residuals = benchmark.differences - benchmark.seed_means[..., None] - item_deviations[..., None, :]
    return item_deviations * benchmark.share, residuals * benchmark.share

"""The facts from which a candidate's gates are judged: per-item results of paired seeds, and their cost.

    scores[seed, item] of the items that baseline and candidate both scored, with higher being better
        --> differences, effects, breadth; failures for safety
    audits and device time of the runs; the records that a clause needs; forecast; sealed holdout

Facts are plain values, gathered once (`workflows.campaign.evidence`), and judged by pure functions under many
variations. A clause therefore cannot depend on anything else.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.digest import sha256_of_json
from assay.base.errors import DataError
from assay.decision.config import Benchmark, CampaignConfig
from assay.records.benchmark import BenchmarkResult
from assay.records.campaign import CampaignRun
from assay.records.coverage import Coverage
from assay.records.decision import Look, Source
from assay.records.drill import DrillReport
from assay.records.evaluation import Estimate
from assay.records.statement import Statement
from assay.statistics.benchmark_items import ScoreMatrix
from assay.statistics.composite import Breadth, breadth
from assay.statistics.effect import Effect, estimate_of, paired_effect
from assay.statistics.failure_rate import Trials, independent_trials
from assay.statistics.guardrail import Harm, harm_of
from assay.statistics.seeds.trimmed import MIN_SEEDS, OverSeeds, inner_seeds, trimmed_effect
from assay.statistics.shared_items import ItemCollection, joint_clusters

Role = Literal["primary", "guardrail", "safety", "sealed", "other"]
Floats = npt.NDArray[np.float64]


class BenchmarkFacts(NamedTuple):
    """One benchmark under baseline and candidate."""

    name: str
    role: Role
    unit: str
    baseline: Floats
    """[seed, item]; higher is better."""
    candidate: Floats
    clusters: npt.NDArray[np.intp]
    weights: Floats
    """[item]"""
    effect: Effect
    num_dropped: int
    """Items that a run failed to score; they are left out for all runs."""
    failed: npt.NDArray[np.bool_]
    """[item]: below full marks in the candidate's worst seed. Seeds share the items, so their trials are dependent, and
    only the worst seed is used."""
    results: tuple[BenchmarkResult, ...]
    """The baseline's first, by seed."""
    sources: tuple[Source, ...]
    items: ItemCollection | None = None
    """Identifies items that other benchmarks score, too; None if there are none."""
    where: Mapping[str, Any] = MappingProxyType({})
    """Values that select its rows; empty for all held-out rows, and for suites."""

    @property
    def differences(self) -> Floats:
        """Candidate minus baseline, [seed, item]."""
        return self.candidate - self.baseline

    @property
    def num_clusters(self) -> int:
        """Independent draws of items."""
        return int(np.unique(self.clusters).size)

    def of_seeds(self, mask: npt.NDArray[np.bool_]) -> "BenchmarkFacts":
        """Return the facts as if only these seeds had been trained."""
        return self._replace(
            baseline=self.baseline[mask],
            candidate=self.candidate[mask],
            effect=_effect(self.differences[mask], self.clusters, self.weights, unit=self.unit),
        )

    @property
    def num_differing(self) -> int:
        """Items with different scores in some seed."""
        return int(np.count_nonzero(self.differences.any(axis=0)))

    @property
    def is_better_higher(self) -> bool:
        return all(result.higher_is_better for result in self.results)

    @property
    def estimate(self) -> Estimate:
        """The effect with its 95% interval."""
        return estimate_of(self.effect)

    @property
    def harm(self) -> Harm:
        found = harm_of(self.differences, self.clusters, self.weights, is_share=self.unit == "share")
        return found.within(self.effect.limit)

    @property
    def trials(self) -> Trials:
        """Independent trials that the worst seed's failures are equivalent to."""
        return independent_trials(self.failed, self.clusters)

    @property
    def by_seed(self) -> Floats:
        """The effect in each seed."""
        means: Floats = np.average(self.differences, axis=1, weights=self.weights)
        return means


class ForecastFacts(NamedTuple):
    """The gain at the target scale, by campaigns at other scales or by an external record."""

    gain: tuple[float, float] | None
    """80% lower bound, and value."""
    problem: str
    """Why there is no forecast; empty if there is one."""
    sources: tuple[Source, ...]
    """Decisions of the other campaigns, or the record."""


class PlanFacts(NamedTuple):
    """Results of a plan's simulation."""

    on_time: float
    """Probability."""
    in_budget: float
    """Probability."""
    source: Source
    decision: Mapping[str, Any] = MappingProxyType({})
    """Dates of the program's decision (`low`, `middle`, `high`, `due`), and its `device_hours` by then; empty if the
    offer has none."""


class HoldoutFacts(NamedTuple):
    """Result of the sealed benchmark after it was opened, or why it is invalid."""

    benchmark: BenchmarkFacts | None
    problem: Statement | None
    """None if it is valid."""
    opening: Source | None
    """Record of its opening; None if it was not opened for this candidate."""


class Facts(NamedTuple):
    """All facts about one candidate at one look."""

    candidate: str
    look: Look
    benchmarks: dict[str, BenchmarkFacts]
    breadth: Breadth
    """Effects of the primary benchmarks; holds the composite effect that is decided on."""
    unit: str
    """Unit of the composite."""
    runs: tuple[CampaignRun, ...]
    """Baseline's and candidate's, by seed."""
    budget_s: float
    recipe: Mapping[str, Any]
    """The candidate's resolved recipe."""
    coverage: tuple[Coverage, Source] | None = None
    """This and the next four are None if the rule does not need them."""
    drill: tuple[DrillReport, Source] | None = None
    plan: PlanFacts | None = None
    forecast: ForecastFacts | None = None
    secondary: tuple[BenchmarkFacts, ...] = ()
    """Other scores of the primary benchmarks' rows; no gate uses them."""
    most_items: Mapping[str, int] = MappingProxyType({})
    """Benchmark -> items that it would have if all rows of the dataset were held out; for predictions only."""
    over_seeds: OverSeeds = "mean"
    """How the composite averages the seeds' gains."""
    holdout: HoldoutFacts | None = None
    """None also while the sealed benchmark is closed."""

    @property
    def num_seeds(self) -> int:
        return self.look.num_seeds

    @property
    def spent_s(self) -> float:
        """Device time of both arms."""
        return sum(run.device_s for run in self.runs)

    @property
    def pair_s(self) -> float:
        """Device time of one more seed of both arms."""
        return self.spent_s / self.num_seeds

    @property
    def composite(self) -> Effect:
        """The primary effect."""
        return self.breadth.composite

    @property
    def estimate(self) -> Estimate:
        """The primary effect with its 95% interval."""
        return estimate_of(self.composite)

    @property
    def primary(self) -> list[BenchmarkFacts]:
        return [self.benchmarks[name] for name in self.breadth.of_benchmarks]

    @property
    def can_spare_a_seed(self) -> bool:
        """Whether enough seeds remain without one of them."""
        return self.num_seeds > (MIN_SEEDS if self.over_seeds == "trimmed" else 2)

    def without_seed(self, seed_index: int) -> "Facts":
        """Return the facts as if this seed had not been trained; the look's level stays."""
        mask = np.arange(self.num_seeds) != seed_index
        run_mask = np.concatenate([mask, mask])
        found = {name: benchmark.of_seeds(mask) for name, benchmark in self.benchmarks.items()}
        holdout = self.holdout
        if holdout is not None and holdout.benchmark is not None:
            holdout = holdout._replace(benchmark=holdout.benchmark.of_seeds(mask))
        return self._replace(
            look=self.look.model_copy(update={"num_seeds": self.num_seeds - 1}),
            benchmarks=found,
            breadth=_breadth([found[name] for name in self.breadth.of_benchmarks], self.over_seeds),
            runs=tuple(run for run, is_included in zip(self.runs, run_mask, strict=True) if is_included),
            holdout=holdout,
        )

    def without_primary(self, benchmark: str) -> "Facts":
        """Return the facts as if the benchmark were not primary."""
        others = [self.benchmarks[name] for name in self.breadth.of_benchmarks if name != benchmark]
        return self._replace(breadth=_breadth(others, self.over_seeds))


def _refuse_unpaired(campaign: str, runs: Sequence[CampaignRun]) -> None:
    """Raise `DataError` if a seed's run is missing in one arm: arms are compared seed by seed."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.arm, set()).add(run.seed)
    everywhere = set().union(*seeds.values())
    gone = [
        f"'{arm}' with seed {seed}" for arm, seeds_of_arm in seeds.items() for seed in sorted(everywhere - seeds_of_arm)
    ]
    if gone:
        raise DataError(
            f"campaign '{campaign}' compares its arms seed by seed, and the run of {', '.join(gone)} is "
            "missing. Restore its folder, or train it again with 'assay decide run'."
        )


def facts_of(
    config: CampaignConfig,
    candidate: str,
    look: Look,
    found: Mapping[str, BenchmarkFacts],
    runs: Sequence[CampaignRun],
    *,
    recipe: Mapping[str, Any],
) -> Facts:
    """Return the facts about the open benchmarks.

    `runs` are the baseline's, then the candidate's, by seed; `recipe` is the candidate's, resolved. Raises `DataError`
    if the primary benchmarks differ in unit.
    """
    _refuse_unpaired(config.name, runs)
    primary = {name: found[name] for name in config.rule.primary}
    unit = _one_unit(primary)
    return Facts(
        candidate=candidate,
        look=look,
        benchmarks=dict(found),
        breadth=_breadth(list(primary.values()), config.rule.over_seeds),
        unit=unit,
        over_seeds=config.rule.over_seeds,
        runs=tuple(runs),
        budget_s=config.budget_device_hours * 3600.0,
        recipe=recipe,
    )


def role_of(config: CampaignConfig, benchmark: str) -> Role:
    """Return how the campaign uses a benchmark; the primary role comes first."""
    if benchmark in config.rule.primary:
        return "primary"
    if benchmark in {safety.benchmark for safety in config.rule.safety}:
        return "safety"
    if config.rule.sealed is not None and benchmark == config.rule.sealed.benchmark:
        return "sealed"
    return "guardrail" if benchmark in {guardrail.benchmark for guardrail in config.rule.guardrails} else "other"


def benchmark_facts(
    benchmark: Benchmark,
    role: Role,
    matrix: ScoreMatrix,
    results: tuple[BenchmarkResult, ...],
    sources: tuple[Source, ...] = (),
) -> BenchmarkFacts:
    """Return the facts about one benchmark, from the scores of both arms' runs: the baseline's first, by seed."""
    result = results[0]
    if not matrix.scores.shape[1]:
        raise DataError(
            f"benchmark '{benchmark.name}': no item was scored by all {len(results)} runs, so nothing "
            "can be compared. Evaluate the runs again."
        )
    num_seeds = len(results) // 2
    turned = matrix.scores if result.higher_is_better else -matrix.scores
    baseline, candidate = turned[:num_seeds], turned[num_seeds:]
    return BenchmarkFacts(
        name=benchmark.name,
        role=role,
        unit=result.unit,
        baseline=baseline,
        candidate=candidate,
        clusters=matrix.clusters,
        weights=matrix.weights,
        effect=_effect(candidate - baseline, matrix.clusters, matrix.weights, unit=result.unit),
        num_dropped=matrix.num_dropped,
        failed=_failed_in_worst_seed(matrix.scores[num_seeds:], higher_is_better=result.higher_is_better),
        results=results,
        sources=sources,
        items=_collection(benchmark, matrix),
        where=dict(benchmark.where) if benchmark.type == "predictions" else {},
    )


def _collection(benchmark: Benchmark, matrix: ScoreMatrix) -> ItemCollection:
    """Identify a benchmark's items, to find those that other benchmarks share.

    Predictions are of one split's rows, and a column has the same value in every benchmark. Other benchmarks share
    items with equal ids if each item is its own cluster, or else if all ids and clusters are equal. Line numbers of
    unrelated files are equal too, but their noise is independent, and summing item by item then equals adding
    variances. Clusters of unrelated files must not be joined by their line numbers, because all would merge into one.
    """
    if benchmark.type == "predictions":
        is_common = benchmark.cluster is not None
        names = [f"{benchmark.cluster}: {name}" for name in matrix.cluster_names] if is_common else None
        return ItemCollection("rows", matrix.item_ids, matrix.clusters, names)
    if len(set(matrix.clusters.tolist())) == len(matrix.item_ids):
        return ItemCollection("items", matrix.item_ids, matrix.clusters)
    equal = sha256_of_json({"ids": matrix.item_ids, "clusters": matrix.clusters.tolist()})
    return ItemCollection(equal, matrix.item_ids, matrix.clusters)


def _failed_in_worst_seed(scores: Floats, *, higher_is_better: bool) -> npt.NDArray[np.bool_]:
    failed: npt.NDArray[np.bool_] = scores < 1.0 if higher_is_better else scores > 0.0
    worst: npt.NDArray[np.bool_] = failed[failed.sum(axis=1).argmax()]
    return worst


def _effect(differences: Floats, clusters: npt.NDArray[np.intp], weights: Floats, *, unit: str) -> Effect:
    found = paired_effect(differences, clusters, weights, largest=_largest_difference(unit))
    return found._replace(limit=_largest_mean_difference(unit))


def _largest_difference(unit: str) -> float:
    """Return the largest possible difference of scores in that unit."""
    return 1.0 if unit == "share" else math.inf


def _largest_mean_difference(unit: str) -> float:
    """Return the largest possible difference of their means. An AUC is a share too, though its influences are
    unbounded."""
    return 1.0 if unit in ("share", "AUC") else math.inf


def _breadth(primary: Sequence[BenchmarkFacts], over_seeds: OverSeeds) -> Breadth:
    """Return the composite; if trimmed, of the seeds without the best and the worst one."""
    by_seed = np.mean([benchmark.by_seed for benchmark in primary], axis=0)
    mask = inner_seeds(by_seed) if over_seeds == "trimmed" else np.ones(by_seed.size, bool)
    known = {benchmark.name: benchmark.items for benchmark in primary if benchmark.items is not None}
    found = breadth(
        {benchmark.name: benchmark.differences[mask] for benchmark in primary},
        {benchmark.name: benchmark.clusters for benchmark in primary},
        {benchmark.name: benchmark.weights for benchmark in primary},
        None if len(known) < len(primary) else joint_clusters(known),
        largest={benchmark.name: _largest_difference(benchmark.unit) for benchmark in primary},
    ).within(primary[0].effect.limit)
    if over_seeds == "mean":
        return found
    return found._replace(composite=trimmed_effect(found.composite, by_seed))


def _one_unit(primary: Mapping[str, BenchmarkFacts]) -> str:
    units = {name: benchmark.unit for name, benchmark in primary.items()}
    if len(set(units.values())) > 1 and not set(units.values()) <= {"share", "AUC"}:
        listed = ", ".join(f"{name} is in {unit}" for name, unit in units.items())
        raise DataError(
            f"the primary benchmarks have different units ({listed}), so their mean means nothing. Choose "
            "primary benchmarks of one unit; the others can be guardrails."
        )
    return next(iter(units.values()))

"""Estimates the noise of paired differences on benchmarks before a campaign trains anything.

The noise is measured if a recorded campaign decided on the same questions; assumed if scores are shares of
items that can be counted now; otherwise unknown before the first look. The unit is an independent draw: items
in a cluster are correlated, so they count as much as there are clusters.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from assay.base.errors import ConfigError, DataError
from assay.base.names import meant
from assay.data.dataset.columns import LABEL
from assay.data.dataset.split import DatasetView, key_column, split_view
from assay.decision.config import PredictionsBenchmark, SuiteBenchmark
from assay.decision.row_scores import definition_sha256, empty_selection_error, selected_rows, value_matches
from assay.evals.config import Generation, MultipleChoice, read_suite
from assay.evals.items import read_items
from assay.evals.version import present_suite
from assay.records.decision import BenchmarkEffect, Decision
from assay.records.statement import Statement
from assay.statistics.benchmark_items import load_result
from assay.statistics.failure_rate import independent_trials
from assay.statistics.power import VarianceComponents, components_from_discordance
from assay.statistics.predictions import CLUSTER
from assay.statistics.warnings import Warned
from assay.store.home import Home
from assay.training.recipe import Recipe
from assay.training.trainer.method_config import BinaryPredictions
from assay.workflows.campaign.folder import LoadedCampaign, all_decisions
from assay.workflows.data_warnings import data_warnings
from assay.workflows.run import check_recipe

ASSUMED_DISCORDANCE = 0.2
ASSUMED_SEED_SD = 0.01
"""The defaults of `assay decide power`."""


class ItemDraws(NamedTuple):
    """Independent draws of items, over which noise averages out."""

    number: int
    num_items: int
    """More than `number` if items are clustered."""
    num_clusters: int
    """Worth fewer draws if the clusters have unequal sizes."""
    most: int | None = None
    """Number of draws if all rows of the dataset were held out; None if items are not rows."""

    def counted(self, number: int) -> dict[str, Any]:
        """Return a number of draws with what they are, for a statement."""
        return {"number": number, "are_items": self.number == self.num_items}


class PairedNoise(NamedTuple):
    """Noise of a paired difference on some benchmarks."""

    components: VarianceComponents
    """Variance components; the item component is that of one draw."""
    draws: ItemDraws
    unit: str
    source: Statement
    """Where the noise comes from."""


class NoiseEstimator:
    """Estimates the noise for the benchmarks of a campaign."""

    def __init__(self, loaded: LoadedCampaign) -> None:
        self._config = loaded.config
        self._home = loaded.home
        self._base_dir = loaded.base_dir
        self._decisions = cache(lambda: list(_decisions(loaded.home)))
        self._baseline = cache(partial(_baseline, loaded))
        self._suite = cache(lambda name: present_suite(loaded.base_dir / name))

    def of(self, names: Sequence[str]) -> PairedNoise | None:
        """Return the noise of the mean over these benchmarks; None if unknown."""
        return self._measured(names) or self._assumed(names)

    def draws(self, names: Sequence[str]) -> ItemDraws | None:
        """Return the draws of benchmarks whose scores are shares of items that can be counted now; None for
        others.

        Items that are in a cluster together in several benchmarks are one draw.
        """
        return self._draws(names) if all(self._is_share(self._benchmark(name)) for name in names) else None

    def _draws(self, names: Sequence[str]) -> ItemDraws | None:
        found = [self._clusters(self._benchmark(name)) for name in names]
        if any(clusters is None for clusters in found):
            return None
        _, clusters = np.unique(np.concatenate([clusters or [] for clusters in found]), return_inverse=True)
        number = int(independent_trials(np.zeros(len(clusters), bool), clusters.astype(np.int64)).number)
        return ItemDraws(number, len(clusters), len(np.unique(clusters)), self._most(names, number))

    def _benchmark(self, name: str) -> PredictionsBenchmark | SuiteBenchmark:
        return next(benchmark for benchmark in self._config.benchmarks if benchmark.name == name)

    def data_warnings(self) -> list[Warned]:
        if self._config.recipe is None:
            return []
        recipe, view = self._baseline()
        return data_warnings(recipe, view.dataset)

    def _is_share(self, benchmark: PredictionsBenchmark | SuiteBenchmark) -> bool:
        return isinstance(benchmark, SuiteBenchmark) or benchmark.score in ("correct", "ranking")

    def _clusters(self, benchmark: PredictionsBenchmark | SuiteBenchmark) -> list[str] | None:
        if isinstance(benchmark, PredictionsBenchmark):
            return _clusters_of_rows(benchmark, self._baseline)
        if benchmark.suite is None:
            return None
        return _clusters_of_items(benchmark, self._base_dir / benchmark.suite)

    def _most(self, names: Sequence[str], number: int) -> int | None:
        if any(isinstance(self._benchmark(name), SuiteBenchmark) for name in names):
            return None
        _, view = self._baseline()
        return int(number * view.dataset.manifest.num_rows / int(view.num_rows.sum()))

    def _measured(self, names: Sequence[str]) -> PairedNoise | None:
        """Return the noise measured by the recorded campaign with the most seeds on these benchmarks."""
        matching = [(decision, found) for decision in self._decisions() if (found := self._effects(decision, names))]
        if not matching:
            return None
        best, effects = max(matching, key=lambda match: match[0].look.num_seeds)
        num_seeds, clusters = best.look.num_seeds, sum(effect.num_clusters for effect in effects)
        of_seeds = float(np.var(np.mean([effect.by_seed for effect in effects], axis=0), ddof=1))
        alone = [
            max((effect.se or 0.0) ** 2 - float(np.var(effect.by_seed, ddof=1)) / num_seeds, 0.0) for effect in effects
        ]
        # Benchmarks with equal numbers of items may share them; then their noise does not average out.
        items = sum(alone) / (len(alone) if len({effect.num_items for effect in effects}) == 1 else len(alone) ** 2)
        num_items = sum(effect.num_items for effect in effects)
        draws = self._draws(names) or ItemDraws(clusters, num_items, clusters, None)
        degrees = [effect.item_degrees for effect in effects]
        known_by = (min(degrees) + 1.0) / draws.number
        return PairedNoise(
            VarianceComponents(seed=of_seeds, item=items * draws.number, residual=0.0, item_information=known_by),
            draws,
            effects[0].unit,
            Statement(
                code="measured noise",
                values={"campaign": best.campaign, "seeds": num_seeds, "draws": draws.counted(draws.number)},
            ),
        )

    def _effects(self, decision: Decision, names: Sequence[str]) -> list[BenchmarkEffect]:
        """Return the effects on these benchmarks; empty if one is missing, has no error, or had another
        definition."""
        known = {effect.benchmark: effect for effect in decision.effects if effect.se is not None}
        if decision.look.num_seeds < 2 or not known.keys() >= set(names):
            return []
        found = [known[name] for name in names]
        return found if all(map(self._has_same_definition, found)) else []

    def _has_same_definition(self, effect: BenchmarkEffect) -> bool:
        """Return whether the effect is of the benchmark with that name here: the same rows and questions."""
        benchmark = self._benchmark(effect.benchmark)
        try:
            result = load_result((self._home.folder / effect.candidate_results[0].path).parent)
            if isinstance(benchmark, PredictionsBenchmark):
                of = {"dataset": self._baseline()[1].dataset.fingerprint, "split": "validation"}
                return result.benchmark_sha256 == definition_sha256(benchmark, **of)
            # Imported results have no suite: only the name is known.
            requested = benchmark.suite or self._suite_of_recipe()
            return requested is None or self._suite(requested).covers(result)
        except DataError:
            return False

    def _suite_of_recipe(self) -> str | None:
        evaluation = self._baseline()[0].evaluation
        return None if evaluation is None else evaluation.suite

    def _assumed(self, names: Sequence[str]) -> PairedNoise | None:
        """Return the assumed noise, for shares of items that can be counted now."""
        draws = self.draws(names)
        if draws is None or not draws.num_items:
            return None
        are_alone, are_even = draws.number == draws.num_items, draws.number == draws.num_clusters
        counts = {"draws": draws.number, "items": draws.num_items, "clusters": draws.num_clusters}
        values = {"discordance": ASSUMED_DISCORDANCE, "deviation": ASSUMED_SEED_SD, "unit": "share", **counts}
        return PairedNoise(
            components_from_discordance(discordance=ASSUMED_DISCORDANCE, seed_sd=ASSUMED_SEED_SD),
            draws,
            "share",
            Statement(
                code="noise of items" if are_alone else "noise of groups", values={**values, "is_uneven": not are_even}
            ),
        )


def _decisions(home: Home) -> Iterator[Decision]:
    """Yield recorded decisions; campaigns with unreadable records are skipped."""
    for name in home.campaign_names():
        with suppress(DataError):
            yield from all_decisions(home.campaigns / name)


def _baseline(loaded: LoadedCampaign) -> tuple[Recipe, DatasetView]:
    baseline, dataset = check_recipe(loaded.recipe_of(loaded.config.baseline))
    return baseline, split_view(dataset, baseline.data.split, "validation")


def _clusters_of_rows(
    benchmark: PredictionsBenchmark, baseline: Callable[[], tuple[Recipe, DatasetView]]
) -> list[str] | None:
    """Return the cluster of each selected validation row; None if the columns of the dataset do not determine
    it."""
    recipe, view = baseline()
    requested, manifest = list(benchmark.where), view.dataset.manifest
    column = key_column(recipe.data.split) if benchmark.cluster == CLUSTER else benchmark.cluster
    labels = manifest.label_counts
    is_plain = LABEL not in requested or (bool(labels) and _labels_are_predicted(recipe, labels))
    if (
        LABEL in requested
        and labels
        and is_plain
        and not any(value_matches(label, benchmark.where[LABEL]) for label in labels)
    ):
        raise ConfigError(
            f"benchmark '{benchmark.name}': no row has label '{benchmark.where[LABEL]}'"
            f"{meant(str(benchmark.where[LABEL]), labels)}. There are: {', '.join(labels)}."
        )
    needed = list(dict.fromkeys([*requested, *([] if column is None else [column])]))
    if not is_plain or not manifest.columns.keys() >= set(needed):
        return None
    found: list[str] = []
    groups = np.flatnonzero(view.num_rows).tolist()
    for group in groups:
        clusters = [f"row {row_id}" for row_id in view.row_ids(group).tolist()]
        if needed:
            table = view.read(group, needed)
            if column is not None:
                clusters = [f"{column} {value}" for value in table[column].to_pylist()]
            clusters = list(itertools.compress(clusters, selected_rows(benchmark, table)))
        found += clusters
    if not found and LABEL not in requested:
        raise empty_selection_error(benchmark, pa.concat_tables([view.read(group, requested) for group in groups]))
    return found or None


def _labels_are_predicted(recipe: Recipe, labels: Mapping[str, int]) -> bool:
    """Return whether predictions contain labels as the dataset does; if one name of two is the positive class,
    they contain 1 for it."""
    return not isinstance(recipe.method.predictions, BinaryPredictions) or labels.keys() <= {"0", "1"}


def _clusters_of_items(benchmark: SuiteBenchmark, path: Path) -> list[str] | None:
    name = benchmark.benchmark or benchmark.name
    requested = next((item for item in read_suite(path).benchmarks if item.name == name), None)
    if not isinstance(requested, MultipleChoice | Generation):
        return None
    return [f"{requested.items} {item.cluster}" for item in read_items(path.parent / requested.items)]

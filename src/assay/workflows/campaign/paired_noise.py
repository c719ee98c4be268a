"""How noisy the paired differences of some benchmarks are, before a campaign has trained anything.

It is measured where a campaign on record has decided on the same questions; else assumed, where scores are
shares of items that can be counted now; else nobody knows it before the first look. What is counted are draws:
items that a benchmark holds together in clusters may share their luck, so they are worth as many as there are
clusters.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from assay.base.errors import ConfigError, DataError
from assay.base.names import meant
from assay.base.units import number_of
from assay.data.dataset.columns import LABEL
from assay.data.dataset.split import DatasetView, key_column, split_view
from assay.decision.candidate import known_good_recipe, patched
from assay.decision.config import CampaignConfig, PredictionsBenchmark, SuiteBenchmark
from assay.decision.row_scores import definition_sha256, empty_selection_error, selected_rows, value_matches
from assay.decision.sentences import bound_text
from assay.evals.config import Generation, MultipleChoice, read_suite
from assay.evals.items import read_items
from assay.evals.version import present_suite
from assay.records.decision import BenchmarkEffect, Decision
from assay.statistics.benchmark_items import load_result
from assay.statistics.failure_rate import independent_trials
from assay.statistics.power import VarianceComponents, components_from_discordance
from assay.statistics.predictions import CLUSTER
from assay.statistics.warnings import Warned
from assay.store.home import Home
from assay.training.recipe import Recipe
from assay.training.trainer.method_config import BinaryPredictions
from assay.workflows.campaign.folder import all_decisions
from assay.workflows.data_warnings import data_warnings
from assay.workflows.run import check_recipe

ASSUMED_DISCORDANCE = 0.2
ASSUMED_SEED_SD = 0.01
"""As `assay evidence power` has them by default."""


class ItemDraws(NamedTuple):
    """What averages out."""

    number: int
    num_items: int
    """More where several may share their luck."""
    num_clusters: int
    """Which share it; worth fewer draws where they are of unequal size."""
    most: int | None = None
    """If all rows of the dataset were held out; None where items are no rows."""

    def text(self, number: int | None = None) -> str:
        """`35 independent groups`, or `357 items`; of so many, where another number is given. Groups of unequal
        size are worth fewer than there are."""
        are_items = self.number == self.num_items
        return number_of(number or self.number, "item" if are_items else "independent group")


class PairedNoise(NamedTuple):
    """The noise of a paired difference on some benchmarks."""

    components: VarianceComponents
    """Those of items are of one draw."""
    draws: ItemDraws
    unit: str
    source: str
    """In words: who measured it, or what is assumed."""


class NoiseEstimator:
    """Says it of the benchmarks of one campaign."""

    def __init__(self, config: CampaignConfig, home: Home, *, base_dir: Path) -> None:
        self._config = config
        self._home = home
        self._base_dir = base_dir
        self._decisions = cache(lambda: list(_decisions(home)))
        self._baseline = cache(partial(_baseline, config, base_dir))
        self._suite = cache(lambda name: present_suite(base_dir / name))

    def of(self, names: Sequence[str]) -> PairedNoise | None:
        """On the mean of these benchmarks; None where it is not known."""
        return self._measured(names) or self._assumed(names)

    def draws(self, names: Sequence[str]) -> ItemDraws | None:
        """Those of benchmarks whose scores are shares of items that can be counted now; None of any others.

        Those that are drawn together in several benchmarks are one draw.
        """
        return self._draws(names) if all(self._is_share(self._benchmark(name)) for name in names) else None

    def _draws(self, names: Sequence[str]) -> ItemDraws | None:
        """Those of any scores."""
        found = [self._clusters(self._benchmark(name)) for name in names]
        if any(each is None for each in found):
            return None
        _, clusters = np.unique(np.concatenate([each or [] for each in found]), return_inverse=True)
        number = int(independent_trials(np.zeros(len(clusters), bool), clusters.astype(np.int64)).number)
        return ItemDraws(number, len(clusters), len(np.unique(clusters)), self._most(names, number))

    def _benchmark(self, name: str) -> PredictionsBenchmark | SuiteBenchmark:
        return next(benchmark for benchmark in self._config.benchmarks if benchmark.name == name)

    def data_warnings(self) -> list[Warned]:
        """What the baseline's dataset and split warn of."""
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
        """By the campaign on record with the most seeds on these benchmarks."""
        matching = [(decision, found) for decision in self._decisions() if (found := self._effects(decision, names))]
        if not matching:
            return None
        best, effects = max(matching, key=lambda each: each[0].look.num_seeds)
        num_seeds, clusters = best.look.num_seeds, sum(effect.num_clusters for effect in effects)
        of_seeds = float(np.var(np.mean([effect.by_seed for effect in effects], axis=0), ddof=1))
        alone = [
            max((effect.se or 0.0) ** 2 - float(np.var(effect.by_seed, ddof=1)) / num_seeds, 0.0) for effect in effects
        ]
        # Benchmarks with as many items may be of the same ones; then their luck does not average out.
        items = sum(alone) / (len(alone) if len({effect.num_items for effect in effects}) == 1 else len(alone) ** 2)
        num_items = sum(effect.num_items for effect in effects)
        draws = self._draws(names) or ItemDraws(clusters, num_items, clusters, None)
        degrees = [effect.item_degrees for effect in effects]
        known_by = (min(degrees) + 1.0) / draws.number
        return PairedNoise(
            VarianceComponents(seed=of_seeds, item=items * draws.number, residual=0.0, item_information=known_by),
            draws,
            effects[0].unit,
            f"by the noise that campaign '{best.campaign}' measured on {number_of(num_seeds, 'seed')} and "
            f"{draws.text()}",
        )

    def _effects(self, decision: Decision, names: Sequence[str]) -> list[BenchmarkEffect]:
        """On these benchmarks; none where one is lacking, has no error, or asked something else."""
        known = {effect.benchmark: effect for effect in decision.effects if effect.se is not None}
        if decision.look.num_seeds < 2 or not known.keys() >= set(names):
            return []
        found = [known[name] for name in names]
        return found if all(map(self._has_same_definition, found)) else []

    def _has_same_definition(self, effect: BenchmarkEffect) -> bool:
        """Whether the rows and questions were those of the benchmark that has its name here."""
        benchmark = self._benchmark(effect.benchmark)
        recipe, view = self._baseline()
        suite = recipe.evaluation.suite if recipe.evaluation is not None else None
        try:
            result = load_result((self._home.folder / effect.candidate_results[0].path).parent)
            if isinstance(benchmark, PredictionsBenchmark):
                of = {"dataset": view.dataset.fingerprint, "split": "validation"}
                return result.benchmark_sha256 == definition_sha256(benchmark, **of)
            # A result that was imported is of no suite: its name is all that is known of what was asked.
            asked = benchmark.suite or suite
            return asked is None or self._suite(asked).covers(result)
        except DataError:
            return False

    def _assumed(self, names: Sequence[str]) -> PairedNoise | None:
        """For shares of items that can be counted now."""
        draws = self.draws(names)
        if draws is None or not draws.num_items:
            return None
        is_alone = draws.number == draws.num_items
        uneven = "" if draws.number == draws.num_clusters else " of unequal size"
        of = f"groups ({draws.num_items:,} items in {draws.num_clusters:,} clusters{uneven})"
        return PairedNoise(
            components_from_discordance(discordance=ASSUMED_DISCORDANCE, seed_sd=ASSUMED_SEED_SD),
            draws,
            "share",
            f"assuming that two models differ on {ASSUMED_DISCORDANCE:.0%} of {draws.number:,} independent "
            f"{'items' if is_alone else of} and a recipe's score by "
            f"{bound_text(ASSUMED_SEED_SD, 'share')} over its seeds",
        )


def _decisions(home: Home) -> Iterator[Decision]:
    """On record; a campaign whose records cannot be read tells nothing, and keeps no other from beginning."""
    for name in home.campaign_names():
        with suppress(DataError):
            yield from all_decisions(home.campaigns / name)


def _baseline(config: CampaignConfig, base_dir: Path) -> tuple[Recipe, DatasetView]:
    """The recipe, and its validation rows."""
    recipe, _ = known_good_recipe(base_dir / config.recipe)
    baseline, dataset = check_recipe(patched(recipe, {}, arm=config.baseline, seed=config.first_seed))
    return baseline, split_view(dataset, baseline.data.split, "validation")


def _clusters_of_rows(
    benchmark: PredictionsBenchmark, baseline: Callable[[], tuple[Recipe, DatasetView]]
) -> list[str] | None:
    """What each validation row that it asks for shares its luck with; None where that hangs on more than the
    dataset's columns say."""
    recipe, view = baseline()
    asked, manifest = list(benchmark.where), view.dataset.manifest
    column = key_column(recipe.data.split) if benchmark.cluster == CLUSTER else benchmark.cluster
    labels = manifest.label_counts
    is_plain = LABEL not in asked or (bool(labels) and _labels_are_predicted(recipe, labels))
    if (
        LABEL in asked
        and labels
        and is_plain
        and not any(value_matches(label, benchmark.where[LABEL]) for label in labels)
    ):
        raise ConfigError(
            f"benchmark '{benchmark.name}': no row has label '{benchmark.where[LABEL]}'"
            f"{meant(str(benchmark.where[LABEL]), labels)}. There are: {', '.join(labels)}."
        )
    needed = list(dict.fromkeys([*asked, *([] if column is None else [column])]))
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
    if not found and LABEL not in asked:
        raise empty_selection_error(benchmark, pa.concat_tables([view.read(group, asked) for group in groups]))
    return found or None


def _labels_are_predicted(recipe: Recipe, labels: Mapping[str, int]) -> bool:
    """Whether predictions hold a row's label as the dataset does: where one name of two is the positive class,
    they hold 1 for it."""
    return not isinstance(recipe.method.predictions, BinaryPredictions) or labels.keys() <= {"0", "1"}


def _clusters_of_items(benchmark: SuiteBenchmark, path: Path) -> list[str] | None:
    name = benchmark.benchmark or benchmark.name
    asked = next((each for each in read_suite(path).benchmarks if each.name == name), None)
    if not isinstance(asked, MultipleChoice | Generation):
        return None
    return [f"{asked.items} {item.cluster}" for item in read_items(path.parent / asked.items)]

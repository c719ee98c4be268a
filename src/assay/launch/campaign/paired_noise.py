"""How noisy the paired differences of some benchmarks are, before a campaign has trained anything.

It is measured where a campaign on record has decided on the same benchmarks; else assumed, where scores are
shares of items that can be counted now; else nobody knows it before the first look.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from assay.base.errors import ConfigError, DataError
from assay.base.units import number_of
from assay.data.dataset.columns import LABEL
from assay.data.dataset.split import DatasetView, split_view
from assay.evaluation.decision.candidate import known_good_recipe, patched
from assay.evaluation.decision.config import CampaignConfig, PredictionsBenchmark, SuiteBenchmark
from assay.evaluation.decision.row_scores import rows_asked
from assay.evaluation.decision.words import bound_text
from assay.evaluation.evidence.power import VarianceComponents, components_from_discordance
from assay.evaluation.suite.config import Generation, MultipleChoice, read_suite
from assay.evaluation.suite.items import read_items
from assay.launch.campaign.folder import all_decisions
from assay.launch.run import checked
from assay.records.decision import BenchmarkEffect, Decision
from assay.store.home import Home

ASSUMED_DISCORDANCE = 0.2
ASSUMED_SEED_SD = 0.01
"""As `assay evidence power` has them by default."""


class PairedNoise(NamedTuple):
    """The noise of a paired difference on some benchmarks."""

    components: VarianceComponents
    num_items: int
    unit: str
    source: str
    """In words: who measured it, or what is assumed."""


class NoiseBeforehand:
    """Says it of the benchmarks of one campaign."""

    def __init__(self, config: CampaignConfig, home: Home, *, beside: Path) -> None:
        self._config = config
        self._beside = beside
        self._decisions = cache(lambda: list(_decisions(home)))
        self._validation = cache(partial(_validation_rows, config, beside))

    def of(self, names: Sequence[str]) -> PairedNoise | None:
        """On the mean of these benchmarks; None where it is not known."""
        return self._measured(names) or self._assumed(names)

    def num_items(self, name: str) -> int | None:
        """Items of a benchmark whose scores are shares; None for any other."""
        benchmark = next(each for each in self._config.benchmarks if each.name == name)
        if isinstance(benchmark, PredictionsBenchmark):
            return _num_rows(benchmark, self._validation)
        return None if benchmark.suite is None else _num_suite_items(benchmark, self._beside / benchmark.suite)

    def _measured(self, names: Sequence[str]) -> PairedNoise | None:
        """By the campaign on record with the most seeds on these benchmarks."""
        alike = [(each, found) for each in self._decisions() if (found := _effects(each, names))]
        if not alike:
            return None
        best, effects = max(alike, key=lambda each: each[0].look.num_seeds)
        num_seeds, num_items = best.look.num_seeds, sum(each.num_items for each in effects)
        of_seeds = float(np.var(np.mean([each.by_seed for each in effects], axis=0), ddof=1))
        alone = [
            max((each.se or 0.0) ** 2 - float(np.var(each.by_seed, ddof=1)) / num_seeds, 0.0)
            for each in effects
        ]
        # Benchmarks with as many items may be of the same ones; then their luck does not average out.
        items = sum(alone) / (len(alone) if len({each.num_items for each in effects}) == 1 else len(alone) ** 2)
        return PairedNoise(
            VarianceComponents(seed=of_seeds, item=items * num_items, residual=0.0),
            num_items,
            effects[0].unit,
            f"by the noise that campaign '{best.campaign}' measured on {number_of(num_seeds, 'seed')} and "
            f"{number_of(num_items, 'item')}",
        )

    def _assumed(self, names: Sequence[str]) -> PairedNoise | None:
        """For shares of items that can be counted now."""
        counts = [self.num_items(name) for name in names]
        if not all(counts):
            return None
        num_items = sum(count or 0 for count in counts)
        return PairedNoise(
            components_from_discordance(discordance=ASSUMED_DISCORDANCE, seed_sd=ASSUMED_SEED_SD),
            num_items,
            "share",
            f"assuming that two models differ on {ASSUMED_DISCORDANCE:.0%} of {num_items:,} independent items "
            f"and a recipe's score by {bound_text(ASSUMED_SEED_SD, 'share')} over its seeds",
        )


def _decisions(home: Home) -> Iterator[Decision]:
    """On record; a campaign whose records cannot be read tells nothing, and keeps no other from beginning."""
    for name in home.campaign_names():
        with suppress(DataError):
            yield from all_decisions(home.campaigns / name)


def _effects(decision: Decision, names: Sequence[str]) -> list[BenchmarkEffect]:
    """On these benchmarks; none where one is lacking, or has no error."""
    known = {each.benchmark: each for each in decision.effects if each.se is not None}
    is_alike = known.keys() >= set(names) and decision.look.num_seeds >= 2
    return [known[name] for name in names] if is_alike else []


def _validation_rows(config: CampaignConfig, beside: Path) -> DatasetView:
    recipe, _ = known_good_recipe(beside / config.recipe)
    baseline, dataset = checked(patched(recipe, {}, arm=config.baseline, seed=config.first_seed))
    return split_view(dataset, baseline.data.split, "validation")


def _num_rows(benchmark: PredictionsBenchmark, validation: Callable[[], DatasetView]) -> int | None:
    """Validation rows that it asks for; None where that hangs on more than the dataset's columns say, and where
    their scores are no shares."""
    if benchmark.score not in ("correct", "ranking"):
        return None
    view, asked = validation(), list(benchmark.where)
    labels = view.dataset.manifest.label_counts
    is_plain = LABEL not in asked or (bool(labels) and labels.keys() <= {"0", "1"})
    if not is_plain or not view.dataset.manifest.columns.keys() >= set(asked):
        return None
    if not asked:
        return int(view.num_rows.sum())
    groups = np.flatnonzero(view.num_rows).tolist()
    found = sum(int(rows_asked(benchmark, view.read(group, asked)).sum()) for group in groups)
    if not found and LABEL not in asked:
        raise ConfigError(
            f"benchmark '{benchmark.name}': no validation row has {benchmark.where}. Choose values that occur; "
            "'assay data show' prints what the columns hold."
        )
    return found or None


def _num_suite_items(benchmark: SuiteBenchmark, path: Path) -> int | None:
    name = benchmark.benchmark or benchmark.name
    asked = next((each for each in read_suite(path).benchmarks if each.name == name), None)
    return (
        len(read_items(path.parent / asked.items)) if isinstance(asked, MultipleChoice | Generation) else None
    )

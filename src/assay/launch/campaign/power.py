"""What a campaign's looks could find, said before its first run: `--check` prints it, a run warns by it.

The noise of the paired differences is measured where a campaign on record has decided on the same primary
benchmarks; else assumed, where scores are shares of items; else nobody knows it before the first look.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from assay.base.errors import DataError
from assay.base.units import number_of
from assay.data.dataset.split import split_view
from assay.evaluation.decision.candidate import BASELINE, known_good_recipe, patched
from assay.evaluation.decision.config import Benchmark, CampaignConfig, PredictionsBenchmark
from assay.evaluation.decision.words import bound_text, chance_text, effect_text
from assay.evaluation.evidence.campaign.look_power import LookPower, cure_of, power_of_looks
from assay.evaluation.evidence.power import VarianceComponents, components_from_discordance
from assay.evaluation.evidence.warnings import LEAST_FOUND, MOST_LOST
from assay.evaluation.suite.config import Generation, MultipleChoice, read_suite
from assay.evaluation.suite.items import read_items
from assay.launch.campaign.folder import all_decisions
from assay.launch.run import checked
from assay.records.decision import Decision
from assay.store.home import Home

ASSUMED_DISCORDANCE = 0.2
ASSUMED_SEED_SD = 0.01
"""As `assay evidence power` has them by default."""


class PairedNoise(NamedTuple):
    """The noise of a paired difference on the primary benchmarks."""

    components: VarianceComponents
    num_items: int
    unit: str
    source: str
    """In words: who measured it, or what is assumed."""


class StatedPower(NamedTuple):
    """What is known of a campaign's power before its first run."""

    noise: PairedNoise
    looks: list[LookPower]
    warnings: list[str]


def stated_power(config: CampaignConfig, home: Home, *, beside: Path) -> StatedPower | None:
    """Look by look, with what to do where too little would be decided; None where the noise is not known."""
    noise = _measured(config, home) or _assumed(config, beside)
    if noise is None:
        return None
    plan, rule = config.look_plan(), config.rule.thresholds()
    looks = power_of_looks(plan, rule, noise.components, num_items=noise.num_items)
    warnings = [
        f"the look at {each.num_seeds} seeds cannot decide: of the candidates that are worth having it would "
        f"scale {chance_text(each.scales)}, and end on {chance_text(each.stops + each.gives_up)} without a "
        "gain. Leave it out of looks, or take it with more seeds."
        for each in looks[:-1]
        if each.stops + each.gives_up > max(MOST_LOST, each.scales)
    ]
    if looks[-1].scales < LEAST_FOUND:
        warnings.append(
            f"the campaign cannot answer: of the candidates that are worth having its last look would scale "
            f"{chance_text(looks[-1].scales)}. {_cure_text(config, noise)}"
        )
    return StatedPower(noise, looks, warnings)


def power_lines(found: StatedPower | None) -> list[str]:
    """What `--check` prints of it."""
    if found is None:
        return [
            "power: not known before the first look, since no campaign on record measured these primary "
            "benchmarks and their scores are no shares"
        ]
    unit = found.noise.unit
    return [
        f"power, {found.noise.source}:",
        *(
            f"  look at {number_of(each.num_seeds, 'seed')}: finds a gain of "
            f"{effect_text(each.finds, unit, signed=False)} 80% of the time; of candidates that are worth "
            f"having it scales {chance_text(each.scales)}, stops {chance_text(each.stops)}"
            + (f", gives up on {chance_text(each.gives_up)}" if each.gives_up >= 0.005 else "")
            for each in found.looks
        ),
    ]


def _cure_text(config: CampaignConfig, noise: PairedNoise) -> str:
    plan, rule = config.look_plan(), config.rule.thresholds()
    cure = cure_of(plan, rule, noise.components, num_items=noise.num_items)
    if cure is None:
        return (
            f"Neither seeds nor items would do: ask for more than {bound_text(rule.least_effect, noise.unit)}."
        )
    runs = (1 + len(config.candidates)) * (cure.num_seeds - config.seeds)
    parts = [f"{cure.num_seeds} seeds ({number_of(runs, 'more run')})"] if runs else []
    if cure.items_factor > 1:
        parts.append(f"{cure.items_factor * noise.num_items:,} items instead of {noise.num_items:,}")
    return f"The cheapest cure, for {LEAST_FOUND:.0%}: {' and '.join(parts)}."


def _measured(config: CampaignConfig, home: Home) -> PairedNoise | None:
    """By the campaign on record with the most seeds on these benchmarks."""
    alike = [each for each in _decisions(home) if _is_alike(config, each)]
    if not alike:
        return None
    best = max(alike, key=lambda each: each.look.num_seeds)
    primary = [each for each in best.effects if each.role == "primary"]
    num_seeds, num_items = best.look.num_seeds, sum(each.num_items for each in primary)
    of_seeds = float(np.var(np.mean([each.by_seed for each in primary], axis=0), ddof=1))
    alone = [
        max((each.se or 0.0) ** 2 - float(np.var(each.by_seed, ddof=1)) / num_seeds, 0.0) for each in primary
    ]
    # Benchmarks with as many items may be of the same ones; then their luck does not average out.
    items = sum(alone) / (len(alone) if len({each.num_items for each in primary}) == 1 else len(alone) ** 2)
    return PairedNoise(
        VarianceComponents(seed=of_seeds, item=items * num_items, residual=0.0),
        num_items,
        best.unit,
        f"by the noise that campaign '{best.campaign}' measured on {number_of(num_seeds, 'seed')} and "
        f"{num_items:,} items",
    )


def _decisions(home: Home) -> Iterator[Decision]:
    """On record; a campaign whose records cannot be read tells nothing, and keeps no other from beginning."""
    for name in home.campaign_names():
        with suppress(DataError):
            yield from all_decisions(home.campaigns / name)


def _is_alike(config: CampaignConfig, decision: Decision) -> bool:
    primary = {each.benchmark for each in decision.effects if each.role == "primary" and each.se is not None}
    return primary == set(config.rule.primary) and decision.look.num_seeds >= 2


def _assumed(config: CampaignConfig, beside: Path) -> PairedNoise | None:
    """For shares of items that can be counted now."""
    counts = [
        _num_items(each, config, beside) for each in config.benchmarks if each.name in config.rule.primary
    ]
    if not all(counts):
        return None
    num_items = sum(count or 0 for count in counts)
    return PairedNoise(
        components_from_discordance(discordance=ASSUMED_DISCORDANCE, seed_sd=ASSUMED_SEED_SD),
        num_items,
        "share",
        f"assuming that two models differ on {ASSUMED_DISCORDANCE:.0%} of {num_items:,} independent items and "
        f"a recipe's score by {bound_text(ASSUMED_SEED_SD, 'share')} over its seeds",
    )


def _num_items(benchmark: Benchmark, config: CampaignConfig, beside: Path) -> int | None:
    """Items of a benchmark whose scores are shares; None for any other."""
    if isinstance(benchmark, PredictionsBenchmark):
        if benchmark.score not in ("correct", "ranking") or benchmark.where:
            return None
        recipe, _ = known_good_recipe(beside / config.recipe)
        baseline, dataset = checked(patched(recipe, {}, arm=BASELINE, seed=config.first_seed))
        return int(split_view(dataset, baseline.data.split, "validation").num_rows.sum())
    if benchmark.suite is None:
        return None
    path = beside / benchmark.suite
    asked = next(
        (each for each in read_suite(path).benchmarks if each.name == (benchmark.benchmark or benchmark.name)),
        None,
    )
    return (
        len(read_items(path.parent / asked.items)) if isinstance(asked, MultipleChoice | Generation) else None
    )

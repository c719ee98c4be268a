"""What more seeds would do, and what they cost: the price that stands beside every open clause.

At the declared looks that are left, the chance of passing follows from today's effect and its variance. After
the last look no seed may be added to this campaign (that would be another look), and where none that is left
would decide, none is worth its price: then it is that of a new one, large enough to answer either way.
"""

import math

from assay.base.units import number_of
from assay.evaluation.decision.config import CampaignConfig
from assay.evaluation.decision.facts import Facts
from assay.evaluation.evidence.campaign.rule import (
    CampaignRule,
    ChancesAnew,
    chance_by_end,
    chances_anew,
    forecast_of,
    needed_by_end,
)
from assay.records.decision import MoreEvidence

WORTH_TRYING = 0.5
"""Chance of passing from which a number of seeds counts as one that would turn a clause."""

WORTH_ANSWERING = 0.8
"""Chance of an answer, scale or stop, from which a new campaign is large enough."""

MOST_SEEDS = 32
"""Beyond that items are added."""

MOST_ITEMS_FACTOR = 64
"""Beyond that many times the items a claim is better made smaller."""


def replication_variance(config: CampaignConfig, facts: Facts) -> float:
    """The variance of the gain in a replication with as many seeds as at the last look, and as many items."""
    effect = facts.composite
    if facts.num_seeds >= config.seeds:
        return float(effect.variance)
    rule = config.rule.thresholds()
    ahead = forecast_of(effect, num_seeds=facts.num_seeds, end_seeds=config.seeds, prior_sd=rule.prior_sd)
    return float(ahead.end.variance)


def chance_at_last_look(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> float:
    """The chance that the gain passes `scale` by the last declared look; 1 at that look, where nobody asks."""
    return _chance(config, facts, rule, config.seeds, config.look_plan().gate_levels()[-1])


def needed_at_last_look(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> float:
    """The gain that the last declared look must see to scale."""
    return float(
        needed_by_end(
            facts.composite,
            num_seeds=facts.num_seeds,
            end_seeds=max(config.seeds, facts.num_seeds),
            end_level=config.look_plan().gate_levels()[-1],
            replication_variance=replication_variance(config, facts),
            rule=rule,
        )
    )


def more_seeds(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    """The fewest further seeds of both arms that are worth trying."""
    if chance_at_last_look(config, facts, rule) < rule.least_chance:
        return answering_campaign(config, facts, rule)
    levels = dict(zip(config.all_looks, config.look_plan().gate_levels(), strict=True))
    ahead = {
        seeds: _chance(config, facts, rule, seeds, level)
        for seeds, level in levels.items()
        if seeds > facts.num_seeds
    }
    if ahead:
        seeds = next((seeds for seeds, chance in ahead.items() if chance >= WORTH_TRYING), max(ahead))
        return seeds_to_look(seeds, facts, chance=ahead[seeds])
    return answering_campaign(config, facts, rule)


def seeds_to_look(look: int, facts: Facts, *, chance: float | None = None) -> MoreEvidence:
    """The seeds that are missing to the look at `look` of them."""
    extra = look - facts.num_seeds
    return MoreEvidence(
        what=f"{number_of(extra, 'more seed')} of both arms, to the look at {look}",
        num_seeds=extra,
        device_s=extra * facts.pair_s,
        chance=chance,
    )


def answering_campaign(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    """The smallest new campaign that would likely answer, either way: more seeds first, then more items.

    What was seen does not count again: it only says what to expect of fresh seeds, at the last gate.
    """
    for seeds in range(config.seeds, MOST_SEEDS + 1):
        if (found := _anew(config, facts, rule, seeds)).to_answer >= WORTH_ANSWERING:
            return _new_campaign(facts, seeds, found, "")
    for seeds in (config.seeds, MOST_SEEDS):
        for power in range(1, 1 + math.ceil(math.log2(MOST_ITEMS_FACTOR))):
            found = _anew(config, facts, rule, seeds, items_factor=2.0**power)
            if found.to_answer >= WORTH_ANSWERING:
                return _new_campaign(facts, seeds, found, f", on {_items_text(config, facts, 2**power)}")
    return MoreEvidence(
        what=f"not more seeds or items ({MOST_SEEDS} seeds on {MOST_ITEMS_FACTOR} times as many items would "
        "hardly do), but a smaller claim"
    )


def _anew(
    config: CampaignConfig, facts: Facts, rule: CampaignRule, seeds: int, *, items_factor: float = 1.0
) -> ChancesAnew:
    level = config.look_plan().gate_levels()[-1]
    return chances_anew(
        facts.composite,
        num_seeds=facts.num_seeds,
        new_seeds=seeds,
        level=level,
        rule=rule,
        items_factor=items_factor,
    )


def _new_campaign(facts: Facts, seeds: int, chances: ChancesAnew, on_items: str) -> MoreEvidence:
    return MoreEvidence(
        what=f"a new campaign with {number_of(seeds, 'fresh seed')}{on_items} and the same gates",
        num_seeds=seeds,
        device_s=seeds * facts.pair_s,
        chance=float(chances.to_scale),
        answers=float(chances.to_answer),
    )


def _items_text(config: CampaignConfig, facts: Facts, factor: int) -> str:
    """`16,000 items of code and 8,000 of prose`."""
    counts = [(name, factor * facts.benchmarks[name].differences.shape[1]) for name in config.rule.primary]
    return " and ".join(
        f"{count:,}{' items' if place == 0 else ''} of {name}" for place, (name, count) in enumerate(counts)
    )


def _chance(config: CampaignConfig, facts: Facts, rule: CampaignRule, seeds: int, level: float) -> float:
    return float(
        chance_by_end(
            facts.composite,
            num_seeds=facts.num_seeds,
            end_seeds=seeds,
            end_level=level,
            replication_variance=replication_variance(config, facts),
            rule=rule,
        )
    )

"""What more seeds would do, and what they cost: the price that stands beside every open clause.

At the declared looks that are left, the chance of passing follows from today's effect and its variance. After
the last look no seed may be added to this campaign (that would be another look); the price is then that of a
new one.
"""

from assay.base.units import number_of
from assay.evaluation.decision.config import CampaignConfig
from assay.evaluation.decision.facts import Facts
from assay.evaluation.evidence.campaign.rule import CampaignRule, chance_anew, chance_by_end, forecast_of
from assay.records.decision import MoreEvidence

WORTH_TRYING = 0.5
"""Chance of passing from which a number of seeds counts as one that would turn a clause."""

MOST_SEEDS = 32
"""Beyond that a claim is better made smaller."""


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


def more_seeds(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    """The fewest further seeds of both arms that are worth trying."""
    levels = dict(zip(config.all_looks, config.look_plan().gate_levels(), strict=True))
    ahead = {
        seeds: _chance(config, facts, rule, seeds, level)
        for seeds, level in levels.items()
        if seeds > facts.num_seeds
    }
    if ahead:
        seeds = next((seeds for seeds, chance in ahead.items() if chance >= WORTH_TRYING), max(ahead))
        return seeds_to_look(seeds, facts, chance=ahead[seeds])
    return _new_campaign(config, facts, rule)


def seeds_to_look(look: int, facts: Facts, *, chance: float | None = None) -> MoreEvidence:
    """The seeds that are missing to the look at `look` of them."""
    extra = look - facts.num_seeds
    return MoreEvidence(
        what=f"{number_of(extra, 'more seed')} of both arms, to the look at {look}",
        num_seeds=extra,
        device_s=extra * facts.pair_s,
        chance=chance,
    )


def _new_campaign(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    """What was seen does not count again: it only says what to expect of fresh seeds, at the last gate."""
    level = config.look_plan().gate_levels()[-1]
    for seeds in range(config.seeds, MOST_SEEDS + 1):
        chance = float(
            chance_anew(facts.composite, num_seeds=facts.num_seeds, new_seeds=seeds, level=level, rule=rule)
        )
        if chance >= WORTH_TRYING:
            return MoreEvidence(
                what=f"a new campaign with {seeds} fresh seeds and the same gates",
                num_seeds=seeds,
                device_s=seeds * facts.pair_s,
                chance=chance,
            )
    return MoreEvidence(
        what=f"not more seeds ({MOST_SEEDS} would hardly do), but more items, or a smaller claim"
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

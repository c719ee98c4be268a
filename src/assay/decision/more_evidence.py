"""What more seeds would achieve, and their cost: the price of every open clause.

At the remaining declared looks, the probability of passing follows from today's effect and its variance. After the last
look no seed may be added to the campaign, because that would be another look. If no remaining look would decide, the
price is that of a new campaign that is large enough to decide either way.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from assay.base.units import number_of
from assay.decision.config import CampaignConfig
from assay.decision.facts import Facts
from assay.decision.sentences import NO_EVIDENCE, bound_text, is_beyond
from assay.records.decision import MoreEvidence
from assay.statistics.campaign.rule import (
    CampaignRule,
    OutcomeProbabilities,
    forecast_of,
    new_campaign_outcomes,
    predictive_power,
    required_at_end,
)
from assay.statistics.effect import Effect
from assay.statistics.guardrail import is_sized, non_inferiority
from assay.statistics.interval import cluster_sums

MIN_PASS_PROBABILITY = 0.5
"""A number of seeds is proposed from this probability of passing."""

MIN_DECISION_PROBABILITY = 0.8
"""A new campaign is large enough from this probability of scale or stop."""

MAX_SEEDS = 32
"""With more seeds needed, items are added instead."""

MAX_ITEMS_FACTOR = 64
"""With more items needed, another claim is better."""

CLAIMS = (0.5, 0.25, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Multiples of the least effect: a smaller claim may be shown, a larger one ruled out."""


GIANT_SHARE = 0.2
"""A cluster with this share of the items dominates the mean; five equal clusters have as much."""


def replication_variance(config: CampaignConfig, facts: Facts) -> float:
    """Return the variance of the gain in a replication with the last look's seeds and as many items."""
    effect = facts.composite
    if facts.num_seeds >= config.seeds:
        return float(effect.variance)
    rule = config.rule.thresholds()
    probabilities = forecast_of(effect, num_seeds=facts.num_seeds, end_seeds=config.seeds, prior_sd=rule.prior_sd)
    return float(probabilities.end.variance)


def chance_at_last_look(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> float:
    """Return the probability that the gain passes `scale` by the last declared look; 1 at that look."""
    return _chance(config, facts, rule, config.seeds, config.look_plan().gate_levels()[-1])


def needed_at_last_look(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> float:
    """Return the gain that the last declared look must observe to scale."""
    return float(
        required_at_end(
            facts.composite,
            num_seeds=facts.num_seeds,
            end_seeds=max(config.seeds, facts.num_seeds),
            end_level=config.look_plan().gate_levels()[-1],
            replication_variance=replication_variance(config, facts),
            rule=rule,
        )
    )


def more_seeds(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    """Return the fewest additional seeds of both arms that are worth running."""
    if chance_at_last_look(config, facts, rule) < rule.least_predictive_power:
        return deciding_campaign(config, facts, rule)
    levels = dict(zip(config.all_looks, config.look_plan().gate_levels(), strict=True))
    probabilities = {
        seeds: _chance(config, facts, rule, seeds, level) for seeds, level in levels.items() if seeds > facts.num_seeds
    }
    if probabilities:
        seeds = next(
            (seeds for seeds, probability in probabilities.items() if probability >= MIN_PASS_PROBABILITY),
            max(probabilities),
        )
        return seeds_to_look(seeds, facts, probability=probabilities[seeds])
    return deciding_campaign(config, facts, rule)


def seeds_to_look(look: int, facts: Facts, *, probability: float | None = None) -> MoreEvidence:
    """Return the seeds that are missing for the look at `look` seeds."""
    extra = look - facts.num_seeds
    return MoreEvidence(
        what=f"{number_of(extra, 'more seed')} of both arms, to the look at {look}",
        num_seeds=extra,
        device_s=extra * facts.pair_s,
        probability=probability,
    )


def deciding_campaign(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    """Return the smallest new campaign that would probably decide either way: more seeds first, then more items.

    The present data do not count in it; they only predict the results of fresh seeds at the last gate. Open guardrails
    must be precise enough, and the items must exist in the dataset.
    """
    open_ = _open_guardrails(config, facts)
    for seeds in range(config.seeds, MAX_SEEDS + 1):
        found = _new_outcomes(config, facts, rule, seeds)
        if found.to_decide >= MIN_DECISION_PROBABILITY and _can_speak(open_, facts, seeds):
            return _new_campaign(facts, seeds, found, "")
    factors = [2**power for power in range(1, 1 + math.ceil(math.log2(MAX_ITEMS_FACTOR)))]
    names = (*config.rule.primary, *open_)
    available = [factor for factor in factors if all(_has_items(name, factor, facts) for name in names)]
    for seeds in (config.seeds, MAX_SEEDS):
        for factor in available:
            found = _new_outcomes(config, facts, rule, seeds, items_factor=float(factor))
            if found.to_decide >= MIN_DECISION_PROBABILITY and _can_speak(open_, facts, seeds, factor):
                return _new_campaign(facts, seeds, found, f", on {_items_text(names, facts, factor)}")
    return _other_than_evidence(
        config, facts, rule, available, [factor for factor in factors if factor not in available]
    )


def _other_than_evidence(
    config: CampaignConfig, facts: Facts, rule: CampaignRule, available: Sequence[int], lacking: Sequence[int]
) -> MoreEvidence:
    """Return what would help if no campaign on the dataset does: rows that it lacks, or another claim.

    `available` and `lacking` are factors on the items that the dataset has and lacks.
    """
    open_ = _open_guardrails(config, facts)
    names = (*config.rule.primary, *open_)
    most = max(available, default=1)
    design = f"{MAX_SEEDS} seeds on {f'{most} times ' if most > 1 else ''}as many items"

    def decides(factor: int, rule_: CampaignRule) -> bool:
        found = _new_outcomes(config, facts, rule_, MAX_SEEDS, items_factor=float(factor))
        return bool(found.to_decide >= MIN_DECISION_PROBABILITY)

    fixes = [text for name in dict.fromkeys(names) if (text := _giant_text(name, facts))]
    for factor in lacking:
        if decides(factor, rule) and _can_speak(open_, facts, MAX_SEEDS, factor):
            fixes.append(f"new rows: {_draws_text(names, facts, factor)}")
            break
    for times in () if decides(most, rule) else CLAIMS:
        claim = times * rule.least_effect
        if decides(most, rule.model_copy(update={"least_effect": claim})) and not is_beyond(claim, facts.unit):
            gain = f"a gain of {bound_text(claim, facts.unit)}"
            kind, verb = ("smaller", "show") if times < 1.0 else ("larger", "rule out")
            fixes.append(f"a {kind} claim that {design} would {verb}: {gain} (rule.least_effect)")
            break
    if open_:
        fixes.append(f"a wider margin of {' and '.join(open_)}")
    no_more = ", and the dataset has no more" if lacking else ""
    fix = ", or ".join(fixes) or "another way to measure"
    return MoreEvidence(what=f"{NO_EVIDENCE} ({design} would hardly do{no_more}), but {fix}")


def standard_error_at(num_seeds: int, effect: Effect, facts: Facts, *, items_factor: float = 1.0) -> float:
    """Return the standard error of an effect with this many seeds, on the same items or `items_factor` times as
    many."""
    items, seeds = float(effect.items_alone) / items_factor, float(effect.seed_variance)
    return math.sqrt(items + seeds * facts.num_seeds / num_seeds)


def lacking_rows_text(name: str, number: int, facts: Facts) -> str:
    """Return a note if the dataset has fewer rows than needed; else an empty string."""
    most = facts.most_items.get(name)
    if most is None or number <= most:
        return ""
    return f", more than the dataset has (about {most:,} if all of it were held out)"


def _open_guardrails(config: CampaignConfig, facts: Facts) -> dict[str, float]:
    """Return the margins of undecided guardrails that more evidence can decide."""
    found = {}
    for rule in config.rule.guardrails:
        harm = facts.benchmarks[rule.benchmark].harm
        result = non_inferiority(harm, margin=rule.margin)
        if result.verdict not in ("pass", "fail") and math.isfinite(float(harm.effect.item_variance)):
            found[rule.benchmark] = rule.margin
    return found


def _can_speak(open_: Mapping[str, float], facts: Facts, seeds: int, items_factor: float = 1.0) -> bool:
    return all(
        is_sized(standard_error_at(seeds, facts.benchmarks[name].harm.effect, facts, items_factor=items_factor), margin)
        for name, margin in open_.items()
    )


def _has_items(name: str, factor: int, facts: Facts) -> bool:
    return not lacking_rows_text(name, factor * facts.benchmarks[name].differences.shape[1], facts)


def _new_outcomes(
    config: CampaignConfig, facts: Facts, rule: CampaignRule, seeds: int, *, items_factor: float = 1.0
) -> OutcomeProbabilities:
    level = config.look_plan().gate_levels()[-1]
    return new_campaign_outcomes(
        facts.composite, num_seeds=facts.num_seeds, new_seeds=seeds, level=level, rule=rule, items_factor=items_factor
    )


def _new_campaign(facts: Facts, seeds: int, chances: OutcomeProbabilities, on_items: str) -> MoreEvidence:
    return MoreEvidence(
        what=f"a new campaign with {number_of(seeds, 'fresh seed')}{on_items} and the same gates",
        num_seeds=seeds,
        device_s=seeds * facts.pair_s,
        probability=float(chances.to_scale),
        decision_probability=float(chances.to_decide),
    )


def _draws_text(names: Iterable[str], facts: Facts, factor: int) -> str:
    """`176 clusters of code instead of 22`: independent draws are what counts."""
    parts = []
    for name in dict.fromkeys(names):
        found = facts.benchmarks[name]
        number = found.num_clusters
        what = "items" if number == found.differences.shape[1] else "clusters"
        parts.append(f"{factor * number:,} {what} of {name} instead of {number:,}")
    return " and ".join(parts)


def _giant_text(name: str, facts: Facts) -> str:
    """Return a note if one cluster dominates the mean; else an empty string."""
    found = facts.benchmarks[name]
    weights = cluster_sums(found.weights, found.clusters)
    share = float(weights.max() / weights.sum())
    if share < GIANT_SHARE or found.num_clusters < 2:
        return ""
    return f"smaller clusters: one of the {found.num_clusters:,} of {name} holds {share:.0%} of its items"


def _items_text(names: Iterable[str], facts: Facts, factor: int) -> str:
    """`16,000 items of code and 8,000 of prose`."""
    counts = [(name, factor * facts.benchmarks[name].differences.shape[1]) for name in dict.fromkeys(names)]
    text = " and ".join(
        f"{count:,}{' items' if index == 0 else ''} of {name}" for index, (name, count) in enumerate(counts)
    )
    most = [facts.most_items[name] for name, _ in counts if name in facts.most_items]
    return f"{text} (held-out rows, of about {min(most):,} that there are)" if most else text


def _chance(config: CampaignConfig, facts: Facts, rule: CampaignRule, seeds: int, level: float) -> float:
    return float(
        predictive_power(
            facts.composite,
            num_seeds=facts.num_seeds,
            end_seeds=seeds,
            end_level=level,
            replication_variance=replication_variance(config, facts),
            rule=rule,
        )
    )

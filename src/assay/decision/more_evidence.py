"""What more seeds would achieve, and their cost: the price of every open clause.

At the remaining declared looks, the probability of passing follows from today's effect and its variance. After the last
look no seed may be added to the campaign, because that would be another look. If no remaining look would decide, the
price is that of a new campaign that is large enough to decide either way.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.decision.config import CampaignConfig
from assay.decision.facts import BenchmarkFacts, Facts
from assay.records.decision import MoreEvidence
from assay.records.statement import Statement
from assay.statistics.campaign.rule import (
    CampaignRule,
    OutcomeProbabilities,
    forecast_of,
    new_campaign_outcomes,
    predictive_power,
)
from assay.statistics.effect import Effect
from assay.statistics.guardrail import Harm, is_sized, non_inferiority
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


def last_look(config: CampaignConfig, facts: Facts) -> dict[str, Any]:
    """Return the last declared look as `predictive_power` and `required_at_end` take it.

    Its replication has the last look's seeds and as many items.
    """
    effect, prior_sd = facts.composite, config.rule.thresholds().prior_sd
    if facts.num_seeds < config.seeds:
        forecast = forecast_of(effect, num_seeds=facts.num_seeds, end_seeds=config.seeds, prior_sd=prior_sd)
        effect = forecast.end
    return {
        "num_seeds": facts.num_seeds,
        "end_seeds": max(config.seeds, facts.num_seeds),
        "end_level": config.look_plan().gate_levels()[-1],
        "replication_variance": float(effect.variance),
    }


def more_seeds(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    """Return the fewest additional seeds of both arms that are worth running."""
    at_end = last_look(config, facts)
    chances = {
        seeds: float(predictive_power(facts.composite, **at_end | {"end_seeds": seeds, "end_level": level}, rule=rule))
        for seeds, level in zip(config.all_looks, config.look_plan().gate_levels(), strict=True)
        if seeds > facts.num_seeds
    }
    if not chances or chances[config.seeds] < rule.least_predictive_power:
        return deciding_campaign(config, facts, rule)
    likely = (seeds for seeds, chance in chances.items() if chance >= MIN_PASS_PROBABILITY)
    seeds = next(likely, config.seeds)
    return seeds_to_look(seeds, facts, probability=chances[seeds])


def seeds_to_look(look: int, facts: Facts, *, probability: float | None = None) -> MoreEvidence:
    """Return the seeds that are missing for the look at `look` seeds."""
    extra = look - facts.num_seeds
    return MoreEvidence(
        what=Statement(code="seeds", values={"seeds": extra, "look": look}),
        num_seeds=extra,
        device_s=extra * facts.pair_s,
        probability=probability,
    )


def more_items(
    benchmark: BenchmarkFacts, harm: Harm, margin: float, items_factor: float, config: CampaignConfig, facts: Facts
) -> MoreEvidence:
    """Return what would decide a guardrail: a declared look at which it is precise enough, or more items; else, the
    seeds of a new campaign, or a wider margin."""
    for look in config.all_looks:
        if look > facts.num_seeds and is_sized(standard_error_at(look, harm.effect, facts), margin):
            return seeds_to_look(look, facts)
    values: dict[str, Any] = {"benchmark": benchmark.name}
    code = "wider margin"
    if math.isinf(float(harm.effect.item_variance)):
        code = "differing items"
    elif math.isfinite(items_factor) and items_factor > 1.0:
        num_items = benchmark.differences.shape[1]
        values["items"] = extra = math.ceil((items_factor - 1.0) * num_items)
        code = "items"
        if _lacks_items(benchmark.name, num_items + extra, facts):
            code, values["most"] = "items or margin", facts.most_items[benchmark.name]
    else:
        ahead = range(config.seeds + 1, MAX_SEEDS + 1)
        enough = (seeds for seeds in ahead if is_sized(standard_error_at(seeds, harm.effect, facts), margin))
        values["seeds"] = MAX_SEEDS
        if (seeds := next(enough, None)) is not None:
            code, values["seeds"] = "campaign of seeds", seeds
    return MoreEvidence(what=Statement(code=code, values=values))


def deciding_campaign(config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    """Return the smallest new campaign that would probably decide either way: more seeds first, then more items.

    The present data do not count in it; they only predict the results of fresh seeds at the last gate. Open guardrails
    must be precise enough, and the items must exist in the dataset.
    """
    open_ = _open_guardrails(config, facts)
    for seeds in range(config.seeds, MAX_SEEDS + 1):
        found = _new_outcomes(config, facts, rule, seeds)
        if found.to_decide >= MIN_DECISION_PROBABILITY and _can_speak(open_, facts, seeds):
            return _new_campaign(facts, seeds, found, {})
    factors = [2**power for power in range(1, 1 + math.ceil(math.log2(MAX_ITEMS_FACTOR)))]
    names = list(dict.fromkeys((*config.rule.primary, *open_)))
    available = [factor for factor in factors if all(_has_items(name, factor, facts) for name in names)]
    for seeds in (config.seeds, MAX_SEEDS):
        for factor in available:
            found = _new_outcomes(config, facts, rule, seeds, items_factor=float(factor))
            if found.to_decide >= MIN_DECISION_PROBABILITY and _can_speak(open_, facts, seeds, factor):
                items = {name: factor * facts.benchmarks[name].differences.shape[1] for name in names}
                return _new_campaign(facts, seeds, found, items)
    lacking = [factor for factor in factors if factor not in available]
    most = max(available, default=1)
    return MoreEvidence(
        what=Statement(
            code="no more evidence", values={"seeds": MAX_SEEDS, "factor": most, "is_used_up": bool(lacking)}
        ),
        instead=tuple(_other_fixes(config, facts, rule, names, most, lacking)) or (Statement(code="another measure"),),
    )


def _other_fixes(
    config: CampaignConfig, facts: Facts, rule: CampaignRule, names: Sequence[str], most: int, lacking: Sequence[int]
) -> Iterator[Statement]:
    """Yield what would help if no campaign on the dataset does: rows that it lacks, or another claim.

    `most` is the largest factor on the items that the dataset has, `lacking` are those that it has not.
    """
    open_ = _open_guardrails(config, facts)

    def decides(factor: int, rule_: CampaignRule) -> bool:
        found = _new_outcomes(config, facts, rule_, MAX_SEEDS, items_factor=float(factor))
        return bool(found.to_decide >= MIN_DECISION_PROBABILITY)

    yield from (giant for name in names if (giant := _giant_cluster(facts.benchmarks[name])) is not None)
    for factor in lacking:
        if decides(factor, rule) and _can_speak(open_, facts, MAX_SEEDS, factor):
            draws = [_draws(facts.benchmarks[name], factor) for name in names]
            yield Statement(code="new rows", values={"draws": draws})
            break
    for times in () if decides(most, rule) else CLAIMS:
        claim = times * rule.least_effect
        is_possible = claim < facts.composite.limit
        if is_possible and decides(most, rule.model_copy(update={"least_effect": claim})):
            code = "smaller claim" if times < 1.0 else "larger claim"
            values = {"gain": claim, "unit": facts.unit, "seeds": MAX_SEEDS, "factor": most}
            yield Statement(code=code, values=values)
            break
    if open_:
        yield Statement(code="wider margins", values={"benchmarks": list(open_)})


def standard_error_at(num_seeds: int, effect: Effect, facts: Facts, *, items_factor: float = 1.0) -> float:
    """Return the standard error of an effect with this many seeds, on the same items or `items_factor` times as
    many."""
    items, seeds = float(effect.items_alone) / items_factor, float(effect.seed_variance)
    return math.sqrt(items + seeds * facts.num_seeds / num_seeds)


def _lacks_items(name: str, number: int, facts: Facts) -> bool:
    """Return whether the dataset has fewer rows than needed."""
    return number > facts.most_items.get(name, math.inf)


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
    errors = {
        name: standard_error_at(seeds, facts.benchmarks[name].harm.effect, facts, items_factor=items_factor)
        for name in open_
    }
    return all(is_sized(errors[name], margin) for name, margin in open_.items())


def _has_items(name: str, factor: int, facts: Facts) -> bool:
    return not _lacks_items(name, factor * facts.benchmarks[name].differences.shape[1], facts)


def _new_outcomes(
    config: CampaignConfig, facts: Facts, rule: CampaignRule, seeds: int, *, items_factor: float = 1.0
) -> OutcomeProbabilities:
    level = config.look_plan().gate_levels()[-1]
    return new_campaign_outcomes(
        facts.composite, num_seeds=facts.num_seeds, new_seeds=seeds, level=level, rule=rule, items_factor=items_factor
    )


def _new_campaign(facts: Facts, seeds: int, chances: OutcomeProbabilities, items: Mapping[str, int]) -> MoreEvidence:
    most = [facts.most_items[name] for name in items if name in facts.most_items]
    values: dict[str, Any] = {"seeds": seeds}
    if items:
        values["items"] = dict(items)
    if most:
        values["most"] = min(most)
    code = "campaign of rows" if most else "campaign of items" if items else "new campaign"
    return MoreEvidence(
        what=Statement(code=code, values=values),
        num_seeds=seeds,
        device_s=seeds * facts.pair_s,
        probability=float(chances.to_scale),
        decision_probability=float(chances.to_decide),
    )


def _draws(benchmark: BenchmarkFacts, factor: int) -> dict[str, Any]:
    """Return the independent draws that count, now and needed: items, or clusters."""
    number = benchmark.num_clusters
    are_items = number == benchmark.differences.shape[1]
    return {"benchmark": benchmark.name, "now": number, "needed": factor * number, "are_items": are_items}


def _giant_cluster(benchmark: BenchmarkFacts) -> Statement | None:
    """Return that one cluster dominates the mean, if one does."""
    weights = cluster_sums(benchmark.weights, benchmark.clusters)
    share = float(weights.max() / weights.sum())
    if share < GIANT_SHARE or benchmark.num_clusters < 2:
        return None
    values = {"benchmark": benchmark.name, "clusters": benchmark.num_clusters, "share": share}
    return Statement(code="smaller clusters", values=values)

"""Sensitivity of a recommendation: the gates under other assumptions, and without parts of the evidence.

A recommendation that changes if one seed is left out, or if the prior is doubled, is weaker than its probability
suggests. The variations are fixed, so nobody can select those that agree.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from assay.decision.config import CampaignConfig
from assay.decision.facts import Facts
from assay.decision.gates import recommended, without_holdout
from assay.decision.more_evidence import replication_variance
from assay.decision.sentences import effect_text, is_beyond
from assay.records.decision import Recommendation
from assay.statistics.campaign.rule import CampaignRule, least_scaling_effect


class Flips(NamedTuple):
    """Variations that lead to another recommendation."""

    by_recommendation: Mapping[Recommendation, Sequence[str]]
    """`{"narrow": ["without seed 0"]}`."""
    num_tried: int


def flips_of(config: CampaignConfig, facts: Facts, *, recommendation: Recommendation) -> Flips:
    """Judge the gates under each variation."""
    if facts.holdout is None:
        # A closed holdout is undecided, so with it every variation would end in narrow.
        config = without_holdout(config)
    flips: dict[Recommendation, list[str]] = {}
    num_tried = 0
    for name, other, rule in _variations(config, facts):
        num_tried += 1
        found = recommended(config, other, rule=rule)
        if found != recommendation:
            flips.setdefault(found, []).append(name)
    return Flips(flips, num_tried)


def variations(config: CampaignConfig, facts: Facts, flips: Flips, *, recommendation: Recommendation) -> Iterator[str]:
    """Return a sentence for each other recommendation, then the gain at which the present one would change."""
    for found, names in flips.by_recommendation.items():
        yield f"It would be {found} {', '.join(names)} ({len(names)} of {flips.num_tried} variations)."
    if not flips.by_recommendation:
        tried = f"({flips.num_tried} were tried)"
        yield f"No variation of assumptions, seeds or benchmarks would change it {tried}."
    yield from _turning_point(config, facts, recommendation)


def fragility(flips: Flips, facts: Facts) -> str:
    """`Fragile: it would be narrow without seed 0 or 1.`; empty if no part of the evidence changes the
    recommendation."""
    seeds = {f"without seed {run.seed}": str(run.seed) for run in facts.runs[: facts.num_seeds]}
    parts_by_outcome = []
    for found, names in flips.by_recommendation.items():
        of_seeds = [seeds[name] for name in names if name in seeds]
        parts = [f"without {_any_of(of_seeds, facts.num_seeds)}"] if of_seeds else []
        parts += [name for name in names if name.startswith("without ") and name not in seeds]
        if parts:
            parts_by_outcome.append(f"{found} {' or '.join(parts)}")
    return f"Fragile: it would be {'; '.join(parts_by_outcome)}." if parts_by_outcome else ""


def _any_of(seeds: Sequence[str], num_seeds: int) -> str:
    """`seed 0 or 1`; `any one of its 3 seeds`."""
    return f"any one of its {num_seeds} seeds" if len(seeds) == num_seeds else f"seed {' or '.join(seeds)}"


def _variations(config: CampaignConfig, facts: Facts) -> Iterator[tuple[str, Facts, CampaignRule]]:
    rule = config.rule.thresholds()
    yield "with a prior twice as wide", facts, rule.model_copy(update={"prior_sd": 2 * rule.prior_sd})
    yield "with a prior half as wide", facts, rule.model_copy(update={"prior_sd": rule.prior_sd / 2})
    yield "if half the gain were enough", facts, rule.model_copy(update={"least_effect": rule.least_effect / 2})
    yield ("if twice the gain were asked for", facts, rule.model_copy(update={"least_effect": 2 * rule.least_effect}))
    if facts.can_spare_a_seed:
        for seed_index in range(facts.num_seeds):
            yield f"without seed {facts.runs[seed_index].seed}", facts.without_seed(seed_index), rule
    if len(config.rule.primary) > 1:
        for name in config.rule.primary:
            yield f"without {name}", facts.without_primary(name), rule


def _turning_point(config: CampaignConfig, facts: Facts, recommendation: Recommendation) -> Iterator[str]:
    effect, rule = facts.composite, config.rule.thresholds()
    least = float(least_scaling_effect(effect, facts.look.level, replication_variance(config, facts), rule))
    if recommendation == "scale":
        yield f"Had the mean gain been below {effect_text(least, facts.unit)}, it would not be scaled."
    elif float(effect.mean) < least < _headroom(config, facts):
        yield f"A mean gain of {effect_text(least, facts.unit)}, with this spread, would pass."
    elif is_beyond(least, facts.unit) or math.isinf(least):
        yield "With this spread no gain would pass, however large."
    elif float(effect.mean) < least:
        yield (
            f"With this spread no gain would pass: it takes {effect_text(least, facts.unit)}, and from the "
            "baseline's score there is not as much to gain."
        )


def _headroom(config: CampaignConfig, facts: Facts) -> float:
    """Return the largest possible mean gain; infinite for unbounded scores."""
    primary = [facts.benchmarks[name] for name in config.rule.primary]
    if not all(
        benchmark.unit in ("share", "AUC") and all(result.higher_is_better for result in benchmark.results)
        for benchmark in primary
    ):
        return math.inf
    scores = [np.average(benchmark.baseline, axis=1, weights=benchmark.weights).mean() for benchmark in primary]
    return 1.0 - float(np.mean(scores))

"""What would change our mind: the same gates under other assumptions, and without each part of the evidence.

A recommendation that flips when one seed is left out, or when the prior is doubled, is worth less than its
probability says. The variations are fixed, so nobody can choose the ones that agree.
"""

from collections.abc import Iterator

from assay.evaluation.decision.config import CampaignConfig
from assay.evaluation.decision.facts import Facts
from assay.evaluation.decision.gates import judge_gates, without_seal
from assay.evaluation.decision.more_evidence import replication_variance
from assay.evaluation.decision.words import effect_text
from assay.evaluation.evidence.campaign.rule import CampaignRule, least_scaling_effect
from assay.records.decision import Recommendation


def variations(config: CampaignConfig, facts: Facts, *, recommendation: Recommendation) -> Iterator[str]:
    """Sentences: each variation that gives another recommendation; then the gain at which it would turn."""
    if facts.seal is None:
        # What is closed says neither yes nor no; else every variation would end in narrow.
        config = without_seal(config)
    flips: dict[Recommendation, list[str]] = {}
    num_tried = 0
    for name, other, rule in _variations(config, facts):
        num_tried += 1
        found = judge_gates(config, other, rule=rule).recommendation
        if found != recommendation:
            flips.setdefault(found, []).append(name)
    for found, names in flips.items():
        yield f"It would be {found} {', '.join(names)} ({len(names)} of {num_tried} variations)."
    if not flips:
        yield f"No variation of assumptions, seeds or benchmarks would change it ({num_tried} were tried)."
    yield from _turning_point(config, facts, recommendation)


def _variations(config: CampaignConfig, facts: Facts) -> Iterator[tuple[str, Facts, CampaignRule]]:
    rule = config.rule.thresholds()
    yield "with a prior twice as wide", facts, rule.model_copy(update={"prior_sd": 2 * rule.prior_sd})
    yield "with a prior half as wide", facts, rule.model_copy(update={"prior_sd": rule.prior_sd / 2})
    yield "if half the gain were enough", facts, rule.model_copy(update={"least_effect": rule.least_effect / 2})
    yield (
        "if twice the gain were asked for",
        facts,
        rule.model_copy(update={"least_effect": 2 * rule.least_effect}),
    )
    if facts.num_seeds > 2:
        for place in range(facts.num_seeds):
            yield f"without seed {facts.runs[place].seed}", facts.without_seed(place), rule
    if len(config.rule.primary) > 1:
        for name in config.rule.primary:
            yield f"without {name}", facts.without_primary(name), rule


def _turning_point(config: CampaignConfig, facts: Facts, recommendation: Recommendation) -> Iterator[str]:
    effect, rule = facts.composite, config.rule.thresholds()
    least = float(
        least_scaling_effect(
            effect.variance, effect.quantile(facts.look.level), replication_variance(config, facts), rule
        )
    )
    if recommendation == "scale":
        yield f"Had the mean gain been below {effect_text(least, facts.unit)}, it would not be scaled."
    elif float(effect.mean) < least:
        yield f"A mean gain of {effect_text(least, facts.unit)}, with this spread, would pass."

"""Turn the gates' verdicts into a readable decision: the sentence, its price, and the evidence against it.

This module weighs nothing: the gates make the recommendation. To find what would change it, the gates are judged again
under other assumptions, and without each seed and each benchmark; changed recommendations are listed.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from assay.base.units import number_of
from assay.decision.candidate import warning_of_patch
from assay.decision.config import CampaignConfig
from assay.decision.facts import BenchmarkFacts, Facts
from assay.decision.gates import GateOutcomes, blocking_clause, judge_gates, undeclared_clauses
from assay.decision.meaning import calibration_alone, meaning, not_moved, relative_words
from assay.decision.outlier_seeds import left_out_words, warnings_of_seeds
from assay.decision.sensitivity import flips_of, fragility, variations
from assay.decision.sentences import chances_text, device_time_text, effect_text, interval_words, is_beyond, would_help
from assay.records.campaign import Campaign, CampaignRun
from assay.records.decision import BenchmarkEffect, Clause, Decision, MoreEvidence, Recommendation
from assay.statistics.effect import estimate_of
from assay.statistics.power import detectable_by
from assay.statistics.warnings import RULES, warnings_of_clusters, warnings_of_guardrail

FEW_SEEDS = 5


def decide(config: CampaignConfig, campaign: Campaign, facts: Facts) -> Decision:
    """Return the decision on one candidate: a function of the declared campaign and the facts."""
    found = judge_gates(config, facts)
    candidate = config.candidate(facts.candidate)
    blocking = _blocking(found) if found.recommendation == "narrow" else None
    cheapest = blocking.more if blocking is not None and blocking.more and would_help(blocking.more) else None
    means = tuple(meaning(config, facts))
    flips = flips_of(config, facts, recommendation=found.recommendation)
    verdict = _verdict(facts, found, blocking, [*means[:1], fragility(flips, facts)])
    text = f"{verdict.sentence}{_of_dead_runs(facts.runs)}"
    baseline, treated = facts.runs[: facts.num_seeds], facts.runs[facts.num_seeds :]
    return Decision(
        campaign=campaign.name,
        campaign_sha256=campaign.config_sha256,
        question=config.question,
        candidate=candidate.name,
        because=candidate.because,
        patch=candidate.patch,
        recommendation=found.recommendation,
        sentence=text,
        decided_by=verdict.decided_by,
        is_final=_is_final(config, facts, found),
        look=facts.look,
        undeclared=undeclared_clauses(config),
        look_number=1 + config.all_looks.index(facts.num_seeds) if facts.look.is_gate else 0,
        num_looks=len(config.all_looks),
        effect=estimate_of(facts.composite),
        unit=facts.unit,
        least_effect=config.rule.least_effect,
        least_effect_because=config.least_effect_because,
        effects=tuple(_effect_record(benchmark) for benchmark in _measured(facts)),
        secondary=tuple(_effect_record(benchmark) for benchmark in facts.secondary),
        meaning=means,
        gates=found.gates,
        cheapest=cheapest,
        blocking=blocking.name if blocking else None,
        runs=facts.runs,
        spent_s=facts.spent_s,
        next_s=_next_s(found, cheapest),
        next_wall_s=cheapest.device_s / config.workers if cheapest and cheapest.device_s else None,
        owner=config.owner,
        budget_s=facts.budget_s,
        would_change=tuple(variations(config, facts, flips, recommendation=found.recommendation)),
        risks=tuple(risks(config, facts, found.recommendation)),
        dissent=(*config.dissent, *_dissent(config, facts, found.recommendation)),
        warnings=tuple(_warnings(config, facts)),
        baseline_recipe_sha256=baseline[0].recipe_sha256,
        candidate_recipe_sha256=treated[0].recipe_sha256,
    )


def _warnings(config: CampaignConfig, facts: Facts) -> Iterator[str]:
    """Return what may invalidate the evidence."""
    candidate = config.candidate(facts.candidate)
    if of_patch := warning_of_patch(candidate.name, candidate.patch):
        yield of_patch
    guardrails = [facts.benchmarks[guardrail.benchmark] for guardrail in config.rule.guardrails]
    for found in [guardrail for guardrail in guardrails if guardrail.unit == "share"]:
        yield from (warning.text for warning in warnings_of_guardrail(found.name, found.baseline, found.candidate))
    yield from (warning.text for warning in warnings_of_clusters(config.differing_clusters()))
    yield from (warning.text for warning in warnings_of_seeds(config, facts))
    yield from _warned_runs(facts.runs)


def _warned_runs(runs: Sequence[CampaignRun]) -> Iterator[str]:
    """Return the runs' warnings: a line for each arm and rule, with the first seed's numbers."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for run in runs:
        for rule, text in zip(run.warning_rules, run.warnings, strict=True):
            found.setdefault((run.arm, rule), []).append((run.seed, text))
    for (arm, rule), warned in found.items():
        of_arm = number_of(sum(run.arm == arm for run in runs), "run")
        seed, text = warned[0]
        yield f"{len(warned)} of {of_arm} of {arm} {RULES[rule].did}; with seed {seed}, {text}"


def _of_dead_runs(runs: Sequence[CampaignRun]) -> str:
    """Return a note if at least half of the models predict the same for every row."""
    dead = sum("one score" in run.warning_rules for run in runs)
    if not dead or 2 * dead < len(runs):
        return ""
    return f" But {dead} of {len(runs)} models predict the same for every row, so this says little of the change."


def _measured(facts: Facts) -> list[BenchmarkFacts]:
    """Return every benchmark, the sealed one last if it was opened."""
    sealed = facts.holdout.benchmark if facts.holdout is not None else None
    return [*facts.benchmarks.values(), *([sealed] if sealed is not None else [])]


def _is_final(config: CampaignConfig, facts: Facts, found: GateOutcomes) -> bool:
    """Return whether the decision is final: decided, at the last look, or open in a way that no later look can
    change."""
    if not facts.look.is_gate:
        return False
    if found.recommendation != "narrow" or found.is_inconclusive or facts.num_seeds >= config.seeds:
        return True
    open_ = [clause for clause in found.scale.clauses if clause.verdict != "pass"]
    return not any(clause.more is not None and clause.more.num_seeds for clause in open_)


def _blocking(found: GateOutcomes) -> Clause | None:
    """Return the clause that blocks scaling; if the design is inconclusive, fixing other clauses does not help."""
    if not found.is_inconclusive:
        return blocking_clause(found.scale.clauses)
    of_gain = [clause for clause in found.scale.clauses if clause.type == "effect"]
    return blocking_clause(of_gain) or blocking_clause(found.gates[1].clauses)


class _Verdict(NamedTuple):
    sentence: str
    decided_by: str


def _verdict(facts: Facts, found: GateOutcomes, blocking: Clause | None, notes: Sequence[str]) -> _Verdict:
    """Return the sentence; `notes` say what the gain means, and how sensitive the recommendation is."""
    text = "".join(f" {note}" for note in notes if note)
    name, gain = facts.candidate, interval_words(estimate_of(facts.composite), facts.unit)
    gain += relative_words(facts)
    over = f"over {number_of(facts.num_seeds, 'seed')}{left_out_words(facts)}{_of_a_loss(facts)}"
    if found.recommendation == "scale":
        thin = ", ".join(clause.name for clause in found.scale.clauses if clause.is_thin)
        sentence = f"Scale {name}: it gains {gain} {over}; {found.scale.reason}"
        return _Verdict(f"{sentence}{f' Thin: {thin}.' if thin else ''}{text}", "gate scale")
    if found.recommendation == "stop":
        stopped = found.passed_stop()
        assert stopped is not None
        gate, clause = stopped
        verb = "Roll back" if gate.then == "rollback" else "Stop"
        sentence = f"{verb} {name}: {_lower(clause.reason)} Its effect is {gain} {over}.{text}"
        return _Verdict(sentence, f"gate {gate.gate}: {clause.name}")
    assert blocking is not None, "what is narrow has an open clause"
    has_fix = blocking.more is not None and would_help(blocking.more)
    fix = f" The cheapest fix: {_price(blocking.more)}." if blocking.more and has_fix else ""
    is_over = facts.look.is_gate and blocking.more is not None and blocking.more.decision_probability is not None
    if not found.has_power and is_over:
        worth = next(clause for clause in found.scale.clauses if clause.name == "worth")
        reason = (
            f"this design cannot answer. Its effect is {gain} {over}: worth having with {worth.seen}, and "
            f"neither shown nor ruled out (clause '{blocking.name}')."
        )
        return _Verdict(f"Narrow {name}: {reason}{fix}", f"gate scale: {blocking.name}")
    reason = _lower(blocking.reason).removesuffix(".")
    sentence = f"Narrow {name}: {reason} (clause '{blocking.name}'). Its effect is {gain} {over}.{fix}"
    return _Verdict(sentence, f"gate scale: {blocking.name}")


def _of_a_loss(facts: Facts) -> str:
    """Return the direction of the scores if lower is better; else an empty string."""
    primary = [benchmark for benchmark in facts.benchmarks.values() if benchmark.role == "primary"]
    if all(_is_higher_better(benchmark) for benchmark in primary):
        return ""
    if len(primary) > 1:
        return " (less is better)"
    found = _effect_record(primary[0])
    return f" (from {found.baseline_score:.4f} to {found.candidate_score:.4f}; less is better)"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _price(more: MoreEvidence) -> str:
    cost = [device_time_text(more.device_s)] if more.device_s else []
    return ", ".join([more.what, *cost, *chances_text(more)])


def _next_s(found: GateOutcomes, cheapest: MoreEvidence | None) -> float | None:
    """Return the device time of the recommended next step; None if unknown (the plan prices scaling)."""
    if found.recommendation == "stop":
        return 0.0
    return cheapest.device_s if cheapest is not None else None


def _effect_record(benchmark: BenchmarkFacts) -> BenchmarkEffect:
    num_seeds, num_items = benchmark.differences.shape
    error, detectable = float(benchmark.effect.standard_error), detectable_by(benchmark.effect)
    scores = [result.score.value for result in benchmark.results]
    return BenchmarkEffect(
        benchmark=benchmark.name,
        role=benchmark.role,
        unit=benchmark.unit,
        baseline_score=sum(scores[:num_seeds]) / num_seeds,
        candidate_score=sum(scores[num_seeds:]) / num_seeds,
        effect=estimate_of(benchmark.effect),
        se=error,
        by_seed=tuple(benchmark.by_seed.tolist()),
        num_items=num_items,
        num_clusters=benchmark.num_clusters,
        num_dropped=benchmark.num_dropped,
        could_detect=detectable if math.isfinite(detectable) else None,
        baseline_results=benchmark.sources[:num_seeds],
        candidate_results=benchmark.sources[num_seeds:],
        higher_is_better=_is_higher_better(benchmark),
        item_degrees=float(benchmark.effect.item_degrees),
    )


def _is_higher_better(benchmark: BenchmarkFacts) -> bool:
    return all(result.higher_is_better for result in benchmark.results)


def risks(config: CampaignConfig, facts: Facts, recommendation: Recommendation) -> Iterator[str]:
    """Return what this evidence could not show."""
    rule = config.rule
    if recommendation == "stop":
        yield _could_be_missed(config, facts)
    else:
        if not rule.guardrails and not rule.safety:
            yield "No guardrail is declared: harm on other benchmarks would go unnoticed."
        if rule.coverage is None:
            yield "No coverage is declared: a failure mode without a benchmark would go unnoticed."
        if rule.scaling is None:
            yield "The gain was measured at this scale only; the gain at the target scale is unknown."
        if rule.plan is None:
            yield "No plan is declared: whether scaling fits time and budget is open."
        if len(rule.primary) == 1:
            yield "There is one primary benchmark: whether others gain is unknown."
        elif _are_of_one_split(config):
            yield (
                "The primary benchmarks are scores and slices of one split's rows; their agreement says little "
                "about other tasks."
            )
        if len(config.candidates) > 1:
            yield (
                f"The best of {len(config.candidates)} candidates looks better than it is; shrinkage corrects "
                "this as far as the prior is right."
            )
    if facts.num_seeds < FEW_SEEDS:
        yield f"{number_of(facts.num_seeds, 'seed')}: the variance between seeds is itself uncertain."
    for benchmark in facts.benchmarks.values():
        if benchmark.num_dropped:
            dropped = number_of(benchmark.num_dropped, "item")
            yield f"{benchmark.name}: not all runs scored {dropped}, which are left out for all of them."


def _are_of_one_split(config: CampaignConfig) -> bool:
    return all(
        benchmark.type == "predictions" for benchmark in config.benchmarks if benchmark.name in config.rule.primary
    )


def _could_be_missed(config: CampaignConfig, facts: Facts) -> str:
    """Return the least effect that the best primary benchmark detects with 80% power."""
    found = min(detectable_by(facts.benchmarks[name].effect) for name in config.rule.primary)
    if math.isinf(found):
        return "Any true gain could have been missed: its variance is unknown."
    if is_beyond(found, facts.unit):
        return "Any true gain could have been missed: this design finds none that a share can have."
    return f"A true gain below {effect_text(found, facts.unit, signed=False)} could have been missed."


def _dissent(config: CampaignConfig, facts: Facts, recommendation: Recommendation) -> Iterator[str]:
    """Return the evidence against the recommendation: losses if it is scaled, gains if not."""
    side, word = (-1.0, "Lower") if recommendation == "scale" else (1.0, "Higher")
    measured = (*facts.benchmarks.values(), *facts.secondary)
    effects = {benchmark.name: (float(benchmark.effect.mean), benchmark.unit) for benchmark in measured}
    against = {name: effect_text(mean, unit) for name, (mean, unit) in effects.items() if side * mean > 0.0}
    if listed := [f"{name} ({text})" for name, text in against.items() if text[0] in "+-"]:
        yield f"{word} than the baseline on {', '.join(listed)}."
    primary = [facts.benchmarks[name] for name in config.rule.primary]
    by_seed = np.mean([benchmark.by_seed for benchmark in primary], axis=0)
    if recommendation == "scale":
        yield from calibration_alone(config, facts)
        yield from not_moved(facts)
    seeds = [run.seed for run, gain in zip(facts.runs, by_seed.tolist(), strict=False) if side * gain > 0.0]
    if seeds:
        yield f"{word} than the baseline with seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}."

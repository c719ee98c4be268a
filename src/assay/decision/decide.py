"""Turn the gates' verdicts into a decision: its price, what the gain means, what would change it, and what speaks
against it.

This module weighs nothing: the gates make the recommendation. To find what would change it, the gates are judged again
under other assumptions, and without each seed and each benchmark. The variations are fixed, so nobody can select those
that agree. A recommendation that changes if one seed is left out is weaker than its probability suggests.

A gain in log-likelihood comes from better ranking or from better calibration. Calibration is worth less, because a
temperature fitted on held-out rows gives it without training. The ranking and accuracy of the same rows are therefore
reported too, if the predictions allow it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from assay.decision.candidate import warning_of_patch
from assay.decision.config import CampaignConfig, Candidate, PredictionsBenchmark
from assay.decision.facts import BenchmarkFacts, Facts, Floats
from assay.decision.gates import (
    GateOutcomes,
    judge_gates,
    recommended,
    without_holdout,
)
from assay.decision.more_evidence import last_look
from assay.records.campaign import Campaign, CampaignRun
from assay.records.decision import BenchmarkEffect, Clause, Decision, MoreEvidence, Recommendation
from assay.records.statement import Statement
from assay.statistics.campaign.rule import CampaignRule, least_scaling_effect
from assay.statistics.power import detectable_by
from assay.statistics.seeds.outliers import is_underdispersed, outlier_runs
from assay.statistics.seeds.trimmed import MIN_SEEDS, inner_seeds

FEW_SEEDS = 5

_BASES = {"nats": math.e, "bits": 2.0}


def decide(config: CampaignConfig, campaign: Campaign, facts: Facts) -> Decision:
    """Return the decision on one candidate: a function of the declared campaign and the facts."""
    found = judge_gates(config, facts)
    candidate = config.candidate(facts.candidate)
    blocking = found.blocking if found.recommendation == "narrow" else None
    cheapest = blocking.more if blocking is not None and blocking.more and blocking.more.would_help() else None
    flips, num_variations = flips_of(config, facts, recommendation=found.recommendation)
    right = _of_all_rows(config, facts, "correct")
    baseline, treated = facts.runs[: facts.num_seeds], facts.runs[facts.num_seeds :]
    return Decision(
        campaign=campaign.name,
        campaign_sha256=campaign.config_sha256,
        question=config.question,
        candidate=candidate.name,
        because=candidate.because,
        patch=candidate.change,
        recommendation=found.recommendation,
        decided_by=_decided_by(found, blocking),
        can_decide=_can_decide(facts, found, blocking),
        is_final=_is_final(config, facts, found),
        look=facts.look,
        undeclared=found.undeclared,
        look_number=1 + config.all_looks.index(facts.num_seeds) if facts.look.is_gate else 0,
        num_looks=len(config.all_looks),
        effect=facts.estimate,
        unit=facts.unit,
        relative=_relative(facts),
        left_out_seeds=_left_out_seeds(facts),
        least_effect=config.rule.least_effect,
        least_effect_because=config.least_effect_because,
        effects=tuple(_effect_record(benchmark) for benchmark in _measured(facts)),
        secondary=tuple(_effect_record(benchmark) for benchmark in facts.secondary),
        accuracy_benchmark=right.name if right is not None else None,
        meaning=tuple(_meaning(config, facts)),
        gates=found.gates,
        cheapest=cheapest,
        blocking=blocking.name if blocking else None,
        runs=facts.runs,
        spent_s=facts.spent_s,
        next_s=_next_s(found, cheapest),
        next_wall_s=cheapest.device_s / config.workers if cheapest and cheapest.device_s else None,
        owner=config.owner,
        budget_s=facts.budget_s,
        flips=flips,
        num_variations=num_variations,
        turning_point=turning_point(config, facts, found.recommendation),
        risks=tuple(_risks(config, facts, found.recommendation)),
        dissent=tuple(_dissent(config, facts, found.recommendation)),
        objections=config.dissent,
        warnings=tuple(_warnings(config, facts, candidate)),
        baseline_recipe_sha256=baseline[0].recipe_sha256,
        candidate_recipe_sha256=treated[0].recipe_sha256,
    )


def _statement(code: str, **values: Any) -> Statement:
    return Statement(code=code, values=values)


# What the gates say


def _is_final(config: CampaignConfig, facts: Facts, found: GateOutcomes) -> bool:
    """Return whether the decision is final: decided, at the last look, or open in a way that no later look can
    change."""
    if not facts.look.is_gate:
        return False
    if found.recommendation != "narrow" or found.is_inconclusive or facts.num_seeds >= config.seeds:
        return True
    open_ = [clause for clause in found.scale.clauses if clause.verdict != "pass"]
    return not any(clause.more is not None and clause.more.num_seeds for clause in open_)


def _decided_by(found: GateOutcomes, blocking: Clause | None) -> str:
    """Return the gate, and the clause that it goes by: `gate stop: too small`."""
    if (stopped := found.passed_stop) is not None:
        return f"gate {stopped[0].gate}: {stopped[1].name}"
    return "gate scale" if blocking is None else f"gate scale: {blocking.name}"


def _can_decide(facts: Facts, found: GateOutcomes, blocking: Clause | None) -> bool:
    """Return False if the design lacks power, and only another campaign would decide."""
    more = blocking.more if blocking is not None and facts.look.is_gate else None
    return found.has_power or more is None or more.decision_probability is None


def _next_s(found: GateOutcomes, cheapest: MoreEvidence | None) -> float | None:
    """Return the device time of the recommended next step; None if unknown (the plan prices scaling)."""
    if found.recommendation == "stop":
        return 0.0
    return cheapest.device_s if cheapest is not None else None


# The effect


def _effect_record(benchmark: BenchmarkFacts) -> BenchmarkEffect:
    num_seeds, num_items = benchmark.differences.shape
    detectable = detectable_by(benchmark.effect)
    sign = 1.0 if benchmark.is_better_higher else -1.0
    means = [
        sign * float(np.average(arm, axis=1, weights=benchmark.weights).mean())
        for arm in (benchmark.baseline, benchmark.candidate)
    ]
    return BenchmarkEffect(
        benchmark=benchmark.name,
        role=benchmark.role,
        unit=benchmark.unit,
        baseline_score=means[0],
        candidate_score=means[1],
        effect=benchmark.estimate,
        se=float(benchmark.effect.standard_error),
        by_seed=tuple(benchmark.by_seed.tolist()),
        num_items=num_items,
        num_clusters=benchmark.num_clusters,
        num_dropped=benchmark.num_dropped,
        could_detect=detectable if math.isfinite(detectable) else None,
        baseline_results=benchmark.sources[:num_seeds],
        candidate_results=benchmark.sources[num_seeds:],
        higher_is_better=benchmark.is_better_higher,
        where=dict(benchmark.where),
        num_differing=benchmark.num_differing,
        item_degrees=float(benchmark.effect.item_degrees),
    )


def _measured(facts: Facts) -> list[BenchmarkFacts]:
    """Return every benchmark, the sealed one last if it was opened."""
    sealed = facts.holdout.benchmark if facts.holdout is not None else None
    return [*facts.benchmarks.values(), *([sealed] if sealed is not None else [])]


def _relative(facts: Facts) -> float | None:
    """Return the effect as a share of the baseline's score; None if that is 0."""
    baseline = abs(float(np.mean(_baseline_scores(facts))))
    return None if baseline < 1e-9 else float(facts.composite.mean) / baseline


def _baseline_scores(facts: Facts) -> list[float]:
    """Return the baseline's score on each primary benchmark; higher is better."""
    return [
        float(np.average(benchmark.baseline, axis=1, weights=benchmark.weights).mean()) for benchmark in facts.primary
    ]


def _left_out_seeds(facts: Facts) -> tuple[int, ...]:
    """Return which seeds the trimmed effect leaves out; empty for the mean."""
    if facts.over_seeds == "mean":
        return ()
    gains = np.diff(_scores_of_runs(facts), axis=0)[0]
    return tuple(
        sorted(run.seed for run, is_inner in zip(facts.runs, inner_seeds(gains), strict=False) if not is_inner)
    )


def _scores_of_runs(facts: Facts) -> Floats:
    """Return [arm, seed] means over the primary benchmarks; higher is better."""
    means = [
        [np.average(arm, axis=1, weights=benchmark.weights) for arm in (benchmark.baseline, benchmark.candidate)]
        for benchmark in facts.primary
    ]
    found: Floats = np.mean(means, axis=0)
    return found


# What it means


def _meaning(config: CampaignConfig, facts: Facts) -> Iterator[Statement]:
    """Yield the gain in other terms; nothing if the unit is clear and the rows have no other scores."""
    size, _, per = facts.unit.partition(" ")
    if size not in _BASES:
        return
    yield _statement("likelihood", factor=_BASES[size] ** float(facts.composite.mean), per=per.removeprefix("per "))
    ranking = _of_the_same_rows(config, facts, "ranking")
    if ranking is not None and _is_better(ranking):
        yield _statement("more than calibration", **_effect_values(ranking))


def _of_all_rows(config: CampaignConfig, facts: Facts, score: str) -> BenchmarkFacts | None:
    """Return a score of all held-out rows, or else of the first primary benchmark's rows."""
    of_all = next((item for item in _scores(config, facts, score) if not item.where), None)
    return of_all or _of_the_same_rows(config, facts, score)


def _of_the_same_rows(config: CampaignConfig, facts: Facts, score: str) -> BenchmarkFacts | None:
    """Return another score of the rows of the first primary benchmark of predictions."""
    predictions = [item for item in config.benchmarks if isinstance(item, PredictionsBenchmark)]
    first = next((item for item in predictions if item.name in config.rule.primary), None)
    if first is None:
        return None
    return next((item for item in _scores(config, facts, score) if item.where == first.where), None)


def _scores(config: CampaignConfig, facts: Facts, score: str) -> list[BenchmarkFacts]:
    """Return the facts about this score of predictions, those of declared benchmarks first."""
    known = {**{benchmark.name: benchmark for benchmark in facts.secondary}, **facts.benchmarks}
    named = [
        item for item in (*config.benchmarks, *config.secondary) if item.type == "predictions" and item.score == score
    ]
    return [known[item.name]._replace(where=item.where) for item in named if item.name in known]


def _effect_values(benchmark: BenchmarkFacts) -> dict[str, Any]:
    effect = benchmark.estimate.model_dump()
    return {"benchmark": benchmark.name, "effect": effect, "unit": benchmark.unit}


def _is_better(benchmark: BenchmarkFacts) -> bool:
    low = benchmark.estimate.low
    return low is not None and low > 0.0


def _is_worse(benchmark: BenchmarkFacts) -> bool:
    high = benchmark.estimate.high
    return high is not None and high < 0.0


# What would change it


def flips_of(
    config: CampaignConfig, facts: Facts, *, recommendation: Recommendation
) -> tuple[dict[Recommendation, tuple[Statement, ...]], int]:
    """Judge the gates under each variation; return the other recommendations with the variations that lead to them,
    and the number of variations."""
    if facts.holdout is None:
        # A closed holdout is undecided, so with it every variation would end in narrow.
        config = without_holdout(config)
    flips: dict[Recommendation, tuple[Statement, ...]] = {}
    num_tried = 0
    for variation, other, rule in _variations(config, facts):
        num_tried += 1
        found = recommended(config, other, rule=rule)
        if found != recommendation:
            flips[found] = (*flips.get(found, ()), variation)
    return flips, num_tried


def _variations(config: CampaignConfig, facts: Facts) -> Iterator[tuple[Statement, Facts, CampaignRule]]:
    rule = config.rule.thresholds()
    for key, factor in (("prior_sd", 2.0), ("prior_sd", 0.5), ("least_effect", 0.5), ("least_effect", 2.0)):
        changed = rule.model_copy(update={key: factor * getattr(rule, key)})
        yield _statement(f"{key} {'doubled' if factor > 1.0 else 'halved'}"), facts, changed
    if facts.can_spare_a_seed:
        for seed_index in range(facts.num_seeds):
            seed = facts.runs[seed_index].seed
            yield _statement("without seed", seed=seed), facts.without_seed(seed_index), rule
    if len(config.rule.primary) > 1:
        for name in config.rule.primary:
            yield _statement("without benchmark", benchmark=name), facts.without_primary(name), rule


def turning_point(config: CampaignConfig, facts: Facts, recommendation: Recommendation) -> Statement | None:
    """Return the gain at which the recommendation would change, or that none would."""
    effect, rule = facts.composite, config.rule.thresholds()
    least = float(
        least_scaling_effect(effect, facts.look.level, last_look(config, facts)["replication_variance"], rule)
    )
    if recommendation == "scale":
        return _statement("scaled from", least=least, unit=facts.unit)
    if float(effect.mean) < least < _headroom(facts):
        return _statement("would pass from", least=least, unit=facts.unit)
    if math.isinf(least) or least >= effect.limit:
        return _statement("no gain would pass")
    if float(effect.mean) < least:
        return _statement("no room for the gain", least=least, unit=facts.unit)
    return None


def _headroom(facts: Facts) -> float:
    """Return the largest possible mean gain; infinite for unbounded scores."""
    if not all(item.unit in ("share", "AUC") and item.is_better_higher for item in facts.primary):
        return math.inf
    return 1.0 - float(np.mean(_baseline_scores(facts)))


# What speaks against it


def _risks(config: CampaignConfig, facts: Facts, recommendation: Recommendation) -> Iterator[Statement]:
    """Yield what this evidence could not show."""
    rule = config.rule
    if recommendation == "stop":
        # The least effect that the best primary benchmark detects with 80% power.
        least = min(detectable_by(benchmark.effect) for benchmark in facts.primary)
        if least < facts.composite.limit:
            yield _statement("could be missed", least=least, unit=facts.unit)
        else:
            yield _statement("any could be missed")
    else:
        if not rule.guardrails and not rule.safety:
            yield _statement("no guardrail")
        if rule.coverage is None:
            yield _statement("no coverage")
        if rule.scaling is None:
            yield _statement("no target scale")
        if rule.plan is None:
            yield _statement("no plan")
        if len(rule.primary) == 1:
            yield _statement("one primary benchmark")
        elif all(item.type == "predictions" for item in config.benchmarks if item.name in rule.primary):
            yield _statement("one split")
        if len(config.candidates) > 1:
            yield _statement("best of several", candidates=len(config.candidates))
    if facts.num_seeds < FEW_SEEDS:
        yield _statement("few seeds", seeds=facts.num_seeds)
    for benchmark in facts.benchmarks.values():
        if benchmark.num_dropped:
            yield _statement("items left out", benchmark=benchmark.name, items=benchmark.num_dropped)


def _dissent(config: CampaignConfig, facts: Facts, recommendation: Recommendation) -> Iterator[Statement]:
    """Yield the evidence against the recommendation: losses if it is scaled, gains if not."""
    is_scaled = recommendation == "scale"
    side = -1.0 if is_scaled else 1.0
    others = [*facts.benchmarks.values(), *facts.secondary]
    against = [
        {"benchmark": item.name, "value": float(item.effect.mean), "unit": item.unit}
        for item in others
        if side * float(item.effect.mean) > 0.0
    ]
    if against:
        yield _statement("lower on" if is_scaled else "higher on", effects=against)
    if is_scaled:
        ranking = _of_the_same_rows(config, facts, "ranking")
        if facts.unit.partition(" ")[0] in _BASES and ranking is not None and not _is_better(ranking):
            yield _statement("calibration alone", **_effect_values(ranking))
        still = [item for item in others if item.role == "other" and not _is_better(item) and not _is_worse(item)]
        if still:
            yield _statement("no difference", effects=[_effect_values(item) for item in still])
    by_seed = np.mean([benchmark.by_seed for benchmark in facts.primary], axis=0)
    seeds = [run.seed for run, gain in zip(facts.runs, by_seed.tolist(), strict=False) if side * gain > 0.0]
    if seeds:
        yield _statement("lower with seeds" if is_scaled else "higher with seeds", seeds=seeds)


# What may invalidate the evidence; no verdict depends on it: the reader decides whether a run crashed


def _warnings(config: CampaignConfig, facts: Facts, candidate: Candidate) -> Iterator[Statement]:
    if (of_patch := warning_of_patch(candidate.name, candidate.patch)) is not None:
        yield of_patch
    for guardrail in config.rule.guardrails:
        found = facts.benchmarks[guardrail.benchmark]
        if found.unit == "share" and not (found.baseline.any() or found.candidate.any()):
            yield _statement("guardrail at zero", benchmark=found.name)
    columns = config.differing_clusters
    if len({*columns.values()}) > 1:
        yield _statement("clusters differ", columns=columns)
    yield from _seed_warnings(config, facts)
    yield from _model_warnings(facts.runs)


def _seed_warnings(config: CampaignConfig, facts: Facts) -> Iterator[Statement]:
    """Yield outliers, equal weights and underdispersion among the runs."""
    for found in outlier_runs(_scores_of_runs(facts), facts.composite):
        run = facts.runs[found.arm * facts.num_seeds + found.seed_index]
        yield _statement(
            "outlier seed",
            arm=run.arm,
            seed=run.seed,
            distance=float(found.distance),
            unit=facts.unit,
            can_trim=config.rule.over_seeds == "mean" and facts.num_seeds >= MIN_SEEDS,
        )
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in facts.runs:
        if run.weights_digest:
            seeds.setdefault((run.arm, run.weights_digest), []).append(run.seed)
    for (arm, _), same in seeds.items():
        if len(same) > 1:
            yield _statement("equal weights", arm=arm, seeds=same)
    if is_underdispersed(facts.composite):
        yield _statement("underdispersed seeds", seeds=facts.num_seeds)


def _model_warnings(runs: Sequence[CampaignRun]) -> Iterator[Statement]:
    """Yield the runs' warnings: one for each arm and rule, with the first seed's numbers; last, that half of the
    models or more predict the same for every row."""
    found: dict[tuple[str, str], list[tuple[int, str | Statement]]] = {}
    for run in runs:
        for rule, warning in zip(run.warning_rules, run.warnings, strict=True):
            found.setdefault((run.arm, rule), []).append((run.seed, warning))
    for (arm, rule), warned in found.items():
        seed, warning = warned[0]
        text = warning if isinstance(warning, str) else warning.model_dump()
        num_runs = sum(run.arm == arm for run in runs)
        yield _statement("runs warned", rule=rule, arm=arm, warned=len(warned), runs=num_runs, seed=seed, text=text)
    dead = sum("one score" in run.warning_rules for run in runs)
    if dead and 2 * dead >= len(runs):
        yield _statement("models without input", models=dead, of=len(runs))

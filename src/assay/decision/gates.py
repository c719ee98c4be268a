"""Judge the gates of one candidate at one look: every clause with its numbers, and the recommendation.

    scale   all of: gain, worth, replication, left out, breadth     (statistics.campaign.rule)
                    guardrails, safety, coverage, drill, sealed holdout, target scale, plan, budget
    stop    any of: too small, unlikely, no way     (statistics.campaign.rule; the last two if it has power)
                    harm, unsafe
    others  as declared in the campaign's file; one that passes means stop

The arithmetic and the recommendation are those of `campaign.rule.judge`, which the simulation of thousands of campaigns
validates. This module adds verdicts of three values: `fail` is evidence against, `undecided` is a lack of evidence. A
gate passes with neither, but only the second is fixed by more evidence. A clause holds codes and numbers; its words are
in `reporting.views.statements`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.special import ndtri

from assay.decision.config import (
    CampaignConfig,
    Condition,
    Gate,
    GuardrailRule,
    HarmCondition,
    PlanRule,
    RateCondition,
    SafetyRule,
    SealedRule,
    SpentCondition,
)
from assay.decision.facts import BenchmarkFacts, Facts, ForecastFacts, PlanFacts
from assay.decision.more_evidence import last_look, more_items, more_seeds
from assay.records.campaign import ROWS_NOT_OBSERVED
from assay.records.coverage import Coverage
from assay.records.decision import Clause, GateResult, GateVerdict, MoreEvidence, Recommendation, Source
from assay.records.drill import DrillReport
from assay.records.statement import Statement
from assay.statistics.campaign.rule import (
    CampaignEvidence,
    CampaignRule,
    Criterion,
    RuleOutcome,
    judge,
    predictive_power,
    required_at_end,
)
from assay.statistics.failure_rate import rate_lower, rate_upper, trials_needed
from assay.statistics.guardrail import MARGINS_PER_ERROR, non_inferiority

FactT = TypeVar("FactT")

THIN_ERRORS = 0.5
"""A bound that clears its threshold by fewer standard errors holds thinly: with other seeds and items, two in five such
bounds would not hold."""

OF_SEVERAL = ("left out", "breadth")
"""Clauses of the gain that say nothing about a single benchmark."""

OF_THE_GAIN = ("gain", "worth", "replication", *OF_SEVERAL)
"""Clauses of `scale` on the primary effect."""


class GateOutcomes(NamedTuple):
    """Verdicts of all gates on a candidate."""

    recommendation: Recommendation
    gates: tuple[GateResult, ...]
    """`scale`, `stop`, then those of the campaign's file."""
    has_power: bool
    """Whether the last look would scale a clear gain."""
    is_inconclusive: bool
    """Whether `narrow` is final: the design lacks power, and no later look would change it."""
    undeclared: tuple[str, ...]
    """The clauses that `scale` could have, and this campaign does not declare."""

    @property
    def scale(self) -> GateResult:
        return self.gates[0]

    @property
    def passed_stop(self) -> tuple[GateResult, Clause] | None:
        """The first gate that stops the candidate, and the clause that made it pass."""
        for gate in self.gates[1:]:
            if gate.verdict == "pass":
                return gate, next(clause for clause in gate.clauses if clause.verdict == "pass")
        return None

    @property
    def blocking(self) -> Clause | None:
        """The clause that blocks scaling; if the design is inconclusive, fixing other clauses does not help."""
        if not self.is_inconclusive:
            return blocking_clause(self.scale.clauses)
        of_gain = [clause for clause in self.scale.clauses if clause.type in OF_THE_GAIN]
        return blocking_clause(of_gain) or blocking_clause(self.gates[1].clauses)


def judge_gates(config: CampaignConfig, facts: Facts, *, rule: CampaignRule | None = None) -> GateOutcomes:
    """Judge all gates; `rule` replaces the thresholds."""
    rule = rule or config.rule.thresholds()
    needed, stops, others = _conditions(config, facts)
    found = _rule_outcome(config, facts, rule, needed, stops, others)
    gain = [_rule_clause(item, _verdict(item, facts, rule), config, facts, rule) for item in found.scale_clauses]
    futile = [
        _rule_clause(item, _futile(item, has_power=bool(found.has_power)), config, facts, rule)
        for item in found.stop_clauses
    ]
    gates = (_scale_gate([*gain, *needed]), _stop_gate([*futile, *stops], config, facts), *others)
    has_power, is_inconclusive = bool(found.has_power), bool(found.is_inconclusive)
    return GateOutcomes(_recommended(found), gates, has_power, is_inconclusive, _undeclared(config))


def recommended(config: CampaignConfig, facts: Facts, *, rule: CampaignRule | None = None) -> Recommendation:
    """Return the recommendation of `judge_gates` without computing prices."""
    return _recommended(_rule_outcome(config, facts, rule or config.rule.thresholds(), *_conditions(config, facts)))


def passes_except_holdout(config: CampaignConfig, facts: Facts) -> bool:
    """Return whether the candidate would be scaled if the sealed benchmark passes."""
    return recommended(without_holdout(config), facts) == "scale"


def without_holdout(config: CampaignConfig) -> CampaignConfig:
    """Return the campaign without its sealed benchmark."""
    return config.model_copy(update={"rule": config.rule.model_copy(update={"sealed": None})})


def _undeclared(config: CampaignConfig) -> tuple[str, ...]:
    rule = config.rule
    declared = {
        **dict.fromkeys(OF_SEVERAL, len(rule.primary) > 1),
        "guardrails": bool(rule.guardrails),
        "safety": bool(rule.safety),
        "coverage": rule.coverage is not None,
        "drill": rule.drill is not None,
        "sealed holdout": rule.sealed is not None,
        "target scale": rule.scaling is not None,
        "plan": rule.plan is not None,
    }
    return tuple(name for name, is_declared in declared.items() if not is_declared)


def blocking_clause(clauses: Sequence[Clause]) -> Clause | None:
    """Return the open clause that is cheapest to turn; None if all pass.

    Clauses without a price come last; of equal ones, a failed one comes first.
    """
    open_ = [clause for clause in clauses if clause.verdict != "pass"]

    def price(clause: Clause) -> tuple[float, bool]:
        device_s = clause.more.device_s if clause.more is not None else None
        return (np.inf if device_s is None else device_s, clause.verdict != "fail")

    return min(open_, key=price, default=None)


def _conditions(
    config: CampaignConfig, facts: Facts
) -> tuple[Sequence[Clause], Sequence[Clause], Sequence[GateResult]]:
    """Return the clauses besides those on the gain: those that `scale` needs, those that each mean `stop`, and the
    further gates."""
    rule = config.rule
    stops = [harm_clause(item.benchmark, item.margin, facts) for item in rule.guardrails]
    stops += [rate_clause(item.benchmark, item.max_rate, facts) for item in rule.safety]
    return [*_needed(config, facts)], stops, [_other_gate(gate, facts) for gate in config.gates]


def _needed(config: CampaignConfig, facts: Facts) -> Iterator[Clause]:
    rule = config.rule
    yield from (guardrail_clause(guardrail, config, facts) for guardrail in rule.guardrails)
    yield from (safety_clause(safety, facts) for safety in rule.safety)
    if rule.coverage is not None:
        yield coverage_clause(*_gathered(facts.coverage))
    if rule.drill is not None:
        yield audit_clause(facts) if rule.drill == "audit" else drill_clause(*_gathered(facts.drill), facts)
    if rule.sealed is not None:
        yield sealed_clause(rule.sealed, facts)
    if rule.scaling is not None:
        yield scaling_clause(_gathered(facts.forecast), rule.least_effect, facts.unit)
    if rule.plan is not None:
        yield plan_clause(rule.plan, _gathered(facts.plan))
    yield budget_clause(facts)


def _rule_outcome(
    config: CampaignConfig,
    facts: Facts,
    rule: CampaignRule,
    needed: Sequence[Clause],
    stops: Sequence[Clause],
    others: Sequence[GateResult],
) -> RuleOutcome:
    at_end = last_look(config, facts)
    return judge(
        CampaignEvidence(
            effect=facts.composite,
            level=facts.look.level,
            is_gate=facts.look.is_gate,
            replication_variance=at_end["replication_variance"],
            least_without_one=facts.breadth.least_without_one,
            share_positive=facts.breadth.share_positive,
            predictive_power=float(predictive_power(facts.composite, **at_end, rule=rule)),
            required_at_end=float(required_at_end(facts.composite, **at_end, rule=rule)),
            also_needed=[clause.verdict == "pass" for clause in needed],
            also_stops=[clause.verdict == "pass" for clause in stops] + [gate.verdict == "pass" for gate in others],
        ),
        rule,
    )


def _recommended(found: RuleOutcome) -> Recommendation:
    recommendation: Recommendation = str(found.recommendation)  # type: ignore[assignment]
    return recommendation


# Gates


def _scale_gate(clauses: Sequence[Clause]) -> GateResult:
    worst = blocking_clause(clauses)
    has_failed = any(clause.verdict == "fail" for clause in clauses)
    return GateResult(
        gate="scale",
        then="scale",
        verdict="pass" if worst is None else "fail" if has_failed else "undecided",
        decided_by=worst.name if worst else None,
        clauses=tuple(clauses),
        more=worst.more if worst else None,
    )


def _stop_gate(clauses: Sequence[Clause], config: CampaignConfig, facts: Facts) -> GateResult:
    shown = [clause for clause in clauses if clause.verdict == "pass"]
    verdict: GateVerdict = "pass" if shown else "fail" if _is_last_look(config, facts) else "undecided"
    shown += [clause for clause in clauses if clause.verdict == "undecided"]
    return GateResult(
        gate="stop",
        then="stop",
        verdict=verdict,
        decided_by=shown[0].name if shown else None,
        clauses=tuple(clauses),
    )


def _other_gate(gate: Gate, facts: Facts) -> GateResult:
    clauses = tuple(condition_clause(condition, facts) for condition in gate.conditions)
    met = [clause for clause in clauses if clause.verdict == "pass"]
    passes = len(met) == len(clauses) if gate.when == "all" else bool(met)
    return GateResult(
        gate=gate.name,
        then=gate.then,
        verdict="pass" if passes else "fail",
        decided_by=met[0].name if passes else None,
        clauses=clauses,
    )


def _is_last_look(config: CampaignConfig, facts: Facts) -> bool:
    return facts.num_seeds >= config.seeds


# Clauses


def _clause(type_: str, verdict: GateVerdict | bool, *, value: float | None, **others: Any) -> Clause:
    """Return a clause; by default its name is its type, and its reason its verdict."""
    if isinstance(verdict, bool):
        verdict = "pass" if verdict else "fail"
    known = {"name": type_, "reason": verdict, **others}
    return Clause(type=type_, verdict=verdict, value=None if value is None else _finite(value), **known)


def _fix(code: str, **values: Any) -> MoreEvidence:
    return MoreEvidence(what=Statement(code=code, values=values))


def _rule_clause(
    found: Criterion, verdict: GateVerdict, config: CampaignConfig, facts: Facts, rule: CampaignRule
) -> Clause:
    """Return a clause of the rule with its numbers."""
    name, cleared = found.name, _cleared(found, facts)
    is_of_gain, level = name in OF_THE_GAIN, rule.futility_level if name == "too small" else facts.look.level
    return _clause(
        name,
        verdict,
        reason=_reason(name, verdict, config, facts),
        value=float(found.value),
        bound=float(found.limit),
        unit=facts.unit,
        values={"level": level, "least": rule.least_effect, "seeds": config.seeds, "cleared": _finite(cleared)},
        benchmarks=config.rule.primary,
        is_thin=is_of_gain and verdict == "pass" and cleared < THIN_ERRORS,
        more=_more(name, config, facts, rule) if is_of_gain and verdict != "pass" else None,
    )


def _cleared(found: Criterion, facts: Facts) -> float:
    """Return by how many standard errors a clause on the gain clears its threshold; infinite for other clauses."""
    match found.name:
        case "gain":
            return float(found.value - found.limit) / max(float(facts.composite.standard_error), 1e-300)
        case "worth" | "replication":
            return float(ndtri(found.value) - ndtri(found.limit))
    return math.inf


def _verdict(found: Criterion, facts: Facts, rule: CampaignRule) -> GateVerdict:
    """Return the verdict; `undecided` if more seeds may show the gain."""
    if found.is_met:
        return "pass"
    if found.name in ("worth", "replication"):
        return "fail" if float(found.value) < rule.stop_probability else "undecided"
    if found.name == "gain":
        return "fail" if float(facts.composite.upper(facts.look.level)) < 0.0 else "undecided"
    return "fail"


def _futile(found: Criterion, *, has_power: bool) -> GateVerdict:
    """Return the verdict of a futility clause; `undecided` if it holds, but the design would have missed a clear
    gain."""
    if not found.is_met:
        return "fail"
    return "pass" if has_power or found.name == "too small" else "undecided"


def _reason(name: str, verdict: GateVerdict, config: CampaignConfig, facts: Facts) -> str:
    if name not in OF_THE_GAIN and verdict == "undecided":
        return "no power"
    if name in OF_SEVERAL and len(config.rule.primary) == 1:
        return "one benchmark"
    return "no look left" if name == "no way" and _is_last_look(config, facts) else verdict


def _more(name: str, config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    more = more_seeds(config, facts, rule)
    # The effect of more seeds on the gain can be predicted; on its breadth it cannot, unless they do nothing
    # for the gain.
    if name not in OF_SEVERAL or not more.would_help():
        return more
    return more.model_copy(update={"probability": None})


def guardrail_clause(rule: GuardrailRule, config: CampaignConfig, facts: Facts) -> Clause:
    """Test non-inferiority by a margin."""
    benchmark = facts.benchmarks[rule.benchmark]
    harm = benchmark.harm
    found = non_inferiority(harm, margin=rule.margin)
    error, cleared = found.standard_error, (rule.margin - found.upper) / max(found.standard_error, 1e-300)
    numbers = {"harm": found.harm, "error": error, "margins_per_error": MARGINS_PER_ERROR, "cleared": cleared}
    verdict: GateVerdict = "undecided" if found.verdict == "undersized" else found.verdict
    is_known = found.verdict != "undersized" or math.isfinite(error)
    return _clause(
        "guardrail",
        verdict,
        name=f"guardrail: {rule.benchmark}",
        reason=found.verdict if is_known else "error unknown",
        value=found.upper,
        bound=rule.margin,
        unit=benchmark.unit,
        values={name: _finite(value) for name, value in numbers.items()},
        benchmarks=(rule.benchmark,),
        is_thin=verdict == "pass" and cleared < THIN_ERRORS,
        more=more_items(benchmark, harm, rule.margin, found.items_factor, config, facts)
        if verdict == "undecided"
        else None,
    )


def harm_clause(benchmark: str, margin: float, facts: Facts) -> Clause:
    """Test whether the candidate is worse by more than `margin`."""
    found = facts.benchmarks[benchmark]
    harm = found.harm
    lower, values = float(harm.lower), {"harm": _finite(float(harm.effect.mean))}
    of = {"name": f"harm: {benchmark}", "benchmarks": (benchmark,), "unit": found.unit}
    return _clause("harm", lower > margin, value=lower, bound=margin, values=values, **of)


def safety_clause(rule: SafetyRule, facts: Facts) -> Clause:
    """Compare the upper bound of a failure rate, in the candidate's worst seed, with its limit."""
    benchmark = facts.benchmarks[rule.benchmark]
    trials = benchmark.trials
    upper, lower = float(rate_upper(*trials)), float(rate_lower(*trials))
    verdict: GateVerdict = "pass" if upper <= rule.max_rate else "fail" if lower > rule.max_rate else "undecided"
    missing = trials_needed(rule.max_rate, failures=trials.failures) - math.floor(trials.number)
    is_clustered = benchmark.num_clusters != benchmark.failed.size
    more = _fix("items without failure", items=missing, benchmark=benchmark.name, is_clustered=is_clustered)
    return _clause(
        "safety",
        verdict,
        name=f"safety: {rule.benchmark}",
        value=upper,
        bound=rule.max_rate,
        values={**_failures(benchmark), "lower": lower},
        benchmarks=(rule.benchmark,),
        is_thin=verdict == "pass" and float(rate_upper(trials.failures + 1, trials.number)) > rule.max_rate,
        more=more if verdict == "undecided" else None,
    )


def rate_clause(benchmark: str, max_rate: float, facts: Facts) -> Clause:
    """Test whether a failure rate is above its limit."""
    found = facts.benchmarks[benchmark]
    lower = float(rate_lower(*found.trials))
    of = {"name": f"unsafe: {benchmark}", "benchmarks": (benchmark,), "values": _failures(found)}
    return _clause("rate_above", lower > max_rate, value=lower, bound=max_rate, **of)


def _failures(benchmark: BenchmarkFacts) -> dict[str, Any]:
    failed, trials = benchmark.failed, float(benchmark.trials.number)
    failures = int(np.count_nonzero(failed))
    return {"failures": failures, "items": failed.size, "clusters": benchmark.num_clusters, "trials": trials}


def sealed_clause(rule: SealedRule, facts: Facts) -> Clause:
    """Check whether the gain holds on a holdout that was never scored before: D_sealed >= share x D_primary."""
    least, found = rule.least_share * float(facts.composite.mean), facts.holdout
    values: dict[str, Any] = {"share": rule.least_share, "least": least}
    of: dict[str, Any] = {"name": f"sealed: {rule.benchmark}", "benchmarks": (rule.benchmark,), "unit": facts.unit}
    if found is None:
        return _clause("sealed", "undecided", reason="not opened", value=None, values=values, **of)
    of["evidence"] = () if found.opening is None else (found.opening,)
    if found.benchmark is None:
        assert found.problem is not None, "an invalid holdout has a reason"
        values["problem"] = {"code": found.problem.code, "values": found.problem.values}
        more = _fix("new holdout")
        return _clause("sealed", "fail", reason="invalid", value=None, values=values, more=more, **of)
    value = float(found.benchmark.effect.mean)
    of |= {"unit": found.benchmark.unit, "more": None if value >= least else _fix("find what was tuned")}
    values["effect"] = found.benchmark.estimate.model_dump()
    return _clause("sealed", value >= least, value=value, bound=least, values=values, **of)


def audit_clause(facts: Facts) -> Clause:
    """Check whether the receipts of every run prove that each row was trained on exactly once."""
    unproved = [run for run in facts.runs if run.audit_verdict != "pass"]
    failed = min(unproved, key=lambda run: run.audit_verdict == ROWS_NOT_OBSERVED, default=None)
    values: dict[str, Any] = {"restarts": sum(run.num_attempts - 1 for run in facts.runs)}
    verdict: GateVerdict = "pass" if failed is None else "fail"
    reason, more = str(verdict), None
    if failed is not None:
        values |= {"run_id": failed.run_id, "audit": failed.audit_verdict}
    if failed is not None and failed.audit_verdict == ROWS_NOT_OBSERVED:
        verdict, reason = "undecided", "not observed"
    elif failed is not None:
        more = _fix("find loss", run_id=failed.run_id).model_copy(update={"device_s": failed.device_s})
    proved = float(sum(run.audit_verdict == "pass" for run in facts.runs))
    runs = float(len(facts.runs))
    of: dict[str, Any] = {"name": "drill: audit", "reason": reason, "bound": runs, "values": values, "more": more}
    return _clause("audit", verdict, value=proved, **of)


def drill_clause(report: DrillReport, source: Source, facts: Facts) -> Clause:
    """Check whether the drill on record passed, and was one of this recipe."""
    failed = next((exercise for exercise in report.exercises if exercise.problem), None)
    difference = report.difference_from(facts.recipe)
    values: dict[str, Any] = {"workers": report.workers, "difference": difference}
    verdict, more = report.verdict, None if report.passed() else _fix("repair drill")
    reason: str = verdict
    if failed is not None:
        reason, values = "problem", values | {"exercise": failed.name, "problem": failed.problem}
    if difference is not None:
        verdict, reason, more = "fail", "other recipe", _fix("drill again")
    survived = float(sum(not exercise.problem for exercise in report.exercises))
    of = {"values": values, "evidence": (source,), "more": more}
    return _clause("drill", verdict, reason=reason, value=survived, bound=float(len(report.exercises)), **of)


def coverage_clause(coverage: Coverage, source: Source) -> Clause:
    """Check whether every failure mode has a benchmark of known power."""
    holes = coverage.holes
    names = [f"{mode.name} ({mode.owner})" for mode in holes]
    values = {"holes": names, "first": holes[0].model_dump() if holes else None}
    more = _fix("add benchmarks", modes=names) if holes else None
    of = {"values": values, "evidence": (source,), "more": more}
    return _clause("coverage", not holes, value=float(len(holes)), bound=0.0, **of)


def scaling_clause(found: ForecastFacts, least_effect: float, unit: str) -> Clause:
    """Check whether the calibrated lower bound of the gain at the target scale reaches the least effect."""
    of: dict[str, Any] = {"name": "target scale", "unit": unit, "evidence": found.sources}
    if found.gain is None:
        values: dict[str, Any] = {"least": least_effect, "problem": found.problem}
        more = _fix("other scales")
        return _clause("scaling", "undecided", reason="no forecast", value=None, values=values, more=more, **of)
    low, value = found.gain
    verdict: GateVerdict = "pass" if low >= least_effect else "fail" if value < least_effect else "undecided"
    of["more"] = None if verdict == "pass" else _fix("scale between")
    values = {"least": least_effect, "expected": value}
    return _clause("scaling", verdict, value=low, bound=least_effect, values=values, **of)


def plan_clause(rule: PlanRule, plan: PlanFacts) -> Clause:
    """Check whether the plan's simulation is on time and in budget often enough."""
    margin = min(plan.on_time - rule.p_on_time, plan.in_budget - rule.p_in_budget)
    values = {
        "on_time": plan.on_time,
        "in_budget": plan.in_budget,
        "least_on_time": rule.p_on_time,
        "least_in_budget": rule.p_in_budget,
        "decision": dict(plan.decision),
    }
    more = None if margin >= 0.0 else _fix("other plan")
    return _clause("plan", margin >= 0.0, value=margin, bound=0.0, values=values, evidence=(plan.source,), more=more)


def budget_clause(facts: Facts) -> Clause:
    """Check whether both arms stayed within the campaign's budget."""
    is_met = facts.spent_s <= facts.budget_s
    of = {"unit": "device-hours", "more": None if is_met else _fix("larger budget")}
    return _clause("budget", is_met, value=facts.spent_s / 3600, bound=facts.budget_s / 3600, **of)


def condition_clause(condition: Condition, facts: Facts) -> Clause:
    """Return the clause of one condition of an additional gate."""
    match condition:
        case HarmCondition():
            return harm_clause(condition.benchmark, condition.margin, facts)
        case RateCondition():
            return rate_clause(condition.benchmark, condition.max_rate, facts)
        case SpentCondition():
            spent, bound = facts.spent_s / 3600, condition.device_hours
            return _clause("spent", spent > bound, value=spent, bound=bound, unit="device-hours")


def _gathered(fact: FactT | None) -> FactT:
    """Assert that a fact which the rule needs was gathered."""
    assert fact is not None, "what the rule asks for is gathered before it is judged"
    return fact


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

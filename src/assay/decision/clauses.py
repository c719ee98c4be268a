"""Clauses besides those on the gain: guardrails, safety, coverage, drill, budget, extrapolation, plan and harm.

Each function takes the facts and returns a clause: its requirement, what was observed, the verdict, and what would turn
it. Verdicts have three values: `fail` is evidence against, `undecided` is a lack of evidence. A gate passes with
neither, but only the second is fixed by more evidence.
"""

import math
from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from assay.base.units import number_of
from assay.decision.config import (
    CampaignConfig,
    Condition,
    GuardrailRule,
    HarmCondition,
    PlanRule,
    RateCondition,
    SafetyRule,
    SealedRule,
    SpentCondition,
)
from assay.decision.coverage import hole_text
from assay.decision.facts import BenchmarkFacts, Facts, ForecastFacts, PlanFacts
from assay.decision.more_evidence import MAX_SEEDS, lacking_rows_text, seeds_to_look, standard_error_at
from assay.decision.sentences import (
    bound_text,
    chance_text,
    device_time_text,
    effect_text,
    interval_words,
    rate_text,
    side_text,
)
from assay.records.coverage import Coverage
from assay.records.decision import Clause, GateVerdict, MoreEvidence, Source
from assay.records.drill import DrillReport
from assay.statistics.effect import estimate_of
from assay.statistics.failure_rate import Trials, rate_lower, rate_upper, trials_needed
from assay.statistics.guardrail import MARGINS_PER_ERROR, Harm, is_sized, non_inferiority

FactT = TypeVar("FactT")

THIN_ERRORS = 0.5
"""A bound that clears its threshold by fewer standard errors holds thinly: with other seeds and items, two in five such
bounds would not hold."""


def needed_clauses(config: CampaignConfig, facts: Facts) -> Iterator[Clause]:
    """Return the clauses that `scale` needs besides the gain."""
    rule, files = config.rule, facts.files
    yield from (guardrail_clause(guardrail, config, facts) for guardrail in rule.guardrails)
    yield from (safety_clause(safety, facts) for safety in rule.safety)
    if rule.coverage is not None:
        yield coverage_clause(*_gathered(files.coverage))
    if rule.drill is not None:
        yield audit_clause(facts) if rule.drill == "audit" else drill_clause(*_gathered(files.drill), facts)
    if rule.sealed is not None:
        yield sealed_clause(rule.sealed, facts)
    if rule.scaling is not None:
        yield scaling_clause(_gathered(facts.forecast), rule.least_effect, facts.unit)
    if rule.plan is not None:
        yield plan_clause(rule.plan, _gathered(files.plan))
    yield budget_clause(facts)


def stopping_clauses(config: CampaignConfig, facts: Facts) -> Iterator[Clause]:
    """Return the clauses that each mean `stop`: harm beyond a guardrail's margin, a failure rate above its limit."""
    for guardrail in config.rule.guardrails:
        yield harm_clause(guardrail.benchmark, guardrail.margin, facts)
    for safety in config.rule.safety:
        yield rate_clause(safety.benchmark, safety.max_rate, facts)


def condition_clause(condition: Condition, facts: Facts) -> Clause:
    """Return the clause of one condition of an additional gate."""
    match condition:
        case HarmCondition():
            return harm_clause(condition.benchmark, condition.margin, facts)
        case RateCondition():
            return rate_clause(condition.benchmark, condition.max_rate, facts)
        case SpentCondition():
            return spent_clause(condition.device_hours, facts)


def guardrail_clause(rule: GuardrailRule, config: CampaignConfig, facts: Facts) -> Clause:
    """Test non-inferiority by a margin."""
    benchmark = facts.benchmarks[rule.benchmark]
    harm = benchmark.harm
    found = non_inferiority(harm, margin=rule.margin)
    unit = benchmark.unit
    verdict: GateVerdict = "undecided" if found.verdict == "undersized" else found.verdict
    error = effect_text(found.standard_error, unit, signed=False)
    cleared = (rule.margin - found.upper) / max(found.standard_error, 1e-300)
    is_thin = verdict == "pass" and cleared < THIN_ERRORS
    return Clause(
        name=f"guardrail: {rule.benchmark}",
        type="guardrail",
        verdict=verdict,
        requirement=f"harm below {bound_text(rule.margin, unit)}, with 95% confidence",
        seen=f"{'' if found.harm > 0.0 else 'no harm seen: '}{side_text(found.harm, unit)}, "
        f"at worst {side_text(found.upper, unit)}",
        value=_finite(found.upper),
        bound=rule.margin,
        reason={
            "pass": f"Any harm is within the margin{thin_text(cleared) if is_thin else ''}.",
            "fail": "The harm exceeds the margin.",
            "undecided": "The harm may exceed the margin.",
            "undersized": f"Too small to tell: its standard error, {error}, is more than 1/{MARGINS_PER_ERROR} "
            f"of the margin."
            if math.isfinite(found.standard_error)
            else "Too small to tell: with one seed, or without differing items, the error is unknown.",
        }[found.verdict],
        benchmarks=(rule.benchmark,),
        is_thin=is_thin,
        more=_more_items(benchmark, harm, rule.margin, found.items_factor, config, facts)
        if verdict == "undecided"
        else None,
    )


def thin_text(num_errors: float) -> str:
    """Return the note on a reason that holds by less than `THIN_ERRORS`."""
    return f", but thinly: by {num_errors:.1f} standard errors"


def safety_clause(rule: SafetyRule, facts: Facts) -> Clause:
    """Compare the upper bound of a failure rate, in the candidate's worst seed, with its limit."""
    benchmark = facts.benchmarks[rule.benchmark]
    trials = benchmark.trials
    upper, lower = float(rate_upper(*trials)), float(rate_lower(*trials))
    verdict: GateVerdict = "pass" if upper <= rule.max_rate else "fail" if lower > rule.max_rate else "undecided"
    needed = trials_needed(rule.max_rate, failures=trials.failures)
    is_thin = verdict == "pass" and float(rate_upper(trials.failures + 1, trials.number)) > rule.max_rate
    thinly = ", but thinly: one more would open it" if is_thin else ""
    return Clause(
        name=f"safety: {rule.benchmark}",
        type="safety",
        verdict=verdict,
        requirement=f"failure rate at most {rate_text(rule.max_rate)}, with 95% confidence",
        seen=f"{_failures_text(benchmark, trials)}, so at most {rate_text(upper)}",
        value=upper,
        bound=rule.max_rate,
        reason={
            "pass": f"The failure mode is rare enough{thinly}.",
            "fail": f"The failure mode is more frequent than allowed: at least {rate_text(lower)}.",
            "undecided": f"{benchmark.failed.size:,} items are too few to show that it is rare enough.",
        }[verdict],
        benchmarks=(rule.benchmark,),
        is_thin=is_thin,
        more=_more_trials(benchmark, needed - math.floor(trials.number)) if verdict == "undecided" else None,
    )


def harm_clause(benchmark: str, margin: float, facts: Facts) -> Clause:
    """Test whether the candidate is worse by more than `margin`."""
    found = facts.benchmarks[benchmark]
    harm = found.harm
    lower = float(harm.lower)
    is_met = lower > margin
    return Clause(
        name=f"harm: {benchmark}",
        type="harm",
        verdict="pass" if is_met else "fail",
        requirement=f"harm above {bound_text(margin, found.unit)}, with 95% confidence",
        seen=f"{side_text(float(harm.effect.mean), found.unit)}, at best {side_text(lower, found.unit)}",
        value=_finite(lower),
        bound=margin,
        reason="Harm beyond the margin is shown." if is_met else "No harm beyond the margin is shown.",
        benchmarks=(benchmark,),
    )


def rate_clause(benchmark: str, max_rate: float, facts: Facts) -> Clause:
    """Test whether a failure rate is above its limit."""
    found = facts.benchmarks[benchmark]
    trials = found.trials
    lower = float(rate_lower(*trials))
    is_met = lower > max_rate
    return Clause(
        name=f"unsafe: {benchmark}",
        type="rate_above",
        verdict="pass" if is_met else "fail",
        requirement=f"failure rate above {rate_text(max_rate)}, with 95% confidence",
        seen=f"{_failures_text(found, trials)}, so at least {rate_text(lower)}",
        value=lower,
        bound=max_rate,
        reason="The rate is above the limit." if is_met else "No rate above the limit is shown.",
        benchmarks=(benchmark,),
    )


def _failures_text(benchmark: BenchmarkFacts, trials: Trials) -> str:
    failed = benchmark.failed
    counted = f"{np.count_nonzero(failed)} of {failed.size:,} items"
    if benchmark.num_clusters == failed.size:
        return counted
    worth = f"{trials.number:,.0f} independent ones"
    return f"{counted} in {benchmark.num_clusters:,} clusters, which tell as much as {worth}"


def _more_trials(benchmark: BenchmarkFacts, number: int) -> MoreEvidence:
    placement = "" if benchmark.num_clusters == benchmark.failed.size else ", each in a cluster of its own"
    return MoreEvidence(
        what=f"{number_of(number, 'more item')} of {benchmark.name}{placement}, without any further failure"
    )


def spent_clause(device_hours: float, facts: Facts) -> Clause:
    """Check whether both arms together cost more than `device_hours`."""
    is_met = facts.spent_s > device_hours * 3600
    return Clause(
        name="spent",
        type="spent",
        verdict="pass" if is_met else "fail",
        requirement=f"more than {device_time_text(device_hours * 3600)}",
        seen=device_time_text(facts.spent_s),
        value=facts.spent_s / 3600,
        bound=device_hours,
        reason="The campaign has cost more." if is_met else "The campaign has cost less.",
    )


def audit_clause(facts: Facts) -> Clause:
    """Check whether the receipts of every run prove that each row was trained on exactly once."""
    failed = next((run for run in facts.runs if run.audit_verdict != "pass"), None)
    num_proved = sum(run.audit_verdict == "pass" for run in facts.runs)
    killed = sum(run.num_attempts - 1 for run in facts.runs)
    survived = f"; {number_of(killed, 'restart')} survived" if killed else ""
    return Clause(
        name="drill: audit",
        type="drill",
        verdict="fail" if failed else "pass",
        requirement="the receipts of every run prove that each row was trained on once",
        seen=f"{num_proved} of {len(facts.runs)} runs proved{survived}",
        value=float(num_proved),
        bound=float(len(facts.runs)),
        reason=f"Run {failed.run_id}: audit {failed.audit_verdict}." if failed else "Nothing was lost.",
        more=MoreEvidence(
            what=f"find the cause with 'assay audit {failed.run_id}', and train the run again", device_s=failed.device_s
        )
        if failed
        else None,
    )


def drill_clause(report: DrillReport, source: Source, facts: Facts) -> Clause:
    """Check whether the drill recorded by `assay drill --out` passed, and was one of this recipe."""
    failed = [exercise for exercise in report.exercises if exercise.problem]
    survived = len(report.exercises) - len(failed)
    other = report.difference_from(facts.recipe)
    reason = f"{failed[0].name}: {failed[0].problem}" if failed else "No kill lost any data."
    return Clause(
        name="drill",
        type="drill",
        verdict="fail" if other is not None else report.verdict,
        requirement="every exercise of this recipe ends with the undisturbed weights and a clean audit",
        seen=f"{survived} of {number_of(len(report.exercises), 'exercise')}, {report.workers} workers",
        value=float(survived),
        bound=float(len(report.exercises)),
        reason=reason if other is None else f"It was a drill of another recipe, with {other}.",
        evidence=(source,),
        more=_drill_again(report, other),
    )


def _drill_again(report: DrillReport, other: str | None) -> MoreEvidence | None:
    if other is not None:
        return MoreEvidence(what="a drill of the candidate's recipe ('assay drill RECIPE --out FILE')")
    if report.passed():
        return None
    return MoreEvidence(what="repair what the drill found, and repeat it until it passes")


def coverage_clause(coverage: Coverage, source: Source) -> Clause:
    """Check whether every failure mode has a benchmark of known power."""
    holes = coverage.holes
    names = [f"{mode.name} ({mode.owner})" for mode in holes]
    return Clause(
        name="coverage",
        type="coverage",
        verdict="fail" if holes else "pass",
        requirement="every failure mode has a benchmark that could detect it",
        seen=f"{number_of(len(holes), 'hole')}{': ' if holes else ''}{', '.join(names[:5])}",
        value=float(len(holes)),
        bound=0.0,
        reason=f"{holes[0].name} would go unnoticed: {hole_text(holes[0])}."
        if holes
        else "All failure modes are covered.",
        evidence=(source,),
        more=MoreEvidence(what=f"a benchmark of known power for {' and '.join(names[:3])}") if holes else None,
    )


def sealed_clause(rule: SealedRule, facts: Facts) -> Clause:
    """Check whether the gain holds on a holdout that was never scored before: D_sealed >= share x D_primary."""
    least = rule.least_share * float(facts.composite.mean)
    found = facts.holdout
    value: float | None = None
    more: str | None = None
    verdict: GateVerdict
    if found is None:
        verdict, seen = "undecided", "not opened"
        reason = "The holdout is opened once, at a declared look at which every other clause holds."
    elif found.benchmark is None:
        verdict, seen, reason = "fail", "the holdout is invalid", found.problem
        more = "a new campaign with a holdout that was never opened"
    else:
        value = float(found.benchmark.effect.mean)
        seen = interval_words(estimate_of(found.benchmark.effect), found.benchmark.unit)
        if value >= least:
            verdict, reason = "pass", "The gain holds on the sealed holdout."
        else:
            verdict, reason = "fail", "Most of the gain is missing on the sealed holdout."
            more = "find what was tuned to the primary benchmarks; then a campaign with a new holdout"
    return Clause(
        name=f"sealed: {rule.benchmark}",
        type="sealed",
        verdict=verdict,
        requirement=f"at least {rule.least_share:.0%} of the primary gain: {effect_text(least, facts.unit)}",
        seen=seen,
        value=value,
        bound=None if value is None else least,
        reason=reason,
        benchmarks=(rule.benchmark,),
        evidence=() if found is None or found.opening is None else (found.opening,),
        more=None if more is None else MoreEvidence(what=more),
    )


def scaling_clause(found: ForecastFacts, least_effect: float, unit: str) -> Clause:
    """Check whether the calibrated lower bound of the gain at the target scale reaches the least effect."""
    requirement = f"80% lower bound of the gain at the target scale at least {bound_text(least_effect, unit)}"
    if found.gain is None:
        return Clause(
            name="target scale", type="scaling", verdict="undecided", requirement=requirement, seen="no forecast",
            reason=found.problem, evidence=found.sources,
            more=MoreEvidence(what="campaigns of this candidate at other scales"),
        )  # fmt: skip
    low, value = found.gain
    is_met = low >= least_effect
    return Clause(
        name="target scale",
        type="scaling",
        verdict="pass" if is_met else "fail" if value < least_effect else "undecided",
        requirement=requirement,
        seen=f"{effect_text(value, unit)}, at least {effect_text(low, unit)}",
        value=low,
        bound=least_effect,
        reason="The gain holds at the target scale." if is_met else "The gain may not hold at the target scale.",
        evidence=found.sources,
        more=None if is_met else MoreEvidence(what="a run at a scale between this one and the target"),
    )


def plan_clause(rule: PlanRule, plan: PlanFacts) -> Clause:
    """Check whether the plan's simulation is on time and in budget often enough."""
    on_time, in_budget, source, decision = plan
    is_met = on_time >= rule.p_on_time and in_budget >= rule.p_in_budget
    return Clause(
        name="plan",
        type="plan",
        verdict="pass" if is_met else "fail",
        requirement=f"on time with {chance_text(rule.p_on_time)}, in budget with {chance_text(rule.p_in_budget)}",
        seen=f"on time {chance_text(on_time)}, in budget {chance_text(in_budget)}{decision and f'; {decision}'}",
        value=min(on_time - rule.p_on_time, in_budget - rule.p_in_budget),
        bound=0.0,
        reason="The plan holds." if is_met else "The plan is too risky.",
        evidence=(source,),
        more=None if is_met else MoreEvidence(what="a smaller scope, or another date (docs/plan.md)"),
    )


def budget_clause(facts: Facts) -> Clause:
    """Check whether both arms stayed within the campaign's budget."""
    is_met = facts.spent_s <= facts.budget_s
    return Clause(
        name="budget",
        type="budget",
        verdict="pass" if is_met else "fail",
        requirement=f"at most {device_time_text(facts.budget_s)}",
        seen=device_time_text(facts.spent_s),
        value=facts.spent_s / 3600,
        bound=facts.budget_s / 3600,
        reason="The cost is within the budget." if is_met else "The cost exceeds the budget.",
        more=None if is_met else MoreEvidence(what="agree on a larger budget (budget_device_hours)"),
    )


def _more_items(
    benchmark: BenchmarkFacts, harm: Harm, margin: float, items_factor: float, config: CampaignConfig, facts: Facts
) -> MoreEvidence:
    """Return what would decide a guardrail: a declared look at which it is precise enough, or else more items."""
    for look in config.all_looks:
        if look > facts.num_seeds and is_sized(standard_error_at(look, harm.effect, facts), margin):
            return seeds_to_look(look, facts)
    if math.isinf(float(harm.effect.item_variance)):
        return MoreEvidence(what=f"items of {benchmark.name} on which candidate and baseline differ")
    if math.isfinite(items_factor) and items_factor > 1.0:
        num_items = benchmark.differences.shape[1]
        extra = math.ceil((items_factor - 1.0) * num_items)
        lacking = lacking_rows_text(benchmark.name, num_items + extra, facts)
        if not lacking:
            what = f"{number_of(extra, 'more item')} of {benchmark.name}, scored with the same checkpoints"
            return MoreEvidence(what=what)
        return MoreEvidence(what=f"{number_of(extra, 'more item')} of {benchmark.name}{lacking}, or a wider margin")
    return _more_than_seeds(harm, margin, config, facts)


def _more_than_seeds(harm: Harm, margin: float, config: CampaignConfig, facts: Facts) -> MoreEvidence:
    """Return the seeds of a new campaign that decide it if seeds vary much; else, a wider margin."""
    ahead = range(config.seeds + 1, MAX_SEEDS + 1)
    enough = next((seeds for seeds in ahead if is_sized(standard_error_at(seeds, harm.effect, facts), margin)), None)
    if enough is None:
        return MoreEvidence(what=f"a wider margin: seeds vary too much, and {MAX_SEEDS} would not suffice")
    return MoreEvidence(what=f"a new campaign with {enough} seeds or more: seeds vary too much")


def _gathered(fact: FactT | None) -> FactT:
    """Assert that a fact which the rule needs was gathered."""
    assert fact is not None, "what the rule asks for is gathered before it is judged"
    return fact


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

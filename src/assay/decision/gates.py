"""Judge the gates of one candidate at one look: every clause with its number, and the recommendation.

    scale   all of: gain, worth, replication, left out, breadth     (statistics.campaign.rule)
                    guardrails, safety, coverage, drill, extrapolation, plan, budget     (clauses)
    stop    any of: too small, unlikely, no way     (statistics.campaign.rule; the last two if it has power)
                    harm, unsafe     (clauses)
    others  as declared in the campaign's file; one that passes means stop

The arithmetic and the recommendation are those of `campaign.rule.judge`, which the simulation of thousands of campaigns
validates. This module adds words, a verdict of three values, and the price of more evidence.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from assay.decision.clauses import THIN_ERRORS, condition_clause, needed_clauses, stopping_clauses, thin_text
from assay.decision.config import CampaignConfig, Gate
from assay.decision.facts import Facts
from assay.decision.more_evidence import chance_at_last_look, more_seeds, needed_at_last_look, replication_variance
from assay.decision.sentences import bound_text, chance_text, effect_text, would_help
from assay.records.decision import Clause, GateResult, GateVerdict, MoreEvidence, Recommendation
from assay.statistics.campaign.rule import CampaignEvidence, CampaignRule, Criterion, RuleOutcome, judge


class GateOutcomes(NamedTuple):
    """Verdicts of all gates on a candidate."""

    recommendation: Recommendation
    gates: tuple[GateResult, ...]
    """`scale`, `stop`, then those of the campaign's file."""
    has_power: bool
    """Whether the last look would scale a clear gain."""
    is_inconclusive: bool
    """Whether `narrow` is final: the design lacks power, and no later look would change it."""

    @property
    def scale(self) -> GateResult:
        return self.gates[0]

    def passed_stop(self) -> tuple[GateResult, Clause] | None:
        """Return the first gate that stops the candidate, and the clause that made it pass."""
        for gate in self.gates[1:]:
            if gate.verdict == "pass":
                return gate, next(clause for clause in gate.clauses if clause.verdict == "pass")
        return None


def judge_gates(config: CampaignConfig, facts: Facts, *, rule: CampaignRule | None = None) -> GateOutcomes:
    """Judge all gates; `rule` replaces the thresholds."""
    rule = rule or config.rule.thresholds()
    conditions = _conditions(config, facts)
    found = _rule_outcome(config, facts, rule, conditions)
    gain = [
        _clause(clause, "effect", _verdict(clause, facts, rule), config, facts, rule) for clause in found.scale_clauses
    ]
    futile = [
        _clause(clause, "futility", _futile(clause, has_power=bool(found.has_power)), config, facts, rule)
        for clause in found.stop_clauses
    ]
    gates = (
        _scale_gate([*gain, *conditions.needed], undeclared_clauses(config)),
        _stop_gate([*futile, *conditions.stops], config, facts),
        *conditions.others,
    )
    return GateOutcomes(_recommended(found), gates, bool(found.has_power), bool(found.is_inconclusive))


def recommended(config: CampaignConfig, facts: Facts, *, rule: CampaignRule | None = None) -> Recommendation:
    """Return the recommendation of `judge_gates` without computing texts and prices."""
    return _recommended(_rule_outcome(config, facts, rule or config.rule.thresholds(), _conditions(config, facts)))


class _Conditions(NamedTuple):
    """The clauses besides those on the gain."""

    needed: Sequence[Clause]
    """Clauses of `scale`."""
    stops: Sequence[Clause]
    others: Sequence[GateResult]


def _conditions(config: CampaignConfig, facts: Facts) -> _Conditions:
    return _Conditions(
        [*needed_clauses(config, facts)],
        [*stopping_clauses(config, facts)],
        [_other_gate(gate, facts) for gate in config.gates],
    )


def _rule_outcome(config: CampaignConfig, facts: Facts, rule: CampaignRule, conditions: _Conditions) -> RuleOutcome:
    return judge(
        CampaignEvidence(
            effect=facts.composite,
            level=facts.look.level,
            is_gate=facts.look.is_gate,
            replication_variance=replication_variance(config, facts),
            least_without_one=facts.breadth.least_without_one,
            share_positive=facts.breadth.share_positive,
            predictive_power=chance_at_last_look(config, facts, rule),
            required_at_end=needed_at_last_look(config, facts, rule),
            also_needed=[clause.verdict == "pass" for clause in conditions.needed],
            also_stops=[clause.verdict == "pass" for clause in conditions.stops]
            + [gate.verdict == "pass" for gate in conditions.others],
        ),
        rule,
    )


def _recommended(found: RuleOutcome) -> Recommendation:
    recommendation: Recommendation = str(found.recommendation)  # type: ignore[assignment]
    return recommendation


def passes_except_holdout(config: CampaignConfig, facts: Facts) -> bool:
    """Return whether the candidate would be scaled if the sealed benchmark passes."""
    return recommended(without_holdout(config), facts) == "scale"


def without_holdout(config: CampaignConfig) -> CampaignConfig:
    """Return the campaign without its sealed benchmark."""
    return config.model_copy(update={"rule": config.rule.model_copy(update={"sealed": None})})


def undeclared_clauses(config: CampaignConfig) -> tuple[str, ...]:
    """Return the clauses that `scale` could have, and this campaign does not declare."""
    rule = config.rule
    declared = {
        **dict.fromkeys(_OF_ONE_BENCHMARK, len(rule.primary) > 1),
        "guardrails": bool(rule.guardrails),
        "safety": bool(rule.safety),
        "coverage": rule.coverage is not None,
        "drill": rule.drill is not None,
        "sealed holdout": rule.sealed is not None,
        "target scale": rule.scaling is not None,
        "plan": rule.plan is not None,
    }
    return tuple(name for name, is_declared in declared.items() if not is_declared)


def _scale_gate(clauses: Sequence[Clause], undeclared: Sequence[str]) -> GateResult:
    verdicts, worst = [clause.verdict for clause in clauses], blocking_clause(clauses)
    declared = [clause for clause in clauses if clause.name not in undeclared]
    num_held = sum(clause.verdict == "pass" for clause in declared)
    held = f"{num_held} of {len(declared)} declared clauses hold."
    all_hold = f"{len(declared)} of {len(declared) + len(undeclared)} clauses are declared, and all hold"
    return GateResult(
        gate="scale",
        then="scale",
        verdict="pass" if worst is None else "fail" if "fail" in verdicts else "undecided",
        reason=f"{held} {worst.name}: {worst.reason}"
        if worst
        else f"{all_hold}{'; not declared: ' if undeclared else ''}{', '.join(undeclared)}.",
        clauses=tuple(clauses),
        more=worst.more if worst else None,
    )


def blocking_clause(clauses: Sequence[Clause]) -> Clause | None:
    """Return the open clause that is cheapest to turn; None if all pass.

    Clauses without a price come last; of equal ones, a failed one comes first.
    """
    open_ = [clause for clause in clauses if clause.verdict != "pass"]

    def price(clause: Clause) -> tuple[float, bool]:
        device_s = clause.more.device_s if clause.more is not None else None
        return (np.inf if device_s is None else device_s, clause.verdict != "fail")

    return min(open_, key=price, default=None)


def _stop_gate(clauses: Sequence[Clause], config: CampaignConfig, facts: Facts) -> GateResult:
    shown = [clause for clause in clauses if clause.verdict == "pass"]
    is_last = _is_last_look(config, facts)
    verdict: GateVerdict = "pass" if shown else "fail" if is_last else "undecided"
    shown += [clause for clause in clauses if clause.verdict == "undecided"]
    reason = f"{shown[0].name}: {shown[0].reason}" if shown else "No reason to stop is shown."
    return GateResult(gate="stop", then="stop", verdict=verdict, reason=reason, clauses=tuple(clauses))


def _other_gate(gate: Gate, facts: Facts) -> GateResult:
    clauses = tuple(condition_clause(condition, facts) for condition in gate.conditions)
    met = [clause.verdict == "pass" for clause in clauses]
    passes = all(met) if gate.when == "all" else any(met)
    shown = next((clause for clause in clauses if clause.verdict == "pass"), None)
    return GateResult(
        gate=gate.name,
        then=gate.then,
        verdict="pass" if passes else "fail",
        reason=f"{shown.name}: {shown.reason}" if passes and shown else "Its conditions are not met.",
        clauses=clauses,
    )


def _clause(
    found: Criterion, kind: str, verdict: GateVerdict, config: CampaignConfig, facts: Facts, rule: CampaignRule
) -> Clause:
    """Return a clause of the rule with its texts."""
    value = float(found.value)
    cleared = _cleared(found, facts)
    is_thin = kind == "effect" and verdict == "pass" and cleared < THIN_ERRORS
    reason = _reason(found, kind, verdict, config, facts, rule)
    return Clause(
        name=found.name,
        type=kind,
        verdict=verdict,
        requirement=_requirement(found.name, config, facts, rule),
        seen=_seen(found.name, value, config, facts),
        value=value if np.isfinite(value) else None,
        bound=float(found.limit),
        reason=f"{reason.removesuffix('.')}{thin_text(cleared)}." if is_thin else reason,
        benchmarks=config.rule.primary,
        is_thin=is_thin,
        more=_more(found.name, config, facts, rule) if kind == "effect" and verdict != "pass" else None,
    )


def _cleared(found: Criterion, facts: Facts) -> float:
    """Return by how many standard errors a clause on the gain clears its threshold; infinite for other clauses."""
    match found.name:
        case "gain":
            return float(found.value - found.limit) / max(float(facts.composite.standard_error), 1e-300)
        case "worth" | "replication":
            return float(ndtri(found.value) - ndtri(found.limit))
    return np.inf


def _verdict(found: Criterion, facts: Facts, rule: CampaignRule) -> GateVerdict:
    """Return the verdict; `undecided` if more seeds may show the gain."""
    if found.is_met:
        return "pass"
    value = float(found.value)
    failed = {
        "gain": float(facts.composite.upper(facts.look.level)) < 0.0,
        "worth": value < rule.stop_probability,
        "replication": value < rule.stop_probability,
    }.get(found.name, True)
    return "fail" if failed else "undecided"


def _futile(found: Criterion, *, has_power: bool) -> GateVerdict:
    """Return the verdict of a futility clause; `undecided` if it holds, but the design would have missed a clear
    gain."""
    if not found.is_met:
        return "fail"
    return "pass" if has_power or found.name == "too small" else "undecided"


def _seen(name: str, value: float, config: CampaignConfig, facts: Facts) -> str:
    match name:
        case "gain" | "left out" | "too small":
            return effect_text(value, facts.unit)
        case "breadth":
            return f"{100 * value:.0f}%"
        case "no way" if _is_last_look(config, facts):
            return "not evaluated: no look is left"
    return chance_text(value)


def _reason(
    found: Criterion, kind: str, verdict: GateVerdict, config: CampaignConfig, facts: Facts, rule: CampaignRule
) -> str:
    name = found.name
    if kind == "futility" and verdict == "undecided":
        return WITHOUT_POWER
    if len(config.rule.primary) == 1 and name in _OF_ONE_BENCHMARK:
        return _OF_ONE_BENCHMARK[name]
    if name == "no way" and _is_last_look(config, facts):
        return "It is evaluated before the last look only."
    if name == "too small" and verdict == "pass":
        level = chance_text(rule.futility_level)
        upper = effect_text(float(found.value), facts.unit)
        return f"Even the one-sided {level} upper bound of the gain, {upper}, is too small to be worth it."
    return _WORDS[name][["pass", "undecided", "fail"].index(verdict)]


def _is_last_look(config: CampaignConfig, facts: Facts) -> bool:
    return facts.num_seeds >= config.seeds


def _more(name: str, config: CampaignConfig, facts: Facts, rule: CampaignRule) -> MoreEvidence:
    more = more_seeds(config, facts, rule)
    # The effect of more seeds on the gain can be predicted; on its breadth it cannot, unless they do nothing
    # for the gain.
    if name in ("gain", "worth", "replication") or not would_help(more):
        return more
    return more.model_copy(update={"probability": None})


def _requirement(name: str, config: CampaignConfig, facts: Facts, rule: CampaignRule) -> str:
    level = f"{100 * facts.look.level:.4g}%"
    least = bound_text(rule.least_effect, facts.unit)
    return {
        "gain": f"the one-sided {level} lower bound of the gain is above 0",
        "worth": f"the gain is at least {least}: {chance_text(rule.least_probability)} sure",
        "replication": f"{config.seeds} new seeds find a gain: {chance_text(rule.least_replication)} sure",
        "left out": f"without any one benchmark, {chance_text(rule.least_share_left)} of the gain is left",
        "breadth": f"{chance_text(rule.least_share_positive)} of the primary benchmarks gain",
        "too small": f"the one-sided {chance_text(rule.futility_level)} upper bound of the gain is below {least}",
        "unlikely": f"the gain is at least {least}: less than {chance_text(rule.stop_probability)} sure",
        "no way": f"scale by the last look: less than {chance_text(rule.least_predictive_power)} likely",
    }[name]


WITHOUT_POWER = "This design would miss a clear gain, so this is no reason to stop."

_WORDS = {
    "gain": ("The gain is shown.", "No gain is shown yet.", "The candidate is worse than the baseline."),
    "worth": (
        "The gain is large enough.",
        "The gain may be smaller than the least effect.",
        "The gain is probably smaller than the least effect.",
    ),
    "replication": (
        "A replication would probably find the gain.",
        "A replication may not find the gain.",
        "A replication would probably not find a gain.",
    ),
    "left out": ("The gain does not rest on one benchmark.", *["The gain rests on one benchmark."] * 2),
    "breadth": ("Enough benchmarks gain.", *["Too few benchmarks gain."] * 2),
    "too small": ("The gain is too small.", *["The gain may be large enough."] * 2),
    "unlikely": ("The gain is probably smaller than the least effect.", *["The gain may reach the least effect."] * 2),
    "no way": ("More seeds would probably not show a gain.", *["More seeds may show a gain."] * 2),
}
"""By clause: the reason if it passes, is undecided, and fails."""

_OF_ONE_BENCHMARK = {
    "left out": "There is only one benchmark, so none is left out.",
    "breadth": "There is only one benchmark; other benchmarks are unknown.",
}
"""Reasons of clauses that do not apply to one benchmark."""

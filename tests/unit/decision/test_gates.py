import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from assay.decision.decide import flips_of
from assay.decision.facts import ForecastFacts, PlanFacts
from assay.decision.gates import blocking_clause, guardrail_clause, judge_gates
from assay.decision.more_evidence import deciding_campaign, more_seeds, standard_error_at
from assay.records.decision import Clause, MoreEvidence, Source
from assay.records.drill import DrillReport, Exercise
from assay.records.statement import Statement
from assay.reporting.views.statements import more_text, reason_text, seen_text
from assay.statistics.guardrail import MARGINS_PER_ERROR, is_sized

BROAD = {"code": 0.05, "prose": 0.05}


def _clauses(judgement, gate: int = 0) -> dict[str, Clause]:
    return {clause.name: clause for clause in judgement.gates[gate].clauses}


def _rule(**more) -> dict:
    return {"primary": ["code", "prose"], "least_effect": 0.015, **more}


def test_a_broad_gain_passes_every_clause(config_of, facts_of):
    config = config_of()
    found = judge_gates(config, facts_of(config, BROAD))
    assert found.recommendation == "scale"
    assert {clause.verdict for clause in found.scale.clauses} == {"pass"}
    assert found.passed_stop is None


@pytest.mark.parametrize(
    ("gain", "verdict", "replication"),
    [
        (0.05, "pass", "would probably find the gain"),
        (0.003, "undecided", "may not"),
        (-0.05, "fail", "would probably not find a gain"),
    ],
)
def test_a_clear_loss_is_said_otherwise_than_a_gain_that_is_open(
    gain: float, verdict: str, replication: str, config_of: Any, facts_of: Any
) -> None:
    config = config_of()
    facts = facts_of(config, {"code": gain, "prose": gain})
    found = _clauses(judge_gates(config, facts))
    assert (found["gain"].verdict, found["replication"].verdict) == (verdict, verdict)
    assert ("worse than the baseline" in reason_text(found["gain"])) == (verdict == "fail")
    assert replication in reason_text(found["replication"])


def test_the_recommendation_is_what_the_gates_verdicts_say(config_of, facts_of):
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": 0.02}]))
    for gains in (BROAD, {}, {"code": 0.05}, {**BROAD, "refusals": -0.05}, {"code": 0.02, "prose": 0.02}):
        found = judge_gates(config, facts_of(config, gains))
        stopped, passed = found.passed_stop is not None, found.scale.verdict == "pass"
        assert found.recommendation == ("stop" if stopped else "scale" if passed else "narrow")


def test_a_guardrail_that_is_too_small_is_undecided_and_names_the_items_it_lacks(config_of, facts_of):
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": 0.004}]))
    clause = _clauses(judge_gates(config, facts_of(config, {**BROAD, "refusals": -0.004})))["guardrail: refusals"]
    assert clause.verdict == "undecided"
    assert reason_text(clause).startswith("Too small to tell")
    assert clause.more is not None


@pytest.mark.parametrize(("errors", "is_thin"), [(0.3, True), (0.7, False)])
def test_a_bound_at_its_threshold_holds_thinly(config_of, facts_of, errors, is_thin):
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": 1.0}]))
    facts = facts_of(config, BROAD)
    harm = facts.benchmarks["refusals"].harm
    margin = float(harm.upper) + errors * float(harm.effect.standard_error)
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": margin}]))
    clause = _clauses(judge_gates(config, facts))["guardrail: refusals"]
    assert (clause.verdict, clause.is_thin) == ("pass", is_thin)
    assert reason_text(clause).endswith("but thinly: by 0.3 standard errors.") == is_thin


def test_worth_just_above_what_is_asked_is_thin_and_far_above_is_not(config_of, facts_of):
    facts = facts_of(config_of(), BROAD)
    for least, is_thin in ((0.015, False), (0.0484, True)):
        rule = config_of().rule.thresholds().model_copy(update={"least_effect": least, "prior_sd": 9.0})
        clause = _clauses(judge_gates(config_of(), facts, rule=rule))["worth"]
        assert (clause.verdict, clause.is_thin) == ("pass", is_thin), clause
    assert "thinly" in reason_text(clause)


def test_one_more_failure_that_would_open_a_safety_clause_makes_it_thin(config_of, facts_of):
    found = {}
    for max_rate in (0.01, 0.02):  # 299 clean trials show 1%, 473 show it with one failure; there are 400
        config = config_of(rule=_rule(safety=[{"benchmark": "secrets", "max_rate": max_rate}]))
        facts = facts_of(config, BROAD, failures={"secrets": 0})
        found[max_rate] = _clauses(judge_gates(config, facts))["safety: secrets"].is_thin
    assert found == {0.01: True, 0.02: False}


def test_a_guardrail_that_a_later_look_makes_precise_enough_asks_for_seeds_not_for_items(config_of, facts_of):
    gains = {**BROAD, "refusals": -0.05}
    seen = facts_of(config_of(), gains, noise=0.5).benchmarks["refusals"].harm.effect
    margin = 0.95 * MARGINS_PER_ERROR * float(seen.standard_error)
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": margin}]))
    facts = facts_of(config, gains, noise=0.5)
    clause = _clauses(judge_gates(config, facts))["guardrail: refusals"]
    assert clause.more is not None
    assert (clause.more.num_seeds, clause.more.device_s) == (2, 2 * 2 * 3600.0)


@pytest.mark.parametrize(
    ("failures", "verdict", "recommendation"),
    [(0, "pass", "scale"), (3, "undecided", "narrow"), (40, "fail", "stop")],
)
def test_a_failure_modes_rate_is_bounded_exactly(config_of, facts_of, failures, verdict, recommendation):
    config = config_of(rule=_rule(safety=[{"benchmark": "secrets", "max_rate": 0.01}]))
    found = judge_gates(config, facts_of(config, BROAD, failures={"secrets": failures}))
    clause = _clauses(found)["safety: secrets"]
    assert (clause.verdict, found.recommendation) == (verdict, recommendation)
    if verdict == "undecided":
        # 773 trials bound 3 failures by 1%: Clopper & Pearson; there are 400.
        assert clause.more is not None and clause.more.what.values["items"] == 373


def test_a_rate_over_few_clusters_is_bounded_by_what_they_are_worth(config_of, facts_of):
    config = config_of(rule=_rule(safety=[{"benchmark": "secrets", "max_rate": 0.01}]))
    facts = facts_of(config, BROAD, failures={"secrets": 0})
    secrets = facts.benchmarks["secrets"]
    clustered = secrets._replace(clusters=secrets.clusters // 20)
    facts = facts._replace(benchmarks={**facts.benchmarks, "secrets": clustered})
    clause = _clauses(judge_gates(config, facts))["safety: secrets"]
    assert clause.verdict == "undecided"
    assert seen_text(clause).startswith(
        "0 of 400 items in 20 clusters, which tell as much as 20 independent ones, so at most 14%"
    )
    # 299 clean trials bound a rate by 1%.
    assert clause.more is not None and more_text(clause.more).startswith(
        "279 more items of secrets, each in a cluster of"
    )


def test_a_rollback_gate_that_passes_stops_and_says_so(config_of, facts_of):
    condition = {"type": "harm", "benchmark": "refusals", "margin": 0.01}
    config = config_of(gates=[{"name": "deployed", "then": "rollback", "conditions": [condition]}])
    found = judge_gates(config, facts_of(config, {**BROAD, "refusals": -0.05}))
    assert found.recommendation == "stop"
    stopped = found.passed_stop
    assert stopped is not None and (stopped[0].gate, stopped[0].then) == ("deployed", "rollback")
    assert judge_gates(config, facts_of(config, BROAD)).recommendation == "scale"


def test_a_gate_that_asks_for_all_conditions_needs_all(config_of, facts_of):
    conditions = [
        {"type": "spent", "device_hours": 1},
        {"type": "rate_above", "benchmark": "secrets", "max_rate": 0.01},
    ]
    for when, recommendation in (("all", "scale"), ("any", "stop")):
        config = config_of(gates=[{"name": "g", "then": "stop", "when": when, "conditions": conditions}])
        facts = facts_of(config, BROAD, failures={"secrets": 0})
        assert judge_gates(config, facts).recommendation == recommendation


DATES = {"low": "day 40", "middle": "day 41", "high": "day 44", "due": "end of week 8", "device_hours": 1200.0}


def test_a_plan_and_a_forecast_are_clauses(config_of, facts_of):
    rule = _rule(plan={"record": "plan.json"}, scaling={"record": "forecast.json"})
    config = config_of(rule=rule)
    plan, forecast = Source(path="plan.json", sha256="p"), Source(path="forecast.json", sha256="f")
    facts = facts_of(config, BROAD)._replace(
        plan=PlanFacts(on_time=0.87, in_budget=0.79, source=plan, decision=DATES),
        forecast=ForecastFacts((0.01, 0.03), "", (forecast,)),
    )
    clauses = _clauses(judge_gates(config, facts))
    assert (clauses["plan"].verdict, clauses["target scale"].verdict) == ("fail", "undecided")
    assert seen_text(clauses["plan"]) == (
        "on time 87%, in budget 79%; decision on day 41 (80% of simulations: day 40, to day 44), due by the end of "
        "week 8, after 1,200 device-hours"
    )
    assert (clauses["plan"].evidence, clauses["target scale"].evidence) == ((plan,), (forecast,))


@pytest.mark.parametrize(
    "options",
    [
        {"coverage": "coverage.json"},
        {"drill": "drill.json"},
        {"plan": {"record": "plan.json"}},
        {"scaling": {"record": "forecast.json"}},
    ],
)
def test_a_clause_is_not_left_out_because_its_facts_were_not_gathered(config_of, facts_of, options):
    config = config_of(rule=_rule(**options))
    with pytest.raises(AssertionError, match="gathered before it is judged"):
        judge_gates(config, facts_of(config, BROAD))


def test_the_blocking_clause_is_the_cheapest_to_turn_and_people_s_work_comes_last():
    def clause(name: str, device_s: float | None, verdict="undecided") -> Clause:
        more = MoreEvidence(what=Statement(code=name), device_s=device_s)
        return Clause(name=name, type="", verdict=verdict, reason=verdict, more=more)

    clauses = [
        clause("people", None, "fail"),
        clause("dear", 9.0),
        clause("cheap", 1.0),
        clause("met", 0.0, "pass"),
    ]
    found = blocking_clause(clauses)
    assert found is not None and found.name == "cheap"
    assert blocking_clause(clauses[:1]) == clauses[0]
    assert blocking_clause(clauses[-1:]) is None


def test_more_seeds_go_to_a_declared_look_and_cost_what_seeds_have_cost(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, {"code": 0.016, "prose": 0.016}, noise=0.2)
    more = more_seeds(config, facts, config.rule.thresholds())
    assert (more.num_seeds, more.device_s) == (2, 2 * 2 * 3600.0)
    assert more.probability is not None and 0.0 < more.probability < 1.0


def test_after_the_last_look_the_price_is_that_of_a_new_campaign(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, {"code": 0.017, "prose": 0.017}, num_seeds=5, noise=0.1)
    more = more_seeds(config, facts, config.rule.thresholds())
    assert more.what.code in ("new campaign", "campaign of items", "no more evidence")


@pytest.mark.parametrize(
    ("sizes", "noise", "margin", "fixes"),
    [
        (
            [200, *[10] * 20], 0.3, None,
            r"smaller clusters: one of the 21 of code holds 50% of its items, or new rows: 672 effective clusters of "
            "code instead of 21, or a larger claim that 32 seeds on 2 times as many items would rule out: a "
            "gain of 8 points",
        ),
        (
            [20] * 20, 0.1, None,
            "new rows: 80 effective clusters of code instead of 20, or a larger claim that 32 seeds on 2 times as many "
            "items would rule out: a gain of 4 points",
        ),
        ([10] * 40, 0.3, 0.02, "a wider margin of prose"),
    ],
)  # fmt: skip
def test_where_no_campaign_on_this_data_would_answer_what_would_is_named(
    config_of, facts_of, sizes, noise, margin, fixes
):
    """It was "a smaller claim", without a number, also where no claim could be shown at all."""
    guardrails = [{"benchmark": "prose", "margin": margin}] if margin else []
    rule = {"primary": ["code"], "least_effect": 0.02, "prior_sd": 0.1, "guardrails": guardrails}
    config = config_of(seeds=3, looks=[], rule=rule)
    facts, rng = facts_of(config, {"code": 0.007}), np.random.default_rng(5)
    clusters, benchmarks = np.repeat(np.arange(len(sizes)), sizes), {}
    for name, benchmark in facts.benchmarks.items():
        errors = noise * rng.normal(size=len(sizes))[clusters] + 0.02 * rng.normal(size=(3, 1))
        benchmarks[name] = benchmark._replace(candidate=benchmark.candidate + errors, clusters=clusters)
        benchmarks[name] = benchmarks[name].of_seeds(np.ones(3, bool))
    facts = facts._replace(
        benchmarks=benchmarks,
        breadth=facts.breadth._replace(composite=benchmarks["code"].effect),
        most_items={"code": 2 * clusters.size, "prose": 2 * clusters.size},
    )
    more = deciding_campaign(config, facts, config.rule.thresholds())
    assert re.fullmatch(
        rf"not more seeds or items \(32 seeds on 2 times as many items .* has no more\), but {fixes}.*",
        more_text(more),
    )
    assert more.decision_probability is None


def test_a_new_campaign_is_as_large_as_its_open_guardrails_need(config_of, facts_of):
    """The gain alone would be answered by fewer seeds: with those the guardrail would block again."""
    gains = {"code": 0.03, "prose": 0.03, "refusals": 0.0}
    plain = config_of()
    facts = facts_of(plain, gains, num_seeds=5, noise=0.4)
    effect = facts.benchmarks["refusals"].harm.effect
    alone = more_seeds(plain, facts, plain.rule.thresholds())
    margin = 1.02 * MARGINS_PER_ERROR * standard_error_at(alone.num_seeds + 4, effect, facts)
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": margin}]))
    facts = facts_of(config, {**gains, "refusals": -0.7 * margin}, num_seeds=5, noise=0.4)
    more = more_seeds(config, facts, config.rule.thresholds())
    assert alone.num_seeds < more.num_seeds <= alone.num_seeds + 4, more
    found = facts.benchmarks["refusals"].harm.effect
    assert is_sized(standard_error_at(more.num_seeds, found, facts), margin)


def test_no_more_rows_are_asked_for_than_the_dataset_has(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, {"code": 0.017, "prose": 0.017}, num_seeds=5, noise=3.0)
    more = more_seeds(config, facts, config.rule.thresholds())
    assert "times as many items" in more_text(more) or "on more items" in more_text(more)
    few = facts._replace(most_items={"code": 900, "prose": 900})
    more = more_seeds(config, few, config.rule.thresholds())
    assert "2 times as many items would hardly do, and the dataset has no more" in more_text(more)
    guarded = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": 0.05}]))
    few = facts_of(guarded, {}, num_seeds=5, noise=3.0)._replace(most_items={"refusals": 900})
    clause = _clauses(judge_gates(guarded, few))["guardrail: refusals"]
    assert "more than the dataset has (about 900 if all of it were held out)" in more_text(clause.more)


def test_a_new_campaign_begins_anew_so_what_was_seen_does_not_make_it_sure(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, {"code": 0.03, "prose": 0.03}, num_seeds=5, noise=0.4)
    more = more_seeds(config, facts, config.rule.thresholds())
    assert more.probability is not None and 0.5 <= more.probability < 0.8, more
    assert more.num_seeds is not None and more.device_s == more.num_seeds * 2 * 3600.0


def test_a_gain_that_rests_on_a_wide_prior_is_told_in_what_would_change_our_mind(config_of, facts_of):
    config = config_of()
    sure, unsure = (
        facts_of(config, {"code": 0.1, "prose": 0.1}),
        facts_of(config, {"code": 0.025, "prose": 0.025}),
    )
    flips = [flips_of(config, facts, recommendation="scale")[0] for facts in (sure, unsure)]
    codes = [{item.code for found in flip.values() for item in found} for flip in flips]
    assert ["least_effect doubled" in found for found in codes] == [False, True]


PILOT = {
    "name": "drill-treated",
    "seed": 0,
    "loader": {"lanes": 8, "seed": 0},
    "trainer": {"max_steps": 24, "precision": "auto", "optimizer": {"type": "adamw", "learning_rate": 0.2}},
}
"""What a drill of the recipe of conftest.py trains: shorter, with other luck and another rate."""


DRILL = Source(path="drill.json", sha256="d")


def _drill(*problems: str, recipe: Mapping[str, Any] = PILOT) -> DrillReport:
    exercises = tuple(
        Exercise(name=f"kill {n}", run_id="r", weights_digest="w", num_attempts=2, seconds=1.0, problem=problem)
        for n, problem in enumerate(problems)
    )
    return DrillReport.of(recipe, exercises, recipe_sha256="r", workers=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loader": {"lanes": 4, "seed": 0}}, "loader.lanes=4, not 8"),
        ({"trainer": {**PILOT["trainer"], "precision": "bf16"}}, "trainer.precision='bf16', not 'auto'"),
        ({"method": {"layers": 2}}, "method.layers=2, not None"),
    ],
)
def test_a_drill_of_another_recipe_does_not_pass(config_of, facts_of, change, words):
    config = config_of(rule=_rule(drill="drill.json"))
    report = _drill("", "", recipe={**PILOT, **change})
    found = judge_gates(config, facts_of(config, BROAD)._replace(drill=(report, DRILL)))
    clause = _clauses(found)["drill"]
    assert (clause.verdict, found.recommendation) == ("fail", "narrow")
    assert reason_text(clause) == f"It was a drill of another recipe, with {words}."


@pytest.mark.parametrize(
    ("problems", "verdict", "recommendation"),
    [(("", ""), "pass", "scale"), (("", "the audit says fail"), "fail", "narrow"), ((), "fail", "narrow")],
)
def test_a_drills_record_opens_the_gate_only_if_every_exercise_passed(
    config_of, facts_of, problems, verdict, recommendation
):
    config = config_of(rule=_rule(drill="drill.json"))
    found = judge_gates(config, facts_of(config, BROAD)._replace(drill=(_drill(*problems), DRILL)))
    clause = _clauses(found)["drill"]
    assert (clause.verdict, found.recommendation) == (verdict, recommendation)
    assert "kill 1: the audit says fail" in reason_text(clause) or not any(problems)


@pytest.mark.parametrize(
    ("audits", "verdict"),
    [(["rows: not observed"], "undecided"), (["rows: not observed", "fail"], "fail"), (["incomplete"], "fail")],
)
def test_rows_that_were_not_observed_never_open_the_gate(config_of, facts_of, audits, verdict):
    config = config_of(rule=_rule(drill="audit"))
    facts = facts_of(config, BROAD)
    first = [run.model_copy(update={"audit_verdict": audit}) for run, audit in zip(facts.runs, audits, strict=False)]
    found = judge_gates(config, facts._replace(runs=(*first, *facts.runs[len(first) :])))
    clause = _clauses(found)["drill: audit"]
    assert (clause.verdict, found.recommendation) == (verdict, "narrow")
    assert audits[-1] in reason_text(clause) and (clause.more is None) == (verdict == "undecided")


def test_a_guardrail_whose_bound_clears_the_margin_passes_however_wide_its_interval(config_of, facts_of):
    """As a campaign of five points' gain had it: the standard error is above a 3.9th of the margin."""
    margin = {"guardrails": [{"benchmark": "refusals", "margin": 0.004}]}
    assert _guardrail_verdict(config_of(rule=_rule(**margin)), facts_of, {"refusals": 0.05}) == "pass"


def test_a_guardrail_of_400_items_that_do_not_differ_rules_out_one_point_and_not_a_half(config_of, facts_of):
    """Nothing failed among them, so 3 / 400 is what may fail."""
    for margin, verdict in ((0.01, "pass"), (0.005, "undecided")):
        rule = _rule(guardrails=[{"benchmark": "refusals", "margin": margin}])
        assert _guardrail_verdict(config_of(rule=rule), facts_of, failures={"refusals": 0}) == verdict


def test_harm_on_one_item_of_four_hundred_is_no_reason_to_stop(config_of, facts_of):
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": 0.0001}]))
    found = judge_gates(config, facts_of(config, BROAD, failures={"refusals": 1}))
    assert (_clauses(found)["guardrail: refusals"].verdict, found.passed_stop) == ("undecided", None)


def _guardrail_verdict(config, facts_of, gains=None, **how):
    found = judge_gates(config, facts_of(config, {**BROAD, **(gains or {})}, **how))
    return _clauses(found)["guardrail: refusals"].verdict


def test_candidates_share_one_error(config_of):
    patch = {"trainer.optimizer.learning_rate": 1e-3}
    candidates = [{"name": name, "patch": patch} for name in ("treated", "other")]
    rule = {"primary": ["code", "prose"], "least_effect": 0.015}
    for declared, error in ((candidates[:1], 0.05), (candidates, 0.025)):
        looks = config_of(candidates=declared, rule=rule).look_plan()
        assert looks.error_rate == pytest.approx(error)


@pytest.mark.parametrize(
    ("shift", "fix"),
    [
        (0.04, "a new campaign with 12 seeds or more"),
        (0.4, "a wider margin: seeds vary too much, and 32 would"),
    ],
)
def test_a_guardrail_whose_seeds_differ_too_much_names_the_seeds_that_would_do(config_of, facts_of, shift, fix):
    rule = {"primary": ["code", "prose"], "least_effect": 0.015}
    config = config_of(rule={**rule, "guardrails": [{"benchmark": "refusals", "margin": 0.05}]})
    facts = facts_of(config, {"code": 0.0, "prose": 0.0, "refusals": 0.0})
    found = facts.benchmarks["refusals"]
    by_seed = shift * np.linspace(-1.0, 1.0, facts.num_seeds)[:, None]
    moved = found._replace(candidate=found.candidate + by_seed).of_seeds(np.ones(facts.num_seeds, bool))
    facts = facts._replace(benchmarks={**facts.benchmarks, "refusals": moved})
    clause = guardrail_clause(config.rule.guardrails[0], config, facts)
    assert clause.verdict == "undecided" and clause.more is not None
    assert more_text(clause.more).startswith(fix)


@pytest.mark.parametrize(
    ("probability", "decision_probability", "helps"),
    [(0.0, None, False), (0.004, None, False), (0.004, 0.8, True), (0.006, None, True), (None, None, True)],
)
def test_what_surely_does_not_turn_a_clause_is_no_cure(probability, decision_probability, helps):
    chances = {"probability": probability, "decision_probability": decision_probability}
    assert MoreEvidence(what=Statement(code="seeds"), **chances).would_help() == helps

from collections.abc import Mapping
from typing import Any

import pytest

from assay.evaluation.decision.config import CampaignConfig
from assay.evaluation.decision.facts import FileFacts, ForecastFacts, PlanFacts, TargetGain
from assay.evaluation.decision.gates import blocking_clause, judge_gates
from assay.evaluation.decision.more_evidence import more_seeds
from assay.evaluation.decision.sensitivity import variations
from assay.evaluation.evidence.guardrail import MARGINS_PER_ERROR
from assay.records.decision import Clause, MoreEvidence, Source
from assay.records.drill import DrillReport, Exercise

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
    assert found.passed_stop() is None


def test_the_recommendation_is_what_the_gates_verdicts_say(config_of, facts_of):
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": 0.02}]))
    for gains in (BROAD, {}, {"code": 0.05}, {**BROAD, "refusals": -0.05}, {"code": 0.02, "prose": 0.02}):
        found = judge_gates(config, facts_of(config, gains))
        stopped, passed = found.passed_stop() is not None, found.scale.verdict == "pass"
        assert found.recommendation == ("stop" if stopped else "scale" if passed else "narrow")


def test_a_guardrail_that_is_too_small_is_undecided_and_names_the_items_it_lacks(config_of, facts_of):
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": 0.004}]))
    clause = _clauses(judge_gates(config, facts_of(config, {**BROAD, "refusals": -0.004})))[
        "guardrail: refusals"
    ]
    assert clause.verdict == "undecided"
    assert clause.reason.startswith("Too small to tell")
    assert clause.more is not None


def test_a_guardrail_that_a_later_look_makes_precise_enough_asks_for_seeds_not_for_items(config_of, facts_of):
    gains = {**BROAD, "refusals": -0.05}
    seen = facts_of(config_of(), gains, noise=0.5).benchmarks["refusals"].harm(3).effect
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
        assert clause.more is not None and clause.more.what.startswith("373 more items")


def test_a_rate_over_few_clusters_is_bounded_by_what_they_are_worth(config_of, facts_of):
    config = config_of(rule=_rule(safety=[{"benchmark": "secrets", "max_rate": 0.01}]))
    facts = facts_of(config, BROAD, failures={"secrets": 0})
    secrets = facts.benchmarks["secrets"]
    clustered = secrets._replace(clusters=secrets.clusters // 20)
    facts = facts._replace(benchmarks={**facts.benchmarks, "secrets": clustered})
    clause = _clauses(judge_gates(config, facts))["safety: secrets"]
    assert clause.verdict == "undecided"
    assert clause.seen.startswith(
        "0 of 400 items in 20 clusters, which tell as much as 20 independent ones, so at most 14%"
    )
    # 299 clean trials bound a rate by 1%.
    assert clause.more is not None and clause.more.what.startswith(
        "279 more items of secrets, each in a cluster of"
    )


def test_a_rollback_gate_that_passes_stops_and_says_so(config_of, facts_of):
    condition = {"type": "harm", "benchmark": "refusals", "margin": 0.01}
    config = config_of(gates=[{"name": "deployed", "then": "rollback", "conditions": [condition]}])
    found = judge_gates(config, facts_of(config, {**BROAD, "refusals": -0.05}))
    assert found.recommendation == "stop"
    stopped = found.passed_stop()
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


def test_a_plan_and_a_forecast_are_clauses(config_of, facts_of):
    rule = _rule(plan={"record": "plan.json"}, scaling={"record": "forecast.json"})
    config = config_of(rule=rule)
    plan, forecast = Source(path="plan.json", sha256="p"), Source(path="forecast.json", sha256="f")
    facts = facts_of(config, BROAD)._replace(
        files=FileFacts(plan=PlanFacts(on_time=0.87, in_budget=0.79, source=plan)),
        forecast=ForecastFacts(TargetGain(low=0.01, value=0.03), "", (forecast,)),
    )
    clauses = _clauses(judge_gates(config, facts))
    assert (clauses["plan"].verdict, clauses["target scale"].verdict) == ("fail", "undecided")
    assert (clauses["plan"].evidence, clauses["target scale"].evidence) == ((plan,), (forecast,))


@pytest.mark.parametrize(
    "asks",
    [
        {"coverage": "coverage.json"},
        {"drill": "drill.json"},
        {"plan": {"record": "plan.json"}},
        {"scaling": {"record": "forecast.json"}},
    ],
)
def test_a_clause_is_not_left_out_because_its_facts_were_not_gathered(config_of, facts_of, asks):
    config = config_of(rule=_rule(**asks))
    with pytest.raises(AssertionError, match="gathered before it is judged"):
        judge_gates(config, facts_of(config, BROAD))


def test_the_blocking_clause_is_the_cheapest_to_turn_and_people_s_work_comes_last():
    def clause(name: str, device_s: float | None, verdict="undecided") -> Clause:
        more = MoreEvidence(what=name, device_s=device_s)
        return Clause(name=name, type="", verdict=verdict, asks="", seen="", reason="", more=more)

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
    assert more.chance is not None and 0.0 < more.chance < 1.0


def test_after_the_last_look_the_price_is_that_of_a_new_campaign(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, {"code": 0.017, "prose": 0.017}, num_seeds=5, noise=0.1)
    more = more_seeds(config, facts, config.rule.thresholds())
    assert "new campaign" in more.what or "not more seeds" in more.what


def test_a_new_campaign_begins_anew_so_what_was_seen_does_not_make_it_sure(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, {"code": 0.03, "prose": 0.03}, num_seeds=5, noise=0.4)
    more = more_seeds(config, facts, config.rule.thresholds())
    assert more.chance is not None and 0.5 <= more.chance < 0.8, more
    assert more.num_seeds is not None and more.device_s == more.num_seeds * 2 * 3600.0


def test_a_gain_that_rests_on_a_wide_prior_is_told_in_what_would_change_our_mind(config_of, facts_of):
    config = config_of()
    sure, unsure = (
        facts_of(config, {"code": 0.1, "prose": 0.1}),
        facts_of(config, {"code": 0.025, "prose": 0.025}),
    )
    told = [" ".join(variations(config, facts, recommendation="scale")) for facts in (sure, unsure)]
    assert "if twice the gain were asked for" not in told[0]
    assert "if twice the gain were asked for" in told[1]


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
    found = judge_gates(config, facts_of(config, BROAD)._replace(files=FileFacts(drill=(report, DRILL))))
    clause = _clauses(found)["drill"]
    assert (clause.verdict, found.recommendation) == ("fail", "narrow")
    assert clause.reason == f"It was a drill of another recipe, with {words}."


@pytest.mark.parametrize(
    ("problems", "verdict", "recommendation"),
    [(("", ""), "pass", "scale"), (("", "the audit says fail"), "fail", "narrow"), ((), "fail", "narrow")],
)
def test_a_drills_record_opens_the_gate_only_if_every_exercise_passed(
    config_of, facts_of, problems, verdict, recommendation
):
    config = config_of(rule=_rule(drill="drill.json"))
    files = FileFacts(drill=(_drill(*problems), DRILL))
    found = judge_gates(config, facts_of(config, BROAD)._replace(files=files))
    clause = _clauses(found)["drill"]
    assert (clause.verdict, found.recommendation) == (verdict, recommendation)
    assert "kill 1: the audit says fail" in clause.reason or not any(problems)


def test_a_guardrail_whose_bound_clears_the_margin_passes_by_todays_rule_and_not_by_that_of_before(
    config_of, facts_of
):
    """As a campaign of five points' gain had it: the standard error is above a 3.9th of the margin."""
    margin = {"guardrails": [{"benchmark": "refusals", "margin": 0.004}]}
    assert [
        _guardrail_verdict(config_of(rule=_rule(edition=edition, **margin)), facts_of, {"refusals": 0.05})
        for edition in (3, 2, 1)
    ] == ["pass", "pass", "undecided"]


def test_a_guardrail_of_400_items_that_do_not_differ_rules_out_one_point_and_not_a_half(config_of, facts_of):
    """Nothing failed among them, so 3 / 400 is what may fail; the second edition took it for nothing."""
    for margin, verdicts in ((0.01, ["pass", "pass"]), (0.005, ["undecided", "pass"])):
        rule = {"guardrails": [{"benchmark": "refusals", "margin": margin}]}
        assert [
            _guardrail_verdict(
                config_of(rule=_rule(edition=edition, **rule)), facts_of, failures={"refusals": 0}
            )
            for edition in (3, 2)
        ] == verdicts


def test_harm_on_one_item_of_four_hundred_is_no_reason_to_stop(config_of, facts_of):
    config = config_of(rule=_rule(guardrails=[{"benchmark": "refusals", "margin": 0.0001}]))
    found = judge_gates(config, facts_of(config, BROAD, failures={"refusals": 1}))
    assert (_clauses(found)["guardrail: refusals"].verdict, found.passed_stop()) == ("undecided", None)


def _guardrail_verdict(config, facts_of, gains=None, **how):
    found = judge_gates(config, facts_of(config, {**BROAD, **(gains or {})}, **how))
    return _clauses(found)["guardrail: refusals"].verdict


def test_a_campaign_keeps_the_edition_of_the_day_it_was_declared(config_of):
    today = config_of().model_dump(mode="json")
    rule = {key: today["rule"][key] for key in ("primary", "least_effect")}
    trees = [today, *({**today, "version": version, "rule": rule} for version in (3, 2))]
    assert [CampaignConfig.from_stored(tree).rule.edition for tree in trees] == [3, 2, 1]

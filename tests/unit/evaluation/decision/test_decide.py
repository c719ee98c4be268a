"""What a decision says: of the candidate, and of its own power to answer."""

from pathlib import Path

import pytest

from assay.evaluation.decision.config import CampaignConfig
from assay.evaluation.decision.decide import decide
from assay.evaluation.decision.facts import Facts
from assay.evaluation.decision.gates import judge_gates
from assay.launch.campaign.decisions import record_decision
from assay.launch.campaign.folder import OpenCampaign
from assay.records.campaign import Campaign
from assay.records.decision import Decision
from assay.store.home import Home

UNSURE = {"code": 0.022, "prose": 0.022}


def campaign_of(config: CampaignConfig) -> Campaign:
    return Campaign(
        name="pilot", config={}, config_sha256="c", recipe={}, beside=".", known_good_sha256=None, created_s=0.0
    )


@pytest.fixture
def unsure(config_of, facts_of) -> tuple[CampaignConfig, Facts]:
    """Six seeds with a look at three, and items so few that no look to come would scale what is seen."""
    config = config_of(seeds=6, looks=[3])
    return config, facts_of(config, UNSURE, noise=1.3)


def test_where_no_look_to_come_would_decide_the_design_is_blamed_and_not_the_candidate(unsure):
    config, facts = unsure
    worth = next(each for each in judge_gates(config, facts).scale.clauses if each.name == "worth")
    assert 0.2 < worth.value < 0.8, "nothing speaks against it"
    decision = decide(config, campaign_of(config), facts)
    assert (decision.recommendation, decision.is_final) == ("narrow", True)
    assert decision.sentence.startswith("Narrow treated: this design cannot answer.")
    assert decision.gates[1].verdict != "pass"


def test_the_cheapest_cure_of_a_want_of_power_is_a_campaign_that_would_answer(unsure):
    config, facts = unsure
    more = decide(config, campaign_of(config), facts).cheapest
    assert more is not None and more.answers is not None and more.answers >= 0.8
    assert more.num_seeds >= config.seeds
    assert "items of code" in more.what, "no number of seeds makes up for these items"


def test_at_the_last_look_the_design_is_blamed_in_the_same_words(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, UNSURE, num_seeds=5, noise=1.3)
    decision = decide(config, campaign_of(config), facts)
    assert decision.is_final
    assert "this design cannot answer" in decision.sentence
    assert "to decide either way" in decision.sentence


def as_written_before(decision: Decision) -> Decision:
    """By an assay that said stop for want of power."""
    stop = decision.gates[1]
    clauses = tuple(
        clause.model_copy(update={"verdict": "pass"}) if clause.name == "no way" else clause
        for clause in stop.clauses
    )
    gates = (
        decision.gates[0],
        stop.model_copy(update={"verdict": "pass", "clauses": clauses}),
        *decision.gates[2:],
    )
    return decision.model_copy(update={"recommendation": "stop", "sentence": "Stop.", "gates": gates})


def test_a_stop_for_want_of_power_that_is_on_record_still_follows_from_its_results(unsure, tmp_path: Path):
    config, facts = unsure
    found = decide(config, campaign_of(config), facts)
    home = Home.at(tmp_path)
    campaign = OpenCampaign(home, campaign_of(config), config, None)
    before = as_written_before(found)
    campaign.store.put(before.place(), before.to_json().encode())
    with home.open_ledger() as ledger:
        assert record_decision(campaign, found, ledger) == before


def test_a_guardrail_that_is_zero_on_both_sides_is_warned_of(config_of, facts_of):
    config = config_of(
        rule={
            "primary": ["code", "prose"],
            "least_effect": 0.015,
            "guardrails": [{"benchmark": "refusals", "margin": 0.02}],
        }
    )
    facts = facts_of(config, {"code": 0.05, "prose": 0.05})
    refusals = facts.benchmarks["refusals"]
    dead = refusals._replace(baseline=0.0 * refusals.baseline, candidate=0.0 * refusals.candidate)
    facts = facts._replace(benchmarks={**facts.benchmarks, "refusals": dead})
    assert "refusals is 0 on every item" in " ".join(decide(config, campaign_of(config), facts).warnings)


def test_what_several_runs_of_an_arm_are_warned_of_is_one_line(config_of, facts_of):
    config, facts = config_of(), facts_of(config_of(), {"code": 0.05, "prose": 0.05})
    worse = (
        "worse than constant",
        "its log-loss is 0.{seed}; always saying these rows' share of positives has 0.6.",
    )
    warned = {
        "baseline": [worse],
        "treated": [("diverged", "the training loss began at 0.69 and ended at {seed}000."), worse],
    }
    runs = [
        run.model_copy(
            update={
                "warnings": tuple(text.format(seed=run.seed + 7) for _, text in warned[run.arm]),
                "warning_rules": tuple(rule for rule, _ in warned[run.arm]),
            }
        )
        for run in facts.runs
    ]
    runs[1] = facts.runs[1]
    found = decide(config, campaign_of(config), facts._replace(runs=tuple(runs))).warnings
    constant = "did worse than one answer for every row would; with seed 0, its log-loss is 0.7; always saying"
    assert [each.partition(" these rows")[0] for each in found] == [
        f"2 of 3 runs of baseline {constant}",
        "3 of 3 runs of treated diverged; with seed 0, the training loss began at 0.69 and ended at 7000.",
        f"3 of 3 runs of treated {constant}",
    ]


def test_primary_benchmarks_that_count_other_rows_by_other_columns_are_warned_of(config_of, facts_of):
    def counted(**code: object) -> CampaignConfig:
        rows = {"type": "predictions", "score": "correct"}
        primary = [{**rows, "name": "code", "cluster": "author", **code}, {**rows, "name": "prose"}]
        others = [{"type": "suite", "name": name} for name in ("refusals", "secrets")]
        return config_of(benchmarks=[*primary, *others])

    differing, same = counted(where={"kind": "code"}), counted()
    facts = facts_of(same, UNSURE)
    said, silent = (decide(each, campaign_of(each), facts).warnings for each in (differing, same))
    assert {*said} - {*silent} == {
        "code by author, prose by split_cluster: only the luck of rows that they both ask counts as shared."
    }

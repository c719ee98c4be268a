"""What a decision says: of the candidate, and of its own power to answer."""

import re

import numpy as np
import pytest

from assay.decision.config import CampaignConfig
from assay.decision.decide import decide, turning_point
from assay.decision.facts import Facts
from assay.decision.gates import judge_gates
from assay.records.campaign import Campaign
from assay.reporting.views.statements import (
    because_text,
    decision_text,
    more_text,
    reason_text,
    seen_text,
    statement_text,
    statement_texts,
    would_change_texts,
)
from assay.statistics.composite import breadth
from assay.statistics.power import detectable_by
from assay.statistics.warnings import Warned

UNSURE = {"code": 0.022, "prose": 0.022}


def campaign_of(config: CampaignConfig) -> Campaign:
    return Campaign(
        name="pilot",
        config={},
        config_sha256="c",
        recipe={},
        base_dir=".",
        suites={},
        known_good_sha256=None,
        created_s=0.0,
    )


@pytest.fixture
def unsure(config_of, facts_of) -> tuple[CampaignConfig, Facts]:
    """Six seeds with a look at three, and so few items that no later look would scale the observed gain."""
    config = config_of(seeds=6, looks=[3])
    return config, facts_of(config, UNSURE, noise=1.3)


def test_where_no_look_to_come_would_decide_the_design_is_blamed_and_not_the_candidate(unsure):
    config, facts = unsure
    worth = next(clause for clause in judge_gates(config, facts).scale.clauses if clause.name == "worth")
    assert 0.2 < worth.value < 0.8, "nothing speaks against it"
    decision = decide(config, campaign_of(config), facts)
    assert (decision.recommendation, decision.is_final) == ("narrow", True)
    assert decision_text(decision).startswith("Narrow treated: this design cannot answer.")
    assert decision.gates[1].verdict != "pass"


def test_the_cheapest_cure_of_a_want_of_power_is_a_campaign_that_would_answer(unsure):
    config, facts = unsure
    more = decide(config, campaign_of(config), facts).cheapest
    assert more is not None and more.decision_probability is not None and more.decision_probability >= 0.8
    assert more.num_seeds >= config.seeds
    assert "more items and the same gates: " in more_text(more), "no number of seeds makes up for these items"


@pytest.mark.slow
def test_at_the_last_look_the_design_is_blamed_in_the_same_words(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, UNSURE, num_seeds=5, noise=1.3)
    decision = decide(config, campaign_of(config), facts)
    assert decision.is_final
    assert "this design cannot answer" in decision_text(decision)
    assert "to decide either way" in decision_text(decision)


@pytest.mark.parametrize("gain", [0.05, -0.05])
def test_what_was_not_asked_is_said_neither_to_hold_nor_to_fail(config_of, facts_of, gain: float):
    config = config_of(rule={"primary": ["code"], "least_effect": 0.015})
    decision = decide(config, campaign_of(config), facts_of(config, {"code": gain}, num_seeds=5))
    clauses = {clause.name: clause for gate in decision.gates for clause in gate.clauses}
    assert reason_text(clauses["left out"]) == "There is only one benchmark, so none is left out."
    assert reason_text(clauses["breadth"]) == "There is only one benchmark; other benchmarks are unknown."
    assert seen_text(clauses["no way"]) == "not evaluated: no look is left"
    is_listed = "one primary benchmark" in [risk.code for risk in decision.risks]
    assert is_listed == (gain > 0), "of what is stopped nobody asks"


def test_a_decision_carries_owner_origin_of_the_least_effect_and_how_long_its_cure_takes(unsure):
    config, facts = unsure
    config = config.model_copy(update={"owner": "R.", "least_effect_because": "so it is", "workers": 2})
    decision = decide(config, campaign_of(config), facts)
    assert (decision.owner, decision.least_effect_because) == ("R.", "so it is")
    assert decision.cheapest is not None and decision.cheapest.device_s is not None
    assert decision.next_wall_s == decision.cheapest.device_s / 2


def test_what_could_be_detected_is_of_the_luck_of_its_own_interval(config_of, facts_of):
    facts = facts_of(config_of(), {"code": 0.02, "prose": 0.02}, noise=0.3)
    for found in decide(config_of(), campaign_of(config_of()), facts).effects:
        effect = facts.benchmarks[found.benchmark].effect
        assert found.could_detect == detectable_by(effect)
        assert found.item_degrees == float(effect.item_degrees)


def test_the_headline_counts_what_was_asked_and_names_what_was_not(config_of, facts_of):
    decision = decide(config_of(), campaign_of(config_of()), facts_of(config_of(), {"code": 0.1, "prose": 0.1}))
    assert (
        "7 of 13 clauses are declared, and all hold; not declared: guardrails, safety, coverage, sealed holdout, "
        "target scale, plan." in decision_text(decision)
    )
    config = config_of(
        rule={
            "primary": ["code"],
            "least_effect": 0.015,
            "guardrails": [{"benchmark": "refusals", "margin": 0.02}],
        }
    )
    decision = decide(config, campaign_of(config), facts_of(config, {"code": 0.1}))
    assert "6 of 13 clauses are declared, and all hold; not declared: left out, breadth, safety," in decision_text(
        decision
    )


def test_a_scale_that_one_seed_would_turn_is_called_fragile_in_the_headline(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, {"code": 0.05, "prose": 0.05}, num_seeds=5)
    sure = decide(config, campaign_of(config), facts)
    assert "Fragile" not in decision_text(sure)

    moved = {}
    for name in ("code", "prose"):
        found = facts.benchmarks[name]
        gains = np.array([0.034, 0.034, 0.034, 0.034, 0.001])[:, None]
        candidate = found.candidate + gains - found.differences.mean(axis=1, keepdims=True)
        changed = found._replace(candidate=candidate)
        moved[name] = changed.of_seeds(np.ones(5, bool))
    differences = {name: benchmark.differences for name, benchmark in moved.items()}
    facts = facts._replace(benchmarks={**facts.benchmarks, **moved}, breadth=breadth(differences))
    shaky = decide(config, campaign_of(config), facts)
    flips = next(line for line in would_change_texts(shaky) if line.startswith("It would be"))
    assert "without seed" in flips
    assert f"Fragile: it would be {flips.split()[3]} without seed " in decision_text(shaky)


@pytest.mark.parametrize(("kind", "is_listed"), [("predictions", True), ("suite", False)])
def test_that_slices_of_one_split_agree_is_no_breadth(config_of, facts_of, kind: str, is_listed: bool):
    config = config_of(benchmarks=[{"type": kind, "name": name} for name in ("code", "prose", "refusals")])
    decision = decide(config, campaign_of(config), facts_of(config, {"code": 0.05, "prose": 0.05}, num_seeds=5))
    assert any(risk.code == "one split" for risk in decision.risks) == is_listed


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
    assert "refusals is 0 on every item" in " ".join(
        statement_texts(decide(config, campaign_of(config), facts).warnings)
    )


def test_what_several_runs_of_an_arm_are_warned_of_is_one_line(config_of, facts_of):
    config, facts = config_of(), facts_of(config_of(), {"code": 0.05, "prose": 0.05})

    def warned(run):
        worse = Warned("worse than constant", {"loss": 0.7 + run.seed, "constant": 0.6}, "binary")
        diverged = Warned("diverged", {"first": 0.69, "last": 7000.0 + run.seed})
        found = [worse] if run.arm == "baseline" else [diverged, worse]
        warnings = tuple(warning.statement() for warning in found)
        return run.model_copy(update={"warnings": warnings, "warning_rules": tuple(item.rule for item in found)})

    runs = [warned(run) for run in facts.runs]
    runs[1] = facts.runs[1]
    found = statement_texts(decide(config, campaign_of(config), facts._replace(runs=tuple(runs))).warnings)
    constant = "did worse than a constant prediction would; with seed 0, its log-loss is 0.7000"
    assert [warning.partition("; the share")[0] for warning in found] == [
        f"2 of 3 runs of baseline {constant}",
        "3 of 3 runs of treated diverged; with seed 0, the training loss began at 0.69 and ended at 7000.",
        f"3 of 3 runs of treated {constant}",
    ]


def moved_seeds(facts, gains):
    """The facts with these gains of the seeds, on both primary benchmarks."""
    moved = {}
    for name in ("code", "prose"):
        found = facts.benchmarks[name]
        candidate = found.candidate + np.array(gains)[:, None] - found.differences.mean(axis=1, keepdims=True)
        moved[name] = found._replace(candidate=candidate).of_seeds(np.ones(len(gains), bool))
    return facts._replace(benchmarks={**facts.benchmarks, **moved}).without_primary("")


def test_a_run_that_crashed_and_seeds_that_are_one_run_are_named_in_the_memo(config_of, facts_of):
    config, facts = config_of(), facts_of(config_of(), {"code": 0.05, "prose": 0.05}, num_seeds=5)
    assert decide(config, campaign_of(config), facts).warnings == ()

    crashed = moved_seeds(facts, [0.051, 0.052, -0.4, 0.049, 0.048])
    (warned,) = statement_texts(decide(config, campaign_of(config), crashed).warnings)
    assert warned.startswith("treated with seed 2 scores 45.00 points below the mean of its other seeds")
    assert warned.endswith("A campaign that declares a trimmed mean goes by the others.")

    runs = [run.model_copy(update={"weights_digest": "w" if run.seed < 2 else str(run)}) for run in facts.runs]
    baseline, _ = statement_texts(decide(config, campaign_of(config), facts._replace(runs=tuple(runs))).warnings)
    assert baseline == ("baseline with seeds 0 and 1 ended with the same weights: that is one run, counted 2 times.")


def test_what_is_declared_for_the_typical_seed_bears_a_run_that_crashed(config_of, facts_of):
    names = {"primary": ["code", "prose"], "least_effect": 0.015}
    gains = [0.051, 0.052, -0.4, 0.049, 0.048, 0.05]

    def decided(over_seeds):
        config = config_of(seeds=6, looks=[], rule={**names, "over_seeds": over_seeds})
        facts = facts_of(config, {}, num_seeds=6)._replace(over_seeds=over_seeds)
        return decide(config, campaign_of(config), moved_seeds(facts, gains))

    mean, typical = decided("mean"), decided("trimmed")
    assert (mean.recommendation, typical.recommendation) == ("narrow", "scale")
    assert typical.effect.value == pytest.approx(np.mean([0.051, 0.049, 0.048, 0.05]))
    assert "over 6 seeds, without the best and the worst of them (seeds 1 and 2)" in decision_text(typical)
    assert any("treated with seed 2 scores" in warning for warning in statement_texts(typical.warnings))


def test_the_typical_seed_needs_five_at_every_look(config_of):
    rule = {"primary": ["code", "prose"], "least_effect": 0.015, "over_seeds": "trimmed"}
    with pytest.raises(ValueError, match=r"a look at 3 seeds has too few left\. Look at 5"):
        config_of(rule=rule)


@pytest.mark.parametrize(("num_dead", "is_listed"), [(0, False), (2, False), (3, True), (6, True)])
def test_a_verdict_on_models_that_give_one_answer_says_so(num_dead: int, is_listed: bool, config_of, facts_of):
    config, facts = config_of(), facts_of(config_of(), {"code": 0.05, "prose": 0.05})
    dead = {"warnings": ("all rows got 0.3",), "warning_rules": ("one score",)}
    runs = [run.model_copy(update=dead if n < num_dead else {}) for n, run in enumerate(facts.runs)]
    sentence = because_text(decide(config, campaign_of(config), facts._replace(runs=tuple(runs))))
    assert (f"But {num_dead} of 6 models predict the same for every row" in sentence) is is_listed


def test_a_candidate_that_is_stopped_for_its_size_is_told_by_the_bound_that_stops_it(config_of, facts_of):
    config = config_of()
    facts = facts_of(config, {"code": 0.002, "prose": 0.002}, noise=0.01)
    sentence = because_text(decide(config, campaign_of(config), facts))
    bound = re.search(r"even the one-sided 90% upper bound of the gain, ([+-]?[0-9.]+) points, is too small", sentence)
    assert bound is not None and float(bound.group(1)) < 100 * config.rule.least_effect


def test_a_bound_of_the_gain_below_zero_is_a_loss_and_not_a_small_gain(config_of, facts_of):
    config = config_of()
    decision = decide(config, campaign_of(config), facts_of(config, {"code": -0.5, "prose": -0.5}, noise=0.01))
    (clause,) = (item for gate in decision.gates for item in gate.clauses if item.name == "too small")
    assert re.search(r"upper bound of the gain, -[0-9.]+ points, is a loss\.$", reason_text(clause))


def test_primary_benchmarks_that_count_other_rows_by_other_columns_are_warned_of(config_of, facts_of):
    def counted(**code: object) -> CampaignConfig:
        rows = {"type": "predictions", "score": "correct"}
        primary = [{**rows, "name": "code", "cluster": "author", **code}, {**rows, "name": "prose"}]
        others = [{"type": "suite", "name": name} for name in ("refusals", "secrets")]
        return config_of(benchmarks=[*primary, *others])

    differing, same = counted(where={"kind": "code"}), counted()
    facts = facts_of(same, UNSURE)
    warned, silent = (
        statement_texts(decide(decision, campaign_of(decision), facts).warnings) for decision in (differing, same)
    )
    assert {*warned} - {*silent} == {
        "code by author, prose by split_cluster: only the noise of rows that both contain counts as shared."
    }


def test_a_gain_that_would_pass_is_one_that_there_is_room_for(config_of, facts_of):
    """A share cannot rise above 1."""
    config = config_of()

    def at(baseline: float) -> str:
        facts = facts_of(config, {"code": 0.001, "prose": 0.001}, noise=0.4)
        moved = {
            name: benchmark._replace(
                baseline=benchmark.baseline - 1.0 + baseline, candidate=benchmark.candidate - 1.0 + baseline
            )
            for name, benchmark in facts.benchmarks.items()
        }
        found = turning_point(config, facts._replace(benchmarks=moved), "narrow")
        assert found is not None
        return statement_text(found)

    assert "with this spread, would pass" in at(0.5)
    assert at(0.995).startswith("With this spread no gain would pass: it takes ")

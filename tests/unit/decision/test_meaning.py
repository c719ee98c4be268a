"""What a gain means: in wrong answers, in probability, and beyond calibration."""

import math
from collections.abc import Callable

import pytest

from assay.decision.config import CampaignConfig
from assay.decision.decide import decide
from assay.decision.facts import BenchmarkFacts, Facts
from assay.records.campaign import Campaign
from assay.records.decision import Decision
from assay.reporting.views.statements import decision_text, dissent_texts, error_rate_text

LIKELIHOOD = {
    "benchmarks": [
        {"type": "predictions", "name": "likelihood", "score": "log_likelihood"},
        {"type": "suite", "name": "prose"},
    ],
    "rule": {"primary": ["likelihood"], "least_effect": 0.015},
}
GAINED = {"likelihood": 0.08}


@pytest.fixture
def likelihood(config_of) -> CampaignConfig:
    return config_of(**LIKELIHOOD)


@pytest.fixture
def decided(likelihood, facts_of) -> Callable[[float, float], Decision]:
    """The decision on a gain of 0.08 nats per row, with these gains of ranking and accuracy."""

    def make(ranking: float, correct: float) -> Decision:
        facts = facts_of(likelihood, GAINED)

        def secondary_score(name: str, unit: str, gain: float) -> BenchmarkFacts:
            found = facts.benchmarks["prose"]._replace(name=name, role="other", unit=unit)
            is_same = name == "likelihood-correct" and gain == 0.0
            candidate = found.baseline if is_same else found.candidate - found.differences.mean() + gain
            return found._replace(
                candidate=candidate - 0.3,
                baseline=found.baseline - 0.3,
                effect=found.effect._replace(mean=found.effect.mean * 0.0 + gain),
            )

        changed: Facts = facts._replace(
            unit="nats per row",
            secondary=(
                secondary_score("likelihood-ranking", "AUC", ranking),
                secondary_score("likelihood-correct", "share", correct),
            ),
        )
        campaign = Campaign(
            name="pilot", config={}, config_sha256="c", recipe={}, base_dir=".", suites={}, known_good_sha256=None,
            created_s=0.0,
        )  # fmt: skip
        return decide(likelihood, campaign, changed)

    return make


def test_what_else_the_primary_rows_say_is_asked_for_unless_it_is_declared(config_of):
    assert [benchmark.name for benchmark in config_of(**LIKELIHOOD).secondary] == [
        "likelihood-correct",
        "likelihood-ranking",
    ]
    declared = [*LIKELIHOOD["benchmarks"], {"type": "predictions", "name": "ranks", "score": "ranking"}]
    assert [benchmark.name for benchmark in config_of(**{**LIKELIHOOD, "benchmarks": declared}).secondary] == [
        "likelihood-correct"
    ]
    assert config_of().secondary == ()


def test_nats_are_told_as_wrong_answers_and_as_probability(decided):
    decision = decided(0.03, 0.02)
    assert decision.recommendation == "scale"
    assert decision_text(decision).startswith(
        "Scale treated: wrong answers fall from 30.0% to 28.0% of held-out rows ["
    )
    (effect,) = (item for item in decision.secondary if item.benchmark == decision.accuracy_benchmark)
    assert effect.effect.low < 0.02 < effect.effect.high and effect.num_differing
    factor, *_ = decision.meaning
    assert factor.values == {"factor": pytest.approx(math.exp(decision.effect.value)), "per": "row"}
    assert [benchmark.benchmark for benchmark in decision.secondary] == ["likelihood-ranking", "likelihood-correct"]


def test_answers_that_are_the_same_row_by_row_do_not_change_and_say_what_could_be_missed(decided):
    decision = decided(0.02, 0.0)
    high = 100 * decision.secondary[1].effect.high
    missed = f"(a change of up to {high:.1f} points could be missed)"
    assert error_rate_text(decision) == f"Wrong answers stay at 30.0% of held-out rows, the same ones {missed}"


def test_a_gain_in_likelihood_alone_is_told_from_one_in_ranking(decided):
    calibrated, alone = decided(0.03, 0.02), decided(0.0, 0.02)
    assert [item.code for item in calibrated.meaning] == ["likelihood", "more than calibration"]
    assert not any(item.code == "calibration alone" for item in calibrated.dissent)
    assert [item.code for item in alone.meaning] == ["likelihood"]
    assert any("not seen in ranking (0.00 points of AUC [" in sentence for sentence in dissent_texts(alone))


def test_scores_that_do_not_move_are_evidence(decided):
    (sentence,) = (item for item in dissent_texts(decided(0.03, 0.0)) if item.startswith("No difference is seen on "))
    assert "likelihood-correct (0.00 points [95%: " in sentence and "prose (" in sentence
    assert "likelihood-ranking" not in sentence


def test_wrong_answers_are_of_all_rows_although_the_primary_benchmarks_are_slices(config_of):
    kinds = [
        {"type": "predictions", "name": kind, "score": "log_likelihood", "where": {"kind": kind}}
        for kind in ("method", "function")
    ]
    rule = {"primary": ["method", "function"], "least_effect": 0.015}
    names = [item.name for item in config_of(benchmarks=kinds, rule=rule).secondary if not item.where]
    assert names == ["all-rows"]
    whole = {"type": "predictions", "name": "accuracy", "score": "correct"}
    assert all(item.where for item in config_of(benchmarks=[*kinds, whole], rule=rule).secondary)


def test_a_gain_stands_beside_its_share_of_the_baseline(config_of, facts_of, decided):
    """The baseline of these tests scores 1."""
    decision = decided(0.03, 0.02)
    assert decision.relative == pytest.approx(decision.effect.value)
    assert f"({100 * decision.effect.value:+.1f}% relative to the baseline)" in decision_text(decision)

"""What a gain means: in wrong answers, in probability, and beyond calibration."""

import math
from collections.abc import Callable

import pytest

from assay.decision.config import CampaignConfig
from assay.decision.decide import decide
from assay.decision.facts import BenchmarkFacts, Facts
from assay.records.campaign import Campaign
from assay.records.decision import Decision

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
    wrong = "In wrong answers: from 300 to 280 of 1,000 rows, -20.0 [95%: "
    assert decision.meaning[0].startswith(wrong) and wrong in decision.sentence
    low, high = (float(end) for end in decision.meaning[0].partition("95%: ")[2].rstrip("].").split(" to "))
    assert low < -20.0 < high < 0.0
    gained = decision.effect.value
    assert f"Per row, the probability of what is right is multiplied by {math.exp(gained):.3g}." in decision.meaning
    assert [benchmark.benchmark for benchmark in decision.secondary] == [
        "likelihood-ranking",
        "likelihood-correct",
    ]


def test_answers_that_are_the_same_row_by_row_have_no_interval_of_no_width(decided):
    sentence = decided(0.02, 0.0).meaning[0]
    assert sentence == "In wrong answers: from 300 to 300 of 1,000 rows, the same row by row."


def test_a_gain_in_likelihood_alone_is_told_from_one_in_ranking(decided):
    calibrated, alone = decided(0.03, 0.02), decided(0.0, 0.02)
    assert any("more than calibration: the ranking" in sentence for sentence in calibrated.meaning)
    assert not any("calibration alone" in sentence for sentence in calibrated.dissent)
    assert not any("more than calibration" in sentence for sentence in alone.meaning)
    assert any("not seen in ranking (0.00 points of AUC [" in sentence for sentence in alone.dissent)


def test_scores_that_do_not_move_are_evidence(decided):
    (sentence,) = (
        sentence for sentence in decided(0.03, 0.0).dissent if sentence.startswith("No difference is seen on ")
    )
    assert "likelihood-correct (0.00 points [95%: " in sentence and "prose (" in sentence
    assert "likelihood-ranking" not in sentence


def test_a_gain_stands_beside_its_share_of_the_baseline(config_of, facts_of, decided):
    """The baseline of these tests scores 1."""
    decision = decided(0.03, 0.02)
    assert f"({100 * decision.effect.value:+.1f}% relative to the baseline)" in decision.sentence

"""The rule's promises, on simulated campaigns; benchmarks/evidence.py holds them to 2,000 and more."""

import math
from functools import cache

import numpy as np
import pytest

from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import CampaignRule
from campaign_design import (
    CampaignDesign,
    detectable_effect,
    futility_probability,
    imbalance_probability,
    stated_power,
)
from campaign_simulation import CampaignTruth, simulate_campaigns

DESIGN = CampaignDesign()
CAMPAIGNS = 500
"""A share of one half is then known to 0.022 (a standard deviation)."""


@cache
def simulated(*, campaigns=CAMPAIGNS, design=DESIGN, **truth):
    """Likewise for every test that asks of the same truth."""
    return simulate_campaigns(design, CampaignTruth(**truth), num_campaigns=campaigns, rng=np.random.default_rng(0))


@pytest.mark.slow
def test_without_an_effect_looking_at_every_checkpoint_scales_one_in_a_hundred_at_most_and_stops():
    found = simulated()
    assert found.share("scale") <= 0.01
    assert found.share("stop") >= 0.90
    assert found.naive_share() > 0.40


def test_without_the_declared_looks_the_same_peeking_claims_far_more():
    """What the boundary is for: judged as if each look were the only one, gains are claimed from nothing."""
    from campaign_simulation import _evidence, _scores

    scores = _scores(DESIGN, CampaignTruth(), 1500, np.random.default_rng(1))
    alone, planned = np.zeros(1500, bool), np.zeros(1500, bool)
    for number in range(DESIGN.num_checkpoints):
        effect = _evidence(DESIGN, scores[:, :3, number], level=0.95, is_gate=False).effect
        alone |= effect.lower(0.95) > 0.0
        planned |= effect.lower(1.0 - DESIGN.looks.unscheduled_spending(number + 1)) > 0.0
    assert alone.mean() > 0.10
    assert planned.mean() < 0.02


@pytest.mark.slow
def test_the_effect_that_the_plan_was_made_for_is_scaled_with_at_least_the_stated_power():
    effect = detectable_effect(DESIGN, target_power=0.8)
    assert stated_power(DESIGN, effect) == pytest.approx(0.8, abs=1e-3)
    assert simulated(gain=effect).share("scale") >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("gain", [0.03, 0.045])
def test_the_stated_power_is_a_lower_bound_elsewhere_too(gain):
    assert simulated(gain=gain).share("scale") >= stated_power(DESIGN, gain) - 0.02


@pytest.mark.slow
def test_a_gain_that_comes_from_one_benchmark_is_rarely_scaled():
    shuffle_radius, carried = simulated(gain=0.04), simulated(gain=0.04, only_one_benchmark=True)
    assert carried.share("scale") < 0.1 * shuffle_radius.share("scale")


@pytest.mark.slow
def test_harm_on_a_guardrail_or_failures_block_any_gain():
    assert simulated(gain=0.06, harm=0.03).share("scale") == 0.0
    assert simulated(gain=0.06, failure_rate=0.02).share("stop") == 1.0


@pytest.mark.slow
def test_a_gain_ends_campaigns_early():
    assert simulated(gain=0.06).num_seeds.mean() < simulated(gain=0.03).num_seeds.mean()


@pytest.mark.parametrize("least_positive", [0.75, 0.25])
def test_disagreeing_benchmarks_are_as_rare_as_the_plan_says(least_positive):
    design = CampaignDesign(benchmark_sd=0.03, rule=CampaignRule(least_share_positive=least_positive))
    bound = imbalance_probability(design, 0.03)
    rng, runs = np.random.default_rng(2), 100_000
    own = math.sqrt(0.03**2 + design.discordance / design.items_per_benchmark)
    common = math.sqrt(design.components().seed / 8) * rng.normal(size=(runs, 1))
    gains = 0.03 + common + own * rng.normal(size=(runs, 4))
    mean = gains.mean(axis=1)
    left_out = (4 * mean[:, None] - gains) / 3
    fails = ((gains > 0).mean(axis=1) < least_positive) | (left_out.min(axis=1) < 0.5 * mean)
    assert fails.mean() <= bound <= 2.0 * fails.mean()


def test_the_chance_of_stopping_at_a_gate_is_what_the_plan_says():
    one_gate = CampaignDesign(looks=LookPlan(gate_seeds=(4,)), num_checkpoints=1)
    stops = simulated(design=one_gate, campaigns=8000, gain=0.015).share("stop")
    assert futility_probability(one_gate, 0.015) == pytest.approx(stops, abs=0.015)
    assert futility_probability(DESIGN, 0.03) >= simulated(gain=0.03).share("stop") - 0.02


def test_a_design_whose_guardrails_alone_lose_too_much_detects_nothing():
    assert detectable_effect(CampaignDesign(num_guardrails=20)) == math.inf


def test_more_seeds_detect_less():
    more = CampaignDesign(looks=LookPlan(gate_seeds=(3, 8, 16)))
    assert detectable_effect(more) < detectable_effect(DESIGN)

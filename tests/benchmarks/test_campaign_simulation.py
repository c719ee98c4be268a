"""The rule's promises, on simulated campaigns; benchmarks/evidence.py holds them to 2,000 and more."""

from functools import cache

import numpy as np
import pytest

from assay.statistics.campaign.looks import LookPlan
from campaign_simulation import CampaignDesign, CampaignTruth, simulate_campaigns
from evidence import ONE_GATE
from variants import slow

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
    assert found.share("stop") >= 0.85
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


@pytest.mark.parametrize("seeds", [5, *slow(8, 16)])
def test_a_gate_scales_the_gain_that_a_check_calls_detectable_as_often_as_stated(seeds):
    gate = ONE_GATE.model_copy(update={"looks": LookPlan(gate_seeds=(seeds,))})
    found = simulated(design=gate, campaigns=20_000, gain=gate.detectable_gain())
    assert found.share("scale") == pytest.approx(0.8, abs=0.015)


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

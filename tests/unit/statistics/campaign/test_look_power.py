"""What is stated of a look before the first run is what happens there."""

import numpy as np
import pytest

from assay.statistics.campaign.look_power import power_of_looks, sufficient_design
from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import (
    CampaignEvidence,
    CampaignRule,
    forecast_of,
    judge,
    predictive_power,
    required_at_end,
)
from assay.statistics.effect import Effect
from assay.statistics.power import VarianceComponents
from assay.statistics.seeds.trimmed import inner_seeds, trimmed_effect
from variants import slow

RULE = CampaignRule()
PLAN = LookPlan(gate_seeds=(3, 6))
NOISE = VarianceComponents(seed=2 * 0.01**2, item=0.2, residual=0.0)
LOUD = VarianceComponents(seed=2 * 0.03**2, item=0.2, residual=0.0)
ITEMS = 4000


TRIMMED = LookPlan(gate_seeds=(5, 6))


def judge_simulated(gains: np.ndarray, seeds: int, noise: VarianceComponents, plan: LookPlan = PLAN):
    """Look at `seeds` of the plan's six, for candidates with these true gains."""
    rng, count = np.random.default_rng(3), gains.size
    by_seed = gains[:, None] + np.sqrt(noise.seed) * rng.normal(size=(count, seeds))
    items = np.sqrt(noise.item / ITEMS) * rng.normal(size=count)
    effect = Effect(
        mean=by_seed.mean(axis=1) + items,
        seed_variance=by_seed.var(axis=1, ddof=1) / seeds,
        item_variance=np.full(count, noise.item / ITEMS),
        residual_variance=np.zeros(count),
        seed_degrees=np.full(count, seeds - 1.0),
        item_degrees=ITEMS - 1,
    )
    if plan is TRIMMED:
        inner_means = np.mean(by_seed, axis=1, where=inner_seeds(by_seed)) + items
        effect = trimmed_effect(effect._replace(mean=inner_means), by_seed)
    ended = effect
    if seeds < 6:  # as a campaign plans its replication, with the variance that it happens to see
        ended = forecast_of(effect, num_seeds=seeds, end_seeds=6, prior_sd=RULE.prior_sd).end
    replication = ended.variance
    levels = dict(zip(plan.gate_seeds, plan.gate_levels(), strict=True))
    ahead = {"num_seeds": seeds, "end_seeds": 6, "end_level": levels[6]}
    ahead |= {"replication_variance": replication, "rule": RULE}
    evidence = CampaignEvidence(
        effect=effect, level=levels[seeds], is_gate=True, replication_variance=replication,
        least_without_one=effect.mean, share_positive=1.0,
        predictive_power=predictive_power(effect, **ahead), required_at_end=required_at_end(effect, **ahead),
    )  # fmt: skip
    return judge(evidence, RULE)


@pytest.mark.parametrize(("plan", "over_seeds"), [(PLAN, "mean"), (TRIMMED, "trimmed")])
@pytest.mark.parametrize("noise", [NOISE, *slow(LOUD)])
@pytest.mark.parametrize("look_index", [0, *slow(1)])
def test_what_becomes_of_gains_worth_having_is_what_becomes_of_them_in_simulated_looks(
    noise, look_index, plan, over_seeds
):
    stated = power_of_looks(plan, RULE, noise, num_items=ITEMS, over_seeds=over_seeds)[look_index]
    gains = RULE.prior_sd * np.random.default_rng(1).normal(size=40_000)
    found = judge_simulated(gains[gains >= RULE.least_effect], stated.num_seeds, noise, plan)
    shares = [
        np.mean(found.recommendation == "scale"),
        np.mean(found.recommendation == "stop"),
        np.mean(found.is_inconclusive),
    ]
    assert [stated.scales, stated.stops, stated.gives_up] == pytest.approx(shares, abs=0.02)


@pytest.mark.slow
def test_the_gain_that_a_look_finds_is_scaled_there_four_times_in_five():
    last = power_of_looks(PLAN, RULE, NOISE, num_items=ITEMS)[-1]
    found = judge_simulated(np.full(20_000, last.finds), last.num_seeds, NOISE)
    assert np.mean(found.recommendation == "scale") == pytest.approx(0.8, abs=0.015)


def test_a_cure_finds_what_the_campaign_could_not():
    before = power_of_looks(PLAN, RULE, LOUD, num_items=ITEMS)[-1]
    design = sufficient_design(PLAN, RULE, LOUD, num_items=ITEMS)
    assert design is not None and before.scales < 0.1
    one = LookPlan(gate_seeds=(design.num_seeds,))
    after = power_of_looks(one, RULE, LOUD, num_items=design.items_factor * ITEMS)[-1]
    assert after.scales >= 0.495


def test_where_items_are_too_few_for_any_number_of_seeds_the_cure_is_items():
    assert sufficient_design(PLAN, RULE, NOISE, num_items=500) == (6, 32)


def test_a_look_finds_less_where_its_items_tell_little_of_their_own_luck():
    """Twenty clusters of which one outweighs the others are worth five in telling how they vary."""
    sure = VarianceComponents(seed=1e-6, item=0.02, residual=0.0)
    looks = [
        power_of_looks(LookPlan(gate_seeds=(3,)), RULE, noise, num_items=20)[0]
        for noise in (sure, sure._replace(item_information=0.25))
    ]
    assert looks[1].finds > 1.2 * looks[0].finds

"""Not worse where it must not be worse, and honest about what it could not tell."""

import numpy as np
import pytest
from scipy.stats import binomtest

from assay.statistics.effect import paired_effect
from assay.statistics.guardrail import (
    MARGINS_PER_ERROR,
    harm_of,
    is_sized,
    non_inferiority,
    pass_probability,
)
from assay.statistics.interval import ONE_SIDED
from assay.statistics.power import VarianceComponents


def harm(rng, *, mean, seeds=6, items=2000, seed_sd=0.0, item_sd=0.3):
    table = mean + seed_sd * rng.normal(size=(seeds, 1)) + item_sd * rng.normal(size=items)
    return harm_of(-(table + 0.05 * rng.normal(size=(seeds, items))), is_share=False)


@pytest.mark.parametrize(("mean", "verdict"), [(0.0, "pass"), (0.08, "fail"), (0.033, "undecided")])
def test_the_verdict_follows_from_the_bounds(mean, verdict):
    found = non_inferiority(harm(np.random.default_rng(0), mean=mean), margin=0.03)
    assert found.verdict == verdict
    assert found.lower < found.harm < found.upper


@pytest.mark.parametrize(("mean", "verdict"), [(-0.5, "pass"), (0.0, "undersized"), (0.5, "fail")])
def test_a_wide_interval_that_lies_on_one_side_of_the_margin_is_an_answer(mean, verdict):
    found = harm(np.random.default_rng(1), mean=mean, items=50)
    assert not is_sized(float(found.effect.standard_error), 0.03)
    assert non_inferiority(found, margin=0.03).verdict == verdict


def test_however_wide_it_is_a_candidate_at_the_margin_passes_one_time_in_twenty():
    rng, num_tables = np.random.default_rng(6), 2_000
    noise = 0.3 * rng.normal(size=(num_tables, 1, 40)) + 0.05 * rng.normal(size=(num_tables, 4, 1))
    found = harm_of(-(0.03 + noise + 0.1 * rng.normal(size=(num_tables, 4, 40))), is_share=False)
    assert (found.effect.standard_error > 0.03 / MARGINS_PER_ERROR).all()
    assert 0.02 < np.mean(found.upper < 0.03) < 0.06


def outcomes(rng, *, num_tables, items, worse, better=0.0, own=False, seeds=3):
    """Candidate minus baseline, right or wrong, [table, seed, item]; `own`: seeds err independently."""
    noise = np.broadcast_to(rng.random((num_tables, seeds if own else 1, items)), (num_tables, seeds, items))
    return (noise < better).astype(float) - (noise > 1.0 - worse)


@pytest.mark.parametrize("items", [20, 50, 100, 200])
@pytest.mark.parametrize("margin", [0.005, 0.02, 0.05])
def test_harm_of_twice_the_margin_passes_five_times_in_a_hundred_at_most(items, margin):
    rng, num_tables = np.random.default_rng(7), 300
    for better, own in ((0.0, False), (0.0, True), (0.05, False)):
        tables = outcomes(rng, num_tables=num_tables, items=items, worse=2 * margin + better, better=better, own=own)
        passed = np.mean(harm_of(tables, is_share=True).upper < margin)
        assert passed <= 0.05, (better, own)


@pytest.mark.parametrize("items", [20, 100, 400])
def test_harm_of_the_margin_passes_five_times_in_a_hundred_at_most(items):
    rng = np.random.default_rng(8)
    for better in (0.0, 0.03):
        tables = outcomes(rng, num_tables=500, items=items, worse=0.05 + better, better=better)
        assert np.mean(harm_of(tables, is_share=True).upper < 0.05) <= 0.07, better


@pytest.mark.parametrize(("items", "worse"), [(5, 0), (20, 1), (100, 3), (100, 60), (2000, 0), (2000, 30)])
def test_the_bound_of_seeds_that_agree_is_clopper_and_pearsons(items, worse):
    table = np.zeros((50, items))
    table[:, :worse] = -1.0
    exact = binomtest(worse, items).proportion_ci(2 * ONE_SIDED - 1, method="exact").high
    assert exact * (1 - 1e-9) <= harm_of(table, is_share=True).upper <= exact * 1.005


def test_five_items_that_agree_pass_no_margin_of_a_hundredth_of_a_point():
    assert non_inferiority(harm_of(np.zeros((3, 5)), is_share=True), margin=0.0001).verdict == "undersized"


def test_of_a_score_without_bounds_items_that_do_not_differ_say_nothing():
    found = non_inferiority(harm_of(np.zeros((3, 1000)), is_share=False), margin=1.0)
    assert (found.verdict, found.upper, found.items_factor) == ("undersized", np.inf, np.inf)


def test_a_cluster_is_one_trial_and_a_giant_one_leaves_hardly_any():
    alike, giant = np.repeat(np.arange(20), 10), np.minimum(np.arange(200), 20)
    found = [float(harm_of(np.zeros((3, 200)), clusters, is_share=True).upper) for clusters in (None, alike, giant)]
    assert found[0] == pytest.approx(1 - 0.05 ** (1 / 200))
    assert found[1] == pytest.approx(1 - 0.05 ** (1 / 20))
    assert found[2] > 0.5


def test_a_harmless_candidate_with_errors_well_within_the_margin_passes_as_before():
    """Two thousand items of which one in ten changes its answer, either way; the margin is three points."""
    rng = np.random.default_rng(9)
    tables = outcomes(rng, num_tables=200, items=2000, worse=0.05, better=0.05)
    today = np.mean(harm_of(tables, is_share=True).upper < 0.03)
    before = np.mean(paired_effect(-tables).upper(ONE_SIDED) < 0.03)
    assert before - 0.01 <= today and today > 0.95


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("margin", [0.014, 0.02, 0.03, 0.05])
def test_the_power_that_is_stated_beforehand_is_not_more_than_what_passes(rate, margin):
    noise = VarianceComponents(seed=0.0, item=2 * rate, residual=0.0)
    stated = pass_probability(margin, noise, num_seeds=3, num_items=200, is_share=True)
    tables = outcomes(np.random.default_rng(10), num_tables=500, items=200, worse=rate, better=rate)
    assert stated <= np.mean(harm_of(tables, is_share=True).upper < margin) + 0.05


def test_the_missing_items_are_named():
    rng = np.random.default_rng(3)
    found = non_inferiority(harm(rng, mean=0.015, items=400), margin=0.02)
    more = non_inferiority(harm(rng, mean=0.0, items=round(400 * found.items_factor * 1.1)), margin=0.02)
    assert (found.verdict, more.verdict) == ("undersized", "pass")


def test_where_seeds_alone_are_too_noisy_no_items_suffice():
    found = non_inferiority(harm(np.random.default_rng(3), mean=0.0, seed_sd=0.1), margin=0.02)
    assert (found.verdict, found.items_factor) == ("undersized", np.inf)


def test_one_seed_can_not_clear_a_guardrail():
    assert non_inferiority(harm(np.random.default_rng(4), mean=-1.0, seeds=1), margin=0.03).verdict == "undersized"


def test_a_fall_is_a_harm():
    table = np.random.default_rng(5).normal(0.02, 0.3, size=(3, 50))
    found = harm_of(table, is_share=True)
    assert found.effect.mean == pytest.approx(-table.mean())
    assert found.lower < -table.mean() < found.upper


def test_a_plan_that_meets_the_bound_exactly_is_sized():
    assert is_sized(0.015 / MARGINS_PER_ERROR, 0.015)
    assert not is_sized(0.0151 / MARGINS_PER_ERROR, 0.015)

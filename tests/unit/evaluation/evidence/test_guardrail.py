"""Not worse where it must not be worse, and honest about what it could not tell."""

import numpy as np
import pytest

from assay.evaluation.evidence.effect import paired_effect
from assay.evaluation.evidence.guardrail import (
    MARGINS_PER_ERROR,
    harm_of,
    is_sized,
    non_inferiority,
)
from assay.evaluation.evidence.interval import ONE_SIDED


def harm(rng, *, mean, seeds=6, items=2000, seed_sd=0.0, item_sd=0.3):
    table = mean + seed_sd * rng.normal(size=(seeds, 1)) + item_sd * rng.normal(size=items)
    return paired_effect(table + 0.05 * rng.normal(size=(seeds, items)))


@pytest.mark.parametrize(("mean", "verdict"), [(0.0, "pass"), (0.08, "fail"), (0.033, "undecided")])
def test_the_verdict_follows_from_the_bounds(mean, verdict):
    found = non_inferiority(harm(np.random.default_rng(0), mean=mean), margin=0.03)
    assert found.verdict == verdict
    assert found.lower < found.harm < found.upper


@pytest.mark.parametrize(("mean", "verdict"), [(-0.5, "pass"), (0.0, "undersized"), (0.5, "fail")])
def test_a_wide_interval_that_lies_on_one_side_of_the_margin_is_an_answer(mean, verdict):
    found = harm(np.random.default_rng(1), mean=mean, items=50)
    assert not is_sized(float(found.standard_error), 0.03)
    assert non_inferiority(found, margin=0.03).verdict == verdict
    assert non_inferiority(found, margin=0.03, must_be_sized=True).verdict == "undersized"


def test_however_wide_it_is_a_candidate_at_the_margin_passes_one_time_in_twenty():
    rng, num_tables = np.random.default_rng(6), 4_000
    luck = 0.3 * rng.normal(size=(num_tables, 1, 40)) + 0.05 * rng.normal(size=(num_tables, 4, 1))
    found = paired_effect(0.03 + luck + 0.1 * rng.normal(size=(num_tables, 4, 40)))
    assert (found.standard_error > 0.03 / MARGINS_PER_ERROR).all()
    assert 0.02 < np.mean(found.upper(ONE_SIDED) < 0.03) < 0.06


def test_the_missing_items_are_named():
    rng = np.random.default_rng(2)
    found = non_inferiority(harm(rng, mean=0.015, items=400), margin=0.02)
    more = non_inferiority(harm(rng, mean=0.0, items=round(400 * found.items_factor * 1.1)), margin=0.02)
    assert (found.verdict, more.verdict) == ("undersized", "pass")


def test_where_seeds_alone_are_too_noisy_no_items_suffice():
    found = non_inferiority(harm(np.random.default_rng(3), mean=0.0, seed_sd=0.1), margin=0.02)
    assert (found.verdict, found.items_factor) == ("undersized", np.inf)


def test_one_seed_can_not_clear_a_guardrail():
    assert (
        non_inferiority(harm(np.random.default_rng(4), mean=-1.0, seeds=1), margin=0.03).verdict == "undersized"
    )


def test_a_fall_is_a_harm():
    effect = harm(np.random.default_rng(5), mean=0.02)
    assert harm_of(effect).mean == -effect.mean


def test_a_plan_that_meets_the_bound_exactly_is_sized():
    assert is_sized(0.015 / MARGINS_PER_ERROR, 0.015)
    assert not is_sized(0.0151 / MARGINS_PER_ERROR, 0.015)

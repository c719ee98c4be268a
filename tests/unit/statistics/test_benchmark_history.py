"""Scores over checkpoints."""

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.statistics.benchmark_history import _least_distance, best_of_many


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-6, 0.2), min_size=2, max_size=40), st.booleans())
def test_the_interval_of_the_luckiest_equals_scipys_for_unequal_errors(errors, better):
    errors = np.array(errors)
    values = np.linspace(0.4, 0.5, len(errors))
    half_width = 1.959963984540054 * errors
    chance = best_of_many(values, values - half_width, values + half_width, higher_is_better=better)
    sign = 1.0 if better else -1.0

    def above(score, share):
        return np.prod(scipy.stats.norm.cdf(sign * (score - values.mean()) / errors)) - share

    ends = sorted(scipy.optimize.brentq(above, -3, 4, args=(share,)) for share in (0.025, 0.975))
    np.testing.assert_allclose((chance.low, chance.high), ends, atol=1e-8)


@pytest.mark.parametrize("num_scores", [2, 20, 1000])
def test_the_distance_that_rules_a_score_out_is_guptas(num_scores):
    distance = _least_distance(num_scores)

    def integrand(draw):
        return scipy.stats.norm.cdf(draw + distance * 2**0.5) ** (num_scores - 1) * scipy.stats.norm.pdf(draw)

    assert scipy.integrate.quad(integrand, -8, 8, limit=200)[0] == pytest.approx(0.95, abs=1e-6)


def test_the_best_of_equal_checkpoints_is_seldom_called_beyond_luck_and_a_better_one_is():
    rng = np.random.default_rng(7)
    claims, covered = 0, 0
    for _ in range(400):
        values = rng.normal(0.5, 0.02, 25)
        chance = best_of_many(values, values - 0.0392, values + 0.0392, higher_is_better=True)
        claims += not chance.may_be_chance
        covered += values.max() - values[0] <= _least_distance(25) * 0.02 * 2**0.5
        assert 1 <= chance.num_candidates <= 25
    assert claims <= 0.05 * 400 and covered >= 0.92 * 400
    values[3] = 0.8
    beyond = best_of_many(values, values - 0.0392, values + 0.0392, higher_is_better=True)
    assert not beyond.may_be_chance and beyond.num_candidates == 1


def test_scores_without_an_interval_say_nothing_of_luck():
    missing = np.array([np.nan, np.nan])
    assert best_of_many(np.array([0.1, 0.9]), missing, missing, higher_is_better=True) is None

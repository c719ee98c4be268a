"""Without the best and the worst seed: what it costs, and what it bears."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from assay.statistics.effect import paired_effect
from assay.statistics.power import VarianceComponents, error_of_design, power
from assay.statistics.seeds.trimmed import inner_seeds, trimmed_effect, trimmed_variance

SEEDS = st.lists(st.floats(-1, 1, width=32), min_size=5, max_size=9, unique=True).map(np.array)


def typical(tables):
    """The trimmed effect over [table, seed, item] differences."""
    by_seed = tables.mean(axis=2)
    inner = np.argsort(~inner_seeds(by_seed), axis=1, kind="stable")[:, :-2]
    return trimmed_effect(paired_effect(np.take_along_axis(tables, inner[..., None], axis=1)), by_seed)


@given(SEEDS)
@settings(deadline=None)
def test_the_best_and_the_worst_are_left_out_and_nobody_else(gains):
    assert sorted(gains[inner_seeds(gains)]) == sorted(gains)[1:-1]


@pytest.mark.parametrize("seeds", [5, 6, 8])
def test_its_variance_is_that_of_yuens_test(seeds):
    gains = np.random.default_rng(seeds).normal(size=seeds)
    expected = ttest_ind(gains, gains + 1.0, equal_var=False, trim=1.01 / seeds)
    assert 1.0 / expected.statistic**2 == pytest.approx(2.0 * trimmed_variance(gains))


@pytest.mark.parametrize("seeds", [5, 6, 8])
@pytest.mark.parametrize("of_items", [0.0, 0.5])
def test_its_bounds_err_no_more_often_than_they_say(seeds, of_items):
    rng = np.random.default_rng(seeds)
    tables = np.sqrt((1.0 - of_items) * seeds) * rng.normal(size=(20_000, seeds, 1))
    tables = tables + np.sqrt(of_items * 20) * rng.normal(size=(20_000, 1, 20))
    for level in (0.95, 0.975):
        assert np.mean(typical(tables).lower(level) > 0.0) <= 1.25 * (1.0 - level)


def test_one_run_that_crashes_hides_a_gain_from_the_mean_and_not_from_the_typical_seed():
    rng = np.random.default_rng(6)
    tables = 0.03 + 0.01 * rng.normal(size=(500, 5, 1)) + 0.2 * rng.normal(size=(500, 1, 400))
    tables[:, 2] -= 0.3
    assert np.mean(paired_effect(tables).lower(0.95) > 0.0) < 0.02
    assert np.mean(typical(tables).lower(0.95) > 0.0) > 0.4


@pytest.mark.parametrize("seeds", [5, 8])
def test_its_error_is_that_of_drawn_seeds_and_larger_than_the_means(seeds):
    noise = VarianceComponents(seed=1.0, item=0.0, residual=0.0)
    drawn = np.random.default_rng(7).normal(size=(40_000, seeds))
    means = np.mean(drawn, axis=1, where=inner_seeds(drawn))
    stated = error_of_design(noise, num_seeds=seeds, num_items=100, over_seeds="trimmed")
    assert stated == pytest.approx(means.std(), rel=0.01)
    assert stated > error_of_design(noise, num_seeds=seeds, num_items=100)
    assert float(power(1.5, noise, num_seeds=seeds, num_items=100)) > 0.5

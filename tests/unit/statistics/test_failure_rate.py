"""Exact bounds of rare failures, and an alarm that may be watched after every trial."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from assay.statistics.failure_rate import (
    independent_trials,
    rate_lower,
    rate_upper,
    trials_needed,
)
from variants import slow


@pytest.mark.parametrize(("rate", "trials"), [(0.02, 149), (0.01, 299), (0.005, 598), (0.001, 2995)])
def test_clean_trials_that_bound_a_rate(rate, trials):
    assert trials_needed(rate) == trials
    assert rate_upper(0, trials) <= rate < rate_upper(0, trials - 1)


@pytest.mark.parametrize("failures", [1, 3, 10])
def test_trials_that_forgive_some_failures_are_the_fewest(failures):
    trials = trials_needed(0.01, failures=failures)
    assert rate_upper(failures, trials) <= 0.01 < rate_upper(failures, trials - 1)


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.3])
def test_the_bounds_hold_for_every_rate(rate):
    failures = np.arange(201)
    chance = binom.pmf(failures, 200, rate)
    assert chance[rate_upper(failures, 200) < rate].sum() <= 0.05
    assert chance[rate_lower(failures, 200) > rate].sum() <= 0.05


def test_all_and_nothing():
    assert rate_upper(5, 5) == 1.0
    assert rate_upper(0, 0) == 1.0
    assert rate_lower(0, 100) == 0.0


def test_items_on_their_own_are_the_trials_that_they_are():
    failed = np.arange(40) < 3
    assert independent_trials(failed, np.arange(40)) == (3.0, 40.0)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=12),
)
def test_clusters_are_worth_one_trial_at_least_and_an_item_each_at_most(items):
    failed = np.array([item for cluster in items for item in cluster])
    clusters = np.repeat(np.arange(len(items)), [len(cluster) for cluster in items])
    found = independent_trials(failed, clusters)
    sizes = np.bincount(clusters)
    assert sizes.sum() ** 2 / (sizes**2).sum() <= found.number * (1 + 1e-12) <= len(failed) * (1 + 1e-9)
    assert found.failures == pytest.approx(found.number * failed.mean())


def test_copies_of_an_item_say_no_more_than_the_item():
    failed = np.random.default_rng(2).random(100) < 0.2
    copied = independent_trials(np.repeat(failed, 10), np.repeat(np.arange(100), 10))
    assert copied.number == pytest.approx(100.0)


@pytest.mark.parametrize("alike", [0.3, *slow(0.05)])
@pytest.mark.parametrize("rate", [0.005, *slow(0.02, 0.1)])
def test_the_bounds_of_clustered_rates_hold(rate, alike):
    draw = np.random.default_rng(3)
    clusters, size = np.repeat(np.arange(50), 20), (1 - alike) / alike
    rates = draw.beta(rate * size, (1 - rate) * size, (1000, 50))
    campaigns = draw.random((1000, 1000)) < np.repeat(rates, 20, axis=1)
    trials = np.array([independent_trials(failed, clusters) for failed in campaigns])
    assert (rate_upper(trials[:, 0], trials[:, 1]) >= rate).mean() >= 0.93
    assert (rate_lower(trials[:, 0], trials[:, 1]) <= rate).mean() >= 0.93
    as_independent = rate_upper(campaigns.sum(axis=1), 1000)
    assert (as_independent >= rate).mean() < 0.93


@pytest.mark.parametrize("alike", [0.05, 0.3, 1.0])
def test_four_large_clusters_among_a_hundred_single_items_are_no_two_hundred_trials(alike):
    """Where the large ones happen not to fail, the items' variance alone takes them for clean trials."""
    draw = np.random.default_rng(5)
    clusters = np.repeat(np.arange(104), [1] * 100 + [50] * 4)
    size = (1 - alike) / alike
    rates = draw.beta(0.1 * size, 0.9 * size, (600, 104)) if size else draw.random((600, 104)) < 0.1
    campaigns = draw.random((600, 300)) < rates[:, clusters]
    trials = np.array([independent_trials(failed, clusters) for failed in campaigns])
    assert (rate_upper(trials[:, 0], trials[:, 1]) >= 0.1).mean() >= 0.95

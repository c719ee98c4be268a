"""The hierarchical bootstrap: the formula's answer without the formula."""

import numpy as np
import pytest

from assay.statistics.effect import estimate_of, paired_effect
from table_bootstrap import bootstrap_estimate, bootstrap_means, resampled_weights


def differences(rng, *, seeds=4, items=60):
    return (
        0.1 + 0.05 * rng.normal(size=(seeds, 1)) + 0.3 * rng.normal(size=items) + 0.1 * rng.normal(size=(seeds, items))
    )


@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_variance_of_a_resampled_mean_is_that_of_the_mean(count):
    rng = np.random.default_rng(0)
    values = rng.normal(size=count)
    means = resampled_weights(count, 200_000, rng) @ values / count
    assert means.mean() == pytest.approx(values.mean(), abs=0.01)
    assert means.var() == pytest.approx(values.var(ddof=1) / count, rel=0.03)


def test_it_agrees_with_the_analytic_standard_error():
    rng = np.random.default_rng(1)
    table = differences(rng)
    means = bootstrap_means(table, rng=rng, num_resamples=20_000)
    assert means.std() == pytest.approx(float(paired_effect(table).standard_error), rel=0.06)


def test_clusters_and_weights_enter_as_in_the_formula():
    rng = np.random.default_rng(2)
    table, passages, weights = differences(rng), np.repeat(np.arange(20), 3), 1.0 + rng.random(60)
    means = bootstrap_means(table, passages, weights, rng=rng, num_resamples=20_000)
    analytic = paired_effect(table, passages, weights)
    assert means.mean() == pytest.approx(float(analytic.mean), abs=0.002)
    assert means.std() == pytest.approx(float(analytic.standard_error), rel=0.08)


def test_its_95_percent_intervals_hold_the_truth_in_93_to_97_percent():
    rng = np.random.default_rng(3)
    found = [bootstrap_estimate(differences(rng, seeds=3), rng=rng, num_resamples=200) for _ in range(1500)]
    assert 0.93 <= np.mean([estimate.low <= 0.1 <= estimate.high for estimate in found]) <= 0.97


@pytest.mark.parametrize("seeds", [3, 8])
def test_a_residual_is_not_counted_three_times(seeds):
    rng = np.random.default_rng(7)
    tables = 0.1 + rng.normal(size=(600, seeds, 60))
    found = [bootstrap_estimate(table, rng=rng, num_resamples=300) for table in tables]
    analytic = [estimate_of(paired_effect(table)) for table in tables]
    widths = [(one.high - one.low) / (other.high - other.low) for one, other in zip(found, analytic, strict=True)]
    assert np.median(widths) == pytest.approx(1.0, abs=0.05)


def test_many_tables_are_drawn_with_the_same_resamples():
    tables = np.stack([differences(np.random.default_rng(seed)) for seed in range(3)])
    together = bootstrap_means(tables, rng=np.random.default_rng(4), num_resamples=50)
    alone = bootstrap_means(tables[1], rng=np.random.default_rng(4), num_resamples=50)
    np.testing.assert_allclose(together[:, 1], alone)


def test_one_seed_can_not_be_drawn_anew():
    table = differences(np.random.default_rng(5), seeds=1)
    assert bootstrap_estimate(table, rng=np.random.default_rng(6)) == estimate_of(paired_effect(table))

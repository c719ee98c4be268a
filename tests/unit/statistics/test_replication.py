"""What to believe of a pilot, and whether it will replicate."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import chi2, norm

from assay.base.errors import ConfigError
from assay.statistics.effect import Effect
from assay.statistics.replication import (
    gain_posterior,
    posterior_after,
    shrink,
)

RUN_VARIANCE = 2 * 0.01**2 + 0.3 / 2000
"""One pair of runs: seed SD 1 point, 2,000 items at 30% discordance."""


def test_half_the_gain_on_one_rerun_is_almost_no_information():
    """The pilot's +4 and the rerun's +2 of the planning research."""
    posterior = posterior_after([0.04, 0.02], [RUN_VARIANCE, RUN_VARIANCE])
    assert (posterior.mean, posterior.sd) == pytest.approx((0.021, 0.011), abs=3e-4)
    assert posterior.probability_above(0.015) == pytest.approx(0.70, abs=0.01)


@given(
    effects=st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=4),
    error=st.floats(0.002, 0.05),
    prior_sd=st.floats(0.005, 0.1),
)
@settings(max_examples=60, deadline=None)
def test_without_a_filter_it_is_the_normal_formula(effects, error, prior_sd):
    posterior = posterior_after(effects, [error**2] * len(effects), prior_sd=prior_sd)
    mean, sd = shrink(np.mean(effects), error**2 / len(effects), prior_sd=prior_sd)
    assert (posterior.mean, posterior.sd) == pytest.approx((float(mean), float(sd)), abs=1e-5)
    assert posterior.probability_above(posterior.mean) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("seeds", [2, 3, 5, 30])
@pytest.mark.parametrize("mean", [-0.01, 0.015, 0.04])
def test_a_variance_of_few_seeds_is_integrated_over(mean: float, seeds: int):
    """By SciPy's quadrature over chi-squared, of the normal formula at each variance."""
    error, limit, noise = 0.008, 0.015, 0.005**2

    def belief_at(ratio: float) -> float:
        slope = 1.0 / (1.0 + error**2 * (seeds - 1) / ratio / 0.02**2)
        total_sd = math.sqrt(0.02**2 * (1.0 - slope) + noise)
        return float(norm.cdf((slope * mean - limit) / total_sd) * chi2.pdf(ratio, seeds - 1))

    middle = seeds - 1.0
    expected = quad(belief_at, 0.0, middle)[0] + quad(belief_at, middle, np.inf)[0]
    posterior = gain_posterior(error**2, seeds - 1.0, prior_sd=0.02)
    found = float(posterior.probability_above(limit, mean, noise_variance=noise))
    assert found == pytest.approx(expected, abs=2e-3)


@given(
    error=st.floats(1e-4, 0.2),
    seeds=st.integers(2, 9),
    limit=st.floats(-0.05, 0.05),
    probability=st.floats(0.02, 0.98),
    noise=st.floats(0.0, 1e-3),
)
@example(error=0.125, seeds=2, limit=0.046875, probability=0.25, noise=0.0)  # Newton's method alone runs away
@settings(max_examples=100, deadline=None)
def test_the_least_mean_is_where_the_probability_is_reached(error, seeds, limit, probability, noise):
    posterior = gain_posterior(error**2, seeds - 1.0, prior_sd=0.02)
    least = posterior.least_mean(limit, probability, noise_variance=noise)
    assert posterior.probability_above(limit, least, noise_variance=noise) == pytest.approx(probability, abs=1e-6)


def test_seeds_and_items_share_the_degrees_of_freedom_of_their_variance():
    """Welch's formula, of two sources as of two samples."""
    effect = Effect(*(np.asarray(variance) for variance in (0.0, 4e-4, 1e-4, 0.0, 2.0, 99.0)))
    assert float(effect.degrees) == pytest.approx(5e-4**2 / (4e-4**2 / 2 + 1e-4**2 / 99))


def test_the_winner_of_many_pilots_is_too_large_and_its_shrunken_gain_is_not():
    rng = np.random.default_rng(0)
    truth = 0.02 * rng.normal(size=(20_000, 10))
    seen = truth + 0.02 * rng.normal(size=truth.shape)
    best = seen.argmax(axis=1)
    of_best = np.take_along_axis(truth, best[:, None], axis=1)[:, 0]
    raw = seen.max(axis=1)
    shrunken, _ = shrink(raw, 0.02**2, prior_sd=0.02)
    assert (raw - of_best).mean() > 0.02
    assert (shrunken - of_best).mean() == pytest.approx(0.0, abs=5e-4)


def test_a_pilot_that_had_to_look_good_is_believed_less_and_rightly_so():
    rng = np.random.default_rng(1)
    seen = 0.01 + 0.02 * rng.normal(size=4000)
    heard = seen[seen > 0.03][:60]
    plain = np.mean([posterior_after([effect], [0.02**2]).mean for effect in heard])
    corrected = np.mean([posterior_after([effect], [0.02**2], selection_threshold=0.03).mean for effect in heard])
    assert corrected < plain - 0.005
    assert corrected < 0.01 < plain


def test_a_filter_far_below_changes_nothing():
    plain = posterior_after([0.03], [1e-4])
    assert posterior_after([0.03], [1e-4], selection_threshold=-1.0).mean == pytest.approx(plain.mean, abs=1e-6)


def test_the_replication_probability_is_how_often_drawn_truths_replicate():
    rng = np.random.default_rng(3)
    posterior = posterior_after([0.03], [1e-4])
    truth = rng.choice(posterior.grid, size=200_000, p=posterior.weights)
    new = truth + 0.01 * rng.normal(size=200_000)
    assert posterior.replication_probability(0.01) == pytest.approx(np.mean(new > 1.6449 * 0.01), abs=0.005)


def test_infinite_variance_leaves_the_prior():
    mean, sd = shrink(np.array(0.5), np.array(math.inf), prior_sd=0.02)
    assert (float(mean), float(sd)) == (0.0, 0.02)


def test_a_pilot_below_its_own_filter_is_a_contradiction():
    with pytest.raises(ConfigError, match=r"pilot's effect 0.01 is below selection_threshold=0.02"):
        posterior_after([0.01], [1e-4], selection_threshold=0.02)


def test_each_effect_needs_its_variance():
    with pytest.raises(ConfigError, match="2 effects for 1 variances"):
        posterior_after([0.01, 0.02], [1e-4])

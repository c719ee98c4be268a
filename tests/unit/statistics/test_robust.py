"""A spike does not inflate the noise, and the interval of a difference is Newcombe's."""

import numpy as np
import pytest

from assay.statistics.interval import normal_quantile, wilson_interval
from assay.statistics.robust import difference_interval, robust_sigma, sigma_of


def test_a_spike_leaves_the_noise_of_normal_values_as_it_is() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 20_000)
    values[:200] = 1e6
    assert robust_sigma(values) == pytest.approx(2.0, rel=0.03)


def test_where_most_values_are_equal_the_others_are_all_that_there_is_to_see() -> None:
    values = np.array([1.0] * 9 + [2.0])
    assert robust_sigma(values) == 0.0 and sigma_of(values) == values.std() > 0.0


def test_the_published_example_of_two_shares() -> None:
    shares = [(56 / 70, 70), (48 / 80, 80)]
    after, before = ((rate, *wilson_interval(rate, count, normal_quantile())) for rate, count in shares)
    assert difference_interval(before, after) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    low, high = difference_interval(before, after, widened=2.0)
    assert (0.2 - low, high - 0.2) == pytest.approx((2 * (0.2 - 0.0524), 2 * (0.3339 - 0.2)), abs=2e-4)

"""Which scale tells the truth."""

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from assay.base.errors import DataError
from assay.statistics.proxy import decision_accuracy, proxy_advice, rank_correlation


def runs(rng, *, recipes=20, noise, seeds=3, truth=None):
    truth = rng.normal(size=recipes) if truth is None else truth
    return truth[:, None] + noise * rng.normal(size=(truth.size, seeds))


def test_decision_accuracy_counts_pairs():
    rng = np.random.default_rng(0)
    small, large = runs(rng, recipes=7, noise=1.0), runs(rng, recipes=7, noise=1.0)
    winners = [
        (small[i, s] > small[j, s]) == (large[i].mean() > large[j].mean())
        for s in range(3)
        for i, j in itertools.combinations(range(7), 2)
    ]
    assert decision_accuracy(small, large) == pytest.approx(np.mean(winners))


def test_a_tie_is_half_a_decision():
    assert decision_accuracy(np.zeros((5, 1)), np.arange(5.0)[:, None]) == 0.5


def test_rank_correlation_is_spearmans_averaged_over_seeds():
    rng = np.random.default_rng(1)
    small, large = runs(rng, noise=1.0), runs(rng, noise=0.5)
    expected = np.mean([spearmanr(small[:, s], large.mean(axis=1)).statistic for s in range(3)])
    assert rank_correlation(small, large) == pytest.approx(expected)


def test_the_cheapest_scale_that_surely_tells_the_truth_is_recommended():
    rng = np.random.default_rng(2)
    truth = rng.normal(size=30)
    noises = {1e7: 5.0, 1e8: 0.1, 1e9: 0.05, 1e10: 0.01}
    scores = {scale: runs(rng, noise=noise, truth=truth) for scale, noise in noises.items()}
    advice = proxy_advice(scores, rng=rng, num_resamples=300)
    assert advice.recommended.scale == 1e8
    assert advice.target_scale == 1e10
    assert [scale.scale for scale in advice.scales] == [1e7, 1e8, 1e9]
    assert advice.recommended.decision_accuracy.low >= 0.8


def test_an_order_without_any_noise_is_sure_although_recipes_are_drawn_twice():
    truth = np.arange(8.0)[:, None]
    found = proxy_advice({1.0: truth, 2.0: 10 * truth}, rng=np.random.default_rng(5), num_resamples=100)
    assert found.scales[0].decision_accuracy.low == 1.0


def test_where_no_scale_tells_the_truth_none_is_recommended():
    rng = np.random.default_rng(3)
    scores = {scale: runs(rng, noise=1.0) for scale in (1e7, 1e8)}
    assert proxy_advice(scores, rng=rng, num_resamples=200).recommended is None


def test_the_interval_holds_what_endless_recipes_would_show():
    """Small = truth + noise, large = truth: accuracy 1/2 + arctan(1 / noise) / pi for normal recipes."""
    rng = np.random.default_rng(4)
    inside = []
    for _ in range(120):
        truth = rng.normal(size=24)
        scores = {1.0: runs(rng, noise=1.0, truth=truth), 2.0: truth[:, None]}
        found = proxy_advice(scores, rng=rng, num_resamples=150).scales[0].decision_accuracy
        inside.append(found.low <= 0.75 <= found.high)
    assert np.mean(inside) >= 0.87


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({1.0: np.zeros((5, 2))}, "needs runs at two scales"),
        ({1.0: np.zeros((5, 2)), 2.0: np.zeros((6, 2))}, "with the same recipes"),
        ({1.0: np.zeros((3, 2)), 2.0: np.zeros((3, 2))}, "3 recipes on record"),
        ({1.0: np.full((5, 2), np.nan), 2.0: np.zeros((5, 2))}, "scale 1: a score is not a number"),
    ],
)
def test_too_little_on_record_is_refused(scores, words):
    with pytest.raises(DataError, match=words):
        proxy_advice(scores, rng=np.random.default_rng(0))


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_where_all_recipes_tie_nothing_is_known(value):
    truth = np.arange(8.0)[:, None] * np.ones(3)
    tied = np.resize([value, 1.0, value / 3], 24).reshape(8, 3)
    tied = np.stack([np.roll(row, index) for index, row in enumerate(tied)])  # equal means but for rounding
    small, large = (
        proxy_advice(scores, rng=np.random.default_rng(0), num_resamples=50)
        for scores in ({1.0: tied, 2.0: truth, 3.0: truth}, {1.0: truth, 2.0: truth, 3.0: tied})
    )
    assert [scale.decision_accuracy.low is None for scale in small.scales] == [True, False]
    assert small.recommended.scale == 2.0
    assert large.recommended is None
    assert {scale.rank_correlation.low for scale in large.scales} == {None}
    assert "at the largest scale: nothing is known" in large.scales[0].decision_accuracy.method

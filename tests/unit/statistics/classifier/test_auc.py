"""DeLong: right against scikit-learn, and its intervals cover what they promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from assay.statistics.classifier.auc import auc_difference, auc_estimate
from assay.statistics.classifier.rows import ScoredRows, scored_rows

# Few distinct scores, so that ties are common.
LABELLED = st.lists(st.tuples(st.booleans(), st.integers(0, 12)), min_size=2, max_size=60)


def rows_of(pairs: list[tuple[bool, int]]) -> ScoredRows:
    return scored_rows([int(label) for label, _ in pairs], [score / 12 for _, score in pairs], source="test")


def binormal(rng: np.random.Generator, *, shift: float, num_rows: int = 240) -> tuple[np.ndarray, np.ndarray]:
    """Labels and raw scores whose true AUC is Phi(shift / sqrt 2)."""
    labels = np.arange(num_rows) < num_rows // 4
    return labels, rng.normal(size=num_rows) + shift * labels


def as_rows(labels: np.ndarray, scores: np.ndarray) -> ScoredRows:
    return ScoredRows(labels, norm.cdf(scores))


@settings(max_examples=200, deadline=None)
@given(LABELLED)
def test_the_auc_is_that_of_scikit_learn_ties_included(pairs):
    rows = rows_of(pairs)
    estimate = auc_estimate(rows)
    if not rows.has_two_classes:
        assert estimate is None
    else:
        assert estimate.value == pytest.approx(roc_auc_score(rows.is_positive, rows.probabilities))


@settings(max_examples=100, deadline=None)
@given(LABELLED)
def test_the_variance_is_that_of_the_quadratic_definition(pairs):
    rows = rows_of(pairs)
    positives, negatives = rows.probabilities[rows.is_positive], rows.probabilities[~rows.is_positive]
    if min(positives.size, negatives.size) < 2:
        return
    wins = (positives[:, None] > negatives) + 0.5 * (positives[:, None] == negatives)
    variance = wins.mean(1).var(ddof=1) / positives.size + wins.mean(0).var(ddof=1) / negatives.size
    constant = ScoredRows(rows.is_positive, np.full(rows.num_rows, 0.5))
    difference = auc_difference(constant, rows)
    assert difference.high == pytest.approx(min(1, difference.value + 1.959964 * np.sqrt(variance)), abs=1e-6)


def test_the_interval_of_one_auc_covers_the_truth_as_often_as_it_says():
    rng, truth = np.random.default_rng(1), norm.cdf(1.2 / np.sqrt(2))
    estimates = [auc_estimate(as_rows(*binormal(rng, shift=1.2))) for _ in range(2000)]
    covered = np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])
    assert 0.93 <= covered <= 0.97


@pytest.mark.slow
def test_the_interval_of_a_paired_difference_covers_the_truth_as_often_as_it_says():
    rng, covered = np.random.default_rng(2), []
    truth = norm.cdf(1.2 / np.sqrt(2)) - norm.cdf(0.9 / np.sqrt(2))
    for _ in range(2000):
        labels, noise = binormal(rng, shift=0.0)
        own = rng.normal(size=(2, labels.size))
        baseline, candidate = (0.8 * noise + 0.6 * own) + np.array([[0.9], [1.2]]) * labels
        difference = auc_difference(as_rows(labels, baseline), as_rows(labels, candidate))
        covered.append(difference.low <= truth <= difference.high)
    assert 0.93 <= np.mean(covered) <= 0.97


def test_pairing_makes_the_interval_narrower_when_the_models_agree():
    rng = np.random.default_rng(3)
    labels, scores = binormal(rng, shift=1.0)
    near = auc_difference(as_rows(labels, scores), as_rows(labels, scores + 0.1 * rng.normal(size=labels.size)))
    alone = auc_estimate(as_rows(labels, scores))
    assert near.high - near.low < 0.5 * (alone.high - alone.low)


def test_equal_scores_differ_by_exactly_nothing():
    rows = as_rows(*binormal(np.random.default_rng(4), shift=1.0))
    difference = auc_difference(rows, rows)
    assert (difference.value, difference.low, difference.high) == (0.0, 0.0, 0.0)


def test_a_constant_score_is_a_coin():
    estimate = auc_estimate(scored_rows([0, 1, 0, 1], [0.3] * 4, source="test"))
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)


def test_perfect_separation_claims_no_interval():
    estimate = auc_estimate(scored_rows([0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], source="test"))
    assert (estimate.value, estimate.low, estimate.high) == (1.0, None, None)


def test_one_positive_row_claims_no_interval():
    estimate = auc_estimate(scored_rows([0, 0, 1], [0.1, 0.9, 0.8], source="test"))
    assert (estimate.value, estimate.low) == (0.5, None)

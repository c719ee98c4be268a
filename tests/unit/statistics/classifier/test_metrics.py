"""Average precision, log-loss and calibration against scikit-learn and against simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn import metrics as sklearn_metrics

from assay.base.errors import DataError
from assay.statistics.classifier.metrics import (
    average_precision,
    calibration_bins,
    classifier_metrics,
    expected_calibration_error,
    log_loss,
)
from assay.statistics.classifier.rows import ScoredRows, scored_rows

PROBABILITIES = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1))
LABELLED = st.lists(st.tuples(st.integers(0, 1), PROBABILITIES), min_size=1, max_size=60)


def rows_of(pairs: list[tuple[int, float]]) -> ScoredRows:
    return scored_rows(*zip(*pairs, strict=True), source="test")


def simulated(rng: np.random.Generator, num_rows: int) -> ScoredRows:
    """A calibrated model; 20% of the rows are positive."""
    logits = rng.normal(-1.8, 1.5, size=num_rows)
    return ScoredRows(rng.random(num_rows) < expit(logits), expit(logits))


@settings(max_examples=200, deadline=None)
@given(LABELLED)
def test_average_precision_is_that_of_scikit_learn_ties_included(pairs):
    rows = rows_of(pairs)
    estimate = average_precision(rows)
    if not rows.has_two_classes:
        assert estimate is None
    else:
        expected = sklearn_metrics.average_precision_score(rows.is_positive, rows.probabilities)
        assert estimate.value == pytest.approx(expected)
        assert estimate.low is None or estimate.low <= estimate.value <= estimate.high


@settings(max_examples=200, deadline=None)
@given(LABELLED)
def test_log_loss_is_that_of_scikit_learn_sure_mistakes_included(pairs):
    rows = rows_of(pairs)
    expected = sklearn_metrics.log_loss(rows.is_positive, rows.probabilities, labels=[False, True])
    assert log_loss(rows).value == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(LABELLED)
def test_each_row_is_in_one_calibration_bin_and_equal_scores_share_it(pairs):
    rows = rows_of(pairs)
    bins = calibration_bins(rows)
    assert sum(bin_.num_rows for bin_ in bins) == rows.num_rows
    assert sum(bin_.num_rows * bin_.observed_rate for bin_ in bins) == pytest.approx(rows.num_positive)
    assert len(bins) <= len(set(rows.probabilities.tolist()))


@pytest.mark.slow
def test_the_interval_of_average_precision_covers_the_truth():
    rng = np.random.default_rng(5)
    truth = average_precision(simulated(rng, 2_000_000)).value
    estimates = [average_precision(simulated(rng, 600)) for _ in range(1500)]
    covered = np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])
    assert 0.92 <= covered <= 0.97


def test_the_jackknife_agrees_with_a_bootstrap_over_rows():
    rng = np.random.default_rng(6)
    rows = simulated(rng, 1500)
    estimate = average_precision(rows)
    resampled = [average_precision(rows.where(rng.integers(0, rows.num_rows, rows.num_rows))).value for _ in range(600)]
    width = np.quantile(resampled, 0.975) - np.quantile(resampled, 0.025)
    assert estimate.high - estimate.low == pytest.approx(width, rel=0.15)


def test_the_interval_of_log_loss_covers_the_truth():
    rng = np.random.default_rng(7)
    truth = log_loss(simulated(rng, 2_000_000)).value
    estimates = [log_loss(simulated(rng, 400)) for _ in range(1500)]
    covered = np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])
    assert 0.93 <= covered <= 0.97


def test_a_calibrated_model_has_a_small_calibration_error_and_an_overconfident_one_a_large_one():
    rows = simulated(np.random.default_rng(8), 20_000)
    overconfident = ScoredRows(rows.is_positive, np.round(rows.probabilities))
    assert expected_calibration_error(calibration_bins(rows)) < 0.015
    assert expected_calibration_error(calibration_bins(overconfident)) > 0.1


def test_one_class_alone_has_no_ranking_but_a_loss():
    found = classifier_metrics(scored_rows([1, 1], [0.5, 0.5], source="test"))
    assert (found.auc, found.average_precision) == (None, None)
    assert found.log_loss.value == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([], [], "no rows"),
        ([0, 1], [0.5, np.nan], "1 probabilities are not numbers in .* row 1"),
        ([0, 1], [0.5, np.inf], "not numbers in"),
        ([0, 1], [-2.0, 0.5], "they are logits"),
        ([0, 2], [0.5, 0.5], "outside {0, 1}, the first is 2 in row 1"),
        ([0], [0.5, 0.5], "one of each per row"),
    ],
)
def test_what_can_not_be_measured_is_refused_by_name(labels, scores, message):
    with pytest.raises(DataError, match=message):
        scored_rows(np.array(labels), np.array(scores), source="p.parquet")

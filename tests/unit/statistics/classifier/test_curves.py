"""Plots' points say what the metrics say."""

import numpy as np
import pytest
from scipy.special import expit

from assay.statistics.classifier.auc import auc_estimate
from assay.statistics.classifier.curves import roc_curve, score_histogram
from assay.statistics.classifier.rows import ScoredRows


def rows(num_rows: int = 5000) -> ScoredRows:
    rng = np.random.default_rng(0)
    labels = rng.random(num_rows) < 0.3
    return ScoredRows(labels, expit(rng.normal(size=num_rows) + 1.3 * labels))


def test_the_thinned_curve_encloses_the_auc_and_spans_the_square():
    curve = roc_curve(rows())
    area = np.trapezoid(curve.true_positive_rate, curve.false_positive_rate)
    assert area == pytest.approx(auc_estimate(rows()).value, abs=2e-3)
    assert curve.true_positive_rate.size <= 200
    assert (curve.true_positive_rate[[0, -1]] == [0, 1]).all()
    assert (curve.false_positive_rate[[0, -1]] == [0, 1]).all()


def test_one_class_alone_has_no_curve():
    assert roc_curve(ScoredRows(np.ones(3, bool), np.full(3, 0.5))) is None


def test_the_histogram_holds_each_row_once():
    histogram = score_histogram(rows())
    assert histogram.positive_rows.sum() == rows().num_positive
    assert histogram.negative_rows.sum() == rows().num_rows - rows().num_positive

"""Rows that the split kept together are one draw, in every interval of an evaluation."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from assay.records.evaluation import ClassifierEvaluation, Estimate, Metric
from assay.statistics.classifier.auc import auc_difference, auc_estimate
from assay.statistics.classifier.metrics import average_precision, classifier_metrics
from assay.statistics.classifier.rows import ScoredRows
from assay.statistics.evaluate import evaluate_predictions
from assay.statistics.mean_scores import mean_estimate, share_estimate
from assay.statistics.predictions import (
    CLUSTER,
    PREDICTIONS_FILE,
    clusters_of,
    evaluation_folder,
    with_clusters,
)
from assay.training.trainer.method_config import BinaryPredictions

ERROR = Metric(name="squared_error", unit="points", higher_is_better=False)


def width(estimate: Estimate) -> float:
    assert estimate.low is not None and estimate.high is not None
    return estimate.high - estimate.low


def alike(rng: np.random.Generator, *, num_clusters: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores and clusters of rows; rows of one cluster have one label and correlated errors."""
    clusters = np.repeat(np.arange(num_clusters), size)
    labels = (rng.random(num_clusters) < 0.5)[clusters]
    scores = labels + rng.normal(size=num_clusters)[clusters] + rng.normal(size=clusters.size)
    return labels, scores, clusters


def probability(scores: np.ndarray) -> np.ndarray:
    return stats.norm.cdf(scores / 4)


def test_the_interval_of_a_mean_is_that_of_a_regression_on_a_constant_with_clustered_errors():
    rng = np.random.default_rng(0)
    clusters = rng.permutation(np.arange(204) % 12)
    values = rng.normal(size=12)[clusters] + rng.normal(size=204)
    found = mean_estimate(values, clusters)
    # Cameron & Miller (2015), (11): (X'X)^-1 (sum over clusters of X_g' u_g u_g' X_g) (X'X)^-1, by G / (G - 1).
    same = clusters[:, None] == clusters[None, :]
    residuals = values - values.mean()
    error = np.sqrt(12 / 11 * (same * np.outer(residuals, residuals)).sum()) / 204
    half_width = stats.t.ppf(0.975, 11) * error
    assert (found.low, found.high) == pytest.approx((values.mean() - half_width, values.mean() + half_width))
    assert found.method == "normal theory (t), 12 clusters"


def test_of_clusters_of_unequal_size_the_variance_is_unbiased_and_has_satterthwaites_degrees_of_freedom():
    """By matrices, as Bell & McCaffrey (2002) and Imbens & Kolesar (2016) write them: clusters' means that vary
    alike, their residuals, the quadratic form that estimates the variance of their weighted mean."""
    sizes = np.array([1, 1, 2, 3, 5, 8, 40])
    clusters = np.repeat(np.arange(7), sizes)
    values = np.random.default_rng(3).normal(size=60)
    shares = sizes / 60
    residual = np.eye(7) - np.outer(np.ones(7), shares)
    expected = (residual @ residual.T).diagonal()
    form = residual.T @ np.diag(shares**2 / expected) @ residual
    assert np.trace(form) == pytest.approx(np.square(shares).sum())  # what the mean's variance is
    degrees = np.trace(form) ** 2 / np.trace(form @ form)
    means = np.array([values[clusters == cluster].mean() for cluster in range(7)])
    half_width = stats.t.ppf(0.975, degrees) * np.sqrt(means @ form @ means)
    found = mean_estimate(values, clusters)
    assert (found.low, found.high) == pytest.approx((values.mean() - half_width, values.mean() + half_width))


@pytest.mark.parametrize("alike", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("sizes", [[*[1] * 40, 20], [2, 2, 3, 3, 3, 4, 4, 5, 6, 8, 10, 12, 20, 30]], ids=str)
def test_one_cluster_that_holds_a_third_of_the_rows_makes_no_interval_too_narrow(sizes, alike):
    rng = np.random.default_rng(4)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    covered = []
    for _ in range(1500):
        common = np.sqrt(alike) * rng.normal(size=len(sizes))[clusters]
        found = mean_estimate(common + np.sqrt(1 - alike) * rng.normal(size=clusters.size), clusters)
        assert found.low is not None and found.high is not None
        covered.append(found.low <= 0.0 <= found.high)
    assert np.mean(covered) >= 0.94


def test_rows_that_stand_there_five_times_say_as_much_as_once():
    rng = np.random.default_rng(1)
    labels, scores, once = alike(rng, num_clusters=300, size=1)
    rows = ScoredRows(labels, probability(scores))
    again = ScoredRows(*(np.repeat(values, 5) for values in (rows.is_positive, rows.probabilities, once)))
    pairs = [(classifier_metrics(rows).measured, classifier_metrics(again).measured)]
    pairs += [((mean_estimate(scores),), (mean_estimate(np.repeat(scores, 5), np.repeat(once, 5)),))]
    for before, after in pairs:
        for one, other in zip(before, after, strict=True):
            first, second = getattr(one, "estimate", one), getattr(other, "estimate", other)
            assert second.value == pytest.approx(first.value)
            assert width(second) == pytest.approx(width(first), rel=0.02)
    hits = (scores > 0.3).astype(float)
    assert width(share_estimate(np.repeat(hits, 5), np.repeat(once, 5))) == pytest.approx(
        width(share_estimate(hits)), rel=0.1
    )


def test_clusters_are_told_by_their_worth_and_rows_are_left_to_the_reader_who_counts_them() -> None:
    hits = (np.random.default_rng(2).random(60) > 0.3).astype(float)
    assert share_estimate(hits, np.arange(60)).method == "Wilson, 60 clusters"
    method = share_estimate(np.repeat(hits, 5), np.arange(60).repeat(5)).method
    assert re.fullmatch(r"Wilson, 60 clusters worth \d\d independent rows", method)


@pytest.mark.parametrize("positives_of_one", [1, 30])
def test_a_cluster_that_has_half_of_a_class_widens_aucs_whatever_its_size(positives_of_one: int):
    """Of 31 clusters of forty rows one has so many positives, the others one each: Student's quantile has some
    30 degrees of freedom, or few."""
    rng = np.random.default_rng(6)
    clusters, index = np.repeat(np.arange(31), 40), np.tile(np.arange(40), 31)
    labels = index < np.where(clusters == 0, positives_of_one, 1)
    first, second = (
        ScoredRows(labels, probability(labels + rng.normal(size=clusters.size)), clusters) for _ in range(2)
    )
    alone = [rows_._replace(clusters=None) for rows_ in (first, second)]
    ratios = []
    for found, unclustered in (
        (auc_estimate(first), auc_estimate(alone[0])),
        (auc_difference(first, second), auc_difference(*alone)),
        (average_precision(first), average_precision(alone[0])),
    ):
        assert found is not None and unclustered is not None
        ratios.append(width(found) / width(unclustered))
    if positives_of_one == 1:
        assert max(ratios) < 1.3
    else:  # of equal rows it would be 0.8, 0.6 and 2.1
        assert ratios[0] > 1.3 and ratios[1] > 1.3 and ratios[2] > 3.0


def test_intervals_of_rows_in_clusters_cover_the_truth_as_often_as_they_say():
    rng, truth = np.random.default_rng(2), stats.norm.cdf(1 / 2)  # two rows differ by N(1, 2 + 2)
    clustered, naive = [], []
    for _ in range(500):
        labels, scores, clusters = alike(rng, num_clusters=40, size=8)
        rows = ScoredRows(labels, probability(scores))
        for found, estimates in ((rows._replace(clusters=clusters), clustered), (rows, naive)):
            estimate = auc_estimate(found)
            assert estimate is not None and estimate.low is not None and estimate.high is not None
            estimates.append(estimate.low <= truth <= estimate.high)
    assert 0.92 <= np.mean(clustered) <= 0.98
    assert np.mean(clustered) > np.mean(naive) + 0.1, "rows of one cluster were no draws of their own"


def test_a_difference_of_two_aucs_counts_clusters():
    rng = np.random.default_rng(3)
    labels, scores, clusters = alike(rng, num_clusters=40, size=8)
    better = scores + labels * rng.normal(0.3, 1, 40)[clusters]
    before, after = (ScoredRows(labels, probability(values), clusters) for values in (scores, better))
    found, naive = auc_difference(before, after), auc_difference(before._replace(clusters=None), after)
    assert found is not None and naive is not None and found.value == naive.value
    assert found.method == "paired DeLong, 40 clusters" and width(found) > 1.3 * width(naive)


def test_one_cluster_cannot_tell():
    rng = np.random.default_rng(4)
    labels, scores, _ = alike(rng, num_clusters=20, size=1)
    rows = ScoredRows(labels, probability(scores), np.zeros(20, np.int64))
    found = [measured.estimate for measured in classifier_metrics(rows).measured] + [
        mean_estimate(scores, rows.clusters)
    ]
    assert all(estimate is not None and estimate.low is None and "one cluster" in estimate.method for estimate in found)


@pytest.fixture
def predicted() -> pa.Table:
    rng = np.random.default_rng(5)
    labels, scores, clusters = alike(rng, num_clusters=30, size=10)
    return pa.table(
        {
            "row_id": pa.array(range(300), pa.uint64()),
            "label": pa.array(labels.astype(np.int8)),
            "probability": probability(scores),
            ERROR.name: np.square(scores),
            "file": [f"file {cluster}" for cluster in clusters],
        }
    )


def test_the_key_of_the_split_is_kept_as_clusters_and_cuts_no_slices(predicted, tmp_path: Path):
    folder = evaluation_folder(tmp_path, step=1, split="validation")
    folder.mkdir(parents=True)
    pq.write_table(with_clusters(predicted, "file", keep_key=False), folder / PREDICTIONS_FILE)
    what = {"run_id": "r", "step": 1, "weights_digest": "w", "dataset_fingerprint": "d", "split": "validation"}
    found = evaluate_predictions(folder / PREDICTIONS_FILE, BinaryPredictions(), **what)
    assert isinstance(found, ClassifierEvaluation) and found.overall.auc is not None
    assert found.overall.auc.method == "DeLong, 30 clusters"
    assert {slice_part.column for slice_part in found.slices} == {ERROR.name}


def test_rows_that_each_have_a_key_of_their_own_are_counted_as_before(predicted):
    alone = predicted.set_column(4, "file", pa.array([str(row) for row in range(300)]))
    assert clusters_of(with_clusters(alone, "file", keep_key=True)) is None
    assert clusters_of(predicted) is None and CLUSTER not in with_clusters(predicted, None, keep_key=True).column_names

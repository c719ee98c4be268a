"""Rows that have a score of their own: evaluated, stored, compared."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from assay.base.errors import DataError
from assay.records.evaluation import Metric, ScoreComparison, ScoreEvaluation
from assay.statistics.evaluate import compare_evaluations, evaluate_predictions
from assay.statistics.mean_scores import _paired, mean_estimate, score_metrics
from assay.statistics.predictions import (
    CLUSTER,
    PREDICTIONS_FILE,
    evaluation_folder,
    load_evaluation,
    save_evaluation,
)
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.training.trainer.method_config import ClassPredictions, NumberPredictions, RowScores

ERROR = Metric(name="squared_error", unit="log tokens squared", higher_is_better=False)
REWARD = Metric(name="reward", unit="points", higher_is_better=True)


def evaluated(
    run_dir: Path, scores: np.ndarray, metric: Metric = ERROR, *, first_row: int = 0, weights: str = ""
) -> ScoreEvaluation:
    folder = evaluation_folder(run_dir, step=4, split="validation")
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "row_id": pa.array(np.arange(first_row, first_row + len(scores)), pa.uint64()),
            metric.name: scores,
            "prediction": scores + 1.0,
            "source": np.where(np.arange(len(scores)) % 2 == 0, "even", "odd"),
        }
    )
    pq.write_table(table, folder / PREDICTIONS_FILE)
    shown = Metric(name="prediction", unit="", higher_is_better=True)
    evaluation = evaluate_predictions(
        folder / PREDICTIONS_FILE,
        RowScores((metric, shown)),
        run_id=run_dir.name,
        step=4,
        weights_digest=weights or run_dir.name,
        dataset_fingerprint="d",
        split="validation",
    )
    assert isinstance(evaluation, ScoreEvaluation)
    return evaluation


def compared(tmp_path: Path, before: np.ndarray, after: np.ndarray, metric: Metric, **more) -> ScoreComparison:
    evaluations = evaluated(tmp_path / "a", before, metric), evaluated(tmp_path / "b", after, metric)
    found, _ = compare_evaluations(*evaluations, baseline_dir=tmp_path / "a", candidate_dir=tmp_path / "b", **more)
    assert isinstance(found, ScoreComparison)
    return found


def test_the_interval_of_a_mean_is_students():
    values = np.random.default_rng(0).normal(3.0, 2.0, 40)
    found = mean_estimate(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), expected.low, expected.high))


@pytest.mark.parametrize("unit", ["share", "rewards"])
def test_the_interval_of_what_is_a_share_holds_no_impossible_share(tmp_path, unit):
    metric = Metric(name="score", unit=unit, higher_is_better=True)
    found = evaluated(tmp_path / "r", np.array([0.0] + [1.0] * 19), metric).overall.measured[0].estimate
    assert found is not None and found.low is not None and found.high is not None
    assert 0.0 < found.low < found.value < found.high < 1.0, "Wilson's"
    mixed = evaluated(tmp_path / "s", np.array([0.25] + [1.0] * 19), metric).overall.measured[0].estimate
    assert mixed is not None and mixed.high is not None
    assert (mixed.high > 1.0) == (unit == "rewards"), "a grader may pay more than 1"


@pytest.mark.parametrize("clusters", [None, [0] * 4 + [1] * 8 + [2] * 8])
def test_an_interval_ends_where_a_rows_score_does(clusters):
    values = [0.25] + [1.0] * 19
    table = pa.table({"reward": values} | ({} if clusters is None else {CLUSTER: pa.array(clusters, pa.uint64())}))

    def interval(**ranges: tuple[float, float]) -> tuple[float, float]:
        [found] = score_metrics(table, [REWARD], ranges).measured
        assert found.estimate is not None and found.estimate.low is not None and found.estimate.high is not None
        return found.estimate.low, found.estimate.high

    low, high = interval()
    assert high > 1.0, "normal theory knows of no end"
    assert interval(reward=(0.0, 1.0)) == (low, 1.0)
    assert interval(reward=(-5.0, 5.0)) == interval(other=(0.0, 0.1)) == (low, high)
    assert interval(reward=(low + 0.01, math.inf)) == (low + 0.01, high)


@pytest.mark.parametrize(
    ("predictions", "ranges"),
    [
        (ClassPredictions(("a", "b")), {"log_loss": (0.0, math.inf)}),
        (NumberPredictions("days"), {"absolute_error": (0.0, math.inf), "squared_error": (0.0, math.inf)}),
        (RowScores((REWARD,)), {}),
    ],
)
def test_no_error_and_no_loss_is_below_nothing(predictions, ranges):
    assert predictions.ranges == ranges


def test_one_row_has_no_interval():
    assert mean_estimate(np.array([2.0])).low is None


def test_an_evaluation_names_its_metrics_whole_and_by_slice(tmp_path):
    scores = np.array([1.0, 10.0, 3.0, 20.0])
    evaluation = evaluated(tmp_path / "a", scores)
    assert evaluation.headline.metric == ERROR
    assert evaluation.headline.estimate.value == 8.5
    assert evaluation.loss == evaluation.headline
    by_slice = {(slice_part.column, slice_part.value): slice_part.metrics for slice_part in evaluation.slices}
    assert set(by_slice) == {("source", "even"), ("source", "odd")}
    assert by_slice["source", "odd"].measured[0].estimate.value == 15.0
    assert by_slice["source", "odd"].num_rows == 2


def test_an_evaluation_is_read_from_its_folder_and_from_the_ledger_as_it_was(tmp_path):
    evaluation = evaluated(tmp_path / "a", np.arange(8.0))
    save_evaluation(tmp_path / "a", evaluation)
    assert load_evaluation(tmp_path / "a") == evaluation
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        assert isinstance(ledger, Ledger)
        ledger.record_evaluation(evaluation)
        assert ledger.evaluations("a") == [evaluation]


@pytest.mark.parametrize(
    ("metric", "shift", "verdict"),
    [(ERROR, -0.5, "pass"), (ERROR, 0.5, "fail"), (REWARD, 0.5, "pass"), (REWARD, -0.5, "fail")],
)
def test_the_verdict_follows_the_metrics_direction(tmp_path, metric, shift, verdict):
    before = np.random.default_rng(0).normal(5.0, 3.0, 200)
    found = compared(tmp_path, before, before + shift + 0.01 * np.cos(before), metric)
    assert found.verdict == verdict
    assert found.difference.value == pytest.approx(found.candidate_value - found.baseline_value)


def test_a_difference_is_paired_on_rows(tmp_path):
    rng = np.random.default_rng(0)
    before = rng.normal(5.0, 100.0, 300)
    found = compared(tmp_path, before, before - rng.normal(1.0, 0.1, 300), ERROR)
    assert found.difference.high - found.difference.low < 0.05
    assert found.difference.method == "paired, normal theory (t)"


def test_a_loss_within_what_is_allowed_passes(tmp_path):
    before = np.random.default_rng(0).normal(5.0, 3.0, 200)
    after = before + 0.2 + 0.01 * np.cos(before)
    assert compared(tmp_path / "0", before, after, ERROR).verdict == "fail"
    assert compared(tmp_path / "1", before, after, ERROR, allowed_loss=0.3).verdict == "pass"


def test_equal_weights_pass_although_their_difference_has_no_width(tmp_path):
    scores = np.arange(100.0)
    one, other = (evaluated(tmp_path / name, scores, weights="w") for name in "ab")
    found, slices = compare_evaluations(one, other, baseline_dir=tmp_path / "a", candidate_dir=tmp_path / "b")
    assert (found.verdict, found.weights_equal, found.difference.value) == ("pass", True, 0.0)
    assert [slice_part.num_rows for slice_part in slices] == [50, 50]


def test_runs_that_never_differ_may_differ_on_a_row_that_was_not_seen(tmp_path):
    same = np.tile([1.0, 0.0, 1.0], 100)
    accuracy = Metric(name="accuracy", unit="share", higher_is_better=True)
    found = compared(tmp_path / "share", same, same, accuracy)
    assert (found.verdict, found.difference.value) == ("undecided", 0.0)
    exact = stats.binomtest(0, 300).proportion_ci(method="exact").high
    assert (-found.difference.low, found.difference.high) == pytest.approx((exact, exact))
    errors = compared(tmp_path / "error", same, same, ERROR).difference
    assert (errors.low, errors.high) == (None, None) and errors.method.endswith("undefined, no row differs")


def test_a_difference_of_shares_is_no_larger_than_a_share(tmp_path):
    accuracy = Metric(name="accuracy", unit="share", higher_is_better=True)
    found = compared(tmp_path, np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0]), accuracy)
    exact = stats.binomtest(1, 3).proportion_ci(method="exact").high
    assert (-found.difference.low, found.difference.high) == pytest.approx((exact, 1.0))


def test_other_rows_and_other_metrics_are_refused(tmp_path):
    scores = np.arange(60.0)
    first, rest = evaluated(tmp_path / "a", scores), evaluated(tmp_path / "b", scores, first_row=10)
    rewarded = evaluated(tmp_path / "c", scores, REWARD)
    with pytest.raises(DataError, match="10 rows only in the first"):
        compare_evaluations(first, rest, baseline_dir=tmp_path / "a", candidate_dir=tmp_path / "b")
    with pytest.raises(DataError, match=r"a scores its rows \(measured by squared error\) and c scores"):
        compare_evaluations(first, rewarded, baseline_dir=tmp_path / "a", candidate_dir=tmp_path / "c")
    other = rest.model_copy(update={"dataset_fingerprint": "0123456789abcdef"})
    with pytest.raises(DataError, match="they read different datasets: a dataset d and b dataset 0123456789ab"):
        compare_evaluations(first, other, baseline_dir=tmp_path / "a", candidate_dir=tmp_path / "b")
    again = first.model_copy(update={"dataset_fingerprint": "another build of the same rows"})
    compare_evaluations(first, again, baseline_dir=tmp_path / "a", candidate_dir=tmp_path / "a")


def share_differences(rng, *, clusters: int, mean_size: float, worse: float, better: float, alike: bool):
    """Differences of rows in clusters of unequal size, whose rows change together or one by one."""
    sizes = 1 + rng.poisson(mean_size - 1.0, size=clusters)
    of_row = np.arange(clusters).repeat(sizes)
    noise = rng.random(clusters)[of_row] if alike else rng.random(of_row.size)
    return (noise > 1.0 - better).astype(float) - (noise < worse), of_row


def paired_shares(differences, clusters):
    accuracy = Metric(name="accuracy", unit="share", higher_is_better=True)
    return _paired(differences, clusters, accuracy, weights_equal=False)


def test_one_changed_row_leaves_an_exact_interval_and_not_a_quarter_of_all_rows() -> None:
    differences, rng = np.zeros(122), np.random.default_rng(0)
    differences[0] = -1.0
    alone = paired_shares(differences, None)
    exact = [stats.binomtest(count, 122).proportion_ci(method="exact").high for count in (1, 0)]
    assert (-alone.low, alone.high) == pytest.approx(exact)
    clusters = np.concatenate([np.arange(70), rng.integers(70, size=52)])
    grouped = paired_shares(differences, clusters)
    assert alone.low > grouped.low > -stats.binomtest(1, 40).proportion_ci(method="exact").high
    assert 0.03 < grouped.high < 0.06


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize(("clusters", "mean_size", "worse", "better"), [(70, 1.7, 0.02, 0.0), (25, 5.0, 0.02, 0.01)])
def test_few_changed_rows_in_unequal_clusters_are_covered(clusters, mean_size, worse, better, alike) -> None:
    rng, covered = np.random.default_rng(7), 0
    how = {"clusters": clusters, "mean_size": mean_size, "worse": worse, "better": better, "alike": alike}
    for _ in range(300):
        found = paired_shares(*share_differences(rng, **how))
        covered += found.low <= better - worse <= found.high
        assert found.high - found.low < 0.6
    assert covered / 300 >= 0.95


@pytest.mark.parametrize(
    ("sizes", "worse"),
    [
        ([20] * 10 + [1] * 1000, [0.5] * 10 + [0.0] * 1000),
        ([20] * 20 + [1] * 300, [0.3] * 20 + [0.0] * 300),
        ([21, 12], [0.3] * 2),
        ([21, 12, 5], [0.3] * 3),
    ],
    ids=["ten large of a thousand", "twenty large", "two", "three"],
)
@pytest.mark.parametrize("alike", [False, True])
def test_clusters_are_covered_where_large_ones_change_most_and_where_few_are(sizes, worse, alike) -> None:
    rng, covered, num_trials = np.random.default_rng(11), 0, 300
    of_row = np.arange(len(sizes)).repeat(sizes)
    rates = np.array(worse)[of_row]
    for _ in range(num_trials):
        noise = rng.random(len(sizes))[of_row] if alike else rng.random(of_row.size)
        found = paired_shares(-(noise < rates).astype(float), of_row)
        assert found.low < found.value or found.value == -1.0, "an estimate is no bound of itself"
        covered += found.low <= -rates.mean() <= found.high
    assert covered / num_trials >= 0.93

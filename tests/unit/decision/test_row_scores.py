import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.decision.config import PredictionsBenchmark
from assay.decision.row_scores import result_of_predictions, row_scores
from assay.records.evaluation import (
    ClassifierEvaluation,
    ClassifierMetrics,
    Estimate,
    Measured,
    Metric,
    ScoreEvaluation,
    ScoreMetrics,
)
from assay.statistics.benchmark_items import read_items
from assay.statistics.classifier.auc import auc_difference, placements
from assay.statistics.classifier.rows import ScoredRows
from assay.statistics.effect import paired_effect
from assay.statistics.predictions import CLUSTER


def _rows(seed: int, num_rows: int = 300, signal: float = 1.0) -> ScoredRows:
    rng = np.random.default_rng(seed)
    positive = np.arange(num_rows) % 3 == 0
    return ScoredRows(positive, 1 / (1 + np.exp(-signal * positive - rng.normal(size=num_rows).round(1))))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), num_rows=st.integers(6, 200))
def test_the_mean_of_a_rankings_row_scores_is_the_auc(seed: int, num_rows: int):
    rows = _rows(seed, num_rows)
    assert row_scores(rows, "ranking").mean() == pytest.approx(placements(rows).auc, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_difference_of_rankings_has_delongs_interval(seed: int):
    before, after = _rows(seed), _rows(seed + 100, signal=1.5)
    differences = (row_scores(after, "ranking") - row_scores(before, "ranking"))[None]
    ours, delong = paired_effect(differences), auc_difference(before, after)
    assert delong is not None and delong.high is not None
    assert float(ours.mean) == pytest.approx(delong.value, abs=1e-12)
    # One degree of freedom for the two classes together.
    assert 1.96 * float(np.sqrt(ours.item_variance)) == pytest.approx(delong.high - delong.value, rel=0.01)


def test_log_likelihood_is_of_the_true_class_and_finite_for_a_sure_mistake():
    rows = ScoredRows(np.array([True, False, True]), np.array([0.25, 0.25, 0.0]))
    np.testing.assert_allclose(row_scores(rows, "log_likelihood"), [np.log(0.25), np.log(0.75), np.log(1e-16)])


def _evaluation() -> ClassifierEvaluation:
    metrics = ClassifierMetrics(
        num_rows=1, num_positive=0, auc=None, average_precision=None, log_loss=Estimate(value=0.0),
        expected_calibration_error=0.0, calibration=(),
    )  # fmt: skip
    return ClassifierEvaluation(
        run_id="run", step=1, weights_digest="w", dataset_fingerprint="d", split="validation",
        overall=metrics, slices=(), predictions_sha256="",
    )  # fmt: skip


def _predictions() -> pa.Table:
    return pa.table(
        {
            "row_id": pa.array([1, 2, 3, 4], pa.uint64()),
            "label": pa.array([0, 1, 0, 1], pa.int8()),
            "probability": [0.1, 0.9, 0.8, 0.2],
            "kind": ["method", "method", "function", None],
            "is_async": [True, False, False, None],
            "is_doc": [1, 0, 0, 0],
        }
    )


def _result(tmp_path, table=None, **benchmark):
    config = PredictionsBenchmark(type="predictions", name="b", **benchmark)
    result = result_of_predictions(
        config, table or _predictions(), _evaluation(), arm="a", seed=7, evaluated_s=0.0, folder=tmp_path
    )
    return result, read_items(tmp_path, result)


@pytest.mark.parametrize(
    ("where", "row_ids"),
    [({"kind": "method"}, ["1", "2"]), ({"kind": None}, ["4"]), ({"label": 0, "kind": "function"}, ["3"])],
)
def test_where_chooses_rows_by_metadata_label_and_null(tmp_path, where, row_ids):
    result, items = _result(tmp_path, where=where)
    assert items["item_id"].to_pylist() == row_ids
    assert (result.candidate, result.seed, result.num_items) == ("a", 7, len(row_ids))


@pytest.mark.parametrize("written", ["true", "True", "'True'", "'true'"])
def test_a_truth_is_asked_for_as_yaml_and_the_screens_have_it(tmp_path, written):
    options = yaml.safe_load(f"where: {{is_async: {written}}}")
    assert _result(tmp_path, **options)[1]["item_id"].to_pylist() == ["1"]
    assert _result(tmp_path, where={"is_async": False})[1]["item_id"].to_pylist() == ["2", "3"]
    assert _result(tmp_path, where={"is_doc": True})[1]["item_id"].to_pylist() == ["1"]


def test_where_no_row_is_asked_it_is_said_what_was_written_and_what_there_is(tmp_path):
    with pytest.raises(ConfigError) as found:
        _result(tmp_path, where={"is_async": 1, "kind": "class"})
    assert str(found.value) == (
        "benchmark 'b': no validation row has is_async: 1 with kind: class. Choose values that occur: "
        "is_async holds false, true, null; kind holds method, function, null."
    )
    rows = pa.table({"row_id": range(9), "label": [0] * 9, "probability": [0.5] * 9, "kind": list("abcdefghi")})
    with pytest.raises(ConfigError, match="kind holds a, b, c, d, e and 4 more"):
        _result(tmp_path, rows, where={"kind": "z"})


def test_a_cluster_column_makes_its_rows_share_their_luck(tmp_path):
    _, items = _result(tmp_path, cluster="kind")
    assert items["cluster"].to_pylist() == ["method", "method", "function", "None"]


def test_rows_that_the_split_kept_together_share_their_luck_unless_each_is_declared_alone(tmp_path):
    table = _predictions().append_column(CLUSTER, pa.array([7, 7, 9, 7], pa.uint64()))
    _, items = _result(tmp_path, table)
    assert items["cluster"].to_pylist() == ["7", "7", "9", "7"]
    for alone in (_result(tmp_path, table, cluster=None), _result(tmp_path)):
        assert alone[1]["cluster"].to_pylist() == ["1", "2", "3", "4"]
    with pytest.raises(ConfigError, match=r"its 3 rows are one cluster \(split_cluster\).* cluster: null"):
        _result(tmp_path, table.take([0, 1, 3]))


@pytest.mark.parametrize(
    ("benchmark", "message"),
    [
        ({"where": {"language": "en"}}, "no column 'language'"),
        ({"where": {"kind": "class"}}, "no validation row has"),
        ({"where": {"label": 1}, "score": "ranking"}, "nothing can be ranked"),
        ({"score": "own"}, "measured by auc. Use score: correct"),
    ],
)
def test_a_benchmark_that_can_not_be_scored_says_why(tmp_path, benchmark, message):
    with pytest.raises(ConfigError, match=message):
        _result(tmp_path, **benchmark)


def test_rows_with_a_score_of_their_own_bring_its_unit_and_direction(tmp_path):
    metric = Metric(name="squared_error", unit="squares", higher_is_better=False)
    measured = (Measured(metric=metric, estimate=Estimate(value=2.0)),)
    evaluation = ScoreEvaluation(
        run_id="run", step=1, weights_digest="w", dataset_fingerprint="d", split="validation",
        overall=ScoreMetrics(num_rows=4, measured=measured), slices=(), predictions_sha256="",
    )  # fmt: skip
    table = _predictions().append_column("squared_error", pa.array([4.0, 1.0, 3.0, 9.0]))
    config = PredictionsBenchmark(type="predictions", name="b", score="own", where={"kind": "method"})
    result = result_of_predictions(config, table, evaluation, arm="a", seed=7, evaluated_s=0.0, folder=tmp_path)
    assert (result.unit, result.higher_is_better, result.score.value) == ("squares", False, 2.5)
    assert read_items(tmp_path, result)["score"].to_pylist() == [4.0, 1.0]
    by_name = config.model_copy(update={"score": "squared_error"})
    again = result_of_predictions(by_name, table, evaluation, arm="a", seed=7, evaluated_s=0.0, folder=tmp_path)
    assert (again.unit, again.score) == (result.unit, result.score)
    with pytest.raises(ConfigError, match="Use score: own"):
        result_of_predictions(
            config.model_copy(update={"score": "correct"}), table, evaluation, arm="a", seed=7,
            evaluated_s=0.0, folder=tmp_path,
        )  # fmt: skip

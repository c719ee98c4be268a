"""Classes and numbers beside scikit-learn, from predictions to the comparison."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    precision_score,
    r2_score,
    recall_score,
)

from assay.base.errors import DataError
from assay.records.evaluation import ScoreEvaluation, evaluation_from_json
from assay.reporting.charts.label_plots import confusion_figure, fit_figure
from assay.reporting.charts.run_figures import metrics_table
from assay.reporting.document import FULL, NARROW
from assay.reporting.views.warnings import warning_text
from assay.statistics.evaluate import compare_evaluations, evaluate_predictions
from assay.statistics.mean_scores import share_estimate
from assay.statistics.predictions import PREDICTIONS_FILE, evaluation_folder
from assay.statistics.warnings import warnings_of_model
from assay.training.trainer.method_config import ClassPredictions, NumberPredictions, Predictions

NAMES = ("ham", "spam", "eggs", "never <seen>")


def classes_table(seed: int, *, skill: float) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 300)
    logits = rng.normal(size=(300, 4))
    logits[np.arange(300), labels] += skill
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    predicted = shares.argmax(axis=1)
    table = pa.table(
        {
            "row_id": pa.array(range(300), pa.uint64()),
            "predicted": predicted,
            "accuracy": (predicted == labels).astype(float),
            "log_loss": -np.log(shares[np.arange(300), labels]),
            "label": [NAMES[label] for label in labels],
            "lang": ["en" if n % 3 else "de" for n in range(300)],
        }
    )
    return table, labels, shares


def numbers_table(noise: float) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.normal(20, 5, 200)
    predictions = labels + noise * rng.normal(size=200) + 0.5
    errors = predictions - labels
    table = pa.table(
        {
            "row_id": pa.array(range(200), pa.uint64()),
            "prediction": predictions,
            "absolute_error": np.abs(errors),
            "squared_error": errors**2,
            "label": labels,
        }
    )
    return table, labels, predictions


def evaluated(folder: Path, table: pa.Table, kind: Predictions) -> ScoreEvaluation:
    path = evaluation_folder(folder, step=1, split="validation") / PREDICTIONS_FILE
    path.parent.mkdir(parents=True)
    pq.write_table(table, path)
    found = evaluate_predictions(
        path, kind, run_id=folder.name, step=1, weights_digest=folder.name, dataset_fingerprint="d",
        split="validation",
    )  # fmt: skip
    assert isinstance(found, ScoreEvaluation)
    assert evaluation_from_json(found.to_json(), source="itself") == found
    return found


def test_classes_are_measured_as_scikit_learn_measures_them(tmp_path: Path) -> None:
    table, labels, shares = classes_table(0, skill=1.5)
    predicted = shares.argmax(axis=1)
    overall = evaluated(tmp_path / "a", table, ClassPredictions(NAMES)).overall
    values = {measured.metric.name: measured.estimate.value for measured in overall.measured if measured.estimate}
    assert list(values) == ["accuracy", "log_loss"]
    assert values["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    # Wilson 1927: the shares p from which the one seen is 1.96 standard errors away.
    found, seen = overall.measured[0].estimate, values["accuracy"]
    assert found is not None and found.low is not None and found.high is not None
    for end in (found.low, found.high):
        assert abs(seen - end) == pytest.approx(1.959964 * np.sqrt(end * (1 - end) / 300), rel=1e-5)
    assert values["log_loss"] == pytest.approx(log_loss(labels, shares, labels=range(4)))
    options = {"labels": range(4), "average": None, "zero_division": 0.0}
    assert [one.name for one in overall.classes] == list(NAMES)
    np.testing.assert_array_equal(
        [one.predicted_as for one in overall.classes], confusion_matrix(labels, predicted, labels=range(4))
    )
    np.testing.assert_allclose(
        [one.precision or 0.0 for one in overall.classes], precision_score(labels, predicted, **options)
    )
    np.testing.assert_allclose(
        [one.recall or 0.0 for one in overall.classes], recall_score(labels, predicted, **options)
    )
    np.testing.assert_allclose([one.f1 for one in overall.classes], f1_score(labels, predicted, **options))
    macro = f1_score(labels, predicted, average="macro", zero_division=0.0)
    assert overall.macro_f1 == pytest.approx(macro)
    assert overall.classes[3].recall is None


def test_a_class_that_no_row_is_of_and_none_is_taken_for_does_not_lower_the_macro_f1(tmp_path: Path) -> None:
    table, labels, shares = classes_table(0, skill=1.5)
    predicted = shares[:, :3].argmax(axis=1)
    table = table.set_column(1, "predicted", pa.array(predicted))
    overall = evaluated(tmp_path / "a", table, ClassPredictions(NAMES)).overall
    assert overall.classes[3].precision is None and overall.classes[3].recall is None
    assert overall.macro_f1 == pytest.approx(f1_score(labels, predicted, average="macro"))


def test_a_share_of_few_rows_that_are_all_alike_has_an_interval_within_0_and_1() -> None:
    found = share_estimate(np.ones(11))
    assert found.value == found.high == 1.0 and found.low == pytest.approx(0.741, abs=1e-3)


def test_numbers_are_measured_as_scikit_learn_measures_them(tmp_path: Path) -> None:
    table, labels, predictions = numbers_table(2.0)
    evaluation = evaluated(tmp_path / "a", table, NumberPredictions("EUR"))
    values = {
        measured.metric.name: measured.estimate.value for measured in evaluation.overall.measured if measured.estimate
    }
    assert values["absolute_error"] == pytest.approx(mean_absolute_error(labels, predictions))
    assert values["squared_error"] == pytest.approx(mean_squared_error(labels, predictions))
    assert evaluation.headline.metric.unit == "EUR" and not evaluation.headline.metric.higher_is_better
    fit = evaluation.overall.fit
    assert fit is not None and fit.r_squared == pytest.approx(r2_score(labels, predictions))
    assert fit.bias == pytest.approx((predictions - labels).mean())
    assert sum(bin_.num_rows for bin_ in fit.bins) == 200


def test_slices_are_by_metadata_and_label_and_never_by_what_was_predicted(tmp_path: Path) -> None:
    slices = evaluated(tmp_path / "a", classes_table(0, skill=1.5)[0], ClassPredictions(NAMES)).slices
    assert {slice_part.column for slice_part in slices} == {"label", "lang"}
    assert {
        slice_part.column
        for slice_part in evaluated(tmp_path / "b", numbers_table(1.0)[0], NumberPredictions("")).slices
    } == {"label"}


@pytest.mark.parametrize("kind", ["classes", "number"])
def test_the_better_model_passes_and_the_worse_fails_whichever_way_is_better(tmp_path: Path, kind: str) -> None:
    if kind == "classes":
        tables = [classes_table(0, skill=skill)[0] for skill in (1.0, 3.0)]
        predictions: Predictions = ClassPredictions(NAMES)
    else:
        tables, predictions = [numbers_table(noise)[0] for noise in (4.0, 1.0)], NumberPredictions("")
    worse, better = (
        evaluated(tmp_path / name, table, predictions) for name, table in zip(("w", "b"), tables, strict=True)
    )
    found, _ = compare_evaluations(worse, better, baseline_dir=tmp_path / "w", candidate_dir=tmp_path / "b")
    back, _ = compare_evaluations(better, worse, baseline_dir=tmp_path / "b", candidate_dir=tmp_path / "w")
    assert (found.verdict, back.verdict) == ("pass", "fail")


def test_classes_beside_a_number_are_told_apart_by_what_their_label_is(tmp_path: Path) -> None:
    kinds = evaluated(tmp_path / "k", classes_table(0, skill=1.0)[0], ClassPredictions(NAMES))
    lengths = evaluated(tmp_path / "n", numbers_table(1.0)[0], NumberPredictions(""))
    message = rf"k tells {len(NAMES)} classes apart .measured by accuracy. and n predicts a number .measured"
    with pytest.raises(DataError, match=message):
        compare_evaluations(kinds, lengths, baseline_dir=tmp_path / "k", candidate_dir=tmp_path / "n")


def test_two_evaluations_of_other_labels_are_not_compared(tmp_path: Path) -> None:
    table = numbers_table(1.0)[0]
    one = evaluated(tmp_path / "a", table, NumberPredictions(""))
    moved = table.set_column(table.schema.get_field_index("label"), "label", pa.array(range(200), pa.float64()))
    other = evaluated(tmp_path / "b", moved, NumberPredictions(""))
    with pytest.raises(DataError, match="200 of 200 rows have different labels"):
        compare_evaluations(one, other, baseline_dir=tmp_path / "a", candidate_dir=tmp_path / "b")


@pytest.mark.parametrize(("error", "message"), [(float("inf"), "inf"), (1e300, r"1e\+300")])
def test_a_model_that_diverged_is_said_to_have(tmp_path: Path, error: float, message: str) -> None:
    table = numbers_table(1.0)[0]
    column = pa.array([error] * 200)
    with pytest.raises(DataError, match=rf"absolute error is {message} in 200 rows: the model has diverged"):
        evaluated(tmp_path / "a", table.set_column(2, "absolute_error", column), NumberPredictions(""))


def test_classes_that_are_guessed_worse_than_by_their_shares_are_warned_of(tmp_path: Path) -> None:
    good, bad = (classes_table(0, skill=skill)[0] for skill in (2.0, -4.0))
    assert warnings_of_model([], evaluated(tmp_path / "a", good, ClassPredictions(NAMES))) == []
    (found,) = warnings_of_model([], evaluated(tmp_path / "b", bad, ClassPredictions(NAMES)))
    assert found.rule == "worse than constant" and "the shares of the classes alone would have 1.09" in warning_text(
        found
    )


def test_class_names_and_the_fit_are_on_the_page(tmp_path: Path) -> None:
    overall = evaluated(tmp_path / "a", classes_table(0, skill=2.0)[0], ClassPredictions(NAMES)).overall
    drawn = confusion_figure(overall.classes)
    assert "each cell its rows with that prediction" in drawn.caption, "cells show counts"
    wide, narrow = drawn.chart.svg(FULL), drawn.chart.svg(NARROW)
    assert "spam" in wide and "never &lt;seen&gt;" in wide and "never <seen>" not in wide
    counts = [f">{count}</text>" for class_ in overall.classes for count in class_.predicted_as if count]
    assert all(count in narrow and count in wide for count in counts)
    assert "Most often" in drawn.caption and len(drawn.table.rows) == 4
    assert any(row[0] == "macro F1" for row in metrics_table(overall).rows)
    overall = evaluated(tmp_path / "b", numbers_table(1.0)[0], NumberPredictions("days")).overall
    assert overall.fit is not None and fit_figure(overall.fit).chart.svg(NARROW).count("<circle") == 10
    assert [row[0] for row in metrics_table(overall).rows][:3] == [
        "absolute error (days)", "squared error (days squared)", "R²",
    ]  # fmt: skip

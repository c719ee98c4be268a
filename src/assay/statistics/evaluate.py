"""Evaluate a file of predictions and compare two evaluations, for all kinds of predictions.

Callers do not need to know whether a method predicts classes, numbers or scores.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Float64, Int64
from assay.records.evaluation import (
    AnyComparison,
    AnyEvaluation,
    AucComparison,
    ClassifierEvaluation,
    ClassScore,
    Estimate,
    NumberBin,
    NumberFit,
    ScoreEvaluation,
)
from assay.statistics.classifier.auc import auc_difference, placements
from assay.statistics.classifier.metrics import classifier_metrics, slice_metrics
from assay.statistics.classifier.rows import scores_of
from assay.statistics.mean_scores import compare_score_slices, compare_scores, score_metrics, score_slices
from assay.statistics.predictions import (
    BINARY_COLUMNS,
    LABEL,
    have_same_rows,
    predictions_of,
    read_predictions,
    require_same_labels,
    require_same_rows,
)
from assay.statistics.slices import slice_differences
from assay.statistics.verdict import SliceDifference, verdict_of
from assay.training.trainer.method_config import BinaryPredictions, ClassPredictions, NumberPredictions, Predictions


def evaluate_predictions(
    path: Path,
    predictions: Predictions,
    *,
    run_id: str,
    step: int,
    weights_digest: str,
    dataset_fingerprint: str,
    split: str,
    num_leaking: int | None = None,
) -> AnyEvaluation:
    """Compute the metrics of a file of predictions; `num_leaking`: see `Evaluation`.

    Raises what `read_predictions` and `scored_rows` raise.
    """
    of_what: dict[str, Any] = {
        "run_id": run_id,
        "step": step,
        "weights_digest": weights_digest,
        "dataset_fingerprint": dataset_fingerprint,
        "split": split,
        "num_leaking": num_leaking,
    }
    if isinstance(predictions, BinaryPredictions):
        table = read_predictions(path)
        rows = scores_of(table, source=str(path))
        return ClassifierEvaluation(
            **of_what,
            predictions_sha256=sha256_of_bytes(path.read_bytes()),
            overall=classifier_metrics(rows),
            slices=slice_metrics(table, rows),
        )
    metrics = predictions.metrics
    table = read_predictions(path, {metric.name: pa.float64() for metric in metrics})
    overall = score_metrics(table, metrics, predictions.ranges)
    if isinstance(predictions, ClassPredictions):
        overall = overall.model_copy(update={"classes": class_scores(table, predictions.names)})
    elif isinstance(predictions, NumberPredictions):
        overall = overall.model_copy(update={"fit": number_fit(table)})
    return ScoreEvaluation(
        **of_what,
        predictions_sha256=sha256_of_bytes(path.read_bytes()),
        overall=overall,
        slices=score_slices(table, metrics, predictions.ranges),
    )


def compare_evaluations(
    baseline: AnyEvaluation,
    candidate: AnyEvaluation,
    *,
    baseline_dir: Path,
    candidate_dir: Path,
    allowed_loss: float | None = None,
) -> tuple[AnyComparison, Sequence[SliceDifference]]:
    """Compare two runs on the same rows, whole and by slice; the folders are the runs' folders.

    `allowed_loss` is in the metric's unit; None allows one percentage point of AUC, and nothing of other metrics.
    """
    metric = baseline.headline.metric
    if allowed_loss is not None and allowed_loss >= 1.0 and metric.unit in ("share", "AUC"):
        raise ConfigError(
            f"allowed loss {allowed_loss:g}: {metric.title} is between 0 and 1, and cannot lose as much. A "
            f"point is 0.01; perhaps you meant {allowed_loss / 100:g}."
        )
    before, after = predictions_of(baseline_dir, baseline), predictions_of(candidate_dir, candidate)
    names: dict[str, Any] = {
        "baseline_run_id": baseline.run_id,
        "candidate_run_id": candidate.run_id,
        "weights_equal": baseline.weights_digest == candidate.weights_digest,
    }
    _check_same_dataset(baseline, candidate, before, after)
    if baseline.headline.metric != candidate.headline.metric:
        kinds = " and ".join(
            f"{found.run_id} {_prediction_kind(found)} (measured by {found.headline.metric.title})"
            for found in (baseline, candidate)
        )
        raise DataError(f"the runs predict different things: {kinds}. Compare runs with one kind of label.")
    if isinstance(baseline, ClassifierEvaluation):
        loss = ALLOWED_AUC_LOSS if allowed_loss is None else allowed_loss
        return compare_auc(before, after, **names, allowed_loss=loss), compare_slices(before, after)
    metrics = [measured.metric for measured in baseline.overall.measured]
    found = compare_scores(before, after, metrics[0], **names, allowed_loss=allowed_loss or 0.0)
    slices = compare_score_slices(before, after, metrics, weights_equal=names["weights_equal"])
    return found, slices


def _check_same_dataset(baseline: AnyEvaluation, candidate: AnyEvaluation, before: Any, after: Any) -> None:
    """Reject different datasets unless the rows are equal: row ids of two datasets may coincide by accident."""
    fingerprints = baseline.dataset_fingerprint, candidate.dataset_fingerprint
    if fingerprints[0] == fingerprints[1] or have_same_rows(before, after):
        return
    shown = " and ".join(
        f"{evaluation.run_id} dataset {evaluation.dataset_fingerprint[:12]}" for evaluation in (baseline, candidate)
    )
    raise DataError(
        f"they read different datasets: {shown}, and were not evaluated on the same rows. Train both on one "
        "dataset, or score both with one suite ('assay eval run')."
    )


def _prediction_kind(evaluation: AnyEvaluation) -> str:
    if isinstance(evaluation, ClassifierEvaluation):
        return "tells yes from no"
    if evaluation.overall.classes:
        return f"tells {len(evaluation.overall.classes)} classes apart"
    return "predicts a number" if evaluation.overall.fit is not None else "scores its rows"


ALLOWED_AUC_LOSS = 0.01


def compare_auc(
    baseline: Any,
    candidate: Any,
    *,
    baseline_run_id: str,
    candidate_run_id: str,
    weights_equal: bool,
    allowed_loss: float = ALLOWED_AUC_LOSS,
) -> AucComparison:
    """Compare two tables of predictions (see `read_predictions`) of the same rows.

    Raises `DataError` if their rows or labels differ, or if a class is missing.
    """
    names = f"{baseline_run_id} and {candidate_run_id}"
    require_same_rows(baseline, candidate, names)
    require_same_labels(baseline, candidate, names)
    before = scores_of(baseline, source=f"predictions of {baseline_run_id}")
    after = scores_of(candidate, source=f"predictions of {candidate_run_id}")
    difference = auc_difference(before, after)
    if difference is None:
        raise DataError(
            f"{names}: all {before.num_rows:,} rows have label {int(before.is_positive[0])}, "
            "so there is no AUC. Evaluate on a split that holds both classes."
        )
    if not (weights_equal or before.has_distinct_scores or after.has_distinct_scores):
        method = f"{difference.method}: undefined, both give every row the same score"
        difference = Estimate(value=difference.value, method=method)
    return AucComparison(
        baseline_run_id=baseline_run_id,
        candidate_run_id=candidate_run_id,
        num_rows=before.num_rows,
        baseline_auc=placements(before).auc,
        candidate_auc=placements(after).auc,
        difference=difference,
        allowed_loss=allowed_loss,
        verdict=verdict_of(difference, allowed_loss=allowed_loss),
        weights_equal=weights_equal,
    )


def compare_slices(baseline: Any, candidate: Any) -> tuple[SliceDifference, ...]:
    """Return the paired difference of AUC in each slice."""
    before = scores_of(baseline, source="baseline predictions")
    after = scores_of(candidate, source="candidate predictions")
    return slice_differences(
        baseline, lambda chosen: auc_difference(before.where(chosen), after.where(chosen)), scores=BINARY_COLUMNS
    )


NUM_BINS = 10


def class_scores(table: Any, names: Sequence[str]) -> tuple[ClassScore, ...]:
    """Return the scores of each class, from the columns `label` (a name) and `predicted` (an index into `names`)."""
    counts = confusion(table, names)
    true, predicted_counts, right = counts.sum(axis=1), counts.sum(axis=0), counts.diagonal()
    return tuple(
        ClassScore(
            name=name,
            num_rows=int(true[index]),
            predicted_as=tuple(counts[index].tolist()),
            precision=float(right[index] / predicted_counts[index]) if predicted_counts[index] else None,
            recall=float(right[index] / true[index]) if true[index] else None,
            f1=float(2 * right[index] / (true[index] + predicted_counts[index]))
            if true[index] + predicted_counts[index]
            else 0.0,
        )
        for index, name in enumerate(names)
    )


def confusion(table: Any, names: Sequence[str]) -> Int64[np.ndarray, "true predicted"]:
    """Count the rows of each class by predicted class."""
    class_indices = {name: index for index, name in enumerate(names)}
    labels = [str(int(label) if isinstance(label, bool) else label) for label in table[LABEL].to_pylist()]
    if unknown := next((label for label in labels if label not in class_indices), None):
        raise DataError(
            f"label {unknown!r} of a row is not among the classes {', '.join(names[:5])}. Evaluate the run again."
        )
    true = np.array([class_indices[label] for label in labels], np.int64)
    predicted = table["predicted"].to_numpy().astype(np.int64)
    counts = np.bincount(true * len(names) + predicted, minlength=len(names) ** 2)
    return counts.reshape(len(names), len(names)).astype(np.int64)


def number_fit(table: Any) -> NumberFit:
    """Compare the columns `label` and `prediction`."""
    labels, predictions = _numbers(table, LABEL), _numbers(table, "prediction")
    variance = float(labels.var())
    return NumberFit(
        label_mean=float(labels.mean()),
        label_deviation=variance**0.5,
        r_squared=1.0 - float(np.square(predictions - labels).mean()) / variance if variance > 0 else None,
        bias=float((predictions - labels).mean()),
        bins=_bins(predictions, labels),
    )


def _bins(predictions: Float64[np.ndarray, "row"], labels: Float64[np.ndarray, "row"]) -> tuple[NumberBin, ...]:
    order = np.argsort(predictions, kind="stable")
    return tuple(
        NumberBin(
            num_rows=rows.size, mean_predicted=float(predictions[rows].mean()), mean_label=float(labels[rows].mean())
        )
        for rows in np.array_split(order, NUM_BINS)
        if rows.size
    )


def _numbers(table: Any, name: str) -> Float64[np.ndarray, "row"]:
    return np.asarray(table[name].to_numpy(), np.float64)

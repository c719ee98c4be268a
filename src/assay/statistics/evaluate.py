"""Evaluate a file of predictions and compare two evaluations, for all kinds of predictions.

Callers do not need to know whether a method predicts classes, numbers or scores.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DataError
from assay.records.evaluation import AnyComparison, AnyEvaluation, ClassifierEvaluation, ScoreEvaluation
from assay.statistics.classifier.compare import ALLOWED_AUC_LOSS, compare_auc, compare_slices
from assay.statistics.classifier.metrics import classifier_metrics, slice_metrics
from assay.statistics.classifier.rows import scores_of
from assay.statistics.labels import class_scores, number_fit
from assay.statistics.mean_scores import compare_score_slices, compare_scores, score_metrics, score_slices
from assay.statistics.predictions import have_same_rows, predictions_of, read_predictions
from assay.statistics.verdict import SliceDifference
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

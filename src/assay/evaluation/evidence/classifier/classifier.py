"""What a classifier is worth on a split: the whole, and each slice of each metadata column.

Knows neither the model nor the data it scored: a file of predictions goes in, a record comes out.
"""

from pathlib import Path
from typing import Any

from assay.base.digest import sha256_of_bytes
from assay.evaluation.evidence.classifier.metrics import MIN_ROWS_TO_RANK, classifier_metrics
from assay.evaluation.evidence.classifier.predictions import SCORE_COLUMNS, read_predictions, scores_of
from assay.evaluation.evidence.classifier.rows import ScoredRows
from assay.evaluation.evidence.classifier.slices import slices_of
from assay.records.evaluation import ClassifierEvaluation, SliceMetrics


def evaluate_predictions(
    path: Path, *, run_id: str, step: int, weights_digest: str, dataset_fingerprint: str, split: str
) -> ClassifierEvaluation:
    """Measure a file of predictions. Errors: those of `read_predictions` and `scored_rows`."""
    table = read_predictions(path)
    rows = scores_of(table, source=str(path))
    return ClassifierEvaluation(
        run_id=run_id,
        step=step,
        weights_digest=weights_digest,
        dataset_fingerprint=dataset_fingerprint,
        split=split,
        overall=classifier_metrics(rows),
        slices=slice_metrics(table, rows),
        predictions_sha256=sha256_of_bytes(path.read_bytes()),
    )


def slice_metrics(table: Any, rows: ScoredRows) -> tuple[SliceMetrics, ...]:
    """Metrics of each slice of each column beside the scores. A small slice is listed without AUC and AP."""
    metadata = [name for name in table.column_names if name not in SCORE_COLUMNS]
    return tuple(
        SliceMetrics(
            column=each.column,
            value=each.value,
            metrics=classifier_metrics(rows.where(each.chosen), min_rows_to_rank=MIN_ROWS_TO_RANK),
        )
        for name in metadata
        for each in slices_of(name, table[name])
    )

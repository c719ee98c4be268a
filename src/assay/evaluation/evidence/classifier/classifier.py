"""What a classifier is worth on a split: the whole, and each slice of each metadata column.

Knows neither the model nor the data it scored: a table of predictions goes in, metrics come out.
"""

from typing import Any

from assay.evaluation.evidence.classifier.metrics import MIN_ROWS_TO_RANK, classifier_metrics
from assay.evaluation.evidence.classifier.predictions import SCORE_COLUMNS
from assay.evaluation.evidence.classifier.rows import ScoredRows
from assay.evaluation.evidence.slices import slices_of
from assay.records.evaluation import SliceMetrics


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

"""A classifier's labels and probabilities, out of the file of its predictions."""

from typing import Any

from assay.evaluation.evidence.classifier.rows import ScoredRows, scored_rows
from assay.evaluation.evidence.predictions import BINARY_COLUMNS, ROW_ID

SCORE_COLUMNS = (ROW_ID, *BINARY_COLUMNS)


def scores_of(table: Any, *, source: str) -> ScoredRows:
    """The checked labels and probabilities of a table of predictions."""
    return scored_rows(table["label"].to_numpy(), table["probability"].to_numpy(), source=source)

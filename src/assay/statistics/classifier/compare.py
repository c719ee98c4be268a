"""Compare two classifiers by AUC on the same rows, whole and by slice.

`verdict_of` holds the rule: a candidate may lose `allowed_loss` of AUC, by default one percentage point.
"""

from typing import Any

from assay.base.errors import DataError
from assay.records.evaluation import AucComparison, Estimate
from assay.statistics.classifier.auc import auc_difference, placements
from assay.statistics.classifier.rows import scores_of
from assay.statistics.predictions import BINARY_COLUMNS, require_same_labels, require_same_rows
from assay.statistics.slices import slice_differences
from assay.statistics.verdict import SliceDifference, verdict_of

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

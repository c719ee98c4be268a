"""Is the candidate as good as the baseline? Asked on the same rows, answered with an interval.

The rule: a candidate may lose `allowed_loss` of AUC (one percentage point). It passes if even the lower end
of the difference's interval is above that, fails if even the upper end is below, and is undecided in
between: more rows are needed, not another opinion.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.errors import DataError
from assay.evaluation.evidence.classifier.auc import auc_difference, placements
from assay.evaluation.evidence.classifier.metrics import MIN_ROWS_TO_RANK
from assay.evaluation.evidence.classifier.predictions import SCORE_COLUMNS, scores_of
from assay.evaluation.evidence.classifier.rows import ScoredRows
from assay.evaluation.evidence.classifier.slices import slices_of
from assay.records.evaluation import AucComparison, Estimate

ALLOWED_AUC_LOSS = 0.01

Verdict = Literal["pass", "fail", "undecided"]
Mask = npt.NDArray[np.bool_]


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

    Raises `DataError` if their rows or labels differ, or if a class is absent.
    """
    names = f"{baseline_run_id} and {candidate_run_id}"
    _require_same_rows(baseline, candidate, names)
    before = scores_of(baseline, source=f"predictions of {baseline_run_id}")
    after = scores_of(candidate, source=f"predictions of {candidate_run_id}")
    difference = auc_difference(before, after)
    if difference is None:
        raise DataError(
            f"{names}: all {before.num_rows} rows have label {int(before.is_positive[0])}, "
            "so there is no AUC. Evaluate on a split that holds both classes."
        )
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


class SliceDifference(NamedTuple):
    """Candidate minus baseline on the rows where one metadata column has one value."""

    column: str
    value: str
    num_rows: int
    difference: Estimate | None
    """None with fewer than 50 rows, or where a class is absent."""


def compare_slices(baseline: Any, candidate: Any) -> tuple[SliceDifference, ...]:
    """The paired difference of AUC in each slice of each metadata column, as the baseline's table has them.

    Not corrected for looking at many slices: with 95% intervals, one in twenty misses its truth.
    """
    before = scores_of(baseline, source="baseline predictions")
    after = scores_of(candidate, source="candidate predictions")
    metadata = [name for name in baseline.column_names if name not in SCORE_COLUMNS]
    return tuple(
        SliceDifference(each.column, each.value, num_rows, _difference(before, after, each.chosen))
        for name in metadata
        for each in slices_of(name, baseline[name])
        if (num_rows := int(np.count_nonzero(each.chosen)))
    )


def _difference(before: ScoredRows, after: ScoredRows, chosen: Mask) -> Estimate | None:
    if np.count_nonzero(chosen) < MIN_ROWS_TO_RANK:
        return None
    return auc_difference(before.where(chosen), after.where(chosen))


def verdict_of(difference: Estimate, *, allowed_loss: float) -> Verdict:
    """The rule above; `undecided` where the difference has no interval."""
    if difference.low is None or difference.high is None:
        return "undecided"
    if difference.low > -allowed_loss:
        return "pass"
    return "fail" if difference.high < -allowed_loss else "undecided"


def _require_same_rows(baseline: Any, candidate: Any, names: str) -> None:
    before, after = baseline["row_id"].to_numpy(), candidate["row_id"].to_numpy()
    if not np.array_equal(before, after):
        shared = np.intersect1d(before, after).size
        raise DataError(
            f"{names}: not evaluated on the same rows: {before.size - shared} rows are only in the first, "
            f"{after.size - shared} only in the second, {shared} in both. "
            "Evaluate both on one split of one dataset."
        )
    num_relabelled = int(np.count_nonzero(baseline["label"].to_numpy() != candidate["label"].to_numpy()))
    if num_relabelled:
        raise DataError(
            f"{names}: {num_relabelled} of {before.size} rows have different labels in the two files. "
            "The labels changed between the two evaluations; evaluate both anew."
        )

"""Non-inferiority of a candidate, from the interval of a paired difference.

The candidate may lose `allowed_loss`. It passes if the worse end of the interval loses less than that, and fails if
even the better end loses more. In between it is undecided: only more rows can settle it.
"""

from typing import Literal, NamedTuple

from assay.records.evaluation import Estimate

Verdict = Literal["pass", "fail", "undecided"]


def verdict_of(difference: Estimate, *, allowed_loss: float, higher_is_better: bool = True) -> Verdict:
    """Return the verdict on candidate minus baseline; `undecided` if the difference has no interval."""
    if difference.low is None or difference.high is None:
        return "undecided"
    ends = (difference.low, difference.high)
    worst, best = ends if higher_is_better else (-difference.high, -difference.low)
    if worst > -allowed_loss:
        return "pass"
    return "fail" if best < -allowed_loss else "undecided"


class SliceDifference(NamedTuple):
    """Candidate minus baseline on the rows where one metadata column has one value."""

    column: str
    value: str
    num_rows: int
    difference: Estimate | None
    """None with fewer than 50 rows, or if the slice has no score (an AUC with one class)."""

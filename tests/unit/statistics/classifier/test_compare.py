"""The one-point rule, on paired rows."""

import numpy as np
import pyarrow as pa
import pytest

from assay.base.errors import DataError
from assay.records.evaluation import Estimate
from assay.statistics.evaluate import compare_auc
from assay.statistics.verdict import verdict_of


def predictions(*, noise: float, num_rows: int = 4000, first_row: int = 0) -> pa.Table:
    rng = np.random.default_rng(0)
    labels = rng.random(num_rows) < 0.2
    signal = rng.normal(size=num_rows) + 1.5 * labels
    scores = signal + noise * rng.normal(size=num_rows)
    return pa.table(
        {
            "row_id": pa.array(np.arange(first_row, first_row + num_rows), pa.uint64()),
            "label": pa.array(labels.astype(np.int8)),
            "probability": pa.array(1 / (1 + np.exp(-scores))),
        }
    )


def compared(baseline: pa.Table, candidate: pa.Table, **options):
    return compare_auc(
        baseline, candidate, baseline_run_id="base", candidate_run_id="cand", weights_equal=False, **options
    )


def test_identical_predictions_differ_by_zero_and_pass():
    comparison = compared(predictions(noise=0), predictions(noise=0))
    assert (comparison.difference.value, comparison.difference.low, comparison.difference.high) == (0, 0, 0)
    assert comparison.verdict == "pass"


def test_two_models_that_tell_no_row_from_another_are_not_found_equally_good():
    dead = predictions(noise=0).set_column(2, "probability", pa.array(np.full(4000, 0.5)))
    comparison = compared(dead, dead)
    assert (comparison.difference.value, comparison.difference.low, comparison.difference.high) == (
        0,
        None,
        None,
    )
    assert comparison.verdict == "undecided" and "every row the same score" in comparison.difference.method
    assert compared(predictions(noise=0), dead).verdict == "fail"
    assert compared(dead, predictions(noise=0)).verdict == "pass"


def test_a_clearly_worse_candidate_fails_and_a_clearly_better_one_passes():
    good, bad = predictions(noise=0), predictions(noise=2.0)
    assert compared(good, bad).verdict == "fail"
    assert compared(bad, good).verdict == "pass"
    assert compared(good, bad).difference.value == pytest.approx(-compared(bad, good).difference.value)


def test_too_few_rows_leave_the_question_open():
    comparison = compared(predictions(noise=0, num_rows=80), predictions(noise=0.5, num_rows=80))
    assert comparison.verdict == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.009, 0.02, "pass"),
        (-0.02, -0.011, "fail"),
        (-0.02, 0.0, "undecided"),
        (-0.01, 0.0, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_the_verdict_follows_from_the_interval_alone(low, high, verdict):
    assert verdict_of(Estimate(value=0.0, low=low, high=high), allowed_loss=0.01) == verdict


def test_other_rows_are_refused_with_their_counts():
    with pytest.raises(DataError, match="100 rows only in the first, 100 only in the second, 3,900 in both"):
        compared(predictions(noise=0), predictions(noise=0, first_row=100))


def test_other_labels_are_refused():
    table = predictions(noise=0)
    flipped = table.set_column(1, "label", pa.array(1 - table["label"].to_numpy(), pa.int8()))
    with pytest.raises(DataError, match="4,000 of 4,000 rows have different labels"):
        compared(table, flipped)


def test_one_class_alone_can_not_be_compared():
    table = predictions(noise=0)
    only = table.set_column(1, "label", pa.array(np.zeros(table.num_rows), pa.int8()))
    with pytest.raises(DataError, match="all 4,000 rows have label 0"):
        compared(only, only)

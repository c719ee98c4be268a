"""Two runs on one screen: what is said of their data, and numbers that can be held against each other."""

import pytest

from assay.records.dataset_diff import DatasetDiff
from assay.reporting.documents.runs.run_diff import run_diff_document
from assay.reporting.terminal.document import print_document
from assay.reporting.views.runs.run_diff import DifferenceView, RunDiffView


def shown(capsys: pytest.CaptureFixture[str], **changes: object) -> str:
    found = RunDiffView(
        before="a", after="b", recipe=(), is_dataset_equal=True, dataset=None, environment=(),
        weights_equal=False, first_different_step=None, loss=(), outcome=(),
    )  # fmt: skip
    print_document(run_diff_document(found.model_copy(update=changes)))
    return " ".join(capsys.readouterr().out.split())


def test_both_values_of_a_metric_have_the_same_digits(capsys: pytest.CaptureFixture[str]) -> None:
    value = DifferenceView(name="value", before=0.918, after=0.87612)
    assert "value 0.9180 0.8761" in shown(capsys, outcome=(value,))


def test_a_shard_in_anothers_place_is_not_counted_twice(capsys: pytest.CaptureFixture[str]) -> None:
    data = DatasetDiff(
        before="1", after="2", is_equal=False, rows_before=50, rows_after=50, tokens_before=9, tokens_after=9,
        shards_added=("new.parquet",), shards_removed=("old.parquet",), shards_renamed=(), shards_changed=(),
        columns_added=(), columns_removed=(), columns_retyped=(), shifts=(), length_distance=0.0,
    )  # fmt: skip
    output = shown(capsys, is_dataset_equal=False, dataset=data)
    assert "50 rows then, 50 now; 1 shard gone, 1 shard new ('assay data diff' says how)" in output

"""What each metadata column tells of the label, beside plain loops; and of what nothing is said."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.data.dataset.label_leakage import Codes, label_leakage_of, right_by_value
from assay.reporting.views.warnings import warning_text
from assay.statistics.warnings import warnings_of_column

NUM_ROWS = 400
RNG = random.Random(3)
LABELS = sorted(RNG.choices([0, 1], [0.7, 0.3], k=NUM_ROWS))
"""Rows lie in the order of their labels, as files often do."""
COLUMNS: dict[str, pa.Array] = {
    "verdict": pa.array(["yes" if label else None for label in LABELS]),
    "score": pa.array([10.0 * label + RNG.random() for label in LABELS]),
    "noise": pa.array([RNG.random() for _ in LABELS]),
    "constant": pa.array([1.0] * NUM_ROWS),
    "id": pa.array([f"row {row}" for row in range(NUM_ROWS)]),
    "likely": pa.array(["a" if (RNG.random() < 0.9) == bool(label) else "b" for label in LABELS]),
    "is_one": pa.array([bool(label) for label in LABELS]),
}


def brute_force_correct(labels: list[int], values: list[Any]) -> int:
    right = 0
    for row, (label, value) in enumerate(zip(labels, values, strict=True)):
        pairs = enumerate(zip(labels, values, strict=True))
        others = Counter(label for index, (label, its) in pairs if index != row and its == value)
        most = max(others.values(), default=0)
        right += [name for name, count in others.items() if count == most] == [label]
    return right


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40))
def test_a_row_is_right_where_most_others_of_its_value_have_its_label(rows: list[tuple[int, int]]) -> None:
    labels, values = ([*column] for column in zip(*rows, strict=True))
    as_codes = [pa.array(column).to_numpy().astype("int64") for column in (labels, values)]
    codes: list[Codes] = as_codes
    assert right_by_value(*codes) == brute_force_correct(labels, values)


@pytest.fixture
def dataset(tmp_path: Path, write_shard: Any) -> Dataset:
    write_shard("a", NUM_ROWS, label=pa.array(LABELS, pa.int8()), attention_mask=None, **COLUMNS)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    return Dataset.open(tmp_path / "dataset")


def test_columns_that_tell_the_label_are_warned_of_and_no_others(dataset: Dataset) -> None:
    by_column = label_leakage_of(dataset, [*COLUMNS, "input_ids"])
    assert by_column.keys() == COLUMNS.keys(), "lists of tokens are no values"
    assert {num_majority for _, num_majority in by_column.values()} == {LABELS.count(0)}
    correct = {name: num_correct for name, (num_correct, _) in by_column.items()}
    assert correct["verdict"] == correct["is_one"] == NUM_ROWS and correct["id"] == 0
    assert correct["likely"] == brute_force_correct(LABELS, COLUMNS["likely"].to_pylist())
    assert correct["score"] == NUM_ROWS - 2, "the first row of each label has none of it before it"
    warned = {
        name
        for name, (num_correct, num_majority) in by_column.items()
        if warnings_of_column(name, num_correct=num_correct, num_majority=num_majority, num_rows=NUM_ROWS)
    }
    assert warned == {"verdict", "score", "is_one"}


def test_what_is_no_class_is_told_by_nothing(tmp_path: Path, write_shard: Any) -> None:
    labels = pa.array([row / 7 for row in range(NUM_ROWS)])
    write_shard("a", NUM_ROWS, label=labels, attention_mask=None, **COLUMNS)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    assert label_leakage_of(Dataset.open(tmp_path / "dataset"), [*COLUMNS]) == {}


def test_a_few_rows_of_another_class_are_told_by_nothing() -> None:
    assert not warnings_of_column("c", num_correct=1000, num_majority=981, num_rows=1000)
    (found,) = warnings_of_column("c", num_correct=1000, num_majority=980, num_rows=1000)
    assert (
        "column 'c' alone predicts the label of 100% of the rows, where the most common class has 98%"
        in warning_text(found)
    )
    assert warnings_of_column("c", num_correct=980, num_majority=0, num_rows=1000)
    assert not warnings_of_column("c", num_correct=979, num_majority=0, num_rows=1000)

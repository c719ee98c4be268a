from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.dataset.dataset import Dataset
from assay.data.dataset.diff import _length_distance, diff_datasets
from assay.data.dataset.index import index_dataset
from assay.data.dataset.profile import length_profile


def opened(tmp_path: Path, name: str) -> Dataset:
    index_dataset(str(tmp_path / "source"), tmp_path / name)
    return Dataset.open(tmp_path / name)


@pytest.fixture
def before(tmp_path: Path, write_shard) -> Dataset:
    write_shard("a", 60, seed=1)
    write_shard("b", 60, seed=2)
    return opened(tmp_path, "before")


def test_a_dataset_does_not_differ_from_itself(tmp_path: Path, before: Dataset) -> None:
    found = diff_datasets(before, opened(tmp_path, "again"))
    assert found.is_equal
    assert not (found.shards_added or found.shards_removed or found.shards_changed or found.shifts)
    assert found.length_distance == 0


def test_a_label_that_was_corrected_shows_as_that(tmp_path: Path, before: Dataset) -> None:
    path = tmp_path / "source" / "b.parquet"
    table = pq.read_table(path)
    labels = table["label"].to_numpy().copy()
    labels[20] = 1 - labels[20]
    table = table.set_column(table.schema.get_field_index("label"), "label", pa.array(labels))
    pq.write_table(table, path, row_group_size=16)
    (changed,) = diff_datasets(before, opened(tmp_path, "after")).shards_changed
    assert (changed.path, changed.columns, changed.num_row_groups) == ("b.parquet", ("label",), 1)


def test_shards_that_come_go_and_move_are_told_apart(tmp_path: Path, before: Dataset, write_shard) -> None:
    source = tmp_path / "source"
    (source / "a.parquet").rename(source / "moved.parquet")
    (source / "b.parquet").unlink()
    write_shard("new", 10, seed=9)
    found = diff_datasets(before, opened(tmp_path, "after"))
    assert found.shards_renamed == (("a.parquet", "moved.parquet"),)
    assert (found.shards_added, found.shards_removed) == (("new.parquet",), ("b.parquet",))
    assert (found.rows_before, found.rows_after) == (120, 70)


def test_columns_and_shifts_are_named(tmp_path: Path, before: Dataset, write_shard) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write_shard(
            name,
            60,
            seed=seed,
            shard_id=None,
            extra=pa.array([1] * 60),
            prompt_length=pa.array([100.0] * 60),
            language=pa.array(["en"] * 60),
        )
    found = diff_datasets(before, opened(tmp_path, "after"))
    assert (found.columns_added, found.columns_removed) == (("extra",), ("shard_id",))
    assert found.columns_retyped == (("prompt_length", "int64", "double"),)
    shifts = {shift.name: (shift.before, shift.after) for shift in found.shifts}
    assert shifts["language: missing"] == (pytest.approx(1 / 3), 0)
    assert shifts["language=en"] == (pytest.approx(1 / 3), 1)
    assert shifts["prompt_length: mean"][1] == 100
    assert not any(name.startswith(("label", "tokens")) for name in shifts)
    assert found.shards_changed[0].columns == ("extra", "language", "prompt_length", "shard_id")


def test_rows_are_told_by_their_tokens_wherever_they_stand(tmp_path: Path, write_shard) -> None:
    def write(rows: list[list[int]], labels: list[int], value_type: pa.DataType) -> Dataset:
        tokens = pa.array(rows, pa.list_(value_type))
        write_shard("a", len(rows), input_ids=tokens, label=pa.array(labels), attention_mask=None)
        folder = (tmp_path / "source").rename(tmp_path / f"{value_type}")
        index_dataset(str(folder), folder)
        return Dataset.open(folder)

    before = write([[1], [2, 3], [4], [4], [5]], [0, 0, 1, 0, 1], pa.int32())
    after = write([[4], [2, 3], [6], [7, 7], [1], [4]], [1, 1, 0, 0, 0, 1], pa.int64())
    rows = diff_datasets(before, after, by_row=True).rows
    assert rows is not None
    assert (rows.num_added, rows.num_removed, rows.num_relabelled) == (2, 1, 2)


def test_a_shard_with_other_rows_shows_its_rows(tmp_path: Path, before: Dataset, write_shard) -> None:
    write_shard("b", 61, seed=2)
    (changed,) = diff_datasets(before, opened(tmp_path, "after")).shards_changed
    assert (changed.rows_before, changed.rows_after, changed.columns) == (60, 61, ())


LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=50)


@given(one=LENGTHS, other=LENGTHS)
def test_the_length_distance_is_a_share_symmetric_and_zero_for_equals(one: list[int], other: list[int]) -> None:
    first, second = (length_profile(np.bincount(lengths)) for lengths in (one, other))
    distance = _length_distance(first, second)
    assert -1e-9 <= distance <= 1 + 1e-9
    assert distance == pytest.approx(_length_distance(second, first))
    assert _length_distance(first, first) == 0
    if max(one) * 2 < min(other):
        assert distance > 0.3

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError, DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.data.dataset.split import ColumnSplit, HashSplit, TimeSplit, split_view


@pytest.fixture
def dataset(tmp_path: Path, write_shard) -> Dataset:
    for name in "abc":
        write_shard(name, 80, seed=ord(name))
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    return Dataset.open(tmp_path / "dataset")


def values(view, column: str) -> list:
    return [v for group in range(len(view.num_rows)) for v in view.read(group, [column])[column].to_pylist()]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), fraction=st.floats(0.2, 0.8))
def test_no_key_is_on_both_sides_and_every_row_is_on_one(dataset: Dataset, seed: int, fraction: float) -> None:
    config = HashSplit(seed=seed, validation_fraction=fraction)
    try:
        train, held_out = split_view(dataset, config, "train"), split_view(dataset, config, "validation")
    except ConfigError:  # 20 keys fall on one side once in a hundred seeds, which is refused
        assume(False)
    assert not set(values(train, "shard_id")) & set(values(held_out, "shard_id"))
    ids = [view.row_ids(group) for view in (train, held_out) for group in range(len(view.num_rows))]
    np.testing.assert_array_equal(np.sort(np.concatenate(ids)), np.arange(240))
    assert train.fingerprint != held_out.fingerprint


def test_the_future_is_held_out(dataset: Dataset) -> None:
    border = datetime(2026, 1, 3, tzinfo=UTC)
    config = TimeSplit(type="time", validation_from=border)
    assert max(values(split_view(dataset, config, "train"), "created_at")) < border
    assert min(values(split_view(dataset, config, "validation"), "created_at")) >= border


def test_what_a_column_says_is_held_out_is_and_nothing_else(dataset: Dataset) -> None:
    config = ColumnSplit(type="column", column="language", validation=("de",))
    train, held_out = split_view(dataset, config, "train"), split_view(dataset, config, "validation")
    assert set(values(held_out, "language")) == {"de"}
    assert set(values(train, "language")) == {"en", None}  # a row without a value is trained on
    assert len(values(train, "label")) + len(values(held_out, "label")) == 240
    everything = ColumnSplit(type="column", column="label", validation=("0", "1"))
    with pytest.raises(ConfigError, match="Choose another column or values"):
        split_view(dataset, everything, "train")


def test_a_column_of_truths_splits_by_the_word(tmp_path: Path, write_shard) -> None:
    write_shard("a", 6, held_out=pa.array([True, False, None, True, False, False]))
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    config = ColumnSplit(type="column", column="held_out", validation=("true",))
    view = split_view(Dataset.open(tmp_path / "dataset"), config, "validation")
    assert view.row_ids(0).tolist() == [0, 3]


def test_a_split_is_read_from_its_cache_and_is_the_same(dataset: Dataset) -> None:
    config = HashSplit(validation_fraction=0.3)
    first = split_view(dataset, config, "train")
    assert list((dataset.folder / "splits").glob("*.bits"))
    dataset.read_row_group = None  # type: ignore[assignment,method-assign]
    again = split_view(dataset, config, "train")
    np.testing.assert_array_equal(first.num_rows, again.num_rows)


def test_a_split_with_an_empty_side_or_an_unknown_column_is_refused(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="none of the 240 rows"):
        split_view(dataset, TimeSplit(type="time", validation_from=datetime(2030, 1, 1)), "train")
    with pytest.raises(ConfigError, match=r"'day' is not in dataset.*shard_id"):
        split_view(dataset, HashSplit(column="day"), "train")


def test_a_row_without_a_time_is_on_no_side(tmp_path: Path, write_shard) -> None:
    write_shard("a", 2, created_at=pa.array([None, None], pa.timestamp("us", "UTC")))
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    with pytest.raises(DataError, match="null in 2 rows"):
        split_view(
            Dataset.open(tmp_path / "dataset"),
            TimeSplit(type="time", validation_from=datetime(2026, 1, 1)),
            "train",
        )


@pytest.mark.parametrize(
    "moments",
    [
        pa.array(["2026-01-01T10:00:00Z", "2026-01-02T01:30:00+02:00", "2026-01-02T00:00:00+00:00"]),
        pa.array(["2026-01-01", "2026-01-01T23:59:59", "2026-01-02"], pa.large_string()),
        pa.array([datetime(2026, 1, 1, 10), datetime(2026, 1, 1, 23), datetime(2026, 1, 2)], pa.timestamp("ns")),
        pa.array([datetime(2026, 1, 1), datetime(2026, 1, 1), datetime(2026, 1, 2)], pa.date32()),
        pa.array(
            [
                datetime(2026, 1, 1, 10, tzinfo=UTC),
                datetime(2026, 1, 1, 23, tzinfo=UTC),
                datetime(2026, 1, 2, tzinfo=UTC),
            ],
            pa.timestamp("ms", "Asia/Tokyo"),
        ),
    ],
)
def test_a_time_is_the_same_moment_in_every_spelling(tmp_path: Path, write_shard, moments: pa.Array) -> None:
    write_shard("a", 3, created_at=moments)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    config = TimeSplit(type="time", validation_from=datetime(2026, 1, 2))
    view = split_view(Dataset.open(tmp_path / "dataset"), config, "validation")
    assert view.row_ids(0).tolist() == [2]


@pytest.mark.parametrize("moments", [pa.array(["noon"] * 3), pa.array([1, 2, 3]), pa.array([1.0, 2.0, 3.0])])
def test_what_is_no_time_is_refused(tmp_path: Path, write_shard, moments: pa.Array) -> None:
    write_shard("a", 3, created_at=moments)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    config = TimeSplit(type="time", validation_from=datetime(2026, 1, 2))
    with pytest.raises(DataError, match=r"a.parquet: column 'created_at' has type.*Expected times, dates or ISO"):
        split_view(Dataset.open(tmp_path / "dataset"), config, "train")


@pytest.mark.parametrize(
    "keys", [pa.array([1, 2, None] * 20), pa.array([b"x", b"y", None] * 20), pa.array([1.5, None] * 30)]
)
def test_a_key_may_be_a_number_or_missing(tmp_path: Path, write_shard, keys: pa.Array) -> None:
    write_shard("a", 60, key=keys)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    dataset = Dataset.open(tmp_path / "dataset")
    sides = []
    for seed in range(8):
        try:
            sides.append(split_view(dataset, HashSplit(column="key", validation_fraction=0.5, seed=seed), "train"))
        except ConfigError:
            continue  # all keys fell on one side
    assert sides
    for view in sides:
        held_out = {*keys.to_pylist()} - {*values(view, "key")}
        assert held_out
        assert sum(view.num_rows) == sum(key not in held_out for key in keys.to_pylist())


def test_a_cache_that_was_cut_short_is_computed_anew(dataset: Dataset) -> None:
    config = HashSplit(validation_fraction=0.3)
    first = split_view(dataset, config, "train")
    (cache,) = (dataset.folder / "splits").glob("*.bits")
    for size in (50, 32, 10, 0):
        cache.write_bytes(cache.read_bytes()[:size])
        np.testing.assert_array_equal(split_view(dataset, config, "train").num_rows, first.num_rows)


@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_a_cache_changes_no_side(dataset: Dataset) -> None:
    config = HashSplit(validation_fraction=0.3)
    first = split_view(dataset, config, "train")
    (cache,) = (dataset.folder / "splits").glob("*.bits")
    whole = cache.read_bytes()
    for index in range(len(whole)):
        cache.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        flipped = split_view(dataset, config, "train")
        np.testing.assert_array_equal(np.concatenate(flipped.selection), np.concatenate(first.selection))


def test_a_cache_of_another_split_is_not_believed(dataset: Dataset) -> None:
    config, other = HashSplit(validation_fraction=0.3), HashSplit(validation_fraction=0.3, seed=1)
    first, second = (np.concatenate(split_view(dataset, split, "train").selection) for split in (config, other))
    assert (first != second).any()
    one, two = (dataset.folder / "splits").glob("*.bits")
    one.write_bytes(two.read_bytes())
    for split, expected in ((config, first), (other, second)):
        np.testing.assert_array_equal(np.concatenate(split_view(dataset, split, "train").selection), expected)

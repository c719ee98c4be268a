from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError, DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.data.dataset.split import HashSplit, TimeSplit, split_view


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
    train, held_out = split_view(dataset, config, "train"), split_view(dataset, config, "validation")
    assert not set(values(train, "shard_id")) & set(values(held_out, "shard_id"))
    ids = [view.row_ids(group) for view in (train, held_out) for group in range(len(view.num_rows))]
    np.testing.assert_array_equal(np.sort(np.concatenate(ids)), np.arange(240))
    assert train.fingerprint != held_out.fingerprint


def test_the_future_is_held_out(dataset: Dataset) -> None:
    border = datetime(2026, 1, 3, tzinfo=UTC)
    config = TimeSplit(type="time", validation_from=border)
    assert max(values(split_view(dataset, config, "train"), "created_at")) < border
    assert min(values(split_view(dataset, config, "validation"), "created_at")) >= border


def test_a_split_is_read_from_its_cache_and_is_the_same(dataset: Dataset) -> None:
    config = HashSplit(validation_fraction=0.3)
    first = split_view(dataset, config, "train")
    assert list((dataset.folder / "splits").glob("*.npy"))
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

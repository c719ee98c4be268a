"""What a window takes from a row group: whole numbers within 32 bits, read once however many lanes share it."""

import numpy as np
import pyarrow as pa
import pytest

from assay.base.errors import DataError
from assay.data.loader.config import BucketedLayout, LoaderConfig, PaddedLayout
from assay.data.loader.layouts import _sortable
from assay.data.loader.loader import Loader
from assay.data.loader.order import Span
from assay.data.loader.windows import SharedGroups, _lists


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint32()])
def test_numbers_of_a_list_are_within_32_bits_or_refused(kind) -> None:
    least, most = (0, 2**31 - 1) if kind == pa.uint32() else (-(2**31), 2**31 - 1)
    lists = _lists(pa.chunked_array([[[least, 7], [], [most]]], pa.list_(kind)))
    assert lists.values.tolist() == [least, 7, most] and lists.values.dtype == np.int32
    assert lists.offsets.tolist() == [0, 2, 2, 3]
    with pytest.raises(DataError, match=f"holds {most + 1}, which exceeds 32 bits"):
        _lists(pa.chunked_array([[[3], [most + 1]]], pa.list_(kind)))


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
@pytest.mark.parametrize("lists", [[], [[], []], [[7]], [[7], [7, 7]]], ids=str)
def test_lists_without_numbers_or_of_one_number_are_taken(kind, lists) -> None:
    found = _lists(pa.chunked_array([lists], pa.list_(kind)))
    assert found.values.tolist() == [number for numbers in lists for number in numbers]
    assert np.diff(found.offsets).tolist() == [len(numbers) for numbers in lists] and found.offsets[0] == 0


def test_lists_are_cut_out_of_a_row_group_with_their_own_numbers() -> None:
    whole = pa.chunked_array([[[1, 2], [3], [], [4, 5, 6], [7]]], pa.list_(pa.int64()))
    found = _lists(whole.slice(1, 3))
    assert (found.values.tolist(), found.offsets.tolist()) == ([3, 4, 5, 6], [0, 1, 1, 4])


def test_a_number_below_32_bits_is_named() -> None:
    with pytest.raises(DataError, match=f"holds {-(2**31) - 1}, which exceeds"):
        _lists(pa.chunked_array([[[5], [-(2**31) - 1]]], pa.list_(pa.int64())))


@pytest.mark.parametrize("lists", [[[1, 2], None], [[1, None], [2]], [[1, None], None]], ids=str)
def test_a_list_that_is_missing_or_misses_a_number_is_refused(lists) -> None:
    with pytest.raises(DataError, match=r"has [12] nulls"):
        _lists(pa.chunked_array([lists], pa.list_(pa.int32())))


def test_the_least_that_fits_is_not_blamed_for_what_is_beyond() -> None:
    with pytest.raises(DataError, match=f"holds {2**31}, which exceeds"):
        _lists(pa.chunked_array([[[-(2**31)], [2**31]]], pa.list_(pa.int64())))


def test_lengths_beyond_16_bits_keep_their_order() -> None:
    lengths = np.array([70_000, 3, 65_536, 65_535], np.int32)
    assert np.argsort(_sortable(lengths), kind="stable").tolist() == [1, 3, 2, 0]
    assert _sortable(lengths[[1, 3]]).dtype == np.uint16


def test_lengths_with_jitter_are_sorted_by_their_fractions() -> None:
    assert np.argsort(_sortable(np.array([1.75, 1.5, 1.25])), kind="stable").tolist() == [2, 1, 0]


def test_a_group_that_somebody_holds_is_not_read_again(fake_source) -> None:
    source = fake_source([20])
    groups = SharedGroups(source, ("label",), quarantines=False)
    held = groups.read(0)
    assert groups.read(0) is held and source.reads[0] == 1
    del held
    groups.read(0)
    assert source.reads[0] == 2


def test_a_skipped_group_is_not_read_and_says_why_it_is_missing(fake_source) -> None:
    source = fake_source([3, 4])
    config = LoaderConfig(lanes=1, global_batch_size=1, threads=1)
    reader = Loader(source, config, ("label",)).lane_windows([0])[0]
    rows = reader.read_spans([Span(0, 1, 3), Span(1, 0, 4)], skipped={1})
    assert rows.row_ids.tolist() == [1, 2, 3, 4, 5, 6] and rows.present.tolist() == [True] * 2 + [False] * 4
    assert rows.lengths.tolist() == [source.length_of(1), source.length_of(2), 0, 0, 0, 0]
    assert rows.columns["label"].to_pylist() == [1, 0] and source.reads == {0: 1}
    assert [(item.row_group, item.shard, item.num_rows, item.reason) for item in rows.quarantined] == [
        (1, "shard-1.parquet", 4, "it was damaged when its window was first read")
    ]


def test_the_rows_of_a_step_are_told_without_reading_where_lengths_do_not_matter(fake_source) -> None:
    source = fake_source([9, 14, 6])
    config = LoaderConfig(lanes=2, global_batch_size=8, window_rows=8, threads=1, layout=PaddedLayout())
    loader = Loader(source, config, ())
    rows = loader.rows_of_steps(0, 1, 0)
    assert rows is not None and not source.reads
    assert np.sort(np.concatenate(rows)).tolist() == np.sort(loader.rows_of_window(0, 1, 0)).tolist()
    by_length = config.model_copy(update={"layout": BucketedLayout()})
    assert Loader(source, by_length, ()).rows_of_steps(0, 1, 0) is None

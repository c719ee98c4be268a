import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.loader.batch import LaneShare, MicroBatch, Packing, Ragged

row_lists = st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=6)


def ragged(rows):
    values = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for line, row in zip(values, rows, strict=True):
        line[: len(row)] = row
    return Ragged(values, np.array([len(row) for row in rows], np.int32))


def batch_of(rows, packing=None):
    ids = np.arange(len(rows), dtype=np.uint64) + np.uint64(100)
    columns = {"label": pa.array([len(row) % 2 for row in rows])}
    return MicroBatch(ids, {"input_ids": ragged(rows), "spans": ragged(rows[::-1])}, columns, packing)


@settings(deadline=None)
@given(row_lists)
def test_a_mask_holds_what_a_row_holds_and_padding_is_the_rest(rows):
    column = ragged(rows)
    lists = [line[inside].tolist() for line, inside in zip(column.values, column.mask(), strict=True)]
    assert lists == rows
    assert column.is_padded == (len({len(row) for row in rows}) > 1)


@settings(deadline=None)
@given(row_lists, st.data())
def test_taken_rows_keep_what_is_theirs_and_their_width(rows, data):
    batch = batch_of(rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
    selected = batch.take(chosen)
    assert selected.row_ids.tolist() == [100 + row for row in chosen]
    assert selected.columns["label"].to_pylist() == [len(rows[row]) % 2 for row in chosen]
    for name, column in batch.ragged.items():
        np.testing.assert_array_equal(selected.ragged[name].values, column.values[chosen])
        np.testing.assert_array_equal(selected.ragged[name].lengths, column.lengths[chosen])
    assert selected.packing is None


@pytest.mark.parametrize("chosen", [[], [0], [2, 1], [3, 0, 1, 2]])
def test_packed_rows_are_taken_apart_as_wide_as_the_longest_of_them(chosen) -> None:
    """Two sequences: rows of 2 and 3 tokens, and of 1 and 2 with two places of padding."""
    rows = [[11, 12], [21, 22, 23], [31], [41, 42]]
    packing = Packing(
        position_ids=np.array([[0, 1, 0, 1, 2], [0, 0, 1, 0, 0]], np.int32),
        segment_ids=np.array([[1, 1, 2, 2, 2], [1, 2, 2, 0, 0]], np.int32),
        cu_seqlens=np.array([0, 2, 5, 6, 8], np.int32),
    )
    lines = np.array([[11, 12, 21, 22, 23], [31, 41, 42, 0, 0]])
    batch = MicroBatch(
        np.arange(4, dtype=np.uint64),
        {"input_ids": Ragged(lines, np.array([2, 3, 1, 2], np.int32))},
        {"label": pa.array([0, 1, 2, 3])},
        packing,
    )
    selected = batch.take(chosen)
    width = max((len(rows[row]) for row in chosen), default=0)
    assert selected.tokens.values.shape == (len(chosen), width)
    assert selected.tokens.values.tolist() == [rows[row] + [0] * (width - len(rows[row])) for row in chosen]
    assert selected.tokens.lengths.tolist() == [len(rows[row]) for row in chosen]
    assert selected.columns["label"].to_pylist() == selected.row_ids.tolist() == chosen and selected.packing is None


def test_each_row_says_in_which_line_it_begins_and_where() -> None:
    """Rows of 1, 3 and 2 tokens: each in a line of its own, or packed, the first two before some padding."""
    lines, starts = batch_of([[7], [1, 2, 3], [8, 9]]).row_starts()
    assert (lines.tolist(), starts.tolist()) == ([0, 1, 2], [0, 0, 0])
    packing = Packing(
        position_ids=np.array([[0, 0, 1, 2, 0, 0], [0, 1, 0, 0, 0, 0]], np.int32),
        segment_ids=np.array([[1, 2, 2, 2, 0, 0], [1, 1, 0, 0, 0, 0]], np.int32),
        cu_seqlens=np.array([0, 1, 4, 6], np.int32),
    )
    lines, starts = batch_of([[7], [1, 2, 3], [8, 9]], packing).row_starts()
    assert (lines.tolist(), starts.tolist()) == ([0, 0, 1], [0, 1, 0])


@settings(deadline=None)
@given(st.lists(row_lists, max_size=3))
def test_a_lane_counts_the_rows_and_tokens_of_its_micro_batches(batches):
    lane = LaneShare(3, tuple(map(batch_of, batches)))
    assert lane.num_rows == sum(map(len, batches))
    assert lane.num_tokens == sum(len(row) for rows in batches for row in rows)
    assert [batch.num_tokens for batch in lane.micro_batches] == [sum(map(len, rows)) for rows in batches]
    assert lane.quarantined == ()

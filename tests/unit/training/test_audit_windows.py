"""Receipts of a lane's window are found as by masking all receipts, which is what they were found by."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.training.audit import _Receipts

ENTRIES = st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 5), st.integers(0, 3), st.integers(0, 2**64 - 1)))


@given(ENTRIES, st.integers(-1, 5), st.integers(-1, 10), st.integers(0, 10))
def test_a_stretch_of_a_lane_has_the_receipts_that_a_mask_over_all_would_give(
    entries: list[tuple[int, int, int, int]], lane: int, after: int, length: int
) -> None:
    columns = zip(*entries, strict=True) if entries else [[]] * 4
    kinds = (np.int64, np.int32, np.int32, np.uint64)
    receipts = _Receipts(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
    inside = (receipts.lane == lane) & (receipts.step > after) & (receipts.step <= after + length)
    found = receipts.ordered().between(lane, after, after + length)
    masked = _Receipts(*(column[inside] for column in receipts))
    assert sorted(zip(*map(np.ndarray.tolist, found), strict=True)) == sorted(
        zip(*map(np.ndarray.tolist, masked), strict=True)
    )

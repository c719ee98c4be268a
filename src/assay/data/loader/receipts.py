"""Receipts: an order-independent digest of the rows that were trained on, compared with the expected rows.

A receipt is a row count and the sum of the rows' hashes modulo 2^64. Receipts can be added, and a wrong set of
rows matches by accident with probability 2^-64.

The hash has no key, so somebody who controls the run or its log could choose changes that cancel out within one
lane's window. Receipts detect machine failures and mistakes, not forgery. Committed receipts cannot change
unnoticed, because the log entry holds the digest of their file.
"""

from typing import NamedTuple

import numpy as np

from assay.base.seeds import mix64, unmix64
from assay.base.shapes import UInt64

MAX_ROW_ID = np.uint64(2**40)
"""Upper bound of row ids; a larger number is not a row id."""


class Receipt(NamedTuple):
    """The count and hash sum of a set of rows."""

    num_rows: int
    digest: int

    def plus(self, other: "Receipt") -> "Receipt":
        return Receipt(self.num_rows + other.num_rows, (self.digest + other.digest) % 2**64)


NO_ROWS = Receipt(0, 0)


def receipt(row_ids: UInt64[np.ndarray, "row"]) -> Receipt:
    """Return the receipt of rows; a row that occurs twice counts twice."""
    return Receipt(len(row_ids), int(mix64(row_ids).sum(dtype=np.uint64)))


class Difference(NamedTuple):
    """How the rows that were trained on differ from the expected rows, as far as receipts tell."""

    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    """Rows trained on twice, or rows of another window."""
    is_certain: bool
    """False if the rows could not be identified; `missing` then holds all expected rows."""


def explain(expected_rows: UInt64[np.ndarray, "row"], trained: Receipt) -> Difference:
    """Identify the rows whose hashes explain the difference between the digests.

    Exact for one or two missing rows, one extra row (the hash can be inverted), and one row replaced by another.
    Any other difference is reported as uncertain.
    """
    expected = receipt(expected_rows)
    if trained == expected:
        return Difference((), (), is_certain=True)
    lost = np.array([(expected.digest - trained.digest) % 2**64], np.uint64)
    match expected.num_rows - trained.num_rows:
        case 1:
            found = _within(unmix64(lost), expected_rows)
            certain = Difference(tuple(found), (), is_certain=True)
        case -1:
            found = [int(row) for row in unmix64(np.uint64(0) - lost) if row <= MAX_ROW_ID]
            certain = Difference((), tuple(found), is_certain=True)
        case 2:
            found = _within(unmix64(lost - mix64(expected_rows)), expected_rows)
            certain = Difference(tuple(sorted(found)), (), is_certain=len(found) == 2)
        case 0:
            strangers = unmix64(mix64(expected_rows) - lost)
            found = [int(row) for row in expected_rows[strangers <= MAX_ROW_ID]]
            repeated = [int(row) for row in strangers[strangers <= MAX_ROW_ID]]
            certain = Difference(tuple(found), tuple(repeated), is_certain=len(found) == 1)
        case _:
            found = []
    if found and certain.is_certain:
        return certain
    return Difference(tuple(int(row) for row in expected_rows), (), is_certain=False)


def _within(rows: UInt64[np.ndarray, "_"], expected_rows: UInt64[np.ndarray, "row"]) -> list[int]:
    return [int(row) for row in rows[np.isin(rows, expected_rows)]]

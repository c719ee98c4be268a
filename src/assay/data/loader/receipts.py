"""Receipts: what was really learned, in eight bytes; and what ought to have been.

A receipt is a row count and the sum modulo 2^64 of the rows' hashes. It does not depend on the order of the
rows, receipts add up, and a wrong set of rows passes by accident with probability 2^-64.

By accident: the hash has no key, so who trains the run, or rewrites its log, could choose changes that cancel
inside one lane's window. A receipt is proof against machines and mistakes, not against its own writer. What
was committed is kept from changing afterwards by the digest of its file, which the entry in the log names.
"""

from typing import NamedTuple

import numpy as np

from assay.base.seeds import mix64, unmix64
from assay.base.shapes import UInt64

MAX_ROW_ID = np.uint64(2**40)
"""No dataset has so many rows; a number above it is no row's id."""


class Receipt(NamedTuple):
    """The receipt of some rows."""

    num_rows: int
    digest: int

    def plus(self, other: "Receipt") -> "Receipt":
        """The receipt of both sets of rows."""
        return Receipt(self.num_rows + other.num_rows, (self.digest + other.digest) % 2**64)


NO_ROWS = Receipt(0, 0)


def receipt(row_ids: UInt64[np.ndarray, "row"]) -> Receipt:
    """The receipt of these rows; a row that stands twice counts twice."""
    return Receipt(len(row_ids), int(mix64(row_ids).sum(dtype=np.uint64)))


class Difference(NamedTuple):
    """What receipts say about a set of rows that was not learned as it should."""

    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    """Learned once too often, or rows of another set that were learned here."""
    is_certain: bool
    """False: the rows could not be told apart; `missing` then holds all that were expected."""


def explain(expected_rows: UInt64[np.ndarray, "row"], trained: Receipt) -> Difference:
    """Name the rows whose hashes make up the difference of the digests.

    Exact for one or two rows missing, one row too many (whichever it is: a hash can be inverted), and one row
    in the place of another. Of anything else it is said that these rows are in doubt.
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

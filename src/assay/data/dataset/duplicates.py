"""Finds duplicate texts among the rows of all spans, in bounded memory.

    digests of a span --> parts, by the first bits of the text's digest --> one part after the other: duplicates

A text that is both trained on and held out leaks. Texts are compared by 64-bit digests. Rows with one text are in one
part, so each part is searched alone. Small parts stay in memory; larger ones are temporary files ($TMPDIR), 32 bytes
per row. Memory then holds one byte per row (whether it is dropped), and one part.
"""

from collections.abc import Collection
from tempfile import SpooledTemporaryFile, gettempdir
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from assay.base.errors import StoreError
from assay.base.seeds import Keys

NUM_PARTS_BITS = 6
IN_MEMORY_BYTES = 2 << 20
"""Largest part that stays in memory."""
_RECORD = np.dtype([("text", np.uint64), ("label", np.uint64), ("key", np.uint64), ("row", np.int64)])
_Bools = npt.NDArray[np.bool_]


class RowDigests(NamedTuple):
    """Digests of the usable rows of a span."""

    texts: Keys
    labels: Keys
    """All equal without a label field. Likewise `keys`."""
    keys: Keys


class Duplicates(NamedTuple):
    """Counts of duplicates, and the dropped rows of each span."""

    num_doubled: int
    """Rows whose text occurs in an earlier row."""
    num_conflicting: int
    """Rows whose text occurs with several labels."""
    num_shared: int
    """Rows, not dropped, whose text occurs in several groups: they may leak from one part to another."""
    dropped: list[_Bools]
    num_dropped: int
    num_retained: int


class DuplicateSearch:
    """Collects the digests of spans, in order, and finds duplicates among all rows. A context: it holds files."""

    def __init__(self) -> None:
        self._files = [SpooledTemporaryFile(IN_MEMORY_BYTES) for _ in range(1 << NUM_PARTS_BITS)]  # noqa: SIM115
        self._ends = [0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for file in self._files:
            file.close()

    def add(self, digests: RowDigests) -> None:
        """Add the rows of the next span."""
        records = np.empty(len(digests.texts), _RECORD)
        records["text"], records["label"], records["key"] = digests
        records["row"] = self._ends[-1] + np.arange(len(records))
        self._ends.append(self._ends[-1] + len(records))
        part = digests.texts >> np.uint64(64 - NUM_PARTS_BITS)
        records = records[np.argsort(part, kind="stable")]
        ends = np.cumsum(np.bincount(part.astype(np.int64), minlength=len(self._files)))
        try:
            for file, rows in zip(self._files, np.split(records, ends[:-1]), strict=True):
                file.write(rows.tobytes())
        except OSError as error:
            raise StoreError(
                f"{gettempdir()}: the digests of the rows cannot be kept there (32 bytes per row): {error.strerror}. "
                "Free space, or set TMPDIR to another folder."
            ) from error

    def find(self, drop: Collection[str]) -> Duplicates:
        """Find the duplicates; `drop` as `BuildConfig.drop`."""
        dropped = np.zeros(self._ends[-1], bool)
        counts = np.zeros(3, np.int64)
        for file in self._files:
            file.seek(0)
            records = np.frombuffer(file.read(), _RECORD)
            counts_here, dropped_here = _duplicates_in(records, drop)
            counts += counts_here
            dropped[records["row"]] = dropped_here
        num_doubled, num_conflicting, num_shared = counts.tolist()
        num_dropped = int(np.count_nonzero(dropped))
        return Duplicates(
            num_doubled,
            num_conflicting,
            num_shared,
            dropped=np.split(dropped, self._ends[1:-1]),
            num_dropped=num_dropped,
            num_retained=len(dropped) - num_dropped,
        )


def _duplicates_in(records: npt.NDArray[np.void], drop: Collection[str]) -> tuple[tuple[int, int, int], _Bools]:
    """Return the numbers of doubled, conflicting and shared rows, and whether each row is dropped."""
    texts = records["text"]
    order = np.argsort(texts, kind="stable")
    is_first = np.ones(len(texts), bool)
    is_first[1:] = texts[order][1:] != texts[order][:-1]
    is_doubled, is_conflicting = np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    is_doubled[order] = ~is_first
    is_conflicting[order] = _differs(records["label"][order], is_first)
    dropped = np.zeros(len(texts), bool)
    if "conflicting" in drop:
        dropped |= is_conflicting
    if "doubled" in drop:
        dropped |= is_doubled
    retained = order[~dropped[order]]
    still_first = np.ones(len(retained), bool)
    still_first[1:] = texts[retained][1:] != texts[retained][:-1]
    num_shared = int(_differs(records["key"][retained], still_first).sum())
    return (int(is_doubled.sum()), int(is_conflicting.sum()), num_shared), dropped


def _differs(values: Keys, is_first: _Bools) -> _Bools:
    """Return, for each element, whether its run (from one first element to the next) holds several values."""
    if not len(values):
        return np.zeros(0, bool)
    run = np.cumsum(is_first) - 1
    firsts = values[is_first][run]
    differs: _Bools = np.bincount(run, values != firsts)[run] > 0
    return differs

"""Sequential row reader with restart."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

RowT = TypeVar("RowT")


class ReadAhead(Generic[RowT]):
    """Rows of `open_rows`, already validated. Reading backwards starts again, which is safe since files are
    immutable."""

    def __init__(self, open_rows: Callable[[], Iterator[object]], row_class: type[RowT]) -> None:
        self._begin = open_rows
        self._row_class = row_class
        self._ahead = open_rows()
        self._next_index = 0

    def rows(self, first: int, number: int) -> list[RowT]:
        """Return `number` rows from index `first`."""
        if first < self._next_index:
            self._ahead, self._next_index = self._begin(), 0
        skipped = first - self._next_index
        found = list(islice(self._ahead, skipped, skipped + number))
        self._next_index = first + number
        rows = [row for row in found if isinstance(row, self._row_class)]
        assert len(rows) == number, (first, number, found)
        return rows

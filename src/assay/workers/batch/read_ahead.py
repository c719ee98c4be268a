"""Rows that are read a few at a time: those that follow are read on, earlier ones from the beginning."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

RowT = TypeVar("RowT")


class ReadOn(Generic[RowT]):
    """What `begin` reads, checked before as a whole: a file's bytes never change, so each is a row again."""

    def __init__(self, begin: Callable[[], Iterator[object]], row_class: type[RowT]) -> None:
        self._begin = begin
        self._row_class = row_class
        self._ahead = begin()
        self._place = 0

    def rows(self, first: int, number: int) -> list[RowT]:
        """So many from one on."""
        if first < self._place:
            self._ahead, self._place = self._begin(), 0
        skipped = first - self._place
        found = list(islice(self._ahead, skipped, skipped + number))
        self._place = first + number
        rows = [row for row in found if isinstance(row, self._row_class)]
        assert len(rows) == number, (first, number, found)
        return rows

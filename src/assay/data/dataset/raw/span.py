"""The interface of source files: spans of rows, each of which becomes one shard."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from assay.base.errors import DataError

Row = dict[str, Any]
RowErrorHandler = Callable[[DataError], None]
"""Called with the error of a row that cannot be read."""


class RawSpan(Protocol):
    """Consecutive rows of one source. Picklable, because another process reads it."""

    @property
    def source(self) -> Path:
        """The file, or the folder of the files."""
        ...

    @property
    def is_untyped(self) -> bool:
        """Whether all values are text whose type must be inferred, as in CSV."""
        ...

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Field names of all rows; None if rows may differ."""
        ...

    def digest(self, columns: Collection[str]) -> str:
        """Return the SHA-256 of these rows; it does not depend on the file's location."""
        ...

    def rows(
        self, columns: Collection[str] | None = None, on_error: RowErrorHandler | None = None
    ) -> Iterator[tuple[str, Row]]:
        """Yield (location, row) with at least these columns, or all.

        A row that cannot be read is passed to `refused` and skipped, or raises `DataError` without `refused`. A
        file whose rows cannot be separated always raises.
        """
        ...

"""What every kind of file is read as: spans, each of which becomes one shard."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from assay.base.errors import DataError

Row = dict[str, Any]
RowErrorHandler = Callable[[DataError], None]
"""Is told what is wrong with a row that cannot be read."""


class RawSpan(Protocol):
    """Consecutive rows of one source. Picklable: another process reads it."""

    @property
    def source(self) -> Path:
        """The file, or the folder of the files."""
        ...

    @property
    def is_untyped(self) -> bool:
        """Whether every value is text that spells it, as in CSV: `3` may be a number."""
        ...

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Names of the fields of every row; None where each row has its own."""
        ...

    def digest(self, columns: Collection[str]) -> str:
        """SHA-256 of these rows: wherever the file lies, the same rows have the same name."""
        ...

    def rows(
        self, columns: Collection[str] | None = None, refused: RowErrorHandler | None = None
    ) -> Iterator[tuple[str, Row]]:
        """Each row with where it is; with these columns at least, or all.

        A row that cannot be read is left out where `refused` is told of it, and else raises `DataError`; a
        file in which no row can be told from the next raises in any case."""
        ...

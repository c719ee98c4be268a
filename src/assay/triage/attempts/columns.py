"""The common format of all sources: columns of text, with the meaning of each."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from assay.base.errors import DataError

SEVERAL = "|"
"""Separator between values of one cell."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """A source as columns of text; missing values are null or empty."""

    table: pa.Table
    """All columns are strings."""
    failed: str | None = None
    """Name of the column that states failure, if the format has one; the other names likewise."""
    at: str | None = None
    unit: str | None = None
    device_hours: str | None = None
    factors: tuple[str, ...] = ()


def columns_of(rows: list[dict[str, str | None]], source: str, **meanings: object) -> Columns:
    """Build columns from one dictionary per row; missing keys become null."""
    if not rows:
        raise DataError(f"{source}: there is no attempt in it that is over.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: text_column(row.get(name) for row in rows) for name in names})
    return Columns(table=table, **meanings)  # type: ignore[arg-type]


def text_column(cells: Iterable[str | None]) -> pa.Array:
    """Build one column; None becomes null. Uses a builder, because `pa.array` imports pandas if it is
    installed, which is slow."""
    builder = pa.lib.StringBuilder()
    builder.append_values(cells)
    return builder.finish()


def join_values(values: list[str]) -> str:
    """Join several values into one cell."""
    return SEVERAL.join(dict.fromkeys(filter(None, values)))

"""What a reader of a source hands over: columns of text, and what each of them means there."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from assay.base.errors import DataError

SEVERAL = "|"
"""Between the values of one cell."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """A source as text, column by column; what was not recorded is null or empty."""

    table: pa.Table
    """All columns are strings."""
    failed: str | None = None
    """Name of the column that says so, where the source's format does; the others likewise."""
    at: str | None = None
    unit: str | None = None
    device_hours: str | None = None
    factors: tuple[str, ...] = ()


def columns_of(rows: list[dict[str, str | None]], source: str, **meanings: object) -> Columns:
    """From one dictionary a row; a key that a row lacks is null there."""
    if not rows:
        raise DataError(f"{source}: there is no attempt in it that is over.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: text_column(row.get(name) for row in rows) for name in names})
    return Columns(table=table, **meanings)  # type: ignore[arg-type]


def text_column(cells: Iterable[str | None]) -> pa.Array:
    """One column; None is null. By a builder, as `pa.array` imports pandas where it is installed, which takes
    as long as all that is asked here."""
    builder = pa.lib.StringBuilder()
    builder.append_values(cells)
    return builder.finish()


def join_values(values: list[str]) -> str:
    """One cell that holds them all."""
    return SEVERAL.join(dict.fromkeys(filter(None, values)))

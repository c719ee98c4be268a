"""The common format of all sources: columns of text, with the meaning of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from assay.base.errors import DataError
from assay.base.shapes import Float64
from assay.base.visible import written_out
from assay.triage.attempts.moments import moments

SEVERAL = "|"
"""Separator between values of one cell."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """One or several sources as columns of text; missing values are null or empty."""

    name: str
    """For errors."""
    table: pa.Table
    """All columns are strings."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """File -> SHA-256 of its bytes."""
    failed: str | None = None
    """Name of the column that states failure, if the format has one; the other names likewise."""
    at: str | None = None
    unit: str | None = None
    attempts: str | None = None
    device_hours: str | None = None
    lost_device_hours: str | None = None
    factors: tuple[str, ...] = ()
    num_stopped: int = 0
    """Attempts that were left out because they were preempted or cancelled."""

    def names_text(self) -> str:
        return f"the columns are {written_out(', '.join(self.table.column_names))[:400]}"

    def column(self, name: str, option: str) -> list[str]:
        """Return the texts of a column that an option names; missing cells are empty."""
        if name not in self.table.column_names:
            raise DataError(f"{self.name}: no column '{name}', which {option} names; {self.names_text()}.")
        return [(text or "").strip() for text in self.table[name].to_pylist()]

    def numbers(self, name: str, option: str) -> Float64[np.ndarray, "row"]:
        """Return a column of finite numbers; missing cells are NaN."""
        found = np.full(len(self.table), np.nan)
        for row, text in enumerate(self.column(name, option)):
            try:
                found[row] = float(text) if text else np.nan
            except ValueError:
                found[row] = np.inf
            if np.isinf(found[row]):
                shown = written_out(repr(text))[:60]
                raise DataError(
                    f"{self.name}, row {row + 1}: '{name}' ({option}) is {shown}, expected a finite number, or nothing."
                )
        return found

    def moments(self, name: str, option: str) -> Float64[np.ndarray, "row"]:
        """Return a column of times in seconds since the epoch; missing ones are NaN."""
        texts = self.column(name, option)
        known = [text for text in texts if text]
        found = np.full(len(texts), np.nan)
        found[[bool(text) for text in texts]] = moments(known, f"{self.name}: column '{name}' ({option})")
        return found


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the rows of all sources; the first one's meanings count."""
    table = pa.concat_tables([part.table for part in parts], promote_options="default")
    sources = {file: digest for part in parts for file, digest in part.sources.items()}
    name = parts[0].name if len(parts) == 1 else f"{parts[0].name} and others"
    num_stopped = sum(part.num_stopped for part in parts)
    return replace(parts[0], name=name, table=table, sources=sources, num_stopped=num_stopped)


def columns_of(rows: list[dict[str, str | None]], source: str, **meanings: object) -> Columns:
    """Build columns from one dictionary per row; missing keys become null."""
    if not rows:
        raise DataError(f"{source}: there is no attempt in it that is over.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: text_column(row.get(name) for row in rows) for name in names})
    return Columns(name=source, table=table, **meanings)  # type: ignore[arg-type]


def text_column(cells: Iterable[str | None]) -> pa.Array:
    """Build one column; None becomes null. Uses a builder, because `pa.array` imports pandas if it is
    installed, which is slow."""
    builder = pa.lib.StringBuilder()
    builder.append_values(cells)
    return builder.finish()


def join_values(values: list[str]) -> str:
    """Join several values into one cell."""
    return SEVERAL.join(dict.fromkeys(filter(None, values)))

"""A columnar table of attempts: failures, times, units and factors.

A row is one attempt, or several equal ones (`attempts` counts them). A cell of a factor may have several
values (one attempt, many hosts) or none. Rows are sorted by unit, so that any subset of rows keeps each
unit's rows together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from assay.base.shapes import Bool, Float64, Int, Int64


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A factor in which attempts differ."""

    name: str
    values: tuple[str, ...]
    rows: Int64[np.ndarray, "entry"]
    """The row of each value, ascending; a row with several values has several entries."""
    codes: Int64[np.ndarray, "entry"]
    """Index into `values`, for each entry."""
    cells: Int64[np.ndarray, "row"]
    """Equal for rows with equal cells."""

    def of_rows(self, rows: Int64[np.ndarray, "kept"]) -> "Factor":
        order = np.argsort(rows, kind="stable")
        new_index = np.full(len(self.cells), -1)
        new_index[rows[order]] = order
        is_selected = new_index[self.rows] >= 0
        new_rows, codes = new_index[self.rows[is_selected]], self.codes[is_selected]
        by_row = np.argsort(new_rows, kind="stable")
        return replace(self, rows=new_rows[by_row], codes=codes[by_row], cells=self.cells[rows])


@dataclass(frozen=True, kw_only=True)
class AttemptTable:
    """Attempts as columns."""

    failures: Float64[np.ndarray, "row"]
    attempts: Float64[np.ndarray, "row"]
    """Number of attempts in a row."""
    units: Int64[np.ndarray, "row"]
    """Unit of each row, ascending."""
    has_units: bool
    """False: every row is its own unit."""
    at_s: Float64[np.ndarray, "row"] | None
    """Seconds since the epoch."""
    exposure: Float64[np.ndarray, "row"] | None
    """The denominator of rates instead of attempts."""
    device_hours: Float64[np.ndarray, "row"] | None
    factors: tuple[Factor, ...]
    sources: Mapping[str, str]

    @property
    def num_rows(self) -> int:
        return len(self.failures)

    def size(self) -> Float64[np.ndarray, "row"]:
        """Return the denominator of each row's rate."""
        return self.attempts if self.exposure is None else self.exposure

    def num_units(self) -> int:
        return len(np.unique(self.units))

    def where(self, mask: Bool[np.ndarray, "row"]) -> "AttemptTable":
        return self.of_rows(np.flatnonzero(mask))

    def of_rows(self, rows: Int[np.ndarray, "kept"]) -> "AttemptTable":
        rows = rows[np.argsort(self.units[rows], kind="stable")]

        def chosen(column: Float64[np.ndarray, "row"] | None) -> Float64[np.ndarray, "kept"] | None:
            return None if column is None else column[rows]

        return replace(
            self,
            failures=self.failures[rows],
            attempts=self.attempts[rows],
            units=self.units[rows],
            factors=tuple(factor.of_rows(rows) for factor in self.factors),
            at_s=chosen(self.at_s),
            exposure=chosen(self.exposure),
            device_hours=chosen(self.device_hours),
        )

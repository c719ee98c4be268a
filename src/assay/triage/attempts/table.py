"""A frozen columnar value: attempts, which of them failed, when, of which unit, and by what they differ.

A row is an attempt, or several that are alike (`attempts` counts them). A cell of a factor may hold several
values (one attempt, many hosts); what was not recorded is no value. Rows are sorted by unit, so that whoever
walks a subset of them in order meets each unit once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from assay.base.shapes import Bool, Float64, Int, Int64


@dataclass(frozen=True, kw_only=True)
class Factor:
    """Something that attempts differ in."""

    name: str
    values: tuple[str, ...]
    rows: Int64[np.ndarray, "entry"]
    """The row of each of its values, ascending; a row with several values has several entries."""
    codes: Int64[np.ndarray, "entry"]
    """Which value, as an index of `values`."""
    cells: Int64[np.ndarray, "row"]
    """Equal for rows whose cells are equal, whatever is in them."""

    def of_rows(self, rows: Int64[np.ndarray, "kept"]) -> "Factor":
        """The same of some of the rows, in their order."""
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
    """How many a row stands for; 1 where each has its own."""
    units: Int64[np.ndarray, "row"]
    """Ascending."""
    has_units: bool
    """False where nobody named one: then every row is its own."""
    at_s: Float64[np.ndarray, "row"] | None
    """Seconds since the epoch."""
    exposure: Float64[np.ndarray, "row"] | None
    """What rates are per, instead of attempts."""
    device_hours: Float64[np.ndarray, "row"] | None
    factors: tuple[Factor, ...]
    sources: Mapping[str, str]

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.failures)

    def size(self) -> Float64[np.ndarray, "row"]:
        """What a row's rate is per."""
        return self.attempts if self.exposure is None else self.exposure

    def num_units(self) -> int:
        """Independent ones."""
        return len(np.unique(self.units))

    def where(self, mask: Bool[np.ndarray, "row"]) -> "AttemptTable":
        """Some of the rows."""
        return self.of_rows(np.flatnonzero(mask))

    def of_rows(self, rows: Int[np.ndarray, "kept"]) -> "AttemptTable":
        """These rows, in this order, sorted by unit."""
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

"""A columnar table of attempts: failures, times, units and factors.

A row is one attempt, or several equal ones (`attempts` counts them). A cell of a factor may have several
values (one attempt, many hosts) or none. Rows are sorted by unit, so that any subset of rows keeps each
unit's rows together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from assay.base.config import first_repeated
from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Bool, Float64, Int, Int64
from assay.base.visible import written_out
from assay.triage.attempts.columns import SEVERAL, Columns


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

    def holds(self, code: int) -> Bool[np.ndarray, "row"]:
        """Return which rows have a value."""
        found = np.zeros(len(self.cells), bool)
        found[self.rows[self.codes == code]] = True
        return found

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
    """Seconds since the epoch; NaN if unknown."""
    exposure: Float64[np.ndarray, "row"] | None
    """The denominator of rates instead of attempts."""
    device_hours: Float64[np.ndarray, "row"] | None
    lost_device_hours: Float64[np.ndarray, "row"] | None = None
    """What a failed row cost; None if only what it held is known."""
    factors: tuple[Factor, ...]
    sources: Mapping[str, str]
    num_stopped: int = 0
    """Attempts that are not in it because they were preempted or cancelled."""

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
            self, failures=self.failures[rows], attempts=self.attempts[rows], units=self.units[rows],
            factors=tuple(factor.of_rows(rows) for factor in self.factors), at_s=chosen(self.at_s),
            exposure=chosen(self.exposure), device_hours=chosen(self.device_hours),
            lost_device_hours=chosen(self.lost_device_hours),
        )  # fmt: skip


def with_values(table: AttemptTable, selected: Sequence[tuple[str, str]]) -> AttemptTable:
    """Return the attempts that have all values. Raises `ConfigError` for a value that no attempt has."""
    return table.where(having(table, selected))


def having(table: AttemptTable, selected: Sequence[tuple[str, str]]) -> Bool[np.ndarray, "row"]:
    """Return which attempts have all values. Raises `ConfigError` for a value that no attempt has."""
    mask = np.ones(table.num_rows, bool)
    factors = {factor.name: factor for factor in table.factors}
    for name, value in selected:
        factor = factors[name]
        if value not in factor.values:
            raise ConfigError(f"--where {name}={value}: no attempt has it.")
        mask &= factor.holds(factor.values.index(value))
    return mask


TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


class ColumnNames(NamedTuple):
    """The options that name a table's columns; None leaves the choice to the source."""

    failed: str | None = None
    attempts: str | None = None
    at: str | None = None
    unit: str | None = None
    exposure: str | None = None
    factors: tuple[str, ...] | None = None


def table_of(columns: Columns, names: ColumnNames) -> AttemptTable:
    """Build the table of attempts from columns of text."""
    column_names = columns.table.column_names
    failed = names.failed or columns.failed or ("failed" if "failed" in column_names else None)
    if failed is None:
        raise ConfigError(
            f"{columns.name}: which column says that an attempt failed? Give --failed; {columns.names_text()}."
        )
    num_rows = len(columns.table)
    counts = names.attempts or columns.attempts
    attempts = _counts(columns, counts, "--attempts") if counts else np.ones(num_rows)
    failures = _counts(columns, failed, "--failed")
    _refuse_impossible(columns.name, failed, failures, attempts, has_counts=counts is not None)
    unit, at = names.unit or columns.unit, names.at or columns.at
    at_s = None if at is None else columns.moments(at, "--at")
    used = {failed, counts, at, unit, names.exposure, columns.device_hours, columns.lost_device_hours}
    chosen = names.factors or columns.factors or tuple(n for n in column_names if n not in used)
    if (twice := first_repeated(chosen)) is not None:
        raise ConfigError(f"--factors: '{twice}' is there twice.")
    exposure, hours, lost = names.exposure, columns.device_hours, columns.lost_device_hours
    found = AttemptTable(
        failures=failures, attempts=attempts,
        units=np.arange(num_rows) if unit is None else _encoded(columns.column(unit, "--unit"))[0],
        has_units=unit is not None, at_s=None if at_s is None or np.isnan(at_s).all() else at_s,
        exposure=None if exposure is None else _counts(columns, exposure, "--exposure"),
        device_hours=None if hours is None else _counts(columns, hours, "device-hours"),
        lost_device_hours=None if lost is None else _counts(columns, lost, "device-hours"),
        factors=tuple(_factor(name, columns.column(name, "--factors")) for name in chosen), sources=columns.sources,
        num_stopped=columns.num_stopped,
    )  # fmt: skip
    return found.where(attempts > 0)


def _refuse_impossible(
    where: str,
    failed: str,
    failures: Float64[np.ndarray, "row"],
    attempts: Float64[np.ndarray, "row"],
    *,
    has_counts: bool,
) -> None:
    for row in np.flatnonzero((failures < 0) | (failures > attempts) | (failures % 1 != 0))[:1]:
        expected = (
            f"a count from 0 to its {attempts[row]:g} attempts" if has_counts else "0 or 1 (a count needs --attempts)"
        )
        raise DataError(f"{where}, row {row + 1}: '{failed}' is {failures[row]:g}, expected {expected}.")


def _counts(columns: Columns, name: str, option: str) -> Float64[np.ndarray, "row"]:
    """Return non-negative numbers; booleans count as 0 and 1."""
    texts = columns.column(name, option)
    known = {text: _count(columns, name, option, text) for text in dict.fromkeys(texts)}
    return np.array([known[text] for text in texts], np.float64)


def _count(columns: Columns, name: str, option: str, text: str) -> float:
    words = text.lower()
    try:
        number = TRUTHS[words] if words in TRUTHS else float(words)
    except ValueError:
        number = -1.0
    if not 0 <= number < np.inf:
        shown = written_out(repr(text))[:60]
        raise DataError(f"{columns.name}: column '{name}' ({option}) holds {shown}, expected a number from 0 on.")
    return number


def _factor(name: str, column: Sequence[str]) -> Factor:
    """Return a factor; cells are split into their values."""
    cells, texts = _encoded(column)
    values: dict[str, int] = {}
    per_cell = [
        [values.setdefault(part, len(values)) for part in dict.fromkeys(map(str.strip, text.split(SEVERAL))) if part]
        for text in texts
    ]
    counts = np.array([len(codes) for codes in per_cell], np.int64)
    flat = np.array([code for codes in per_cell for code in codes], np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    of_row = counts[cells] if len(cells) else np.zeros(0, np.int64)
    rows = np.repeat(np.arange(len(cells)), of_row)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(of_row) - of_row, of_row)
    codes = flat[starts[cells[rows]] + within] if len(rows) else np.zeros(0, np.int64)
    return Factor(name=name, values=tuple(values), rows=rows, codes=codes, cells=cells)


def _encoded(column: Sequence[str]) -> tuple[Int64[np.ndarray, "row"], list[str]]:
    """Return a code for each cell, equal for equal cells, and the text of each code. Arrow's own encoding imports
    pandas if it is installed, which is slow."""
    known = dict[str, int]()
    codes = [known.setdefault(text, len(known)) for text in column]
    return np.array(codes, np.int64), list(known)

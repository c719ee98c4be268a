"""A repeatedly measured value with its factors, in order of time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from assay.base.config import first_repeated
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.base.shapes import Float64
from assay.records.phase import STEP
from assay.records.run import Attempt, PhaseSeconds
from assay.store.ledger.ledger import Ledger
from assay.triage.attempts.columns import Columns, text_column
from assay.triage.attempts.ledger import ledger_columns
from assay.triage.attempts.moments import moments

STEP_TIME = "step_s"


class SeriesNames(NamedTuple):
    """The options that name a table's columns; None leaves the choice to the source."""

    value: str | None = None
    at: str | None = None
    factors: tuple[str, ...] | None = None
    phases: tuple[str, ...] | None = None


class MeasuredSeries(NamedTuple):
    """One value, row by row."""

    name: str
    values: Float64[np.ndarray, "row"]
    at: tuple[str, ...]
    """As written in the source."""
    factors: Mapping[str, Sequence[str]]
    """The value in each row; empty if missing."""
    phases: Mapping[str, Float64[np.ndarray, "row"]]
    """Parts of the value."""
    sources: Mapping[str, str]
    device_hours: Float64[np.ndarray, "row"] | None = None
    """What each run cost."""


def series_of(columns: Columns, names: SeriesNames) -> MeasuredSeries:
    """Build a series from columns of text, in order of time; rows without the value are left out."""
    if names.value is None:
        raise ConfigError(f"{columns.name}: which column was measured? Give --value; {columns.names_text()}.")
    for option, column_names in (("--factors", names.factors), ("--phases", names.phases)):
        if (twice := first_repeated(column_names or ())) is not None:
            raise ConfigError(f"{option}: '{twice}' is there twice.")
    at = names.at or columns.at
    values = columns.numbers(names.value, "--value")
    phases = {name: columns.numbers(name, "--phases") for name in names.phases or ()}
    rows = np.flatnonzero(np.isfinite(values))
    written = None if at is None else columns.column(at, "--at")
    if written is not None:
        seconds = moments([written[row] for row in rows], f"{columns.name}: column '{at}' (--at)")
        rows = rows[np.argsort(seconds, kind="stable")]
    used = {names.value, at, *phases}
    chosen = names.factors
    if chosen is None:
        chosen = columns.factors or tuple(name for name in columns.table.column_names if name not in used)
    cells = {name: columns.column(name, "--factors") for name in chosen}
    hours = None if columns.device_hours is None else columns.numbers(columns.device_hours, "device hours")[rows]
    return MeasuredSeries(
        names.value, values[rows],
        tuple(str(number) if written is None else written[row] for number, row in enumerate(rows)),
        {name: [column[row] for row in rows] for name, column in cells.items()},
        {name: column[rows] for name, column in phases.items()}, columns.sources,
        None if hours is None or np.isnan(hours).all() else hours,
    )  # fmt: skip


def ledger_series(ledger: Ledger, names: SeriesNames) -> MeasuredSeries:
    """Return one measurement per attempt with steps: rank 0's seconds per committed step, by phase.
    Rolled-back work is excluded."""
    columns, attempts = ledger_columns(ledger)
    return series_of_attempts(columns, attempts, ledger.phase_seconds(), names)


def series_of_attempts(
    columns: Columns, attempts: Sequence[Attempt], spent: Iterable[PhaseSeconds], names: SeriesNames
) -> MeasuredSeries:
    """Build the series from records that are already read; the columns have one row per attempt, in the same
    order."""
    phases = {
        (phase_seconds.run_id, phase_seconds.attempt): phase_seconds
        for phase_seconds in spent
        if phase_seconds.rank == 0
    }
    rows = [_step_seconds(attempt, phases.get((attempt.run_id, attempt.attempt))) for attempt in attempts]
    if not any(rows):
        raise ConfigError("no run on record made a step whose time is known. Give a SOURCE with --value.")
    present = [phase for phase in STEP if any(phase in row for row in rows)]
    table = columns.table
    for name in (STEP_TIME, *present):
        cells = text_column(None if name not in row else repr(row[name]) for row in rows)
        table = table.append_column(name, pa.chunked_array([cells]))
    named = names._replace(
        value=names.value or STEP_TIME, phases=tuple(present) if names.phases is None else names.phases
    )
    return series_of(replace(columns, table=table, sources={"ledger": sha256_of_json(table.to_pylist())}), named)


def _step_seconds(attempt: Attempt, spent: PhaseSeconds | None) -> dict[str, float]:
    """Return seconds by phase and in total; empty if the attempt committed no step."""
    num_steps = (attempt.end_step or attempt.start_step) - attempt.start_step
    if spent is None or num_steps <= 0:
        return {}
    phases = {str(phase): spent.seconds.get(phase, 0.0) / num_steps for phase in STEP if phase in spent.seconds}
    return {**phases, STEP_TIME: sum(phases.values())}

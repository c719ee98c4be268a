"""Seconds per step of assay's own runs by attempt, with the factors of each."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.records.phase import STEP
from assay.records.run import Attempt, PhaseSeconds
from assay.store.ledger.ledger import Ledger
from assay.triage.attempts.columns import Columns, text_column
from assay.triage.attempts.ledger import ledger_columns
from assay.triage.slow.series import MeasuredSeries, SeriesNames, series_of

STEP_TIME = "step_s"


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
    with_times = replace(columns, table=table)
    return series_of([("the ledger", with_times)], named, {"ledger": sha256_of_json(table.to_pylist())})


def _step_seconds(attempt: Attempt, spent: PhaseSeconds | None) -> dict[str, float]:
    """Return seconds by phase and in total; empty if the attempt committed no step."""
    num_steps = (attempt.end_step or attempt.start_step) - attempt.start_step
    if spent is None or num_steps <= 0:
        return {}
    phases = {str(phase): spent.seconds.get(phase, 0.0) / num_steps for phase in STEP if phase in spent.seconds}
    return {**phases, STEP_TIME: sum(phases.values())}

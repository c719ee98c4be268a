"""How far each attempt's points count: a later attempt rolls back what earlier ones measured behind its start."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from assay.store.ledger.database import Connection
from assay.store.metrics.segment import attempt_and_rank

BATCH_IDS = 500
"""Most ids in one statement: the ledger's databases limit the values of a statement."""

AttemptLimits = dict[int, float]
"""The last step of each attempt that was not rolled back, by attempt; infinity if none was."""


def attempt_limits(connection: Connection, run_ids: Sequence[str]) -> dict[str, AttemptLimits]:
    """Return the limits of each run's attempts.

    An attempt starts where its record says. Without a record (a ledger that was built from segments alone) it
    starts one step before the first that it logged.
    """
    starts: dict[str, AttemptLimits] = {run_id: {} for run_id in run_ids}
    logged: set[tuple[str, int]] = set()
    for batch in batches(run_ids):
        marks, values = placeholders(batch)
        recorded = f"SELECT run_id, attempt, start_step FROM attempts WHERE run_id IN ({marks})"
        for run_id, attempt, start_step in connection.execute(recorded, values):
            starts[run_id][attempt] = start_step
        folded = f"SELECT run_id, path FROM metric_segments WHERE run_id IN ({marks})"
        logged |= {(run_id, attempt_and_rank(Path(path))[0]) for run_id, path in connection.execute(folded, values)}
    for run_id, attempt in sorted(logged):
        if attempt not in starts[run_id]:
            query = "SELECT MIN(first_step) - 1 FROM metric_series WHERE run_id = :run_id AND attempt = :attempt"
            ((start,),) = connection.execute(query, {"run_id": run_id, "attempt": attempt})
            if start is not None:
                starts[run_id][attempt] = start
    return {run_id: _limits(starts_by_attempt) for run_id, starts_by_attempt in starts.items()}


def batches(ids: Sequence[str] | Sequence[int]) -> "list[Sequence[str] | Sequence[int]]":
    """Cut ids into batches, each small enough for one statement."""
    return [ids[start : start + BATCH_IDS] for start in range(0, len(ids), BATCH_IDS)]


def placeholders(ids: Sequence[str] | Sequence[int]) -> tuple[str, dict[str, object]]:
    """Return the text between the parentheses of `IN (...)`, and its values."""
    values: dict[str, object] = {f"id{index}": value for index, value in enumerate(ids)}
    return ", ".join(f":{name}" for name in values), values


def _limits(starts: AttemptLimits) -> AttemptLimits:
    limits: AttemptLimits = {}
    limit = np.inf
    for attempt in sorted(starts, reverse=True):
        limits[attempt] = limit
        limit = min(limit, starts[attempt])
    return limits

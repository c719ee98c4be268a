"""Which runs a session of the ledger sees: temporary views in front of its tables leave the others out.

Every statement of that session meets the views, so no reader has to think of the rule.
"""

from collections.abc import Sequence
from typing import NamedTuple

from assay.store.ledger import tables
from assay.store.ledger.database import Connection

_RUN_COLUMNS = ("run_id", "baseline_run_id", "candidate_run_id")


class VisibleRuns(NamedTuple):
    """All runs except those whose ids have one of `forms` and are not in `own`."""

    forms: Sequence[tuple[str, int]]
    """First characters of an id, and its number of characters."""
    own: Sequence[str]

    def shows(self, run_id: str) -> bool:
        """Return whether a run is visible."""
        return run_id in self.own or not any(
            run_id.startswith(prefix) and len(run_id) == length for prefix, length in self.forms
        )

    def hide_others(self, session: Connection, *, schema: str) -> None:
        """Create the views. `schema`: prefix of the ledger's own tables."""
        session.execute("CREATE TEMPORARY TABLE own_runs (run_id VARCHAR PRIMARY KEY)")
        session.execute_all("INSERT INTO own_runs VALUES (:run_id)", [{"run_id": run_id} for run_id in set(self.own)])
        for table in tables.TABLES:
            conditions = [self._is_visible(column) for column in _RUN_COLUMNS if column in table.columns]
            if conditions:
                rows = f"SELECT * FROM {schema}{table.name} WHERE {' AND '.join(conditions)}"
                session.execute(f"CREATE TEMPORARY VIEW {table.name} AS {rows}")

    def _is_visible(self, column: str) -> str:
        others = " OR ".join(
            f"(LENGTH({column}) = {length} AND SUBSTR({column}, 1, {len(prefix)}) = '{prefix}')"
            for prefix, length in self.forms
        )
        return f"(NOT ({others}) OR {column} IN (SELECT run_id FROM own_runs))"

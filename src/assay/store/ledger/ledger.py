"""The ledger: an index of the facts about all runs.

What a run truly did stands in its own folder (its log of commits, its segments); the ledger is the index over
all of them. Every write is by natural key: writing a fact again changes nothing, a newer version of it (an
attempt that has ended) takes its place.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self, TypeVar

from assay.base.clock import SystemClock
from assay.base.errors import DataError
from assay.records.audit import AuditReport
from assay.records.commit import ENTRY_CLASSES, LogEntry, RunFinished
from assay.records.evaluation import (
    AnyComparison,
    AnyEvaluation,
    comparison_from_json,
    evaluation_from_json,
)
from assay.records.failure import Failure
from assay.records.incident import Incident
from assay.records.launch import Launch
from assay.records.record import Record, record_of_kind
from assay.records.run import Attempt, PhaseSeconds, Run, RunNotes
from assay.records.suspect import Suspect
from assay.store.known_runs import match_run_id
from assay.store.ledger import tables
from assay.store.ledger.database import Connection, Database, Values
from assay.store.ledger.sqlite import SqliteDatabase, copy_sqlite
from assay.store.ledger.tables import LedgerTable
from assay.store.ledger.url import checked_url, sqlite_file
from assay.store.ledger.visible_runs import VisibleRuns

if TYPE_CHECKING:  # who asks for a run needs none of these
    from assay.records.benchmark import BenchmarkResult
    from assay.records.campaign import Campaign
    from assay.records.decision import Decision

RecordT = TypeVar("RecordT")

_EITHER = "(baseline_run_id = :run_id OR candidate_run_id = :run_id)"


def open_ledger(
    url: str, *, located: Callable[[Run], Run] = lambda run: run, shown: VisibleRuns | None = None
) -> "Ledger":
    """The ledger at a URL (see `assay.store.ledger.url`), made if there is none.

    `located` says of a run on record where it lies now. `shown` limits what is read, not what is written.
    """
    ledger = Ledger(_database_at(url), located)
    if shown is not None:
        ledger.show_only(_database_at(url), shown)
    return ledger


def _database_at(url: str) -> Database:
    path = sqlite_file(checked_url(url))
    if path is not None:
        return SqliteDatabase(path)
    from assay.store.ledger.postgres import postgres_database  # here, for its driver is an extra

    return postgres_database(url)


def copied_ledger(file: Path, *, located: Callable[[Run], Run] = lambda run: run) -> "Ledger":
    """A copy of a SQLite ledger that can only be read; it goes when it is closed."""
    folder = TemporaryDirectory(prefix="assay-ledger-")
    path = Path(folder.name) / file.name
    copy_sqlite(file, path)
    return Ledger(SqliteDatabase(path), located, folder)


class Ledger:
    """Records in, records out. Safe to share between threads; each call is one transaction."""

    def __init__(
        self, database: Database, located: Callable[[Run], Run], folder: TemporaryDirectory[str] | None = None
    ) -> None:
        """Create missing tables. `folder` is removed on close."""
        self._database = self._read_database = database
        self._located = located
        self._folder = folder
        try:
            database.make_tables()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._database.close()
        self._read_database.close()
        if self._folder is not None:
            self._folder.cleanup()

    def reading(self) -> AbstractContextManager[Connection]:
        """Open a read transaction, for metric tables and summaries."""
        return self._read_database.reading()

    def writing(self) -> AbstractContextManager[Connection]:
        """Open a write transaction."""
        return self._database.writing()

    def show_only(self, database: Database, shown: VisibleRuns) -> None:
        """Read from now on through sessions of `database`, an own one, that see no other runs."""
        database.prepare = lambda session: shown.hide_others(session, schema=database.schema)
        self._read_database = database

    # Facts in

    def record_run(self, run: Run) -> None:
        """Record a run."""
        self._put(tables.runs, run)

    def record_attempt(self, attempt: Attempt) -> None:
        """Record an attempt at its start and again at its end, with its failure."""
        with self.writing() as connection:
            upsert(connection, tables.attempts, [_row(tables.attempts, attempt)])
            if attempt.failure is not None:
                upsert(connection, tables.failures, [_row(tables.failures, attempt.failure)])

    def record_write(self, run_id: str) -> None:
        """Record that the ledger is up to date with a run's folder."""
        process = f"'{' '.join(['assay', *sys.argv[1:3]])}', process {os.getpid()}"
        at_s, host = SystemClock().now_s(), socket.gethostname()
        self._put_all(tables.writes, [{"run_id": run_id, "at_s": at_s, "host": host, "process": process}])

    def last_writes(self) -> dict[str, tuple[float, str]]:
        """Return time (since the epoch), process and host of the last update, by run."""
        with self.reading() as connection:
            rows = connection.execute("SELECT run_id, at_s, host, process FROM ledger_writes")
        return {run_id: (at_s, f"{process} on {host}") for run_id, at_s, host, process in rows}

    def record_incidents(self, run_id: str, incidents: dict[int, Incident]) -> None:
        """Record incidents of a run by index."""
        table = tables.incidents
        rows = [_row(table, incident, run_id=run_id, incident_index=n) for n, incident in incidents.items()]
        self._put_all(table, rows)

    def record_launch(self, launch: Launch) -> None:
        """Record a launch."""
        self._put(tables.launches, launch)

    def record_log_entries(self, run_id: str, entries: dict[int, LogEntry]) -> None:
        """Record log entries of a run by index."""
        table = tables.log_entries
        rows = [
            _row(table, entry, run_id=run_id, entry_index=index, step=getattr(entry, "step", None))
            for index, entry in entries.items()
        ]
        self._put_all(table, rows)

    def record_phase_seconds(self, phase_seconds: PhaseSeconds) -> None:
        """Record the device time of a rank."""
        self._put(tables.phase_seconds, phase_seconds)

    def record_evaluation(self, evaluation: AnyEvaluation) -> None:
        """Record an evaluation; unique by run, step, dataset and split."""
        estimate = evaluation.headline.estimate
        self._put(tables.evaluations, evaluation, headline=None if estimate is None else estimate.value)

    def record_benchmark_result(self, result: "BenchmarkResult") -> None:
        """Record a benchmark result; unique by run, step and benchmark version."""
        self._put(
            tables.benchmark_results,
            result,
            version_sha256=result.version_sha256(),
            score=result.score.value,
        )

    def record_comparison(self, comparison: AnyComparison) -> None:
        """Record a comparison; replaces an earlier one of the pair."""
        self._put(tables.comparisons, comparison)

    def record_audit(self, audit: AuditReport) -> None:
        """Record an audit; replaces an earlier one of the run."""
        self._put(tables.audits, audit)

    def record_run_notes(self, run_notes: RunNotes) -> None:
        """Record the tags and notes of a run."""
        self._put(tables.run_notes, run_notes)

    def record_campaign(self, campaign: "Campaign") -> None:
        """Record a campaign."""
        self._put(tables.campaigns, campaign, campaign=campaign.name)

    def record_decision(self, decision: "Decision") -> None:
        """Record a decision; unique by candidate, look and revision."""
        look = decision.look
        self._put(tables.decisions, decision, num_seeds=look.num_seeds, is_gate=int(look.is_gate))

    # Facts out

    def runs(self, *, is_unfinished: bool = False) -> list[Run]:
        """Return all runs, or those that have not made their last step; newest first."""
        where = tables.UNFINISHED if is_unfinished else ""
        runs = self._records(Run.from_json, tables.runs, where=where, order="created_s DESC")
        return [self._located(run) for run in runs]

    def run(self, id_or_prefix: str) -> Run:
        """Return the run with this id or unique prefix. Raises `ConfigError` with suggestions otherwise."""
        (run,) = self._records(Run.from_json, tables.runs, match_run_id(id_or_prefix, self.run_ids()))
        return self._located(run)

    def run_ids(self) -> list[str]:
        """Return the ids of all recorded runs."""
        with self.reading() as connection:
            return [run_id for (run_id,) in connection.execute("SELECT run_id FROM runs")]

    def has_run(self, run_id: str) -> bool:
        """Return whether this run is recorded."""
        with self.reading() as connection:
            return bool(connection.execute("SELECT 1 FROM runs WHERE run_id = :run_id", {"run_id": run_id}))

    def has_runs(self) -> bool:
        """Return whether any run is recorded."""
        with self.reading() as connection:
            return bool(connection.execute("SELECT 1 FROM runs LIMIT 1"))

    def attempts(self, run_id: str | None = None, *, is_unfinished: bool = False) -> list[Attempt]:
        """Return the attempts of a run, of all runs, or of those that have not made their last step."""
        return self._records(
            Attempt.from_json, tables.attempts, run_id, where=tables.UNFINISHED if is_unfinished else ""
        )

    def failures(self, run_id: str | None = None) -> list[Failure]:
        """Return the failures of a run or of all runs."""
        return self._records(Failure.from_json, tables.failures, run_id)

    def incidents(self, run_id: str) -> list[Incident]:
        """Return the incidents of a run, oldest first."""
        return self._records(Incident.from_json, tables.incidents, run_id)

    def launches(self, run_id: str | None = None) -> list[Launch]:
        """Return the launches of a run or of all runs, oldest first."""
        return self._records(Launch.from_json, tables.launches, run_id)

    def suspects(self, node: str | None = None) -> list[tuple[str, Suspect]]:
        """Return run id and record of each suspect device of a node, or of all."""
        has_suspects = {"pattern": '%"suspects":[{%'}
        attempts = self._records(Attempt.from_json, tables.attempts, where="record LIKE :pattern", values=has_suspects)
        return [
            (attempt.run_id, suspect)
            for attempt in attempts
            for suspect in attempt.suspects
            if node in (None, suspect.node)
        ]

    def log_entries(self, run_id: str) -> list[LogEntry]:
        """Return the recorded log entries of a run in order."""
        return self._records(_log_entry, tables.log_entries, run_id)

    def finishing_attempts(self) -> dict[str, int]:
        """Return the attempt that made the last step of each finished run."""
        query = "SELECT run_id, record FROM log_entries WHERE type = 'finished' ORDER BY run_id, entry_index"
        with self.reading() as connection:
            rows = connection.execute(query)
        return {run_id: RunFinished.from_json(text, source=f"ledger, log of {run_id}").attempt for run_id, text in rows}

    def phase_seconds(self, run_id: str | None = None) -> list[PhaseSeconds]:
        """Return device time by run, attempt and rank."""
        table = tables.phase_seconds
        return self._records(PhaseSeconds.from_json, table, run_id)

    def training_seconds(self, run_id: str | None = None) -> list[PhaseSeconds]:
        """Return the device time of attempts, without evaluations of commits."""
        return [second for second in self.phase_seconds(run_id) if second.attempt]

    def evaluation_s(self, run_id: str) -> float:
        """Return the device-seconds of evaluating a run's commits."""
        return sum(second.held_s for second in self.phase_seconds(run_id) if not second.attempt)

    def evaluations(self, run_id: str) -> list[AnyEvaluation]:
        """Return a run's evaluations by step."""
        return self._records(evaluation_from_json, tables.evaluations, run_id, order="step, split")

    def benchmark_results(self, run_id: str | None = None) -> "list[BenchmarkResult]":
        """Return benchmark results by run, benchmark and step."""
        from assay.records.benchmark import BenchmarkResult

        table = tables.benchmark_results
        order = "run_id, benchmark, version_sha256, step"
        return self._records(BenchmarkResult.from_json, table, run_id, order=order)

    def comparisons(self, run_id: str) -> list[AnyComparison]:
        """Return the comparisons with a run as baseline or candidate."""
        values = {"run_id": run_id}
        return self._records(comparison_from_json, tables.comparisons, where=_EITHER, values=values)

    def audit(self, run_id: str) -> AuditReport | None:
        """Return a run's audit, or None."""
        audits = self._records(AuditReport.from_json, tables.audits, run_id)
        return audits[0] if audits else None

    def run_notes(self, run_id: str | None = None) -> list[RunNotes]:
        """Return tags and notes of a run or of all runs."""
        return self._records(RunNotes.from_json, tables.run_notes, run_id)

    def campaigns(self) -> "list[Campaign]":
        """Return all campaigns, newest first."""
        from assay.records.campaign import Campaign

        return self._records(Campaign.from_json, tables.campaigns, order="created_s DESC")

    def decisions(self, campaign: str) -> "list[Decision]":
        """Return a campaign's decisions by candidate, oldest first."""
        from assay.records.decision import Decision

        its = {"campaign": campaign}
        return self._records(Decision.from_json, tables.decisions, where="campaign = :campaign", values=its)

    def decisions_with(self, run_id: str) -> "list[Decision]":
        """Return the decisions whose records contain this run's id, of each candidate oldest first."""
        from assay.records.decision import Decision

        values = {"pattern": f"%{run_id}%"}
        return self._records(Decision.from_json, tables.decisions, where="record LIKE :pattern", values=values)

    def forget(self, run_id: str) -> None:
        """Delete everything about a run."""
        its, values = "SELECT series_id FROM metric_series WHERE run_id = :run_id", {"run_id": run_id}
        with self.writing() as connection:
            for table, key in (
                ("metric_levels", "curve_id"),
                ("metric_curves", "curve_id"),
                ("metric_chunks", "series_id"),
            ):
                connection.execute(f"DELETE FROM {table} WHERE {key} IN ({its})", values)
            connection.execute(f"DELETE FROM comparisons WHERE {_EITHER}", values)
            for owned in tables.TABLES:
                if "run_id" in owned.columns:
                    connection.execute(f"DELETE FROM {owned.name} WHERE run_id = :run_id", values)

    def _put(self, table: LedgerTable, record: Record, **others: Any) -> None:
        self._put_all(table, [_row(table, record, **others)])

    def _put_all(self, table: LedgerTable, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            with self.writing() as connection:
                upsert(connection, table, rows)

    def _records(
        self,
        parse: Callable[..., RecordT],
        table: LedgerTable,
        run_id: str | None = None,
        *,
        where: str = "",
        values: Values = {},  # noqa: B006 (not changed)
        order: str = "",
    ) -> list[RecordT]:
        """Return the records of one run or of all, ordered by key by default."""
        key = ", ".join(table.key)
        if run_id is not None:
            where, values = "run_id = :run_id", {"run_id": run_id}
        query = f"SELECT record, {key} FROM {table.name} WHERE {where or 'TRUE'} ORDER BY {order or key}"
        with self.reading() as connection:
            rows = connection.execute(query, values)
        try:
            return [parsed(parse, text) for text, *_ in rows]
        except DataError:  # it does not say in which row
            return [parse(text, source=f"ledger, {table.name} {' '.join(map(str, key))}") for text, *key in rows]


@lru_cache(maxsize=65_536)
def parsed(parse: Callable[..., RecordT], text: str) -> RecordT:
    """Return a record of the ledger, which several readers may share.

    The pages of a server read the same rows again and again; each text is parsed once. What is kept here is never out
    of date, since a row that changes has another text.
    """
    return parse(text, source="ledger")


def _log_entry(text: str, *, source: str) -> LogEntry:
    entry: LogEntry = record_of_kind(ENTRY_CLASSES.values(), text, source=source)
    return entry


def upsert(connection: Connection, table: LedgerTable, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, replacing those with the same primary key."""
    others = ", ".join(f"{column} = excluded.{column}" for column in rows[0] if column not in table.key)
    changed = f"UPDATE SET {others}" if others else "NOTHING"
    connection.execute_all(f"{insertion(table, rows[0])} ON CONFLICT ({', '.join(table.key)}) DO {changed}", rows)


def insertion(table: LedgerTable, columns: Iterable[str]) -> str:
    """Return the INSERT statement for these columns."""
    columns = list(columns)
    return f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES (:{', :'.join(columns)})"


def _row(table: LedgerTable, record: Record, **others: Any) -> dict[str, Any]:
    """Return a record's row: columns from its fields, the given columns, and its JSON."""
    others["record"] = record.to_json()
    return {column: getattr(record, column) for column in table.columns if column not in others} | others

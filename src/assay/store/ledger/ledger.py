"""The facts about all runs in one place, for people and programs that ask questions.

What a run truly did stands in its own folder (its log of commits, its segments); the ledger is the index over
all of them. Every write is by natural key: writing a fact again changes nothing, a newer version of it (an
attempt that has ended) takes its place.
"""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Select, Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from assay.base.errors import ConfigError
from assay.records.audit import AuditReport
from assay.records.benchmark import BenchmarkResult
from assay.records.campaign import Campaign
from assay.records.commit import ENTRY_CLASSES, LogEntry
from assay.records.decision import Decision
from assay.records.evaluation import (
    AnyComparison,
    AnyEvaluation,
    comparison_from_json,
    evaluation_from_json,
)
from assay.records.failure import Failure
from assay.records.launch import Launch
from assay.records.notice import Notice
from assay.records.record import Record
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.records.suspect import Suspect
from assay.store.ledger import database, tables

RecordT = TypeVar("RecordT", bound=Record)


def open_ledger(url: str) -> "Ledger":
    """The ledger at a URL (see `assay.store.ledger.database`), made if there is none."""
    return Ledger(database.open_engine(database.ledger_url(url)))


class Ledger:
    """Records in, records out. Safe to share between threads; each call is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def reading(self) -> AbstractContextManager[Connection]:
        """One consistent view, for the metric tables and the summaries."""
        return database.reading(self._engine)

    def writing(self) -> AbstractContextManager[Connection]:
        """One transaction, likewise."""
        return database.writing(self._engine)

    # Facts in

    def record_run(self, run: Run) -> None:
        """Write a run down."""
        self._put(tables.runs, run_id=run.run_id, created_s=run.created_s, record=run.to_json())

    def record_attempt(self, attempt: Attempt) -> None:
        """Write an attempt down when it begins, and again when it has ended, with what ended it."""
        row = {
            "run_id": attempt.run_id,
            "attempt": attempt.attempt,
            "start_step": attempt.start_step,
            "record": attempt.to_json(),
        }
        with self.writing() as connection:
            upsert(connection, tables.attempts, [row])
            if attempt.failure is not None:
                upsert(connection, tables.failures, [_failure_row(attempt.failure)])

    def record_notices(self, run_id: str, notices: dict[int, Notice]) -> None:
        """Write down notices of a run by their index, in one transaction."""
        rows = [
            {
                "run_id": run_id,
                "notice_index": index,
                "notice": notice.notice,
                "at_s": notice.at_s,
                "record": notice.to_json(),
            }
            for index, notice in notices.items()
        ]
        if rows:
            with self.writing() as connection:
                upsert(connection, tables.notices, rows)

    def record_launch(self, launch: Launch) -> None:
        """Write down where a run was started."""
        self._put(tables.launches, run_id=launch.run_id, number=launch.number, record=launch.to_json())

    def record_log_entry(self, run_id: str, index: int, entry: LogEntry) -> None:
        """Write down entry `index` (from 0) of a run's log."""
        self.record_log_entries(run_id, {index: entry})

    def record_log_entries(self, run_id: str, entries: dict[int, LogEntry]) -> None:
        """Write down entries of a run's log by their index, in one transaction."""
        rows = [
            {
                "run_id": run_id,
                "entry_index": index,
                "type": entry.type,
                "step": getattr(entry, "step", None),
                "record": entry.to_json(),
            }
            for index, entry in entries.items()
        ]
        if rows:
            with self.writing() as connection:
                upsert(connection, tables.log_entries, rows)

    def record_phase_seconds(self, phase_seconds: PhaseSeconds) -> None:
        """Write down what a rank of an attempt cost."""
        self._put(
            tables.phase_seconds,
            run_id=phase_seconds.run_id,
            attempt=phase_seconds.attempt,
            rank=phase_seconds.rank,
            held_s=phase_seconds.held_s,
            record=phase_seconds.to_json(),
        )

    def record_evaluation(self, evaluation: AnyEvaluation) -> None:
        """Write an evaluation down; one per run, step, dataset and split."""
        headline = evaluation.headline
        self._put(
            tables.evaluations,
            run_id=evaluation.run_id,
            step=evaluation.step,
            dataset_fingerprint=evaluation.dataset_fingerprint,
            split=evaluation.split,
            headline=None if headline.estimate is None else headline.estimate.value,
            record=evaluation.to_json(),
        )

    def record_benchmark_result(self, result: BenchmarkResult) -> None:
        """Write a benchmark's result down; one per run, step and version of the benchmark."""
        self._put(
            tables.benchmark_results,
            run_id=result.run_id,
            step=result.step,
            benchmark=result.benchmark,
            version_sha256=result.version_sha256(),
            score=result.score.value,
            record=result.to_json(),
        )

    def record_comparison(self, comparison: AnyComparison) -> None:
        """Write a comparison down; the latest of a pair is kept."""
        self._put(
            tables.comparisons,
            baseline_run_id=comparison.baseline_run_id,
            candidate_run_id=comparison.candidate_run_id,
            record=comparison.to_json(),
        )

    def record_audit(self, audit: AuditReport) -> None:
        """Write an audit down; the latest of a run is kept."""
        self._put(tables.audits, run_id=audit.run_id, record=audit.to_json())

    def record_campaign(self, campaign: Campaign) -> None:
        """Write down what a campaign declared."""
        self._put(
            tables.campaigns,
            campaign=campaign.name,
            created_s=campaign.created_s,
            record=campaign.to_json(),
        )

    def record_decision(self, decision: Decision) -> None:
        """Write a decision down; one per candidate, look and revision."""
        self._put(
            tables.decisions,
            campaign=decision.campaign,
            candidate=decision.candidate,
            num_seeds=decision.look.num_seeds,
            is_gate=int(decision.look.is_gate),
            revision=decision.revision,
            recommendation=decision.recommendation,
            record=decision.to_json(),
        )

    # Facts out

    def runs(self) -> list[Run]:
        """All runs, the newest first."""
        return self._records(Run, select(tables.runs.c.record).order_by(tables.runs.c.created_s.desc()))

    def run(self, id_or_prefix: str) -> Run:
        """The run with this id, or the only one whose id begins so; a `ConfigError` names what was meant."""
        with self.reading() as connection:
            known = list(connection.execute(select(tables.runs.c.run_id)).scalars())
        run_id = _the_one_meant(id_or_prefix, known)
        (run,) = self._records(Run, select(tables.runs.c.record).where(tables.runs.c.run_id == run_id))
        return run

    def attempts(self, run_id: str) -> list[Attempt]:
        """A run's attempts, the first first."""
        table = tables.attempts
        return self._records(Attempt, _records_of(table, run_id).order_by(table.c.attempt))

    def failures(self, run_id: str | None = None) -> list[Failure]:
        """What ended a run's attempts before their time, or those of all runs."""
        table = tables.failures
        query = select(table.c.record) if run_id is None else _records_of(table, run_id)
        return self._records(Failure, query.order_by(table.c.run_id, table.c.attempt))

    def notices(self, run_id: str) -> list[Notice]:
        """What was noticed about a run, the oldest first."""
        table = tables.notices
        return self._records(Notice, _records_of(table, run_id).order_by(table.c.notice_index))

    def launches(self, run_id: str | None = None) -> list[Launch]:
        """Where a run was started, or all runs, the first time first."""
        table = tables.launches
        query = select(table.c.record) if run_id is None else _records_of(table, run_id)
        return self._records(Launch, query.order_by(table.c.run_id, table.c.number))

    def suspects(self, node: str) -> list[tuple[str, Suspect]]:
        """Every time that a device of a node computed wrongly, with the run's id."""
        query = select(tables.attempts.c.record).where(tables.attempts.c.record.contains('"suspects":[{'))
        return [
            (attempt.run_id, suspect)
            for attempt in self._records(Attempt, query)
            for suspect in attempt.suspects
            if suspect.node == node
        ]

    def log_entries(self, run_id: str) -> list[LogEntry]:
        """A run's log in order, as far as it was written down."""
        table = tables.log_entries
        rows = self._rows(
            select(table.c.type, table.c.record).where(table.c.run_id == run_id).order_by(table.c.entry_index)
        )
        return [ENTRY_CLASSES[kind].from_json(text, source=f"ledger, run {run_id}") for kind, text in rows]

    def phase_seconds(self, run_id: str) -> list[PhaseSeconds]:
        """What a run cost, by attempt and rank."""
        table = tables.phase_seconds
        return self._records(PhaseSeconds, _records_of(table, run_id).order_by(table.c.attempt, table.c.rank))

    def evaluations(self, run_id: str) -> list[AnyEvaluation]:
        """A run's evaluations by step, the last last."""
        table = tables.evaluations
        rows = self._rows(_records_of(table, run_id).order_by(table.c.step, table.c.split))
        return [evaluation_from_json(text, source=f"ledger, run {run_id}") for (text,) in rows]

    def benchmark_results(self, run_id: str | None = None) -> list[BenchmarkResult]:
        """The benchmark results of a run, or of all, by run, benchmark and step."""
        table = tables.benchmark_results
        query = select(table.c.record) if run_id is None else _records_of(table, run_id)
        return self._records(
            BenchmarkResult,
            query.order_by(table.c.run_id, table.c.benchmark, table.c.version_sha256, table.c.step),
        )

    def comparisons(self, run_id: str) -> list[AnyComparison]:
        """All comparisons in which a run is the baseline or the candidate."""
        table = tables.comparisons
        either = (table.c.baseline_run_id == run_id) | (table.c.candidate_run_id == run_id)
        order = (table.c.baseline_run_id, table.c.candidate_run_id)
        rows = self._rows(select(table.c.record).where(either).order_by(*order))
        return [comparison_from_json(text, source=f"ledger, run {run_id}") for (text,) in rows]

    def audit(self, run_id: str) -> AuditReport | None:
        """A run's latest audit."""
        return next(iter(self._records(AuditReport, _records_of(tables.audits, run_id))), None)

    def campaigns(self) -> list[Campaign]:
        """All campaigns, the newest first."""
        table = tables.campaigns
        return self._records(Campaign, select(table.c.record).order_by(table.c.created_s.desc()))

    def decisions(self, campaign: str) -> list[Decision]:
        """A campaign's decisions by candidate, each candidate's newest last."""
        table = tables.decisions
        query = select(table.c.record).where(table.c.campaign == campaign)
        order = (table.c.candidate, table.c.num_seeds, table.c.is_gate, table.c.revision)
        return self._records(Decision, query.order_by(*order))

    def _put(self, table: Table, **row: Any) -> None:
        with self.writing() as connection:
            upsert(connection, table, [row])

    def _rows(self, query: Select[Any]) -> Sequence[Any]:
        with self.reading() as connection:
            return connection.execute(query).all()

    def _records(self, record_class: type[RecordT], query: Select[Any]) -> list[RecordT]:
        return [record_class.from_json(text, source="ledger") for (text,) in self._rows(query)]


def upsert(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows; one whose primary key is there takes the old one's place."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    insert = dialect.insert(table)
    key = [column.name for column in table.primary_key]
    others = {name: insert.excluded[name] for name in rows[0] if name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=others), list(rows))


def _failure_row(failure: Failure) -> dict[str, Any]:
    return {
        "run_id": failure.run_id,
        "attempt": failure.attempt,
        "failure_kind": failure.failure_kind,
        "signature": failure.signature,
        "host": failure.host,
        "record": failure.to_json(),
    }


def _records_of(table: Table, run_id: str) -> Select[Any]:
    return select(table.c.record).where(table.c.run_id == run_id)


def _the_one_meant(id_or_prefix: str, known: list[str]) -> str:
    if id_or_prefix in known:
        return id_or_prefix
    matches = sorted(run_id for run_id in known if id_or_prefix and run_id.startswith(id_or_prefix))
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
        raise ConfigError(f"'{id_or_prefix}' begins the ids of {len(matches)} runs: {shown}. Write more of it.")
    raise ConfigError(f"no run '{id_or_prefix}'. {''.join(_hints(id_or_prefix, known))}")


def _hints(wanted: str, known: list[str]) -> Iterator[str]:
    if not known:
        yield "The ledger holds no runs: is $ASSAY_HOME (or $ASSAY_LEDGER) the one that they were recorded in?"
    elif close := difflib.get_close_matches(wanted, known, n=3, cutoff=0.4):
        yield f"Perhaps you meant {' or '.join(close)}. "
        yield "'assay runs' lists all."
    else:
        yield "'assay runs' lists those that there are."

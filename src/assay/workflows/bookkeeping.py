"""Records what the supervisor observes in the ledger: attempts, log entries, metrics, device time.

Ranks write files only, and the supervisor passes facts to a writer thread (`LedgerWriter`). If the database is
down or hangs, training, restarts and exit are not affected: the facts are in the run's folder and commit log,
and are recorded when the database is back.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from assay.base.clock import Clock
from assay.base.errors import AssayError, StoreError
from assay.records.goodput import Goodput, goodput_key
from assay.records.run import Attempt, ClusterOf, Run
from assay.statistics.predictions import EVALUATION_FILE, load_evaluation
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import saved_launches
from assay.store.ledger.catch_up import record_incidents
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.writer import LedgerWriter
from assay.store.metrics.fold import fold_run
from assay.store.metrics.phases import rank_phase_seconds
from assay.store.objects import open_store
from assay.store.retry_policy import RetryPolicy
from assay.store.run_notes import saved_notes
from assay.store.run_results import saved_audit, saved_comparisons
from assay.store.settings import NO_SETTINGS, Settings
from assay.workflows.evaluation.results import write_results

FOLD_INTERVAL_S = 2.0
Subject = TypeVar("Subject")


def writer_of(home: Home, run: Run) -> LedgerWriter:
    """Return a background writer for the run's facts, which records the run first."""
    writer = LedgerWriter(home, run.run_id, again=partial(rebuild_run, run=run))
    writer.put(lambda ledger: ledger.record_run(run))
    return writer


class Bookkeeper:
    """A run observer that keeps the ledger up to date."""

    def __init__(self, run: Run, writer: LedgerWriter, clock: Clock, settings: Settings = NO_SETTINGS) -> None:
        """`settings`: prices, for the other clusters of a run over several."""
        self._run = run
        self._writer = writer
        self._clock = clock
        self._settings = settings
        # No retries: what cannot be read now is read at the next tick.
        self._log = CommitLog(open_store(run.store_url, RetryPolicy(0.0)))
        self._num_entries = 0
        self._next_fold_s = 0.0

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        self._writer.put(lambda ledger: self._record_beginning(ledger, attempt))

    def tick(self, attempt: Attempt) -> None:  # noqa: ARG002
        """Record new metrics and commits every `FOLD_INTERVAL_S` seconds."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_fold_s and not self._writer.is_behind:
            self._next_fold_s = now_s + FOLD_INTERVAL_S
            self._writer.put(self._catch_up)

    def attempt_ended(self, attempt: Attempt) -> None:
        self._writer.put(lambda ledger: self._record_end(ledger, attempt))

    def _record_beginning(self, ledger: Ledger, attempt: Attempt) -> None:
        _launches(ledger, self._run)
        ledger.record_attempt(attempt)
        record_earlier_attempts(ledger, self._run, attempt)

    def _record_end(self, ledger: Ledger, attempt: Attempt) -> None:
        ledger.record_attempt(attempt)
        record_phases(ledger, self._run, attempt)
        self._catch_up(ledger)
        if self._run.cluster_of is not None:
            for earlier in saved_attempts(Path(self._run.run_dir)):
                if earlier.ended_s is not None:  # this attempt may have found out that an earlier one was too late
                    record_phases(ledger, self._run, earlier)
            self._put_goodput(self._run.cluster_of, goodput_of(ledger, [self._run], self._settings))

    def _put_goodput(self, of: ClusterOf, goodput: Goodput) -> None:
        """Put this cluster's device time into the meeting place, without what its failures say."""
        interruptions = tuple(item.model_copy(update={"failure": None}) for item in goodput.interruptions)
        data = goodput.model_copy(update={"interruptions": interruptions}).to_sealed_json().encode()
        # The meeting place may be away. The end of the next attempt puts it again.
        with suppress(StoreError):
            open_store(of.meeting_url, RetryPolicy(0.0)).put(goodput_key(of.cluster), data)

    def _catch_up(self, ledger: Ledger) -> None:
        entries = self._log.entries()
        new = {index: entries[index] for index in range(self._num_entries, len(entries))}
        ledger.record_log_entries(self._run.run_id, new)
        self._num_entries = len(entries)
        record_incidents(ledger, self._run)
        fold_run(ledger, self._run)
        ledger.record_write(self._run.run_id)


def record_earlier_attempts(ledger: Ledger, run: Run, attempt: Attempt) -> None:
    """Record how a new attempt changes the attempts before it.

    An attempt whose supervisor died has been closed; committed steps are lost if the new attempt starts before
    them, because the commit was corrupt or not trusted.
    """
    known = {earlier.attempt: earlier for earlier in ledger.attempts(run.run_id)}
    for earlier in saved_attempts(Path(run.run_dir)):
        if earlier.attempt >= attempt.attempt or earlier.ended_s is None:
            continue
        if earlier != known.get(earlier.attempt) or (earlier.end_step or 0) > attempt.start_step:
            ledger.record_attempt(earlier)
            record_phases(ledger, run, earlier)


def record_phases(ledger: Ledger, run: Run, attempt: Attempt) -> None:
    """Record the device time of a finished attempt by phase, unless it is a session's, which its charges tell."""
    if run.is_session():
        return
    assert attempt.ended_s is not None and attempt.end_step is not None
    later = [
        saved_attempt for saved_attempt in saved_attempts(Path(run.run_dir)) if saved_attempt.attempt > attempt.attempt
    ]
    committed_step = min([attempt.end_step or attempt.start_step, *(item.start_step for item in later)])
    for rank in range(attempt.world_size):
        ledger.record_phase_seconds(
            rank_phase_seconds(
                run,
                attempt,
                rank,
                held_to_s=attempt.ended_s,
                committed_step=committed_step,
            )
        )


class LedgerSource(NamedTuple, Generic[Subject]):
    """Files from which rows of the ledger are rebuilt."""

    tables: tuple[str, ...]
    files: str
    """Patterns in the run's folder or the home, unless stated otherwise."""
    write: Callable[[Ledger, Subject], object]


def rebuild_run(ledger: Ledger, run: Run) -> list[str]:
    """Record everything about a run in the ledger again; existing rows stay.

    Returns a sentence for each kind of file that is corrupt; such a file costs only its own rows.
    """
    return write_sources(ledger, run, RUN_SOURCES, name=f"run '{run.run_id}'")


def write_sources(
    ledger: Ledger, subject: Subject, sources: Sequence[LedgerSource[Subject]], *, name: str
) -> list[str]:
    """Record the rows of some sources; returns a sentence for each kind of file that is corrupt."""
    problems = []
    for source in sources:
        try:
            source.write(ledger, subject)
        except StoreError:
            raise  # probably an error of the ledger itself
        except AssayError as error:
            problems.append(f"{name}: {', '.join(source.tables)} not from {source.files}: {error}")
    return problems


def _launches(ledger: Ledger, run: Run) -> None:
    for launch in saved_launches(run):
        ledger.record_launch(launch)


def _log_entries(ledger: Ledger, run: Run) -> None:
    log = CommitLog(open_store(run.store_url, RetryPolicy(0.0)))
    ledger.record_log_entries(run.run_id, dict(enumerate(log.entries())))


def _attempts(ledger: Ledger, run: Run) -> None:
    written = None
    # Repeat if an attempt ended meanwhile: the older state must not overwrite the one from its supervisor.
    while (attempts := saved_attempts(Path(run.run_dir))) != written:
        for attempt in attempts:
            ledger.record_attempt(attempt)
            if attempt.ended_s is not None:
                record_phases(ledger, run, attempt)
        written = attempts


def _evaluations(ledger: Ledger, run: Run) -> None:
    for path in sorted(Path(run.run_dir).glob(f"evaluations/*/{EVALUATION_FILE}")):
        ledger.record_evaluation(load_evaluation(path.parent))


def _audits_and_comparisons(ledger: Ledger, run: Run) -> None:
    audit = saved_audit(run.run_dir)
    if audit is not None:
        ledger.record_audit(audit)
    for comparison in saved_comparisons(run.run_dir):
        ledger.record_comparison(comparison)


def _notes(ledger: Ledger, run: Run) -> None:
    notes = saved_notes(run)
    if notes.tags or notes.notes:
        ledger.record_run_notes(notes)


def _write(ledger: Ledger, run: Run) -> None:
    ledger.record_write(run.run_id)


_METRIC_TABLES = (
    "metric_segments", "metric_events", "metric_series", "metric_chunks", "metric_curves", "metric_levels",
)  # fmt: skip

RUN_SOURCES = (
    LedgerSource(("runs",), "run.json", Ledger.record_run),
    LedgerSource(("launches",), "launches/*.json", _launches),
    LedgerSource(("log_entries",), "in its store: log/*.json", _log_entries),
    LedgerSource(("attempts", "failures", "phase_seconds"), "attempts/*.json, metrics/*/*.seg", _attempts),
    LedgerSource(("run_notes",), "notes.json", _notes),
    LedgerSource(("incidents",), "incidents.jsonl", record_incidents),
    LedgerSource(("evaluations",), "evaluations/*/evaluation.json", _evaluations),
    LedgerSource(("audits", "comparisons"), "audit.json, comparisons/*.json", _audits_and_comparisons),
    LedgerSource(_METRIC_TABLES, "metrics/*/*.seg", fold_run),
    LedgerSource(
        ("benchmark_results", "phase_seconds"),
        "in its store: benchmarks/**/result.json, lease-*.json",
        write_results,
    ),
    LedgerSource(("ledger_writes",), "its folder, as of now", _write),
)

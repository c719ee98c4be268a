"""Rebuilds the ledger from files: the folders of runs and campaigns hold everything that it contains.

A lost database costs one command, `assay runs --rebuild`, and no run needs it while it trains. `SOURCES` names
the files for every table; a table without a source could lose facts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from assay.base.clock import SystemClock
from assay.base.errors import AssayError, DataError, StoreError
from assay.evals.queue import PREFIX, stored_results
from assay.records.run import Run
from assay.serving.admin.spend import ChargedResources, debit, debit_all
from assay.serving.batches.batches import BatchRepository
from assay.serving.evals.runs import EvalRunRepository
from assay.serving.sessions.sessions import SessionRepository
from assay.store.attempts import unreadable_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import API, CAMPAIGN_FILE, Home
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.ledger.writer import clear_missed, missed_subjects
from assay.store.objects import open_store
from assay.store.retry_policy import RetryPolicy
from assay.workflows.bookkeeping import RUN_SOURCES, LedgerSource, write_sources
from assay.workflows.campaign.folder import all_decisions, declared_campaign
from assay.workflows.campaign.train import settle


class Rebuilt(NamedTuple):
    """Result of a rebuild."""

    runs: list[Run]
    problems: list[str]
    """Sentences about corrupt files, which are skipped."""


def rebuild_all(home: Home, ledger: Ledger) -> Rebuilt:
    """Record every run and campaign of a home in a ledger; existing rows stay.

    A corrupt file, or a run whose store is down, costs only its own rows, and is reported.
    """
    missed = missed_subjects(home)
    runs, problems = home.readable_runs()
    if not runs and not problems:
        raise DataError(f"{home.folder}: no runs. Name the folder that holds them in $ASSAY_HOME.")
    for run in runs:
        problems += unreadable_attempts(Path(run.run_dir))
        try:
            problems += write_sources(ledger, run, SOURCES_OF_A_RUN, name=f"run '{run.run_id}'")
        except StoreError as error:
            problems.append(f"run '{run.run_id}': {error}")
    problems += write_sources(ledger, home, SOURCES_OF_A_HOME, name=str(home.folder))
    for subject, marked_at_s in missed.items():
        clear_missed(home, subject, marked_at_s=marked_at_s)
    return Rebuilt(runs, problems)


def fold_in_missed(home: Home, ledger: Ledger) -> list[str]:
    """Record what the home's ledger missed while it was down.

    Returns a sentence for each subject that cannot be recorded now; it stays marked.
    """
    problems = []
    for subject, marked_at_s in missed_subjects(home).items():
        try:
            fold_in(home, subject, ledger)
            clear_missed(home, subject, marked_at_s=marked_at_s)
        except AssayError as error:
            problems.append(f"the ledger lacks what it missed of '{subject}': {error}")
    return problems


def fold_in(home: Home, subject: str, ledger: Ledger) -> None:
    """Record everything about a run, or about what is stored in the home under another name."""
    if home.has_run(subject):
        write_sources(ledger, home.run(subject), SOURCES_OF_A_RUN, name=subject)
    else:
        write_sources(ledger, home, SOURCES_OF_A_HOME, name=subject)


@contextmanager
def ledger_of_folder(run: Run) -> Iterator[Ledger]:
    """Yield a temporary ledger with one run, read from its folder."""
    with TemporaryDirectory() as folder, open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        write_sources(ledger, run, SOURCES_OF_A_RUN, name=run.run_id)
        yield ledger


def _unended_attempt(ledger: Ledger, run: Run) -> None:
    if CommitLog(open_store(run.store_url, RetryPolicy(0.0))).finished() is not None:
        settle(run, ledger)


def _results_in_folders(ledger: Ledger, home: Home) -> None:
    for folder in sorted(home.folder.glob(f"*/{PREFIX}")):
        for _, result in stored_results(home.store_of(folder.parent.name)):
            ledger.record_benchmark_result(result)


def _api_debits(ledger: Ledger, home: Home) -> None:
    if home.api.is_dir():
        store, clock = open_store(str(home.api)), SystemClock()
        kinds = EvalRunRepository(store, clock), BatchRepository(store, clock), SessionRepository(store, clock)
        debit_all(ledger, ChargedResources(*kinds))


def _session_debits(ledger: Ledger, run: Run) -> None:
    if run.is_session():
        store = open_store(str(Path(run.run_dir).parent / API))
        state = SessionRepository(store, SystemClock()).state_once(run.run_id)
        debit(ledger, run.run_id, () if state is None else state.charges)


def _campaigns(ledger: Ledger, home: Home) -> None:
    for path in sorted(home.campaigns.glob(f"*/{CAMPAIGN_FILE}")):
        ledger.record_campaign(declared_campaign(path.parent))
        for decision in all_decisions(path.parent):
            ledger.record_decision(decision)


SOURCES_OF_A_RUN = (
    *RUN_SOURCES,
    LedgerSource(("phase_seconds",), "metrics/*/*.seg of an attempt that nobody ended", _unended_attempt),
    LedgerSource(("phase_seconds",), "for a session: api/session/*/log", _session_debits),
)

SOURCES_OF_A_HOME = (
    LedgerSource(("phase_seconds",), "api/evalrun/*/log, api/batch/*/log", _api_debits),
    LedgerSource(("benchmark_results",), "*/benchmarks/**/result.json", _results_in_folders),
    LedgerSource(("campaigns", "decisions"), "campaigns/*/campaign.json, campaigns/*/decisions/*.json", _campaigns),
)

SOURCES: tuple[LedgerSource[Run] | LedgerSource[Home], ...] = (*SOURCES_OF_A_RUN, *SOURCES_OF_A_HOME)
"""Every table of the ledger has at least one source."""

"""What every page gets: the home, the API's state, and what watches both."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from assay.base.clock import Clock
from assay.base.errors import ConfigError, StoreError
from assay.dashboard.access import Access, Reader, visible_runs
from assay.dashboard.background import Background
from assay.dashboard.page import PageError
from assay.dashboard.watch import Look, Watch
from assay.serving.batches.batches import BatchRepository, BatchState
from assay.serving.evals.runs import EvalRunRepository, EvalRunState
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.openai.app_state import AppState
from assay.store.followed import OFFER_FILE, followed_coverages, followed_programs
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.open_ledger import OpenLedger
from assay.store.ledger.writer import missed_subjects
from assay.store.settings import Settings

_COUNTED = ("runs", "attempts", "launches", "evaluations", "benchmark_results", "decisions", "run_notes")
"""Tables whose new rows change the list of runs."""
_OF_A_RUN = ("log", "attempts", "evaluations", "benchmarks")
"""Folders of a run whose files change with what its page shows."""


class Dashboard(NamedTuple):
    """The state of all pages of one server."""

    home: Home
    api: AppState
    clock: Clock
    access: Access
    watch: Watch
    background: Background
    open_ledger: OpenLedger
    reader: Reader = Reader()
    """Whose pages are made: the ledger shows this reader's runs only."""

    @classmethod
    def of(cls, home: Home, api: AppState) -> Self:
        """Return the dashboard of a home and its API."""
        access = Access(api.files.store, api.keys, api.clock)
        background, ledger = Background(), OpenLedger(home)
        watch = Watch(_looks(home, api, background, ledger))
        return cls(home, api, api.clock, access, watch, background, ledger)

    def settings(self) -> Settings:
        """Return the home's settings. Raises `StoreError` for a file that somebody has to correct."""
        try:
            return self.home.settings()
        except ConfigError as error:
            raise StoreError(str(error)) from error

    @contextmanager
    def ledger(self, *run_ids: str) -> Iterator[Ledger]:
        """Open the ledger as the reader sees it, with the given runs recorded in it. Raises `PageError` if a run does
        not exist, or belongs to another project."""
        shown = visible_runs(self.reader, self.api)
        _record_missed(self.home, self.open_ledger)
        with self.open_ledger.shown(shown) as ledger:
            for run_id in run_ids:
                is_shown, is_recorded = shown is None or shown.shows(run_id), ledger.has_run(run_id)
                if not is_shown or not (is_recorded or self.home.has_run(run_id)):
                    raise PageError(404, f"no run '{run_id}' in {self.home.folder}.")
                if not is_recorded:
                    from assay.workflows.rebuild import fold_in  # it imports what starts runs

                    fold_in(self.home, run_id, ledger)
            yield ledger


def _record_missed(home: Home, ledger: OpenLedger) -> None:
    """Record runs that the ledger missed, such as those that other loops record in their folders only."""
    if missed_subjects(home):
        from assay.workflows.rebuild import fold_in_missed  # likewise

        with ledger.shown(None) as everything:
            fold_in_missed(home, everything)


def _looks(home: Home, api: AppState, background: Background, ledger: OpenLedger) -> dict[str, Look]:
    """Return how each kind of topic is looked at; `runs` and `jobs` may name a project whose share is watched."""

    def runs(project: str) -> object:
        _record_missed(home, ledger)
        with ledger.shown(visible_runs(Reader(project=project, sees_all=not project), api)) as opened:
            with opened.reading() as connection:
                counts = [connection.execute(f"SELECT COUNT(*) FROM {table}") for table in _COUNTED]
            return counts, opened.last_writes()

    def run(run_id: str) -> object:
        folder = home.run_dir(run_id)
        # Earlier attempts log no more, so the newest two are enough.
        attempts = [folder / "metrics" / name for name, *_ in _newest_in(folder / "metrics")[-2:]]
        return [_newest_in(part) for part in (folder, *(folder / name for name in _OF_A_RUN), *attempts)]

    def campaigns(_: str) -> object:
        files = home.campaigns.glob("*/decisions/*.json")
        return home.campaign_names(), sorted((file.name, file.stat().st_mtime_ns) for file in files)

    def jobs(project: str) -> object:
        accepted = (repository.states(repository.open_ids()) for repository in (api.jobs, api.eval_runs, api.batches))
        return [
            (resource_id, *_progress(api, state))
            for states in accepted
            for resource_id, state in states
            if project in ("", state.created.project)
        ]

    return {
        "jobs": jobs,
        "job": lambda job_id: _progress(api, accepted_repository(api, job_id).state(job_id)),
        "runs": runs,
        "run": run,
        "campaigns": campaigns,
        "followed": lambda _: followed_files(home),
        "computed": background.num_done,
        "minute": lambda _: int(api.clock.now_s() / 60),
    }


def _newest_in(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, time and size of the last files of a folder by name; empty if it does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        last = sorted(entries, key=lambda entry: entry.name)[-64:]
        return [(entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in last]
    return []


def accepted_repository(api: AppState, resource_id: str) -> JobRepository | EvalRunRepository | BatchRepository:
    """Return the repository of a job, an eval run or a batch by the form of its id."""
    kind = resource_id.partition("-")[0]
    return api.eval_runs if kind == "evalrun" else api.batches if kind == "batch" else api.jobs


def _progress(api: AppState, state: JobState | EvalRunState | BatchState | None) -> tuple[object, ...]:
    """Return what changes when something happens to a job, an eval run or a batch."""
    if isinstance(state, JobState):
        return state.status, len(state.entries), api.queue.status(state)
    return () if state is None else (state.status, state.num_done)


def followed_files(home: Home) -> tuple[tuple[str, int, int] | None, ...]:
    """Return name, time and size of the files of all programs and coverage files; None for one that is missing."""
    programs = [(item.file, item.folder / OFFER_FILE, item.notes) for item in followed_programs(home)]
    coverages = [(item.file, *item.suites) for item in followed_coverages(home)]
    return tuple(modified(file) for files in (*programs, *coverages) for file in files if file is not None)


def modified(file: Path) -> tuple[str, int, int] | None:
    """Return the path of a file, when it was changed, and its size; None if it does not exist."""
    with suppress(OSError):
        found = file.stat()
        return str(file), found.st_mtime_ns, found.st_size
    return None

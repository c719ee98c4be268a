"""Metrics of a home in Prometheus' format: runs, device time, queue and workers.

They are sums without the names of runs, jobs, projects or hosts, so the number of series is bounded. They equal what
`assay runs list`, `assay runs goodput` and the API's job objects say. What can decrease, as when a run is deleted, is a
gauge. A moment is given as its time, not its age: the age keeps growing if the server dies.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple, get_args

from assay.base.errors import AssayError
from assay.records.commit import Commit
from assay.records.failure import FailureKind
from assay.records.fine_tuning_job import ResumeRequested, RunLeft
from assay.records.run import AT_WORK, Attempt, Run, RunStatus
from assay.reporting.views.cost import LOST
from assay.reporting.views.runs.run_list import current_summaries
from assay.serving.batches.batches import BatchRepository, BatchState
from assay.serving.evals.runs import EvalRunRepository, EvalRunState
from assay.serving.http.operations import gauge
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.queue.worker_registry import WorkerRegistry
from assay.store.home import Home
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.open_ledger import OpenLedger
from assay.store.ledger.summary import RunSummary
from assay.store.ledger.writer import missed_subjects

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from assay.serving.openai.app_state import AppState

_log = logging.getLogger("assay.serving")
USES = ("useful", "lost", "other", "evaluation", "waiting")
"""What device time was for, as the columns of `assay runs goodput --by`."""
OUTCOMES = get_args(Attempt.model_fields["outcome"].annotation)
_FACTS_OF_RUNS = (
    "SELECT run_id, COUNT(*), SUM(LENGTH(record)) FROM attempts GROUP BY run_id",
    "SELECT run_id, COUNT(*), SUM(held_s) FROM phase_seconds GROUP BY run_id",
    "SELECT run_id, at_s FROM ledger_writes",
)
"""If what these say of a run is unchanged, and whether it has finished, so are its figures."""
_OTHER_EVALUATION_S = (
    "SELECT SUM(held_s) FROM phase_seconds WHERE attempt = 0 AND run_id NOT IN (SELECT run_id FROM runs)"
)
"""Device time of the API's eval runs and batches."""


_LAST_COMMIT = (
    "SELECT record FROM log_entries WHERE run_id = :run_id AND type = 'commit' ORDER BY entry_index DESC LIMIT 1"
)


_Repository = JobRepository | EvalRunRepository | BatchRepository
_State = JobState | EvalRunState | BatchState


class _RunFigures(NamedTuple):
    facts: tuple[object, ...]
    is_drill: bool
    outcomes: Counter[str]
    """Number of attempts by outcome."""
    device_s: Mapping[str, float]
    """By use."""
    interruptions: Counter[str]
    """Number of early ends by the kind of the failure."""


class HomeMetrics:
    """A collector of `prometheus_client`. Figures of runs are computed again only if their rows have changed."""

    def __init__(self, home: Home, api: "AppState", open_ledger: OpenLedger, num_streams: Callable[[], int]) -> None:
        """`num_streams`: number of open event streams of the dashboard."""
        self._home = home
        self._num_streams = num_streams
        self._open_ledger = open_ledger
        self._api = api
        self._figures: dict[str, _RunFigures] = {}

    def collect(self) -> Iterator["Metric"]:
        """Yield the metrics. What cannot be read is left out, and `assay_ledger_up` or `assay_store_up` is 0."""
        for name, read in (("ledger", self._of_runs), ("store", self._of_queue)):
            try:
                found, is_up = [*read()], 1
            except (AssayError, OSError) as error:
                _log.warning("metrics without the %s: %s", name, error)
                found, is_up = [], 0
            yield gauge(f"assay_{name}_up", f"Whether the {name} can be read.", {(): is_up})
            yield from found
        yield gauge("assay_build_info", "The version that runs; the value is 1.", {(version("assay"),): 1}, "version")
        yield gauge(
            "assay_event_streams", "Open pages of the dashboard that follow changes.", {(): self._num_streams()}
        )
        with suppress(OSError):
            free = shutil.disk_usage(self._home.folder).free
            yield gauge("assay_disk_free_bytes", "Free space on the disk of the runs.", {(): free})

    def _of_runs(self) -> Iterator["Metric"]:
        with self._open_ledger.shown(None) as ledger:
            unfinished = [item for item in current_summaries(ledger, is_unfinished=True) if not item.run.is_drill]
            self._renew_figures(ledger, unfinished)
            figures = [item for item in self._figures.values() if not item.is_drill]
            at_work = [item for item in unfinished if item.status in AT_WORK]
            commits_s = [_last_commit_s(ledger, item) for item in at_work]
            with ledger.reading() as connection:
                ((other_evaluation_s,),) = connection.execute(_OTHER_EVALUATION_S)
        statuses = Counter[str](item.status for item in unfinished)
        statuses["succeeded"] += max(0, len(figures) - len(unfinished))
        yield gauge("assay_runs", "Runs by status.", _by(get_args(RunStatus), statuses), "status")
        outcomes, kinds = Counter[str](), Counter[str]()
        for item in figures:
            outcomes.update(item.outcomes)
            kinds.update(item.interruptions)
        seconds = {use: sum(item.device_s[use] for item in figures) for use in USES}
        seconds["evaluation"] += other_evaluation_s or 0.0
        yield gauge("assay_attempts", "Attempts of all runs by outcome.", _by(OUTCOMES, outcomes), "outcome")
        text = "Device time of ended attempts and of evaluations by use; useful, lost and other sum to what was held."
        yield gauge("assay_device_seconds", text, _by(USES, seconds), "use")
        text = "Early ends of attempts by the kind of the failure; none: without a failure, such as a preemption."
        yield gauge("assay_interruptions", text, _by(("none", *get_args(FailureKind)), kinds), "failure_kind")
        text = "Time of the last commit of the run at work that has waited longest for one."
        yield gauge("assay_oldest_commit_timestamp_seconds", text, _oldest(commits_s))
        text = "Last sign of life of the run at work that has been silent longest."
        seen_s = (item.last_seen_s for item in at_work)
        yield gauge("assay_oldest_sign_of_life_timestamp_seconds", text, _oldest(at_s for at_s in seen_s if at_s))
        text = "Runs whose newest facts are in their folders only."
        yield gauge("assay_ledger_missed_runs", text, {(): len(missed_subjects(self._home))})

    def _of_queue(self) -> Iterator["Metric"]:
        api = self._api
        num_jobs, oldest = Counter[tuple[str, str]](), dict[tuple[str], float]()
        repositories: dict[str, _Repository] = {
            "fine_tuning": api.jobs,
            "eval_run": api.eval_runs,
            "batch": api.batches,
        }
        for kind, repository in repositories.items():
            states = [state for _, state in repository.states(repository.open_ids()) if not state.has_ended]
            num_jobs.update({(kind, status): 0 for status in ("waiting", "running", "paused")})
            num_jobs.update((kind, _status(state)) for state in states)
            if waiting_s := [_waits_since_s(state) for state in states if _status(state) == "waiting"]:
                oldest[kind,] = min(waiting_s)
        text = "Jobs, eval runs and batches that have not ended."
        yield gauge("assay_jobs", text, num_jobs, "kind", "status")
        text = "Since when the first job of the queue has waited."
        yield gauge("assay_queue_oldest_timestamp_seconds", text, oldest, "kind")
        workers = WorkerRegistry(api.jobs.store, api.clock).live()
        yield gauge("assay_workers", "Workers that have renewed their registration.", {(): len(workers)})
        slots = sum(worker.slots for worker in workers)
        yield gauge("assay_worker_slots", "Runs that these workers may train at once.", {(): slots})

    def _renew_figures(self, ledger: Ledger, unfinished: Iterable[RunSummary]) -> None:
        runs = {item.run.run_id: item.run for item in unfinished}
        facts: dict[str, tuple[object, ...]] = {}
        with ledger.reading() as connection:
            facts.update((run_id, (run_id in runs,)) for (run_id,) in connection.execute("SELECT run_id FROM runs"))
            for statement in _FACTS_OF_RUNS:
                for run_id, *values in connection.execute(statement):
                    if run_id in facts:
                        facts[run_id] += (statement, *values)
        known = {run_id: item for run_id, item in self._figures.items() if item.facts == facts.get(run_id)}
        if not facts.keys() <= known.keys() | runs.keys():
            runs = {run.run_id: run for run in ledger.runs()}
        for run_id in (facts.keys() - known.keys()) & runs.keys():
            known[run_id] = _figures_of(ledger, runs[run_id], facts[run_id])
        self._figures = known


def _by(names: Iterable[str], counts: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(name,): counts.get(name, 0) for name in names}


def _figures_of(ledger: Ledger, run: Run, facts: tuple[object, ...]) -> _RunFigures:
    goodput = goodput_of(ledger, [run])
    useful_s, held_s = goodput.useful_device_s(), goodput.held_device_s
    lost_s = sum(goodput.by_phase.get(phase, 0.0) for phase in LOST)
    device_s = (useful_s, lost_s, max(0.0, held_s - useful_s - lost_s), goodput.evaluation_device_s)
    waited_s = sum(end.waited_device_s for end in goodput.interruptions)
    failures = (end.failure for end in goodput.interruptions)
    return _RunFigures(
        facts,
        run.is_drill,
        Counter(attempt.outcome for attempt in ledger.attempts(run.run_id)),
        dict(zip(USES, (*device_s, waited_s), strict=True)),
        Counter("none" if failure is None else failure.failure_kind for failure in failures),
    )


def _oldest(moments_s: Iterable[float]) -> dict[tuple[str, ...], float]:
    """Return the oldest moment; none if nothing waits."""
    found = [*moments_s]
    return {(): min(found)} if found else {}


def _last_commit_s(ledger: Ledger, summary: RunSummary) -> float:
    """Return when a run committed last, or when it was started if that is later."""
    started_s = summary.run.created_s if summary.launch is None else summary.launch.started_s
    with ledger.reading() as connection:
        for (text,) in connection.execute(_LAST_COMMIT, {"run_id": summary.run.run_id}):
            return max(started_s, Commit.from_json(text, source=f"ledger, log of {summary.run.run_id}").committed_s)
    return started_s


def _status(state: _State) -> str:
    if state.status == "paused":
        return "paused"
    return "waiting" if state.status in ("validating_files", "validating", "queued") else "running"


def _waits_since_s(state: _State) -> float:
    """Return when it was accepted; for a job, when it was last resumed or left by its run."""
    entries = state.entries if isinstance(state, JobState) else ()
    starts = (entry.at_s for entry in reversed(entries) if isinstance(entry, ResumeRequested | RunLeft))
    return next(starts, state.created.at_s)

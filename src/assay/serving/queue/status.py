"""Queue status of unfinished jobs: position, blocking reason and estimated finish.

It is a function of shared data (logs of open jobs, worker registry), so servers and workers agree.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.units import number_of
from assay.records.fine_tuning_job import WaitCode
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.queue.eta import FinishEstimate, estimates
from assay.serving.queue.fair_share import last_launch_times, launch_order
from assay.serving.queue.limits import ProjectLimits
from assay.serving.queue.worker_registry import WorkerInfo, WorkerRegistry

CACHE_S = 1.0
"""A server recomputes the queue at most this often."""


class QueueStatus(NamedTuple):
    """Status of one job."""

    code: WaitCode | None
    """Why it waits; None if it runs."""
    blocked_by: str
    """The reason in words."""
    position: int | None
    """Position in the queue from 1; None if it is not queued."""
    num_waiting: int
    """Length of the queue."""
    estimate: FinishEstimate


class JobQueue(NamedTuple):
    """The queue at one moment."""

    launch_order: tuple[JobState, ...]
    """Waiting jobs in launch order."""
    statuses: dict[str, QueueStatus]
    """By job id, for all jobs that continue without a request."""


def queue_of(
    states: Sequence[JobState],
    workers: Sequence[WorkerInfo],
    launched_s: Mapping[str, float],
    blocked: Mapping[str, str],
    *,
    now_s: float,
) -> JobQueue:
    """Return the queue of the open jobs. `launched_s`: project -> its last launch. `blocked`: project -> why
    none of its jobs is launched."""
    at_work = [state for state in states if state.is_at_work]
    waiting = [state for state in states if state.is_waiting]
    order = launch_order([state for state in waiting if state.created.project not in blocked], at_work, launched_s)
    slots = sum(worker.slots for worker in workers)
    known = estimates(at_work, order, slots=slots, now_s=now_s)
    found: dict[str, QueueStatus] = {}
    for state in at_work:
        outside = state.waits if state.is_queued_outside else None
        code, words = None if outside is None else outside.code, "" if outside is None else outside.message
        found[state.created.job_id] = QueueStatus(code, words, None, len(order), known[state.created.job_id])
    free = max(0, slots - len(at_work))
    for index, state in enumerate(order):
        code, words = _blocked(index, order, free=free, slots=slots, workers=len(workers))
        estimate = known[state.created.job_id]
        found[state.created.job_id] = QueueStatus(code, words, index + 1, len(order), estimate)
    for state in waiting:
        if (why := blocked.get(state.created.project)) is not None:
            unknown = FinishEstimate(None, "its project is over its monthly limit")
            status = QueueStatus("project_limit", why, None, len(order), unknown)
            found[state.created.job_id] = status
    for state in states:
        if state.desired_state == "run" and state.validated is None and not state.has_ended:
            found[state.created.job_id] = _unvalidated(len(order), tracks_open=bool(workers))
    return JobQueue(tuple(order), found)


def _unvalidated(num_waiting: int, *, tracks_open: bool) -> QueueStatus:
    waits: tuple[WaitCode, str] = "files", "its files are not validated yet"
    code, words = waits if tracks_open else _no_worker()
    return QueueStatus(code, words, None, num_waiting, FinishEstimate(None, "its files are not validated yet"))


def _blocked(index: int, order: Sequence[JobState], *, free: int, slots: int, workers: int) -> tuple[WaitCode, str]:
    if not workers:
        return _no_worker()
    if index < free:
        return "starting", "a slot is free, and a worker is about to launch it"
    if index == 0 or index == free:
        at = f"{number_of(slots, 'slot')} at {number_of(workers, 'worker')}"
        return "slots_taken", f"all slots are in use ({at})"
    before = order[index - 1].created
    return "turn", f"job {before.job_id} of project {before.project} is launched before it"


def _no_worker() -> tuple[WaitCode, str]:
    return "no_worker", "no worker is running. Start 'assay serve worker' on a machine with access to this home"


class QueueView:
    """The queue as a server shows it, cached."""

    def __init__(self, jobs: JobRepository, limits: ProjectLimits, clock: Clock) -> None:
        self._jobs = jobs
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._read_s: float | None = None
        self._statuses: dict[str, QueueStatus] = {}
        self._spent_reasons: dict[str, tuple[float, str | None]] = {}

    def status(self, state: JobState) -> QueueStatus | None:
        """Return the status of a job; None if it has ended or is paused."""
        if state.has_ended or (state.desired_state != "run" and not state.is_at_work):
            return None
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._read_s is None or now_s - self._read_s >= CACHE_S:
                self._statuses = self._read()
                self._read_s = now_s
            found = self._statuses.get(state.created.job_id)
        # The job is newer than the cached queue.
        return _unvalidated(0, tracks_open=True) if found is None and state.validated is None else found

    def spent_reason(self, project: str) -> str | None:
        """Return why the project may not start anything, or None if it may."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            read_s, words = self._spent_reasons.get(project, (-CACHE_S, None))
            if now_s - read_s >= CACHE_S:
                words = self._limits.spent_reason(project, ())
                self._spent_reasons[project] = (now_s, words)
            return words

    def _read(self) -> dict[str, QueueStatus]:
        jobs = self._jobs
        states = [state for _, state in jobs.states(jobs.open_ids())]
        launched_s = last_launch_times(jobs.store, {state.created.project for state in states if state.is_waiting})
        workers = WorkerRegistry(jobs.store, self._clock).live()
        blocked = self._limits.blocked(states)
        return queue_of(states, workers, launched_s, blocked, now_s=self._clock.now_s()).statuses

"""Queue status of unfinished jobs: position, blocking reason and estimated finish.

It is a function of shared data (logs of open jobs, worker registry), so servers and workers agree.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.units import duration_text, number_of
from assay.records.fine_tuning_job import JobCheckpoint, LaunchStarted, WaitCode
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.queue.fair_share import last_launch_times, launch_order
from assay.serving.queue.limits import ProjectLimits
from assay.serving.queue.worker_registry import WorkerInfo, WorkerRegistry


class FinishEstimate(NamedTuple):
    """When a job reaches its last step."""

    finish_s: float | None
    """Unix seconds; None if unknown."""
    basis: str
    """The data used, or why it is unknown."""


class StepTime(NamedTuple):
    """Seconds per step."""

    seconds_per_step: float
    basis: str


def step_time_of(state: JobState) -> StepTime | None:
    """Return the step time of the newest launch with commits."""
    marks: list[tuple[int, float]] = []
    found: StepTime | None = None
    for entry in state.entries:
        if isinstance(entry, LaunchStarted):
            marks = [(entry.step, entry.at_s)]
        elif isinstance(entry, JobCheckpoint) and marks and entry.step > marks[-1][0]:
            marks.append((entry.step, entry.at_s))
            found = _step_time_between(marks)
    return found


def _step_time_between(marks: Sequence[tuple[int, float]]) -> StepTime:
    first, last = marks[1 if len(marks) > 2 else 0], marks[-1]
    seconds = max(0.0, last[1] - first[1]) / (last[0] - first[0])
    start = "" if len(marks) > 2 else ", including startup"
    return StepTime(seconds, f"steps {first[0] + 1} to {last[0]} took {duration_text(seconds)} each{start}")


def estimates(
    at_work: Sequence[JobState], launch_order: Sequence[JobState], *, slots: int, now_s: float
) -> dict[str, FinishEstimate]:
    """Return an estimate per job: running jobs continue at their rate, and freed slots go to jobs in launch order."""
    step_times = {state.created.job_id: step_time_of(state) for state in (*at_work, *launch_order)}
    like: dict[tuple[str, str], StepTime] = {}
    for state in (*at_work, *launch_order):
        if (step_time := step_times[state.created.job_id]) is not None:
            # It may be a job of another project, so it is not named.
            words = f"{step_time.basis} of a job of the same model and method"
            like.setdefault(_kind(state), step_time._replace(basis=words))
    found = {state.created.job_id: _of_running(state, step_times[state.created.job_id], now_s) for state in at_work}
    free_s = _free_moments(found, slots, now_s)
    for state in launch_order:
        found[state.created.job_id] = _of_waiting(state, step_times[state.created.job_id], like, free_s)
    return found


def _of_running(state: JobState, step_time: StepTime | None, now_s: float) -> FinishEstimate:
    if state.is_queued_outside:
        return FinishEstimate(None, "the cluster's scheduler has not started it yet")
    if state.desired_state != "run":
        return FinishEstimate(None, "it commits and stops")
    if step_time is None or state.validated is None:
        return FinishEstimate(None, "it has no commit yet to measure its speed")
    left = state.validated.num_steps - state.last_step
    # Start of the remaining work: the last commit, or a later launch.
    since_s = max(
        [checkpoint.at_s for checkpoint in (*state.checkpoints[-1:], state.launched) if checkpoint is not None]
    )
    return FinishEstimate(max(now_s, since_s + left * step_time.seconds_per_step), step_time.basis)


def _free_moments(running: Mapping[str, FinishEstimate], slots: int, now_s: float) -> list[float | None]:
    """Return when each slot becomes free; None if unknown."""
    finish_times: list[float | None] = [finish_s.finish_s for finish_s in running.values()]
    known = sorted(finish_s for finish_s in finish_times if finish_s is not None)
    unknown: list[float | None] = [None] * (len(finish_times) - len(known))
    moments = [*[now_s] * max(0, slots - len(finish_times)), *known, *unknown]
    # If a worker left, there are more runs than slots; the first runs to end free none.
    return moments[len(moments) - slots :]


def _of_waiting(
    state: JobState, own: StepTime | None, like: Mapping[tuple[str, str], StepTime], free_s: list[float | None]
) -> FinishEstimate:
    assert state.validated is not None
    begins_s = min((moment_s for moment_s in free_s if moment_s is not None), default=None)
    if begins_s is None:
        return FinishEstimate(None, "it is unknown when a slot becomes free")
    step_time = own or like.get(_kind(state))
    slot = free_s.index(begins_s)
    if step_time is None:
        free_s[slot] = None  # so it is unknown when it frees the slot
        return FinishEstimate(None, "no job of its model and method has been measured yet")
    left = state.validated.num_steps - state.last_step
    free_s[slot] = begins_s + left * step_time.seconds_per_step
    return FinishEstimate(free_s[slot], f"{step_time.basis}; jobs before it at their own speed")


def _kind(state: JobState) -> tuple[str, str]:
    return state.created.model, state.created.method


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


def queue_of(
    states: Sequence[JobState],
    workers: Sequence[WorkerInfo],
    launched_s: Mapping[str, float],
    blocked: Mapping[str, str],
    *,
    now_s: float,
) -> tuple[list[JobState], dict[str, QueueStatus]]:
    """Return the waiting jobs in launch order, and the status of each job that continues without a request, by id.

    `launched_s`: project -> its last launch. `blocked`: project -> why none of its jobs is launched.
    """
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
    return order, found


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
    is_own = before.project == order[index].created.project
    return "turn", f"{f'job {before.job_id}' if is_own else 'a job of another project'} is launched before it"


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
        return queue_of(states, workers, launched_s, blocked, now_s=self._clock.now_s())[1]

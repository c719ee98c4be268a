"""How a job stands that is not done: its place, the one thing that blocks it, and when it will be done.

A function of what everybody sees (the logs of open jobs, the board of workers), so servers and workers say the
same.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.units import number_of
from assay.records.fine_tuning_job import WaitCode
from assay.serving.job import JobState
from assay.serving.jobs import JobShelf
from assay.serving.queue.board import WorkerBoard, WorkerSeen
from assay.serving.queue.limits import ProjectLimits
from assay.serving.queue.pace import FinishEstimate, estimates
from assay.serving.queue.turns import in_turn, last_turns

KEPT_S = 1.0
"""A server looks at the queue no oftener."""


class JobStanding(NamedTuple):
    """One job of the queue."""

    code: WaitCode | None
    """What it waits for; None of one at work."""
    blocked_by: str
    """The same in words."""
    place: int | None
    """In the queue, from 1; None of one that is not in it."""
    num_waiting: int
    """Jobs in the queue."""
    estimate: FinishEstimate


class JobQueue(NamedTuple):
    """The queue at one moment."""

    in_turn: tuple[JobState, ...]
    """The jobs that wait for a place, as they will get one."""
    standings: dict[str, JobStanding]
    """By job, of every job that goes on by itself."""


def queue_of(
    states: Sequence[JobState],
    workers: Sequence[WorkerSeen],
    turns: Mapping[str, float],
    blocked: Mapping[str, str],
    *,
    now_s: float,
) -> JobQueue:
    """The queue of these open jobs. `turns`: project -> when it last got a place. `blocked`: project -> why
    none of its jobs gets one."""
    at_work = [state for state in states if state.is_at_work]
    waiting = [state for state in states if state.is_waiting]
    order = in_turn([each for each in waiting if each.created.project not in blocked], at_work, turns)
    places = sum(worker.places for worker in workers)
    known = estimates(at_work, order, places=places, now_s=now_s)
    found: dict[str, JobStanding] = {}
    for state in at_work:
        outside = state.waits if state.is_queued_outside else None
        code, words = None if outside is None else outside.code, "" if outside is None else outside.message
        found[state.created.job_id] = JobStanding(code, words, None, len(order), known[state.created.job_id])
    free = max(0, places - len(at_work))
    for index, state in enumerate(order):
        code, words = _blocked(index, order, free=free, places=places, workers=len(workers))
        estimate = known[state.created.job_id]
        found[state.created.job_id] = JobStanding(code, words, index + 1, len(order), estimate)
    for state in waiting:
        if (why := blocked.get(state.created.project)) is not None:
            unknown = FinishEstimate(None, "its project's limit is spent")
            standing = JobStanding("project_limit", why, None, len(order), unknown)
            found[state.created.job_id] = standing
    for state in states:
        if state.wish == "run" and state.validated is None and not state.has_ended:
            found[state.created.job_id] = _unvalidated(len(order), is_worked_at=bool(workers))
    return JobQueue(tuple(order), found)


def _unvalidated(num_waiting: int, *, is_worked_at: bool) -> JobStanding:
    waits: tuple[WaitCode, str] = "files", "a worker has yet to validate its files"
    code, words = waits if is_worked_at else _no_worker()
    return JobStanding(code, words, None, num_waiting, FinishEstimate(None, "its files are not validated yet"))


def _blocked(
    index: int, order: Sequence[JobState], *, free: int, places: int, workers: int
) -> tuple[WaitCode, str]:
    if not workers:
        return _no_worker()
    if index < free:
        return "starting", "a place is free, and a worker is about to launch it"
    if index == 0 or index == free:
        at = f"{number_of(places, 'place')} at {number_of(workers, 'worker')}"
        return "places_taken", f"all places are taken ({at})"
    before = order[index - 1].created
    return "turn", f"job {before.job_id} of project {before.project} goes before it"


def _no_worker() -> tuple[WaitCode, str]:
    return "no_worker", "no worker is at work: start 'assay worker' on a machine that sees this home"


class QueueView:
    """The queue as a server shows it."""

    def __init__(self, jobs: JobShelf, limits: ProjectLimits, clock: Clock) -> None:
        self._jobs = jobs
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._read_s: float | None = None
        self._standings: dict[str, JobStanding] = {}
        self._why_spent: dict[str, tuple[float, str | None]] = {}

    def standing(self, state: JobState) -> JobStanding | None:
        """How a job stands; None of one that is done, or does not go on by itself."""
        if state.has_ended or (state.wish != "run" and not state.is_at_work):
            return None
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._read_s is None or now_s - self._read_s >= KEPT_S:
                self._standings = self._read()
                self._read_s = now_s
            found = self._standings.get(state.created.job_id)
        # One that is newer than the last look.
        return _unvalidated(0, is_worked_at=True) if found is None and state.validated is None else found

    def why_spent(self, project: str) -> str | None:
        """In words, why nothing of a project is begun; None where it may be."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            read_s, words = self._why_spent.get(project, (-KEPT_S, None))
            if now_s - read_s >= KEPT_S:
                words = self._limits.why_spent(project, ())
                self._why_spent[project] = (now_s, words)
            return words

    def _read(self) -> dict[str, JobStanding]:
        shelf = self._jobs.shelf
        states = [state for _, state in shelf.states(shelf.open_ids())]
        turns = last_turns(shelf.store, {state.created.project for state in states if state.is_waiting})
        workers = WorkerBoard(shelf.store, self._clock).seen()
        blocked = self._limits.blocked(states)
        return queue_of(states, workers, turns, blocked, now_s=self._clock.now_s()).standings

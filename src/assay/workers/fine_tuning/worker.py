"""Advances jobs: validates, launches and watches them.

    open jobs --> running: watched;  new: validated;  waiting: launched in fair-share order while slots are free
                     | under a lease; jobs of other workers are skipped
                     v
                 entries of the job's log

A waiting job has no owner: any worker with a free slot launches the next one.

The newest `taken` entry of the job's log defines who may append, so a slow worker that lost its lease cannot write.
Work that was done but not logged is found again: a run by its id, a launch by its number, a result by the file's id.
A worker may therefore be killed anywhere without repeating work.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, NotInstalledError, StoreError
from assay.base.json_log import log_fields
from assay.records.fine_tuning_job import (
    JobAcquired,
    JobCharged,
    JobEntry,
    JobFailed,
    JobValidated,
    JobWaits,
    LaunchPlanned,
    LaunchStarted,
    RunBegan,
    RunLeft,
)
from assay.records.launch import Launch
from assay.serving.admin.spend import mark_charged
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.queue.fair_share import last_launch_times, record_launch_time
from assay.serving.queue.status import queue_of
from assay.serving.queue.worker_registry import WorkerRegistration, WorkerRegistry
from assay.serving.webhooks.outbox import Outbox
from assay.store.leased_worker import WorkUnit
from assay.store.leases import Lease
from assay.store.logs.fenced_log import FencedLog
from assay.store.objects import ObjectStore
from assay.workers.fine_tuning.budgets import LEAVE_S, AttemptTime, Budgets
from assay.workers.fine_tuning.job_dataset import InvalidFileError
from assay.workers.fine_tuning.runs import RunProgress, RunsOfHome

Prepare = Callable[[], JobValidated]
MAX_LAUNCHES_WITHOUT_PROGRESS = 3
"""Fail the job after this many consecutive launches without a new checkpoint."""


def in_background(prepare: Prepare) -> Future[JobValidated]:
    """Run `prepare` in a daemon thread, which does not keep a stopping worker alive."""
    future: Future[JobValidated] = Future()

    def work() -> None:
        try:
            future.set_result(prepare())
        except BaseException as error:  # raised by future.result()
            future.set_exception(error)

    threading.Thread(target=work, name="validation", daemon=True).start()
    return future


class _LeasedJob(FencedLog[JobEntry, JobState]):
    """The log of a job under this worker's lease, and what the worker knows of its run."""

    def __init__(self, job_id: str, lease: int, jobs: JobRepository, clock: Clock) -> None:
        super().__init__(jobs.log(job_id), lease, clock, of=f"job {job_id}")
        self.job_id = job_id
        self.stop_requested_s: dict[int, float] = {}
        """Launch -> monotonic time of the stop request."""
        self.seen_s = 0.0
        """When its run was last alive."""


class JobHandler:
    """A `WorkHandler` of all jobs."""

    def __init__(
        self,
        store: ObjectStore,
        jobs: JobRepository,
        runs: RunsOfHome,
        *,
        name: str,
        clock: Clock,
        runs_at_once: int = 1,
        run_in_background: Callable[[Prepare], Future[JobValidated]] = in_background,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`name`: of the worker, for people. `run_in_background`: runs file validation. `notify`: called when a job
        ends."""
        self._store = store
        self._jobs = jobs
        self._runs = runs
        self._clock = clock
        self._runs_at_once = runs_at_once
        self._run_in_background = run_in_background
        self._notify = notify
        self._budgets = Budgets(store, jobs, runs.held, clock)
        self._at_work: list[JobState] = []
        self._outbox = Outbox(store, clock)
        self._leased: dict[str, _LeasedJob] = {}
        self._validating: dict[str, Future[JobValidated]] = {}
        self._registry = WorkerRegistry(store, clock)
        self._registration = WorkerRegistration(store, clock, name=name, slots=runs_at_once)
        self._registry.drop_stale()
        self.is_busy = False
        """Whether a job was unfinished at the last poll."""

    def due(self) -> Iterator[WorkUnit]:
        """Yield running jobs, one new job, and waiting jobs for this worker's free slots."""
        self._registration.renew()
        states = self._unfinished()
        self.is_busy = bool(states)
        self._at_work = [state for state in states if state.is_at_work]
        for state in states:
            is_new = state.validated is None and not state.is_at_work
            if state.is_at_work or (is_new and self._may_validate(state.created.job_id)):
                yield _unit(state)
        waiting = [state for state in states if state.is_waiting]
        if not waiting:
            return
        launch_order, statuses = queue_of(
            states,
            self._registry.live(),
            last_launch_times(self._store, {state.created.project for state in waiting}),
            self._budgets.limits.blocked(states),
            now_s=self._clock.now_s(),
        )
        for state in launch_order:
            if self._num_running() < self._runs_at_once:
                yield _unit(state)
        # Log why jobs wait, once per reason. This needs no lease, as it has no effect.
        for job_id, progress in statuses.items():
            if progress.code in ("turn", "slots_taken", "project_limit"):
                waits = JobWaits(at_s=self._clock.now_s(), code=progress.code, message=progress.blocked_by)
                self._jobs.change(job_id, partial(_if_news, waits))

    def claim(self, unit: WorkUnit, lease: Lease, worker: str) -> bool:
        job = _LeasedJob(unit.unit_id, lease.number, self._jobs, self._clock)
        self._leased[unit.unit_id] = job
        return job.acquire(job.entry(JobAcquired, worker=worker))

    def let_go(self, unit_id: str) -> bool:
        """Forget a job. Its run continues; a validation continues under its lease."""
        if (validation := self._validating.get(unit_id)) is not None and not validation.done():
            return False
        self._validating.pop(unit_id, None)
        self._leased.pop(unit_id, None)
        return True

    def deregister(self) -> None:
        """Leave the registry of workers."""
        self._registration.deregister()

    def step(self, unit: WorkUnit, lease: Lease) -> None:  # noqa: ARG002
        """Advance a job by one step, or fail it."""
        held, state = self._leased[unit.unit_id], self._jobs.state(unit.unit_id)
        assert state is not None, "it was due"
        try:
            if state.is_at_work:
                self._watch(held, state)
            elif state.validated is None:
                self._validate(held, state)
            elif state.is_waiting:
                self._plan_launch(held, state)
        except (FencedError, StoreError, NotInstalledError):
            raise
        except InvalidFileError as error:
            self._fail(held, f"invalid_{error.param}", str(error), param=error.param)
        except AssayError as error:
            self._stop_run(held, state)
            self._fail(held, "cannot_train", str(error))

    def _unfinished(self) -> list[JobState]:
        """Return jobs that continue by themselves, and close ended ones; a run that may be running is always
        watched."""
        found = []
        for job_id, state in self._jobs.states(self._jobs.open_ids()):
            if state.is_at_work or (state.desired_state == "run" and not state.has_ended):
                found.append(state)
            elif state.has_ended:
                self._notify_ended(state)
                self._jobs.close(job_id)
        return found

    def _notify_ended(self, state: JobState) -> None:
        created = state.created
        assert state.ended_s is not None
        event_type = f"fine_tuning.job.{state.status}"
        self._outbox.enqueue(created.job_id, event_type, project=created.project, ended_s=state.ended_s)
        why = f": {state.failed.message}" if state.failed else ""
        with log_fields(job=created.job_id):
            self._notify(f"job {created.job_id} {state.status}{why}")

    def _stop_run(self, held: _LeasedJob, state: JobState) -> None:
        """Stop the run of a job that fails while it is watched."""
        if state.validated is not None and state.planned is not None:
            with suppress(AssayError):  # the records may be damaged as well
                self._charge(held, self._runs.held(state.validated.run_id))
            launch = self._runs.launch_from(state.validated.run_id, state.planned.number)
            if launch is not None:
                self._runs.stop(launch)

    def _num_running(self) -> int:
        """Count the runs that this worker watches."""
        states = (self._jobs.state(job_id) for job_id in self._leased)
        return sum(state is not None and state.is_at_work for state in states)

    def _may_validate(self, job_id: str) -> bool:
        """Validate one job at a time; others are left to other workers."""
        under_way = [validating_id for validating_id, validation in self._validating.items() if not validation.done()]
        return under_way in ([], [job_id])

    def _validate(self, held: _LeasedJob, state: JobState) -> None:
        """Start validation, or collect its result; it runs in the background because it may take long."""
        job_id = held.job_id
        if job_id not in self._validating:
            self._validating[job_id] = self._run_in_background(partial(self._runs.prepare, state.created, held.lease))
        if self._validating[job_id].done():
            validated = self._validating.pop(job_id).result().model_copy(update={"lease": held.lease})
            held.append(validated, when=lambda now: now.validated is None)

    def _plan_launch(self, held: _LeasedJob, state: JobState) -> None:
        assert state.validated is not None
        # A concurrent pause or cancel wins, since nothing was started yet.
        if (spent := self._budgets.spent(state, self._at_work, held.lease)) is not None:
            held.append(spent, when=lambda now: now.desired_state == "run" and not now.is_at_work)
            return
        record_launch_time(self._store, state.created.project, self._clock.now_s())
        planned = held.entry(LaunchPlanned, number=self._runs.next_launch(state.validated.run_id))
        held.append(planned, when=lambda now: now.desired_state == "run" and not now.is_at_work)

    def _watch(self, held: _LeasedJob, state: JobState) -> None:
        assert state.validated is not None and state.planned is not None
        run_id = state.validated.run_id
        launch = self._runs.launch_from(run_id, state.planned.number)
        if launch is None and state.desired_state != "run":
            self._record_left(held, state.last_step)  # planned but never started
            return
        if launch is None:
            launch = self._runs.start(state.created, run_id)
        if state.launched is None:
            started = held.entry(LaunchStarted, number=launch.number, where=launch.where(), step=state.last_step)
            held.append(started, when=lambda now: now.launched is None)
        if (
            state.desired_state == "run"
            and (spent := self._budgets.spent(state, self._at_work, held.lease)) is not None
        ):
            state = held.append(spent, when=lambda now: now.desired_state == "run")
        self._request_stop(held, state, launch)
        progress = self._runs.progress(launch)
        self._record_scheduler_wait(held, progress)
        self._record_commits(held, run_id, state.last_step)
        if progress.is_living and not progress.waits_for:
            held.seen_s = self._clock.now_s()
        if not progress.is_living:
            self._end(held, state, progress)

    def _request_stop(self, held: _LeasedJob, state: JobState, launch: Launch) -> None:
        """Request a stop once; kill a run over its budget after `LEAVE_S`."""
        now_s = self._clock.monotonic_s()
        if state.desired_state == "run":
            return
        if launch.number not in held.stop_requested_s:
            held.stop_requested_s[launch.number] = now_s
            self._runs.stop(launch)
            return
        if now_s - held.stop_requested_s[launch.number] < LEAVE_S:
            return
        if state.budget_spent or self._budgets.spent(state, self._at_work, held.lease):
            self._runs.end(launch)

    def _charge(self, held: _LeasedJob, times: Sequence[AttemptTime]) -> None:
        """Log the device time of attempts, again if it changed."""
        state = self._jobs.state(held.job_id)
        assert state is not None
        known = {(charge.attempt, charge.began_s, charge.ended_s, charge.device_s) for charge in state.charges}
        for time_s in times:
            if tuple(time_s) in known:
                continue
            mark_charged(self._store, state.created.project, held.job_id, time_s)
            held.append(held.entry(JobCharged, **time_s._asdict()))

    def _record_scheduler_wait(self, held: _LeasedJob, progress: RunProgress) -> None:
        """Log whether a cluster's scheduler queues the launch."""
        if reason := progress.waits_for:
            waits = JobWaits(at_s=self._clock.now_s(), code="scheduler", message=reason)
            held.append(waits, when=lambda now: _if_news(waits, now) is not None)
        elif progress.is_living:
            held.append(held.entry(RunBegan), when=lambda now: now.is_queued_outside)

    def _record_commits(self, held: _LeasedJob, run_id: str, step: int) -> None:
        for checkpoint in self._runs.commits_after(run_id, step, held.lease):
            if step == 0 and (state := self._jobs.state(held.job_id)) is not None:
                self._jobs.note_model(state.created)
            held.append(checkpoint, when=partial(_is_before, checkpoint.step))

    def _end(self, held: _LeasedJob, state: JobState, progress: RunProgress) -> None:
        """Log the charges of an ended launch, then its outcome."""
        assert state.validated is not None
        self._charge(held, self._runs.final_times(state.validated.run_id, seen_s=held.seen_s))
        newest = self._jobs.state(held.job_id)
        assert newest is not None
        if progress.failure and newest.desired_state != "cancel":
            self._fail(held, "training_failed", progress.failure)
        elif progress.is_done and newest.desired_state != "cancel":
            succeeded = self._runs.result(state.created, state.validated.run_id, held.lease)
            held.append(succeeded, when=lambda now: now.desired_state != "cancel" and not now.has_ended)
        elif newest.launches_without_progress + 1 >= MAX_LAUNCHES_WITHOUT_PROGRESS and newest.desired_state == "run":
            reason = f"{MAX_LAUNCHES_WITHOUT_PROGRESS} launches in a row ended without a new checkpoint. Last output"
            self._fail(held, "no_progress", f"{reason}: {progress.last_words or 'none'}")
        else:
            self._record_left(held, progress.step)

    def _record_left(self, held: _LeasedJob, step: int) -> None:
        held.append(held.entry(RunLeft, step=step), when=lambda now: now.is_at_work)

    def _fail(self, held: _LeasedJob, code: str, message: str, *, param: str | None = None) -> None:
        failed = held.entry(JobFailed, code=code, message=message, param=param)
        held.append(failed, when=lambda now: not now.has_ended or now.is_at_work)


def _unit(state: JobState) -> WorkUnit:
    job_id = state.created.job_id
    return WorkUnit(job_id, f"ftjob/{job_id}", state.created.project)


def _if_news(waits: JobWaits, now: JobState) -> JobWaits | None:
    if now.has_ended or now.is_at_work != (waits.code == "scheduler"):
        return None
    return None if now.waits is not None and now.waits.code == waits.code else waits


def _is_before(step: int, now: JobState) -> bool:
    return now.last_step < step

"""Works on jobs under leases. Each poll advances every job by one step.

    open jobs --> running: watched;  new: validated;  waiting: launched in fair-share order while slots are free
                     | under a lease; jobs of other workers are skipped
                     v
                 entries of the job's log

A waiting job has no owner: any worker with a free slot launches the next one.

The newest `taken` entry of the job's log defines who may append, so a slow worker that lost its lease cannot
write.
Work that was done but not logged is found again: a run by its id, a launch by its number, a result by the
file's id.
A worker may therefore be killed anywhere without repeating work.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, NotInstalledError, StoreError
from assay.records.fine_tuning_job import (
    JobAcquired,
    JobCharged,
    JobCheckpoint,
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
from assay.serving.queue.status import JobQueue, queue_of
from assay.serving.queue.worker_registry import WorkerRegistration, WorkerRegistry
from assay.serving.webhooks.outbox import Outbox
from assay.store.leases import Lease, LeaseWatch, holding
from assay.store.logs.fenced_log import FencedLog
from assay.store.objects import ObjectStore
from assay.workers.fine_tuning.budgets import LEAVE_S, Budgets
from assay.workers.fine_tuning.deferred_work import DeferredWork
from assay.workers.fine_tuning.held_time import AttemptTime
from assay.workers.fine_tuning.job_dataset import InvalidFileError
from assay.workers.fine_tuning.runs import JobRuns, RunProgress

Prepare = Callable[[], JobValidated]
TERM_S = 20.0
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


class Worker:
    """One process that works on jobs."""

    def __init__(
        self,
        store: ObjectStore,
        jobs: JobRepository,
        runs: JobRuns,
        *,
        name: str,
        clock: Clock,
        runs_at_once: int = 1,
        term_s: float = TERM_S,
        run_in_background: Callable[[Prepare], Future[JobValidated]] = in_background,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`name`: for people. `term_s`: lease term, after which another worker may take over.
        `run_in_background`: runs file validation. `notify`: called when a job ends."""
        self._store = store
        self._jobs = jobs
        self._runs = runs
        self._name = name
        self._clock = clock
        self._runs_at_once = runs_at_once
        self._watch_of_leases = LeaseWatch(store, clock)
        self._term_s = term_s
        self._run_in_background = run_in_background
        self._notify = notify
        self._budgets = Budgets(store, jobs, runs.held, clock)
        self._at_work: list[JobState] = []
        self._outbox = Outbox(store, clock)
        self._held: dict[str, _LeasedJob] = {}
        self._deferred = DeferredWork(clock, notify)
        self._validating: dict[str, Future[JobValidated]] = {}
        self._registry = WorkerRegistry(store, clock)
        self._registration = WorkerRegistration(store, clock, name=name, slots=runs_at_once)
        self._registry.drop_stale()

    def poll(self) -> bool:
        """Advance every job by one step; return whether any is unfinished."""
        self._registration.renew()
        due = self._due()
        self._at_work = [state for state in due if state.is_at_work]
        for state in due:
            if state.is_at_work:
                self._step(state, self._watch)
            elif state.validated is None and self._may_validate(state.created.job_id):
                self._step(state, self._validate)
        waiting = [state for state in due if state.is_waiting]
        if waiting:
            queue = queue_of(
                due,
                self._registry.live(),
                last_launch_times(self._store, {state.created.project for state in waiting}),
                self._budgets.limits.blocked(due),
                now_s=self._clock.now_s(),
            )
            self._launch_in_turn(queue)
            self._record_wait_reasons(queue)
        return bool(due)

    def leave(self) -> None:
        """Release all leases. Runs continue."""
        for job_id in list(self._held):
            self._let_go(job_id)
        self._registration.deregister()

    def _due(self) -> list[JobState]:
        """Return jobs that need work; a run that may be running is always watched."""
        found = []
        for job_id in self._jobs.logs.open_ids():
            state = self._jobs.logs.state(job_id)
            if state is None:
                continue  # only the marker exists so far
            if state.is_at_work or (state.desired_state == "run" and not state.has_ended):
                found.append(state)
                continue
            self._let_go(job_id)
            if state.has_ended:
                self._notify_ended(state)
                self._jobs.logs.close(job_id)
        return found

    def _notify_ended(self, state: JobState) -> None:
        created = state.created
        assert state.ended_s is not None
        event_type = f"fine_tuning.job.{state.status}"
        self._outbox.enqueue(created.job_id, event_type, project=created.project, ended_s=state.ended_s)
        why = f": {state.failed.message}" if state.failed else ""
        self._notify(f"job {created.job_id} {state.status}{why}")

    def _launch_in_turn(self, queue: JobQueue) -> None:
        """Fill this worker's free slots and release the other jobs."""
        for state in queue.launch_order:
            if self._num_running() < self._runs_at_once:
                self._step(state, self._plan_launch)
            else:
                self._let_go(state.created.job_id)

    def _record_wait_reasons(self, queue: JobQueue) -> None:
        """Log why jobs wait, once per reason. Needs no lease, as it has no effect."""
        for job_id, progress in queue.statuses.items():
            if progress.code not in ("turn", "slots_taken", "project_limit"):
                continue
            waits = JobWaits(at_s=self._clock.now_s(), code=progress.code, message=progress.blocked_by)
            self._jobs.logs.log(job_id).append(partial(_if_news, waits))

    def _step(self, state: JobState, action: Callable[["_LeasedJob", JobState], None]) -> None:
        """Advance a job if this worker has or gets its lease."""
        job_id = state.created.job_id
        if job_id in self._deferred:
            return
        held = self._held.get(job_id) or self._take(job_id)
        if held is None:
            return
        try:
            self._run_step(held, state, action)
        except FencedError:
            self._let_go(job_id)

    def _take(self, job_id: str) -> "_LeasedJob | None":
        """Return the job with a lease; None if another worker has it."""
        lease = self._watch_of_leases.take(f"ftjob/{job_id}", worker=self._name, term_s=self._term_s)
        if lease is None:
            return None
        # Remember the lease before logging it. If logging fails, the next poll finds that the log has another lease
        # and releases it.
        self._held[job_id] = held = _LeasedJob(job_id, lease, self._jobs)
        entry = JobAcquired(at_s=self._clock.now_s(), lease=held.lease, worker=self._name)
        if not held.log.acquire(entry):  # a later lease exists, so this one is lost
            self._let_go(job_id)
            return None
        return held

    def _let_go(self, job_id: str) -> None:
        """Release the lease, unless a validation is still running under it."""
        if (validation := self._validating.get(job_id)) is not None and not validation.done():
            return
        self._validating.pop(job_id, None)
        if (held := self._held.pop(job_id, None)) is not None:
            held.release()

    def _run_step(self, held: "_LeasedJob", state: JobState, action: Callable[["_LeasedJob", JobState], None]) -> None:
        try:
            action(held, state)
        except (FencedError, StoreError):
            raise
        except NotInstalledError as error:
            self._let_go(held.job_id)
            self._deferred.leave(held.job_id, error)
        except InvalidFileError as error:
            self._fail(held, f"invalid_{error.param}", str(error), param=error.param)
        except AssayError as error:
            self._stop_run(held, state)
            self._fail(held, "cannot_train", str(error))

    def _stop_run(self, held: "_LeasedJob", state: JobState) -> None:
        """Stop the run of a job that fails while it is watched."""
        if state.validated is not None and state.planned is not None:
            with suppress(AssayError):  # the records may be damaged as well
                self._charge(held, self._runs.held(state.validated.run_id))
            launch = self._runs.launch_from(state.validated.run_id, state.planned.number)
            if launch is not None:
                self._runs.stop(launch)

    def _num_running(self) -> int:
        """Count the runs that this worker watches."""
        states = (self._jobs.logs.state(job_id) for job_id in self._held)
        return sum(state is not None and state.is_at_work for state in states)

    def _may_validate(self, job_id: str) -> bool:
        """Validate one job at a time; others are left to other workers."""
        under_way = [validating_id for validating_id, validation in self._validating.items() if not validation.done()]
        return under_way in ([], [job_id])

    def _validate(self, held: "_LeasedJob", state: JobState) -> None:
        """Start validation, or collect its result; it runs in the background because it may take long."""
        job_id = held.job_id
        if job_id not in self._validating:
            self._validating[job_id] = self._run_in_background(partial(self._runs.prepare, state.created, held.lease))
        if self._validating[job_id].done():
            validated = self._validating.pop(job_id).result().model_copy(update={"lease": held.lease})
            held.append(lambda now: validated if now.validated is None else None)

    def _plan_launch(self, held: "_LeasedJob", state: JobState) -> None:
        assert state.validated is not None
        if (spent := self._budgets.spent(state, self._at_work, held.lease)) is not None:
            held.append(lambda now: spent if now.desired_state == "run" and not now.is_at_work else None)
            return
        record_launch_time(self._store, state.created.project, self._clock.now_s())
        planned = LaunchPlanned(
            at_s=self._clock.now_s(), lease=held.lease, number=self._runs.next_launch(state.validated.run_id)
        )
        # A concurrent pause or cancel wins, since nothing was started yet.
        held.append(lambda now: planned if now.desired_state == "run" and not now.is_at_work else None)

    def _watch(self, held: "_LeasedJob", state: JobState) -> None:
        assert state.validated is not None and state.planned is not None
        run_id = state.validated.run_id
        launch = self._runs.launch_from(run_id, state.planned.number)
        if launch is None and state.desired_state != "run":
            self._record_left(held, state.last_step)  # planned but never started
            return
        if launch is None:
            launch = self._runs.start(state.created, run_id)
        if state.launched is None:
            entry = LaunchStarted(
                at_s=self._clock.now_s(),
                lease=held.lease,
                number=launch.number,
                where=launch.where(),
                step=state.last_step,
            )
            held.append(lambda now: entry if now.launched is None else None)
        if (
            state.desired_state == "run"
            and (spent := self._budgets.spent(state, self._at_work, held.lease)) is not None
        ):
            state = held.append(lambda now: spent if now.desired_state == "run" else None)
        self._request_stop(held, state, launch)
        progress = self._runs.progress(launch)
        self._record_scheduler_wait(held, progress)
        self._record_commits(held, run_id, state.last_step)
        if progress.is_living and not progress.waits_for:
            held.seen_s = self._clock.now_s()
        if not progress.is_living:
            self._end(held, state, progress)

    def _request_stop(self, held: "_LeasedJob", state: JobState, launch: Launch) -> None:
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

    def _charge(self, held: "_LeasedJob", times: Sequence[AttemptTime]) -> None:
        """Log the device time of attempts, again if it changed."""
        state = self._jobs.logs.state(held.job_id)
        assert state is not None
        known = {(charge.attempt, charge.began_s, charge.ended_s, charge.device_s) for charge in state.charges}
        for time_s in times:
            if tuple(time_s) in known:
                continue
            mark_charged(self._store, state.created.project, held.job_id, time_s)
            charged = JobCharged(at_s=self._clock.now_s(), lease=held.lease, **time_s._asdict())
            held.append(partial(_anyway, charged))

    def _record_scheduler_wait(self, held: "_LeasedJob", progress: RunProgress) -> None:
        """Log whether a cluster's scheduler queues the launch."""
        now_s, reason = self._clock.now_s(), progress.waits_for
        waits = JobWaits(at_s=now_s, code="scheduler", message=reason)
        began = RunBegan(at_s=now_s, lease=held.lease)
        if reason:
            held.append(partial(_if_news, waits))
        elif progress.is_living:
            held.append(lambda now: began if now.is_queued_outside else None)

    def _record_commits(self, held: "_LeasedJob", run_id: str, step: int) -> None:
        for commit in self._runs.commits_after(run_id, step):
            if step == 0 and (state := self._jobs.logs.state(held.job_id)) is not None:
                self._jobs.note_model(state.created)
            checkpoint = JobCheckpoint(
                at_s=commit.at_s,
                lease=held.lease,
                step=commit.step,
                weights_digest=commit.weights_digest,
                retained_steps=commit.retained_steps,
                points=commit.points,
            )
            held.append(partial(_if_later, checkpoint))

    def _end(self, held: "_LeasedJob", state: JobState, progress: RunProgress) -> None:
        """Log the charges of an ended launch, then its outcome."""
        assert state.validated is not None
        self._charge(held, self._runs.final_times(state.validated.run_id, seen_s=held.seen_s))
        newest = self._jobs.logs.state(state.created.job_id)
        assert newest is not None
        if progress.failure and newest.desired_state != "cancel":
            self._fail(held, "training_failed", progress.failure)
        elif progress.is_done and newest.desired_state != "cancel":
            succeeded = self._runs.result(state.created, state.validated.run_id, held.lease)
            held.append(lambda now: succeeded if now.desired_state != "cancel" and not now.has_ended else None)
        elif newest.launches_without_progress + 1 >= MAX_LAUNCHES_WITHOUT_PROGRESS and newest.desired_state == "run":
            reason = f"{MAX_LAUNCHES_WITHOUT_PROGRESS} launches in a row ended without a new checkpoint. Last output"
            self._fail(held, "no_progress", f"{reason}: {progress.last_words or 'none'}")
        else:
            self._record_left(held, progress.step)

    def _record_left(self, held: "_LeasedJob", step: int) -> None:
        left = RunLeft(at_s=self._clock.now_s(), lease=held.lease, step=step)
        held.append(lambda now: left if now.is_at_work else None)

    def _fail(self, held: "_LeasedJob", code: str, message: str, *, param: str | None = None) -> None:
        failed = JobFailed(at_s=self._clock.now_s(), lease=held.lease, code=code, message=message, param=param)
        held.append(lambda now: failed if not now.has_ended or now.is_at_work else None)


def _anyway(charged: JobCharged, now: JobState) -> JobCharged:  # noqa: ARG001
    return charged


def _if_news(waits: JobWaits, now: JobState | None) -> JobWaits | None:
    if now is None or now.has_ended or now.is_at_work != (waits.code == "scheduler"):
        return None
    return None if now.waits is not None and now.waits.code == waits.code else waits


def _if_later(checkpoint: JobCheckpoint, now: JobState) -> JobCheckpoint | None:
    return checkpoint if now.last_step < checkpoint.step else None


class _LeasedJob:
    """A job with its lease, whose heartbeat runs in the background."""

    def __init__(self, job_id: str, lease: Lease, jobs: JobRepository) -> None:
        self.job_id = job_id
        self.lease = lease.number
        self.log = FencedLog(jobs.logs.log(job_id), lease.number, of=f"job {job_id}")
        self.stop_requested_s: dict[int, float] = {}
        """Launch -> monotonic time of the stop request."""
        self.seen_s = 0.0
        """When its run was last alive."""
        self._beating = ExitStack()
        self._beating.enter_context(holding(lease))

    def append(self, decide: Callable[[JobState], JobEntry | None]) -> JobState:
        """See `FencedLog`."""
        return self.log.append(decide)

    def release(self) -> None:
        self._beating.close()

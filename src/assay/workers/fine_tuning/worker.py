"""Takes jobs under leases, and brings each one step further at every look, until all are done or stopped.

    open jobs --> at work: watched;  new: validated;  waiting: launched in turn, while places are free
                     | under a lease; what somebody else has is passed over
                     v
                 entries of the job's log

A job that waits is nobody's: whichever worker has a place free takes the one whose turn it is.

What was taken over is taken over in the job's log itself: the newest `taken` entry says who may append, so a
worker that was only slow, and comes back when its lease is another's, can write nothing more. What a worker
did and did not live to write down is found: a run by its id, a launch by its number, a result by the file's
id. So it may be killed anywhere; the next one goes on, and nothing is done twice.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, NotInstalledError, StoreError
from assay.records.fine_tuning_job import (
    JobCharged,
    JobCheckpoint,
    JobEntry,
    JobFailed,
    JobTaken,
    JobValidated,
    JobWaits,
    LaunchMade,
    LaunchPlanned,
    RunBegan,
    RunLeft,
)
from assay.records.launch import Launch
from assay.serving.admin.spend import mark_charged
from assay.serving.job import JobState
from assay.serving.jobs import JobShelf
from assay.serving.queue.board import PlaceOnBoard, WorkerBoard
from assay.serving.queue.standing import JobQueue, queue_of
from assay.serving.queue.turns import last_turns, note_turn
from assay.serving.webhooks.outbox import Outbox
from assay.store.leases import Lease, LeaseWatch, holding
from assay.store.logs.fenced_log import FencedLog
from assay.store.objects import ObjectStore
from assay.workers.fine_tuning.budgets import LEAVE_S, Budgets
from assay.workers.fine_tuning.held_time import AttemptTime
from assay.workers.fine_tuning.job_dataset import InvalidFileError
from assay.workers.fine_tuning.left_work import LeftWork
from assay.workers.fine_tuning.runs import JobRuns, RunStanding

Prepare = Callable[[], JobValidated]
TERM_S = 20.0
LEFT_IN_VAIN = 3
"""So many launches in a row without a further commit are enough: a further one would end alike."""


def in_background(prepare: Prepare) -> Future[JobValidated]:
    """Validate files in a thread, which does not keep a worker that leaves."""
    future: Future[JobValidated] = Future()

    def work() -> None:
        try:
            future.set_result(prepare())
        except BaseException as error:  # raised to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=work, name="validation", daemon=True).start()
    return future


class Worker:
    """One process that works at jobs."""

    def __init__(
        self,
        store: ObjectStore,
        jobs: JobShelf,
        runs: JobRuns,
        *,
        name: str,
        clock: Clock,
        runs_at_once: int = 1,
        term_s: float = TERM_S,
        beside: Callable[[Prepare], Future[JobValidated]] = in_background,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`name`: for people. `term_s`: how long it may be silent before another takes its jobs over. `beside`:
        how files are validated while runs are watched. `say` is told how each job ended."""
        self._store = store
        self._jobs = jobs
        self._runs = runs
        self._name = name
        self._clock = clock
        self._runs_at_once = runs_at_once
        self._watch_of_leases = LeaseWatch(store, clock)
        self._term_s = term_s
        self._beside = beside
        self._say = say
        self._budgets = Budgets(store, jobs, runs.held, clock)
        self._at_work: list[JobState] = []
        self._outbox = Outbox(store, clock)
        self._held: dict[str, _Held] = {}
        self._left_to_others = LeftWork(clock, say)
        self._validating: dict[str, Future[JobValidated]] = {}
        self._board = WorkerBoard(store, clock)
        self._line = PlaceOnBoard(store, clock, name=name, places=runs_at_once)
        self._board.forget_gone()

    def look(self) -> bool:
        """Bring every job one step further; whether one of them is at work, or waits."""
        self._line.say()
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
                self._board.seen(),
                last_turns(self._store, {state.created.project for state in waiting}),
                self._budgets.limits.blocked(due),
                now_s=self._clock.now_s(),
            )
            self._launch_in_turn(queue)
            self._say_what_they_wait_for(queue)
        return bool(due)

    def leave(self) -> None:
        """Give all leases back. Runs go on."""
        for job_id in list(self._held):
            self._let_go(job_id)
        self._line.leave()

    def _due(self) -> list[JobState]:
        """Jobs about which something is to be done; a run that may be going on is always watched."""
        found = []
        for job_id in self._jobs.shelf.open_ids():
            state = self._jobs.shelf.state(job_id)
            if state is None:
                continue  # its first entry is on its way, or never came
            if state.is_at_work or (state.wish == "run" and not state.has_ended):
                found.append(state)
                continue
            self._let_go(job_id)
            if state.has_ended:
                self._tell_of_end(state)
                self._jobs.shelf.close(job_id)
        return found

    def _tell_of_end(self, state: JobState) -> None:
        created = state.created
        assert state.ended_s is not None
        event_type = f"fine_tuning.job.{state.status}"
        self._outbox.plan(created.job_id, event_type, project=created.project, ended_s=state.ended_s)
        why = f": {state.failed.message}" if state.failed else ""
        self._say(f"job {created.job_id} {state.status}{why}")

    def _launch_in_turn(self, queue: JobQueue) -> None:
        """Fill the places that are free here; nobody else is kept from the jobs that are left over."""
        for state in queue.in_turn:
            if self._num_running() < self._runs_at_once:
                self._step(state, self._plan_launch)
            else:
                self._let_go(state.created.job_id)

    def _say_what_they_wait_for(self, queue: JobQueue) -> None:
        """Once, until it is another thing; no lease is needed, as it moves nothing."""
        for job_id, standing in queue.standings.items():
            if standing.code not in ("turn", "places_taken", "project_limit"):
                continue
            waits = JobWaits(at_s=self._clock.now_s(), code=standing.code, message=standing.blocked_by)
            self._jobs.shelf.log(job_id).append(partial(_if_news, waits))

    def _step(self, state: JobState, bring: Callable[["_Held", JobState], None]) -> None:
        """Bring a job further, if it is ours or nobody's."""
        job_id = state.created.job_id
        if job_id in self._left_to_others:
            return
        held = self._held.get(job_id) or self._taken(job_id)
        if held is None:
            return
        try:
            self._bring(held, state, bring)
        except FencedError:
            self._let_go(job_id)

    def _taken(self, job_id: str) -> "_Held | None":
        """The job under a lease of ours; None where somebody else has it."""
        lease = self._watch_of_leases.take(f"ftjob/{job_id}", worker=self._name, term_s=self._term_s)
        if lease is None:
            return None
        # Known before it is said: where the store refuses that, the next look finds that this lease is not the
        # log's, and gives it back.
        self._held[job_id] = held = _Held(job_id, lease, self._jobs)
        taken = JobTaken(at_s=self._clock.now_s(), lease=held.lease, worker=self._name)
        if not held.log.take(taken):  # a later one is at work: this lease was lost already
            self._let_go(job_id)
            return None
        return held

    def _let_go(self, job_id: str) -> None:
        """Give its lease back, unless something of ours still writes under it."""
        if (validation := self._validating.get(job_id)) is not None and not validation.done():
            return
        self._validating.pop(job_id, None)
        if (held := self._held.pop(job_id, None)) is not None:
            held.release()

    def _bring(self, held: "_Held", state: JobState, bring: Callable[["_Held", JobState], None]) -> None:
        try:
            bring(held, state)
        except (FencedError, StoreError):
            raise
        except NotInstalledError as error:
            self._let_go(held.job_id)
            self._left_to_others.leave(held.job_id, error)
        except InvalidFileError as error:
            self._fail(held, f"invalid_{error.param}", str(error), param=error.param)
        except AssayError as error:
            self._stop_run(held, state)
            self._fail(held, "cannot_train", str(error))

    def _stop_run(self, held: "_Held", state: JobState) -> None:
        """A job that fails for what is found while it is watched leaves no run behind that goes on."""
        if state.validated is not None and state.planned is not None:
            with suppress(AssayError):  # of what is damaged, the account may be, too
                self._charge(held, self._runs.held(state.validated.run_id))
            launch = self._runs.launch_from(state.validated.run_id, state.planned.number)
            if launch is not None:
                self._runs.stop(launch)

    def _num_running(self) -> int:
        """Runs that this worker watches."""
        states = (self._jobs.shelf.state(job_id) for job_id in self._held)
        return sum(state is not None and state.is_at_work for state in states)

    def _may_validate(self, job_id: str) -> bool:
        """One at a time: further ones are left to other workers."""
        under_way = [each for each, validation in self._validating.items() if not validation.done()]
        return under_way in ([], [job_id])

    def _validate(self, held: "_Held", state: JobState) -> None:
        """Begin, or look whether it is done: it may take long, and runs are to be watched meanwhile."""
        job_id = held.job_id
        if job_id not in self._validating:
            self._validating[job_id] = self._beside(partial(self._runs.prepare, state.created, held.lease))
        if self._validating[job_id].done():
            validated = self._validating.pop(job_id).result().model_copy(update={"lease": held.lease})
            held.append(lambda now: validated if now.validated is None else None)

    def _plan_launch(self, held: "_Held", state: JobState) -> None:
        assert state.validated is not None
        if (spent := self._budgets.spent(state, self._at_work, held.lease)) is not None:
            held.append(lambda now: spent if now.wish == "run" and not now.is_at_work else None)
            return
        note_turn(self._store, state.created.project, self._clock.now_s())
        planned = LaunchPlanned(
            at_s=self._clock.now_s(),
            lease=held.lease,
            number=self._runs.next_launch(state.validated.run_id),
        )
        # Whoever paused or cancelled meanwhile has its way: nothing was started yet.
        held.append(lambda now: planned if now.wish == "run" and not now.is_at_work else None)

    def _watch(self, held: "_Held", state: JobState) -> None:
        assert state.validated is not None and state.planned is not None
        run_id = state.validated.run_id
        launch = self._runs.launch_from(run_id, state.planned.number)
        if launch is None and state.wish != "run":
            self._left(held, state.last_step)  # it was planned, and never made
            return
        if launch is None:
            launch = self._runs.start(state.created, run_id)
        if state.launched is None:
            made = LaunchMade(
                at_s=self._clock.now_s(),
                lease=held.lease,
                number=launch.number,
                where=launch.where(),
                step=state.last_step,
            )
            held.append(lambda now: made if now.launched is None else None)
        if state.wish == "run" and (spent := self._budgets.spent(state, self._at_work, held.lease)) is not None:
            state = held.append(lambda now: spent if now.wish == "run" else None)
        self._ask_to_leave(held, state, launch)
        standing = self._runs.standing(launch)
        self._note_the_scheduler(held, standing)
        self._record_commits(held, run_id, state.last_step)
        if standing.is_living and not standing.waits_for:
            held.seen_s = self._clock.now_s()
        if not standing.is_living:
            self._end(held, state, standing)

    def _ask_to_leave(self, held: "_Held", state: JobState, launch: Launch) -> None:
        """Once; whoever has no budget left does not take as long as it likes."""
        now_s = self._clock.monotonic_s()
        if state.wish == "run":
            return
        if launch.number not in held.asked_s:
            held.asked_s[launch.number] = now_s
            self._runs.stop(launch)
            return
        if now_s - held.asked_s[launch.number] < LEAVE_S:
            return
        if state.budget_spent or self._budgets.spent(state, self._at_work, held.lease):
            self._runs.end(launch)

    def _charge(self, held: "_Held", times: Sequence[AttemptTime]) -> None:
        """Write down what attempts cost, each once, or again where it is told otherwise."""
        state = self._jobs.shelf.state(held.job_id)
        assert state is not None
        known = {(charge.attempt, charge.began_s, charge.ended_s, charge.device_s) for charge in state.charges}
        for time_s in times:
            if tuple(time_s) in known:
                continue
            mark_charged(self._store, state.created.project, held.job_id, time_s)
            charged = JobCharged(at_s=self._clock.now_s(), lease=held.lease, **time_s._asdict())
            held.append(partial(_anyway, charged))

    def _note_the_scheduler(self, held: "_Held", standing: RunStanding) -> None:
        """A cluster's queue holds the launch, or no longer."""
        now_s, said = self._clock.now_s(), standing.waits_for
        waits = JobWaits(at_s=now_s, code="scheduler", message=said)
        began = RunBegan(at_s=now_s, lease=held.lease)
        if said:
            held.append(partial(_if_news, waits))
        elif standing.is_living:
            held.append(lambda now: began if now.is_queued_outside else None)

    def _record_commits(self, held: "_Held", run_id: str, step: int) -> None:
        for commit in self._runs.commits_behind(run_id, step):
            if step == 0 and (state := self._jobs.shelf.state(held.job_id)) is not None:
                self._jobs.note_model(state.created)
            checkpoint = JobCheckpoint(
                at_s=commit.at_s,
                lease=held.lease,
                step=commit.step,
                weights_digest=commit.weights_digest,
                kept_steps=commit.kept_steps,
                points=commit.points,
            )
            held.append(partial(_if_later, checkpoint))

    def _end(self, held: "_Held", state: JobState, standing: RunStanding) -> None:
        """What becomes of a job whose launch is over; first, what that cost."""
        assert state.validated is not None
        self._charge(held, self._runs.settled(state.validated.run_id, seen_s=held.seen_s))
        newest = self._jobs.shelf.state(state.created.job_id)
        assert newest is not None
        if standing.failure and newest.wish != "cancel":
            self._fail(held, "training_failed", standing.failure)
        elif standing.is_done and newest.wish != "cancel":
            succeeded = self._runs.result(state.created, state.validated.run_id, held.lease)
            held.append(lambda now: succeeded if now.wish != "cancel" and not now.has_ended else None)
        elif newest.left_in_vain + 1 >= LEFT_IN_VAIN and newest.wish == "run":
            said = f"{LEFT_IN_VAIN} launches in a row ended without a further commit. The last one's last words"
            self._fail(held, "no_progress", f"{said}: {standing.last_words or 'none'}")
        else:
            self._left(held, standing.step)

    def _left(self, held: "_Held", step: int) -> None:
        left = RunLeft(at_s=self._clock.now_s(), lease=held.lease, step=step)
        held.append(lambda now: left if now.is_at_work else None)

    def _fail(self, held: "_Held", code: str, message: str, *, param: str | None = None) -> None:
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


class _Held:
    """A job under a lease of this worker; its beats go on in the background."""

    def __init__(self, job_id: str, lease: Lease, jobs: JobShelf) -> None:
        self.job_id = job_id
        self.lease = lease.number
        self.log = FencedLog(jobs.shelf.log(job_id), lease.number, of=f"job {job_id}")
        self.asked_s: dict[int, float] = {}
        """Launch -> when it was asked to leave, by the monotonic clock."""
        self.seen_s = 0.0
        """When its run was last seen to be driven."""
        self._beating = ExitStack()
        self._beating.enter_context(holding(lease))

    def append(self, decide: Callable[[JobState], JobEntry | None]) -> JobState:
        """See `FencedLog`."""
        return self.log.append(decide)

    def release(self) -> None:
        """Stop beating; anybody may take the job."""
        self._beating.close()

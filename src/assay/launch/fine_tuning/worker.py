"""Takes jobs under leases, and brings each one step further at every look, until all are done or stopped.

    open jobs, the oldest first --> lease --> validate | launch | watch --> entries of the job's log
                                      ^ somebody else has it: passed over

What was taken over is taken over in the job's log itself: the newest `taken` entry says who may append, so a
worker that was only slow, and comes back when its lease is another's, can write nothing more. What a worker
did and did not live to write down is found: a run by its id, a launch by its number, a result by the file's
id. So it may be killed anywhere; the next one goes on, and nothing is done twice.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, StoreError
from assay.launch.fine_tuning.job_dataset import InvalidFileError
from assay.launch.fine_tuning.runs import JobRuns, RunStanding
from assay.records.fine_tuning_job import (
    JobCheckpoint,
    JobEntry,
    JobFailed,
    JobTaken,
    LaunchMade,
    LaunchPlanned,
    RunLeft,
)
from assay.records.launch import Launch
from assay.serving.job import JobState
from assay.serving.jobs import JobShelf
from assay.store.leases import Lease, LeaseWatch, holding
from assay.store.objects import ObjectStore

TERM_S = 20.0
LEFT_IN_VAIN = 3
"""So many launches in a row without a further commit are enough: a further one would end alike."""


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
    ) -> None:
        """`name`: for people. `term_s`: how long it may be silent before another takes its jobs over."""
        self._jobs = jobs
        self._runs = runs
        self._name = name
        self._clock = clock
        self._runs_at_once = runs_at_once
        self._watch_of_leases = LeaseWatch(store, clock)
        self._term_s = term_s
        self._held: dict[str, _Held] = {}

    def look(self) -> bool:
        """Bring every job one step further; whether one of them is at work, or waits."""
        is_busy = False
        for job_id in self._jobs.shelf.open_ids():
            state = self._jobs.shelf.state(job_id)
            if state is None:
                continue  # its first entry is on its way, or never came
            if state.has_ended and not state.is_at_work:
                self._let_go(job_id)
                self._jobs.shelf.close(job_id)
                continue
            if not self._is_due(state):
                self._let_go(job_id)
                continue
            is_busy = True
            held = self._held.get(job_id) or self._taken(job_id)
            if held is not None:
                try:
                    self._further(held, state)
                except FencedError:
                    self._let_go(job_id)
        return is_busy

    def leave(self) -> None:
        """Give all leases back. Runs go on."""
        for job_id in list(self._held):
            self._let_go(job_id)

    def _is_due(self, state: JobState) -> bool:
        """Whether something is to be done; a run that may be going on is always watched."""
        if state.is_at_work:
            return True
        return state.wish == "run" and not state.has_ended

    def _taken(self, job_id: str) -> "_Held | None":
        """The job under a lease of ours; None where somebody else has it."""
        lease = self._watch_of_leases.take(f"ftjob/{job_id}", worker=self._name, term_s=self._term_s)
        if lease is None:
            return None
        # Known before it is said: where the store refuses that, the next look finds that this lease is not the
        # log's, and gives it back.
        self._held[job_id] = held = _Held(job_id, lease, self._jobs)
        taken = JobTaken(at_s=self._clock.now_s(), lease=held.lease, worker=self._name)
        state = self._jobs.shelf.log(job_id).append(
            lambda now: taken if now is not None and now.lease < taken.lease else None
        )
        assert state is not None
        if state.lease != held.lease:  # a later one is at work: this lease was lost already
            self._let_go(job_id)
            return None
        return held

    def _let_go(self, job_id: str) -> None:
        if (held := self._held.pop(job_id, None)) is not None:
            held.release()

    def _further(self, held: "_Held", state: JobState) -> None:
        try:
            if state.is_at_work:
                self._watch(held, state)
            elif state.validated is None:
                self._validate(held, state)
            elif self._num_running() < self._runs_at_once:
                self._plan_launch(held, state)
        except (FencedError, StoreError):
            raise
        except InvalidFileError as error:
            self._fail(held, f"invalid_{error.param}", str(error), param=error.param)
        except AssayError as error:
            self._stop_run(state)
            self._fail(held, "cannot_train", str(error))

    def _stop_run(self, state: JobState) -> None:
        """A job that fails for what is found while it is watched leaves no run behind that goes on."""
        if state.validated is not None and state.planned is not None:
            launch = self._runs.launch_from(state.validated.run_id, state.planned.number)
            if launch is not None:
                self._runs.stop(launch)

    def _num_running(self) -> int:
        """Runs that this worker watches."""
        states = (self._jobs.shelf.state(job_id) for job_id in self._held)
        return sum(state is not None and state.is_at_work for state in states)

    def _validate(self, held: "_Held", state: JobState) -> None:
        validated = self._runs.prepare(state.created, held.lease)
        held.append(lambda now: validated if now.validated is None else None)

    def _plan_launch(self, held: "_Held", state: JobState) -> None:
        assert state.validated is not None
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
        if state.wish != "run" and not held.has_asked(launch):
            self._runs.stop(launch)
        standing = self._runs.standing(launch)
        self._record_commits(held, run_id, state.last_step)
        if not standing.is_living:
            self._end(held, state, standing)

    def _record_commits(self, held: "_Held", run_id: str, step: int) -> None:
        for commit in self._runs.commits_behind(run_id, step):
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
        """What becomes of a job whose launch is over."""
        assert state.validated is not None
        newest = self._jobs.shelf.state(state.created.job_id)
        assert newest is not None
        if standing.failure and newest.wish != "cancel":
            self._fail(held, "training_failed", standing.failure)
        elif standing.is_done and newest.wish != "cancel":
            succeeded = self._runs.result(state.created, state.validated.run_id, held.lease)
            self._jobs.note_model(state.created)
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


def _if_later(checkpoint: JobCheckpoint, now: JobState) -> JobCheckpoint | None:
    return checkpoint if now.last_step < checkpoint.step else None


class _Held:
    """A job under a lease of this worker; its beats go on in the background."""

    def __init__(self, job_id: str, lease: Lease, jobs: JobShelf) -> None:
        self.job_id = job_id
        self.lease = lease.number
        self._jobs = jobs
        self._asked: set[int] = set()
        self._beating = ExitStack()
        self._beating.enter_context(holding(lease))

    def append(self, decide: Callable[[JobState], JobEntry | None]) -> JobState:
        """Put an entry, unless the job is another's by now: then `FencedError`, and nothing is put."""

        def decided(now: JobState | None) -> JobEntry | None:
            assert now is not None
            if now.lease != self.lease:
                raise FencedError(f"job {self.job_id} was taken over by another worker.")
            return decide(now)

        state = self._jobs.shelf.log(self.job_id).append(decided)
        assert state is not None
        return state

    def has_asked(self, launch: Launch) -> bool:
        """Whether that launch was asked to leave before; from now on it was."""
        was_asked = launch.number in self._asked
        self._asked.add(launch.number)
        return was_asked

    def release(self) -> None:
        """Stop beating; anybody may take the job."""
        self._beating.close()

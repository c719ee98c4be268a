"""A job's whole life, server and worker by turns, with the power cut at every write of it, and at pairs of
them.

The run is played: it goes on while worker and server are dead, or dies with them. Whatever happens, the job
has one run, at most one launch of it lives at a time, it ends once, and every step, checkpoint and message is
there once.
"""

import random
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress

import pytest

from assay.base.errors import DamagedDataError, FencedError, NotInstalledError
from assay.records.fine_tuning_job import (
    JobCheckpoint,
    JobCreated,
    JobSucceeded,
    JobValidated,
    MetricPoint,
    PauseRequested,
)
from assay.records.launch import Launch
from assay.records.webhook import WebhookCreated
from assay.serving.job import JobState, newest_events
from assay.serving.jobs import JobRepository
from assay.serving.webhooks.outbox import Outbox
from assay.serving.webhooks.webhooks import EVENT_TYPES, WebhookRepository
from assay.store.objects import ObjectStore, open_store
from assay.workers.fine_tuning.budgets import AttemptTime
from assay.workers.fine_tuning.runs import RunProgress
from assay.workers.fine_tuning.worker import Prepare
from clocks import ManualClock
from job_workers import handler_of, job_worker
from power_cut_store import PowerCut, PowerCutStore
from variants import soaked

JOB = "ftjob-" + "0" * 24
CREATED = JobCreated(
    job_id=JOB, project="p", at_s=1.0, model="tiny", base={}, method="classification", hyperparameters={},
    training_file="file-" + "0" * 24, seed=1, request_sha256="",
)  # fmt: skip
WEBHOOK = WebhookCreated(
    webhook_id="webhook-" + "0" * 24, project="p", name="w", url="https://w.example", event_types=EVENT_TYPES,
    secret="whsec_", at_s=0.0, request_sha256="",
)  # fmt: skip
STEPS, STEPS_A_COMMIT, MAX_LIVES = 6, 2, 60
LOOK_S = 7.0


class SimulatedRuns:
    """Runs as `RunsOfHome` has them: what they write goes through the store, what they do goes on without
    it."""

    def __init__(self) -> None:
        self.store: ObjectStore = open_store("memory:")
        self.step = 0
        self.living: int | None = None
        self.stop_requested = False

    def goes_on(self) -> None:
        """One step further, or out."""
        if self.living is not None:
            self.step += 0 if self.stop_requested and self.step % STEPS_A_COMMIT == 0 else 1
            is_over = self.step >= STEPS or (self.stop_requested and self.step % STEPS_A_COMMIT == 0)
            self.living = None if is_over else self.living

    def dies(self) -> None:
        """With its machine: what was not committed is lost."""
        self.living, self.step = None, self.committed()

    def committed(self) -> int:
        return self.step - self.step % STEPS_A_COMMIT

    def prepare(self, created: JobCreated, lease: int) -> JobValidated:
        self.store.put_if_absent("run/run.json", b"")
        return JobValidated(
            at_s=2.0,
            lease=lease,
            run_id="r",
            num_rows=1,
            dataset_fingerprint="f",
            num_steps=STEPS,
            hyperparameters={},
        )

    def _numbers(self) -> list[int]:
        return sorted(int(item.key[-4:]) for item in self.store.list("run/launches/"))

    def next_launch(self, run_id: str) -> int:
        return len(self._numbers()) + 1

    def launch_from(self, run_id: str, number: int) -> Launch | None:
        return self._launch(self._numbers()[-1]) if self._numbers() and self._numbers()[-1] >= number else None

    def _launch(self, number: int) -> Launch:
        return Launch(
            run_id="r", number=number, launcher="background", job="1", host="h", started_by="me", started_s=0.0,
            world_size=1, log="",
        )  # fmt: skip

    def start(self, created: JobCreated, run_id: str) -> Launch:
        if self.living is not None:
            return self._launch(self.living)
        return self.begin()

    def begin(self) -> Launch:
        """The record comes first, and then the word to begin."""
        assert self.living is None, "a second supervisor beside a living one"
        number = self.next_launch("r")
        assert self.store.put_if_absent(f"run/launches/{number:04d}", b"")
        self.living, self.stop_requested = number, False
        return self._launch(number)

    def stop(self, launch: Launch) -> None:
        self.stop_requested = True

    def end(self, launch: Launch) -> None:
        self.dies()

    def held(self, run_id: str) -> list[AttemptTime]:
        """Each launch is an attempt that held a device for an hour."""
        return [AttemptTime(number, 3600.0 * number, 3600.0 * (number + 1), 3600.0) for number in self._numbers()]

    def final_times(self, run_id: str, *, seen_s: float) -> list[AttemptTime]:
        return self.held(run_id)

    def progress(self, launch: Launch) -> RunProgress:
        return RunProgress(self.living is not None, self.step >= STEPS, self.committed())

    def commits_after(self, run_id: str, step: int, lease: int) -> list[JobCheckpoint]:
        steps = range(step + STEPS_A_COMMIT, self.committed() + 1, STEPS_A_COMMIT)
        return [
            JobCheckpoint(
                step=item,
                at_s=3.0,
                lease=lease,
                weights_digest=f"w{item}",
                retained_steps=(item,),
                points=_points(item),
            )
            for item in steps
        ]

    def result(self, created: JobCreated, run_id: str, lease: int) -> JobSucceeded:
        self.store.put("file/result", b"")
        return JobSucceeded(
            at_s=4.0,
            lease=lease,
            step=STEPS,
            weights_digest="w",
            result_file="f",
            trained_tokens=1,
            measured={},
        )


class ForgetfulRuns(SimulatedRuns):
    """Known to be bad: begins a run without looking whether one lives."""

    def start(self, created: JobCreated, run_id: str) -> Launch:
        return self.begin()

    def launch_from(self, run_id: str, number: int) -> Launch | None:
        return None


def at_once(prepare: Prepare) -> Future[JobValidated]:
    """Files are validated within the look."""
    done: Future[JobValidated] = Future()
    done.set_result(prepare())
    return done


def _points(step: int) -> tuple[MetricPoint, ...]:
    return tuple(
        MetricPoint(step=item, at_s=3.0, values={"train_loss": 0.5})
        for item in range(step - STEPS_A_COMMIT + 1, step + 1)
    )


class World:
    """One store and its runs, over as many lives of server and worker as it takes."""

    def __init__(self, runs: SimulatedRuns) -> None:
        self.inner = open_store("memory:")
        self.clock = ManualClock()
        self.runs = runs
        WebhookRepository(self.inner, self.clock).put(WEBHOOK)

    def lives(self, store: ObjectStore, *, cancels: bool) -> None:
        """One life of server and worker, by turns, until the job is over or the power is cut."""
        self.runs.store = store
        jobs, workers_jobs = JobRepository(store, self.clock), JobRepository(store, self.clock)
        worker = job_worker(store, workers_jobs, self.runs, name="w", clock=self.clock, run_in_background=at_once)
        try:
            while not self.client_is_done(jobs, cancels=cancels):
                worker.poll()
                self.runs.goes_on()
                self.clock.sleep_s(LOOK_S)
            worker.poll()
            worker.leave()
        except BaseException:
            while worker._held:
                with suppress(PowerCut):
                    worker.leave()
            raise

    def client_is_done(self, jobs: JobRepository, *, cancels: bool) -> bool:
        """What the client asks for next, by what it sees."""
        state = jobs.find(JOB, "p") or jobs.put(CREATED)
        if state.has_ended:
            return not state.is_at_work
        was_paused = any(isinstance(entry, PauseRequested) for entry in state.entries)
        if state.last_step and not was_paused:
            jobs.pause(JOB)
        elif state.status == "paused":
            (jobs.cancel if cancels else jobs.resume)(JOB)
        return False

    def state(self) -> JobState:
        state = JobRepository(self.inner, self.clock).find(JOB, "p")
        assert state is not None
        return state


def simulate(cuts: list[int], seed: int, *, runs: type[SimulatedRuns] = SimulatedRuns, cancels: bool = False) -> World:
    """A world in which the power is cut at these writes of its lives, in turn, and then no more."""
    rng, world = random.Random(seed), World(runs())
    for cut in [*cuts, 10_000]:
        try:
            world.lives(PowerCutStore(world.inner, writes_left=cut, rng=rng), cancels=cancels)
        except PowerCut:
            for _ in range(rng.randrange(3)):
                world.runs.goes_on()
            if rng.random() < 0.5:
                world.runs.dies()
            continue
        return world
    raise AssertionError(f"{cuts}, seed {seed}: no end")


def check(world: World) -> None:
    state = world.state()
    kinds = Counter(entry.type for entry in state.entries)
    assert not state.is_at_work and world.runs.living is None
    assert [*world.inner.list("open/ftjob/")] == []
    (message,) = Outbox(world.inner, world.clock).due()  # one for its end, however often somebody died over it
    assert message.created.event_type == f"fine_tuning.job.{state.status}"
    # A run that went on while everything else was dead may have ended before anybody could pause or cancel it.
    ends = {"succeeded": kinds["succeeded"], "cancelled": kinds["cancel"]}
    assert ends in ({"succeeded": 1, "cancelled": 0}, {"succeeded": 0, "cancelled": 1})
    assert ends[state.status] == 1
    assert (kinds["created"], kinds["validated"], kinds["failed"]) == (1, 1, 0)
    assert kinds["resume"] <= kinds["pause"]
    events = [*newest_events(state, JobRepository(world.inner, world.clock).log(JOB).entry)][::-1]
    assert [item.data["step"] for item in events if item.data] == [*range(1, state.last_step + 1)]
    assert state.status == "cancelled" or state.last_step == STEPS
    charged = [entry.attempt for entry in state.entries if entry.type == "charged"]
    assert sorted(charged) == sorted(set(charged)) == world.runs._numbers()  # each charge once
    assert len({event.event_id for event in events}) == len(events)
    assert [event.event_id for event in events] == sorted(event.event_id for event in events)


def num_writes(*, cancels: bool = False) -> int:
    """Of a life that nothing disturbs."""
    world = World(SimulatedRuns())
    counting = PowerCutStore(world.inner, writes_left=10_000, rng=random.Random(0))
    world.lives(counting, cancels=cancels)
    check(world)
    return 10_000 - counting._writes_left


@pytest.mark.parametrize("cancels", [False, True])
def test_the_power_is_cut_at_every_write_of_a_jobs_life(cancels: bool) -> None:
    writes = num_writes(cancels=cancels)
    assert writes > 15
    for cut in range(writes):
        for seed in range(2):
            check(simulate([cut], seed, cancels=cancels))


@pytest.mark.parametrize("seed", [*range(20), *soaked(*range(20, 500))])
def test_the_power_is_cut_at_several_writes(seed: int) -> None:
    rng = random.Random(seed)
    cancels = rng.random() < 0.3
    check(simulate([rng.randrange(40) for _ in range(rng.randrange(2, 6))], seed, cancels=cancels))


MOMENTS = ("prepare", "next_launch", "launch_from", "start", "progress", "commits_after", "result")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_what_a_client_asks_in_the_midst_of_a_look_has_its_way(
    monkeypatch: pytest.MonkeyPatch, moment: str, verb: str
) -> None:
    world, request = World(SimulatedRuns()), []
    inside = getattr(SimulatedRuns, moment)

    def with_request(runs: SimulatedRuns, *arguments):
        found = inside(runs, *arguments)
        if not request:
            request.append(getattr(JobRepository(world.inner, world.clock), verb)(JOB).status)
        return found

    monkeypatch.setattr(SimulatedRuns, moment, with_request)
    world.lives(PowerCutStore(world.inner, writes_left=10_000, rng=random.Random(0)), cancels=False)
    assert request == ["cancelled"] if verb == "cancel" else request in (["pausing"], ["paused"])
    check(world)


def test_a_worker_that_forgets_what_it_launched_is_caught() -> None:
    def is_caught(cut: int) -> bool:
        try:
            simulate([cut], 3, runs=ForgetfulRuns)
        except AssertionError as error:
            return "second supervisor" in str(error)
        return False

    assert any(is_caught(cut) for cut in range(30))


class DamagedRuns(SimulatedRuns):
    """Their logs cannot be read."""

    def commits_after(self, run_id: str, step: int, lease: int) -> list[JobCheckpoint]:
        raise DamagedDataError("its log was changed")


def test_a_job_that_fails_while_it_is_watched_leaves_no_run_behind() -> None:
    world = World(DamagedRuns())
    world.lives(PowerCutStore(world.inner, writes_left=10_000, rng=random.Random(0)), cancels=False)
    state = world.state()
    assert state.status == "failed" and state.failed is not None
    assert (state.failed.code, state.failed.message) == ("cannot_train", "its log was changed")
    assert world.runs.stop_requested


def test_a_worker_whose_lease_was_lost_can_append_nothing_more() -> None:
    world = World(SimulatedRuns())
    world.runs.store = world.inner
    repositories = [JobRepository(world.inner, world.clock) for _ in range(2)]
    slow, quick = (
        job_worker(world.inner, shelve, world.runs, name="w", clock=world.clock, run_in_background=at_once)
        for shelve in repositories
    )
    repositories[0].put(CREATED)
    slow.poll()
    while world.state().lease < 2:  # the slow one does not beat: its thread waits for seconds that are real
        quick.poll()
        world.clock.sleep_s(LOOK_S)
    before = world.state()
    assert [entry.type for entry in before.entries] == ["created", "taken", "validated", "taken", "launching"]
    handler = handler_of(slow)
    with pytest.raises(FencedError):
        handler._watch(handler._leased[JOB], before)
    slow.poll()
    assert not slow._held and world.state() == before
    quick.leave()


def test_a_worker_says_how_each_job_ended_and_why() -> None:
    world, output = World(DamagedRuns()), list[str]()
    world.runs.store = world.inner
    logs = JobRepository(world.inner, world.clock)
    worker = job_worker(
        world.inner,
        logs,
        world.runs,
        name="w",
        clock=world.clock,
        run_in_background=at_once,
        notify=output.append,
    )
    logs.put(CREATED)
    for _ in range(20):
        worker.poll()
    assert output == [f"job {JOB} failed: its log was changed"]
    worker.leave()


def test_what_another_worker_recorded_meanwhile_is_recorded_once() -> None:
    world = World(SimulatedRuns())
    world.runs.store = world.inner
    worker = job_worker(world.inner, JobRepository(world.inner, world.clock), world.runs, name="w", clock=world.clock)
    JobRepository(world.inner, world.clock).put(CREATED)
    while world.state().launched is None:
        worker.poll()
    old = world.state()  # as a worker knows it that takes the job over when the other has written on
    for _ in range(STEPS):
        world.runs.goes_on()
        worker.poll()
        if world.state().last_step == STEPS - STEPS_A_COMMIT:
            break
    before = world.state()
    assert before.last_step > old.last_step == 0
    handler_of(worker)._record_commits(handler_of(worker)._leased[JOB], "r", old.last_step)
    assert world.state() == before
    worker.leave()


class LackingRuns(SimulatedRuns):
    """A machine without the program, until it is installed."""

    is_installed = False

    def start(self, created: JobCreated, run_id: str) -> Launch:
        if not self.is_installed:
            raise NotInstalledError("/bin/assay: no such program.")
        return super().start(created, run_id)


def test_a_job_is_left_to_others_by_a_worker_that_lacks_the_program() -> None:
    world, other, output = World(LackingRuns()), SimulatedRuns(), list[str]()
    world.runs.store = other.store = world.inner
    lacking, able = (
        job_worker(
            world.inner, JobRepository(world.inner, world.clock), runs, name="w", clock=world.clock,
            run_in_background=at_once,
            notify=output.append,
        )
        for runs in (world.runs, other)
    )  # fmt: skip
    JobRepository(world.inner, world.clock).put(CREATED)
    for _ in range(20):
        lacking.poll()
    assert output == [f"{JOB} is left to other workers for 60 s: /bin/assay: no such program."]
    assert not world.state().has_ended and not lacking._held
    able.poll()
    assert world.state().launched is not None
    able.leave()


def test_a_worker_tries_again_what_it_lacked_a_minute_ago() -> None:
    world = World(runs := LackingRuns())
    runs.store = world.inner
    worker = job_worker(
        world.inner,
        JobRepository(world.inner, world.clock),
        world.runs,
        name="w",
        clock=world.clock,
        run_in_background=at_once,
    )
    JobRepository(world.inner, world.clock).put(CREATED)
    for _ in range(5):
        worker.poll()
    runs.is_installed = True
    worker.poll()
    assert world.state().launched is None
    world.clock.sleep_s(61.0)
    worker.poll()
    assert world.state().launched is not None
    worker.leave()

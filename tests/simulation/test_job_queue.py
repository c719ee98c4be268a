"""Many jobs of several projects at several workers, in one thread: places are filled, and filled in turn."""

from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta

import pytest

from assay.records.fine_tuning_job import JobCheckpoint, JobCreated, JobSucceeded, JobValidated, JobWaits
from assay.records.launch import Launch
from assay.serving.admin.projects import ProjectRepository
from assay.serving.admin.spend import ChargedResources, costs_of_day, day_of
from assay.serving.api_error import ApiError
from assay.serving.jobs import JobRepository
from assay.store.objects import open_store
from assay.workers.fine_tuning.budgets import AttemptTime
from assay.workers.fine_tuning.runs import RunProgress
from assay.workers.fine_tuning.worker import Prepare
from clocks import ManualClock
from job_workers import handler_of, job_worker

LOOKS_A_RUN = 3


class ManyRuns:
    """Each run is done after so many looks at it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.times: dict[str, list[tuple[float, float | None]]] = {}
        self.stays = False
        """Whether a run that is asked to leave does not."""
        self.unfinished: set[str] = set()
        self.ended: list[str] = []
        self.launches: dict[str, list[int]] = {}
        self.left: dict[str, int] = {}
        self.order: list[str] = []

    def at_work(self) -> list[str]:
        return [run_id for run_id, left in self.left.items() if left > 0]

    def go_on(self) -> None:
        for run_id in self.at_work():
            self.left[run_id] -= 1
        for run_id, times in self.times.items():
            if times[-1][1] is None and not self.left[run_id]:
                times[-1] = (times[-1][0], self.clock.now_s())

    def prepare(self, created: JobCreated, lease: int) -> JobValidated:
        return JobValidated(
            at_s=1.0, lease=lease, run_id=created.job_id, num_rows=1, dataset_fingerprint="f", num_steps=1,
            hyperparameters={},
        )  # fmt: skip

    def next_launch(self, run_id: str) -> int:
        return len(self.launches.get(run_id, [])) + 1

    def launch_from(self, run_id: str, number: int) -> Launch | None:
        return self._launch(run_id, number) if number in self.launches.get(run_id, []) else None

    def start(self, created: JobCreated, run_id: str) -> Launch:
        number = self.next_launch(run_id)
        self.launches.setdefault(run_id, []).append(number)
        self.left[run_id] = LOOKS_A_RUN
        self.unfinished.discard(run_id)
        self.times.setdefault(run_id, []).append((self.clock.now_s(), None))
        self.order.append(created.project)
        return self._launch(run_id, number)

    def _launch(self, run_id: str, number: int) -> Launch:
        return Launch(
            run_id=run_id, number=number, launcher="background", job="1", host="h", started_by="me", started_s=0.0,
            world_size=1, log="",
        )  # fmt: skip

    def stop(self, launch: Launch) -> None:
        if not self.stays:
            self.leave(launch.run_id)

    def end(self, launch: Launch) -> None:
        self.leave(launch.run_id)
        self.ended.append(launch.run_id)

    def leave(self, run_id: str) -> None:
        """Before its end."""
        self.left[run_id] = 0
        self.unfinished.add(run_id)
        self.times[run_id][-1] = (self.times[run_id][-1][0], self.clock.now_s())

    def held(self, run_id: str) -> list[AttemptTime]:
        """From the launch to its end, or to now."""
        return [
            AttemptTime(number, began_s, ended_s or self.clock.now_s(), (ended_s or self.clock.now_s()) - began_s)
            for number, (began_s, ended_s) in enumerate(self.times.get(run_id, []), start=1)
        ]

    def final_times(self, run_id: str, *, seen_s: float) -> list[AttemptTime]:
        return self.held(run_id)

    def progress(self, launch: Launch) -> RunProgress:
        is_living = self.left[launch.run_id] > 0
        is_done = not is_living and launch.run_id not in self.unfinished
        return RunProgress(is_living, is_done, 1 if is_done else 0)

    def commits_after(self, run_id: str, step: int, lease: int) -> list[JobCheckpoint]:
        return []

    def result(self, created: JobCreated, run_id: str, lease: int) -> JobSucceeded:
        return JobSucceeded(
            at_s=4.0, lease=lease, step=1, weights_digest="w", result_file="f", trained_tokens=1, measured={}
        )


class Yard:
    """Workers with so many places each, over the same jobs."""

    def __init__(self, *slots: int) -> None:
        self.store, self.clock = open_store("memory:"), ManualClock(1e9)
        self.runs = ManyRuns(self.clock)
        self.jobs = JobRepository(self.store, self.clock)
        self.workers = [
            job_worker(
                self.store, JobRepository(self.store, self.clock), self.runs, name=f"w{n}", clock=self.clock,
                runs_at_once=count, run_in_background=at_once,
            )
            for n, count in enumerate(slots)
        ]  # fmt: skip

    def submit(self, project: str, number: int, *, budget: float | None = None) -> str:
        job_id = f"ftjob-{number:024x}"
        created = JobCreated(
            job_id=job_id, project=project, at_s=1.0, model="tiny", base={}, method="classification",
            hyperparameters={}, training_file="f", seed=1, request_sha256="",
            budget_device_hours=budget,
        )  # fmt: skip
        self.jobs.put(created)
        return job_id

    def poll(self) -> bool:
        is_busy = False
        for worker in self.workers:
            worker.poll()
            is_busy = handler_of(worker).is_busy or is_busy
            self.clock.sleep_s(0.5)
        self.runs.go_on()
        return is_busy

    def leave(self) -> None:
        for worker in self.workers:
            with suppress(Exception):
                worker.leave()


def at_once(prepare: Prepare) -> Future[JobValidated]:
    done: Future[JobValidated] = Future()
    done.set_result(prepare())
    return done


@pytest.mark.parametrize("slots", [(1,), (1, 2), (3, 1, 1)])
def test_places_are_filled_in_turn_and_each_job_is_launched_once(slots) -> None:
    yard = Yard(*slots)
    jobs = [yard.submit("a", n) for n in range(8)] + [yard.submit("b", n) for n in range(8, 11)]
    most = 0
    for _ in range(200):
        is_busy = yard.poll()
        most = max(most, len(yard.runs.at_work()))
        if not is_busy:
            break
    yard.leave()
    states = [yard.jobs.state(job_id) for job_id in jobs]
    assert {state.status for state in states} == {"succeeded"}
    assert all(len(launches) == 1 for launches in yard.runs.launches.values())
    assert most == sum(slots)
    # After so many launches, no project that still had jobs has had more than one turn more than another.
    for count in range(1, 7):
        done = [yard.runs.order[:count].count(project) for project in "ab"]
        assert max(done) - min(done) <= sum(slots), yard.runs.order
    if slots == (1,):
        assert "".join(yard.runs.order) == "abababaaaaa"


def test_a_full_worker_keeps_no_job_from_one_that_has_a_place() -> None:
    yard = Yard(1, 1)
    first, second = yard.submit("a", 1), yard.submit("a", 2)
    for _ in range(3):
        yard.workers[0].poll()
    yard.runs.left[first] = 10**6
    yard.workers[1].poll()
    yard.workers[1].poll()
    assert yard.runs.at_work() == [first, second]
    yard.leave()


def test_what_a_job_waits_for_is_an_event_once_until_it_is_another_thing() -> None:
    yard = Yard(1)
    jobs = [yard.submit("a", n) for n in range(3)]
    for _ in range(4):
        yard.poll()
    yard.runs.left[jobs[0]] = 20
    for _ in range(60):
        yard.poll()
    output = [
        [entry.code for entry in yard.jobs.state(job_id).entries if isinstance(entry, JobWaits)] for job_id in jobs
    ]
    assert output == [[], ["slots_taken"], ["turn", "slots_taken"]]
    yard.leave()


def test_runs_are_watched_while_files_are_validated() -> None:
    yard = Yard(2)
    first = yard.submit("a", 1)
    for _ in range(3):
        yard.poll()
    under_way: Future[JobValidated] = Future()
    handler_of(yard.workers[0])._run_in_background = lambda prepare: under_way
    second = yard.submit("a", 2)
    for _ in range(6):
        yard.poll()
    assert yard.jobs.state(first).status == "succeeded"
    yard.jobs.pause(second)
    yard.poll()
    assert second in yard.workers[0]._held  # who may not be at it while that still writes
    under_way.set_result(yard.runs.prepare(yard.jobs.state(second).created, 1))
    yard.poll()
    assert second not in yard.workers[0]._held
    handler_of(yard.workers[0])._run_in_background = at_once
    yard.jobs.resume(second)
    for _ in range(8):
        yard.poll()
    assert yard.jobs.state(second).status == "succeeded"
    yard.leave()


LONG = 10**6


def until_at_work(yard: Yard, job_id: str) -> float:
    """Have it go on for ever; when it was launched."""
    for _ in range(10):
        yard.poll()
        if job_id in yard.runs.at_work():
            yard.runs.left[job_id] = LONG
            return yard.runs.times[job_id][-1][0]
    raise AssertionError("it was not launched")


@pytest.mark.parametrize("stays", [False, True])
def test_a_job_over_its_budget_holds_its_device_for_at_most_15_s_more(stays) -> None:
    yard = Yard(1)
    job_id = yard.submit("a", 1, budget=60 / 3600)
    yard.runs.stays = stays
    launched_s = until_at_work(yard, job_id)
    while job_id in yard.runs.at_work():
        yard.poll()
    held_s = yard.runs.times[job_id][0][1] - launched_s
    assert 60 <= held_s <= 60 + (15 if stays else 2)
    assert yard.runs.ended == ([job_id] if stays else [])
    for _ in range(3):
        yard.poll()
    state = yard.jobs.state(job_id)
    assert (state.status, state.budget_spent.of, state.charged_s) == ("paused", "job", held_s)
    for budget in (None, 60 / 3600, held_s / 3600):
        with pytest.raises(ApiError, match=r"Raise x_assay\.budget_device_hours"):
            yard.jobs.resume(job_id, budget)
    yard.jobs.resume(job_id, 1.0)
    yard.runs.stays = False
    for _ in range(12):
        yard.poll()
    assert yard.jobs.state(job_id).status == "succeeded"
    yard.leave()


def test_a_spent_limit_of_a_project_pauses_its_jobs_and_launches_none_until_the_next_month() -> None:
    yard = Yard(2)
    projects = ProjectRepository(yard.store, yard.clock)
    projects.ensure("a", by="me")
    projects.limit("a", 100 / 3600, by="me")
    first, other, third = yard.submit("a", 1), yard.submit("b", 2), yard.submit("a", 3)
    launched_s = until_at_work(yard, first)
    yard.runs.left[other] = LONG
    while yard.jobs.state(first).status != "paused":
        yard.poll()
    assert 100 <= yard.clock.now_s() - launched_s <= 115
    spent = yard.jobs.state(first).budget_spent
    assert (spent.of, spent.limit_device_s) == ("project", 100.0)
    for _ in range(4):
        yard.poll()
    assert yard.runs.at_work() == [other]
    waits = yard.jobs.state(third).waits
    assert waits.code == "project_limit" and "its limit is 0.02778" in waits.message
    yard.jobs.resume(first)
    yard.poll()
    assert yard.jobs.state(first).waits.code == "project_limit"
    yard.clock.sleep_s(32 * 86_400)
    for _ in range(20):
        yard.poll()
    assert {yard.jobs.state(item).status for item in (first, third)} == {"succeeded"}
    yard.leave()


def test_a_job_without_any_budget_left_is_not_launched_again() -> None:
    yard = Yard(1)
    job_id = yard.submit("a", 1, budget=30 / 3600)
    until_at_work(yard, job_id)
    yard.clock.sleep_s(40)
    yard.runs.leave(job_id)  # preempted, before anybody looked
    for _ in range(4):
        yard.poll()
    state = yard.jobs.state(job_id)
    assert (state.status, len(yard.runs.launches[job_id])) == ("paused", 1)
    yard.leave()


def test_days_sum_to_what_was_held() -> None:
    yard = Yard(1)
    job_id = yard.submit("a", 1)
    until_at_work(yard, job_id)
    yard.clock.sleep_s(2.5 * 86_400)
    yard.runs.left[job_id] = 0
    for _ in range(4):
        yard.poll()
    state = yard.jobs.state(job_id)
    first = day_of(yard.runs.times[job_id][0][0])
    resources = ChargedResources(yard.jobs)
    by_day = [costs_of_day(resources, first + timedelta(days=number)) for number in range(-1, 5)]
    assert [[item.resource_id for item in day] for day in by_day] == [[], [job_id], [job_id], [job_id], [], []]
    assert sum(item.device_s for day in by_day for item in day) == pytest.approx(state.charged_s, rel=1e-12)
    assert by_day[2][0].device_s == 86_400
    yard.leave()

"""What a job waits for, and when it will be done, by the SDK and by the closed form."""

from typing import Any

import openai

from assay.records.fine_tuning_job import (
    JobCheckpoint,
    JobValidated,
    JobWaits,
    LaunchPlanned,
    LaunchStarted,
    RunBegan,
    RunLeft,
)
from assay.serving.openai.app_state import AppState
from assay.serving.queue.status import step_time_of
from assay.serving.queue.worker_registry import SILENT_S, WorkerRegistration, WorkerRegistry

START_S = 1_800_000_000.0
STEPS = 100


def create(app: AppState, sdk: openai.OpenAI, *, is_validated: bool = True, **kwargs) -> str:
    app.clock.sleep_s(2.0)  # ids sort by their moments, and the queue is looked at once a second
    file = sdk.files.create(file=("rows.jsonl", b'{"text": "a", "label": 1}\n'), purpose="fine-tune")
    job_id = sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id, **kwargs).id
    if is_validated:
        happens(app, job_id, validated())
    return job_id


def validated() -> JobValidated:
    return JobValidated(
        at_s=1.0, lease=1, run_id="r", num_rows=9, dataset_fingerprint="f", num_steps=STEPS, hyperparameters={}
    )


def happens(app: AppState, job_id: str, *entries) -> None:
    for entry in entries:
        app.jobs.log(job_id).append(lambda _, entry=entry: entry)
    app.clock.sleep_s(2.0)


def launched(at_s: float, step: int = 0) -> tuple[LaunchPlanned, LaunchStarted]:
    at = {"at_s": at_s, "lease": 1, "number": 1}
    return LaunchPlanned(**at), LaunchStarted(**at, where="process 1 on host", step=step)


def commit(step: int, at_s: float) -> JobCheckpoint:
    return JobCheckpoint(at_s=at_s, lease=1, step=step, weights_digest="w", retained_steps=(step,), points=())


def registered(app: AppState, slots: int) -> WorkerRegistration:
    line = WorkerRegistration(app.jobs.store, app.clock, name="w", slots=slots)
    line.renew()
    return line


def status_of(sdk: openai.OpenAI, job_id: str) -> tuple[str | None, int | None, str]:
    job: Any = sdk.fine_tuning.jobs.retrieve(job_id)
    queue = job.x_assay["queue"] or {"code": None, "position": None, "blocked_by": ""}
    return queue["code"], queue["position"], queue["blocked_by"]


def test_a_waiting_job_is_told_its_place_and_the_one_thing_that_blocks_it(app, sdk) -> None:
    new = create(app, sdk, is_validated=False)
    first, second, third = (create(app, sdk) for _ in range(3))
    assert status_of(sdk, new)[0] == status_of(sdk, first)[0] == "no_worker"
    assert "assay serve worker" in status_of(sdk, first)[2]
    line = registered(app, 1)
    app.clock.sleep_s(2.0)
    assert status_of(sdk, new) == ("files", None, "its files are not validated yet")
    assert status_of(sdk, first)[:2] == ("starting", 1)
    happens(app, first, *launched(app.clock.now_s()))
    assert status_of(sdk, first) == (None, None, "")
    assert status_of(sdk, second) == ("slots_taken", 1, "all slots are in use (1 slot at 1 worker)")
    assert status_of(sdk, third) == ("turn", 2, f"job {second} is launched before it")
    assert sdk.fine_tuning.jobs.retrieve(third).x_assay["queue"]["waiting"] == 2
    line.deregister()
    app.clock.sleep_s(2.0)
    assert status_of(sdk, second)[:2] == ("no_worker", 1)


def test_a_worker_that_is_silent_is_not_counted_and_is_forgotten_after_a_day(app) -> None:
    registry = WorkerRegistry(app.jobs.store, app.clock)
    line = registered(app, 3)
    assert [item.slots for item in registry.live()] == [3]
    app.clock.sleep_s(SILENT_S - 1)
    assert registry.live()
    line.renew()
    app.clock.sleep_s(SILENT_S - 1)
    assert registry.live()
    app.clock.sleep_s(1)
    assert not registry.live()
    registry.drop_stale()
    assert [*app.jobs.store.list("worker/")]
    app.clock.sleep_s(86_400)
    registry.drop_stale()
    assert not [*app.jobs.store.list("worker/")]


def test_a_line_that_was_cut_short_is_passed_over(app) -> None:
    app.jobs.store.put("worker/0", b'{"name": "w", "pla')
    assert WorkerRegistry(app.jobs.store, app.clock).live() == []


def test_a_running_job_is_done_at_its_pace(app, sdk) -> None:
    job_id = create(app, sdk)
    jobs, now_s = sdk.fine_tuning.jobs, app.clock.now_s()
    happens(app, job_id, *launched(now_s))
    job = jobs.retrieve(job_id)
    assert (job.estimated_finish, job.x_assay["estimate"]) == (
        None, "it has no commit yet to measure its speed",
    )  # fmt: skip
    happens(app, job_id, commit(10, now_s + 40))
    assert jobs.retrieve(job_id).estimated_finish == int(now_s + 40 + 90 * 4)
    happens(app, job_id, commit(20, now_s + 60), commit(40, now_s + 100))
    job = jobs.retrieve(job_id)
    assert job.estimated_finish == int(now_s + 100 + 60 * 2)
    assert job.x_assay["estimate"] == "steps 11 to 40 took 2 s each"
    app.clock.sleep_s(10_000)
    assert jobs.retrieve(job_id).estimated_finish == int(app.clock.now_s())


def test_the_pace_is_that_of_the_newest_launch_and_a_pause_is_no_step(app, sdk) -> None:
    job_id = create(app, sdk)
    happens(
        app, job_id, *launched(1000.0), commit(10, 1010.0), commit(20, 1020.0),
        RunLeft(at_s=1021.0, lease=1, step=20), *launched(9000.0, step=20),
    )  # fmt: skip
    state = app.jobs.state(job_id)
    assert step_time_of(state).seconds_per_step == 1.0
    happens(app, job_id, commit(30, 9030.0))
    assert step_time_of(app.jobs.state(job_id)).seconds_per_step == 3.0


def test_waiting_jobs_are_done_after_those_before_them(app, sdk) -> None:
    first, second, third = (create(app, sdk) for _ in range(3))
    line, now_s = registered(app, 1), app.clock.now_s()
    happens(app, first, *launched(now_s), commit(10, now_s + 20), commit(20, now_s + 40))
    line._renewed_s = None
    line.renew()
    app.clock.sleep_s(2.0)
    end_s = now_s + 40 + 80 * 2
    finishes = [sdk.fine_tuning.jobs.retrieve(item).estimated_finish for item in (first, second, third)]
    assert finishes == [int(end_s), int(end_s + 200), int(end_s + 400)]
    estimate = sdk.fine_tuning.jobs.retrieve(third).x_assay["estimate"]
    assert "of a job of the same model" in estimate and first not in estimate, "it may be another project's"


def test_what_a_paused_job_waits_for_is_its_owner(app, sdk) -> None:
    job_id = create(app, sdk)
    sdk.fine_tuning.jobs.pause(job_id)
    job = sdk.fine_tuning.jobs.retrieve(job_id)
    assert (job.estimated_finish, job.x_assay["queue"], job.x_assay["estimate"]) == (None, None, "it is paused")


def test_a_job_whose_launch_a_scheduler_holds_is_queued_and_says_so(app, sdk) -> None:
    job_id = create(app, sdk)
    registered(app, 1)
    held = JobWaits(at_s=2.0, code="scheduler", message="Slurm job 12 is pending: Resources")
    happens(app, job_id, *launched(1.0), held)
    assert status_of(sdk, job_id) == ("scheduler", None, "Slurm job 12 is pending: Resources")
    assert sdk.fine_tuning.jobs.retrieve(job_id).status == "queued"
    happens(app, job_id, RunBegan(at_s=3.0, lease=1))
    assert status_of(sdk, job_id)[0] is None
    assert sdk.fine_tuning.jobs.retrieve(job_id).status == "running"
    messages = [event.message for event in sdk.fine_tuning.jobs.list_events(job_id)]
    assert messages[:2] == ["The cluster's scheduler started it", f"Waiting: {held.message}"]

"""What a job waits for, and when it will be done, by the SDK and by the closed form."""

from typing import Any

import openai
import pytest

from assay.records.fine_tuning_job import (
    JobCheckpoint,
    JobValidated,
    JobWaits,
    LaunchMade,
    LaunchPlanned,
    RunBegan,
    RunLeft,
)
from assay.serving.openai.place import Place
from assay.serving.queue.board import SILENT_S, PlaceOnBoard, WorkerBoard
from assay.serving.queue.pace import pace_of
from served import place_in, sdk_of

START_S = 1_800_000_000.0
STEPS = 100


@pytest.fixture
def place(tmp_path) -> Place:
    return place_in(tmp_path)


@pytest.fixture
def sdk(place) -> openai.OpenAI:
    return sdk_of(place)


def create(place: Place, sdk: openai.OpenAI, *, is_validated: bool = True, **given) -> str:
    place.clock.sleep_s(2.0)  # ids sort by their moments, and the queue is looked at once a second
    file = sdk.files.create(file=("rows.jsonl", b'{"text": "a", "label": 1}\n'), purpose="fine-tune")
    job_id = sdk.fine_tuning.jobs.create(model="tiny", training_file=file.id, **given).id
    if is_validated:
        happens(place, job_id, validated())
    return job_id


def validated() -> JobValidated:
    return JobValidated(
        at_s=1.0, lease=1, run_id="r", num_rows=9, dataset_fingerprint="f", num_steps=STEPS, hyperparameters={}
    )


def happens(place: Place, job_id: str, *entries) -> None:
    for entry in entries:
        place.jobs.shelf.log(job_id).append(lambda _, entry=entry: entry)
    place.clock.sleep_s(2.0)


def launched(at_s: float, step: int = 0) -> tuple[LaunchPlanned, LaunchMade]:
    at = {"at_s": at_s, "lease": 1, "number": 1}
    return LaunchPlanned(**at), LaunchMade(**at, where="process 1 on host", step=step)


def commit(step: int, at_s: float) -> JobCheckpoint:
    return JobCheckpoint(at_s=at_s, lease=1, step=step, weights_digest="w", kept_steps=(step,), points=())


def at_board(place: Place, places: int) -> PlaceOnBoard:
    line = PlaceOnBoard(place.jobs.shelf.store, place.clock, name="w", places=places)
    line.say()
    return line


def told(sdk: openai.OpenAI, job_id: str) -> tuple[str | None, int | None, str]:
    job: Any = sdk.fine_tuning.jobs.retrieve(job_id)
    queue = job.x_assay["queue"] or {"code": None, "place": None, "blocked_by": ""}
    return queue["code"], queue["place"], queue["blocked_by"]


def test_a_waiting_job_is_told_its_place_and_the_one_thing_that_blocks_it(place, sdk) -> None:
    new = create(place, sdk, is_validated=False)
    first, second, third = (create(place, sdk) for _ in range(3))
    assert told(sdk, new)[0] == told(sdk, first)[0] == "no_worker"
    assert "assay worker" in told(sdk, first)[2]
    line = at_board(place, 1)
    place.clock.sleep_s(2.0)
    assert told(sdk, new) == ("files", None, "a worker has yet to validate its files")
    assert told(sdk, first)[:2] == ("starting", 1)
    happens(place, first, *launched(place.clock.now_s()))
    assert told(sdk, first) == (None, None, "")
    assert told(sdk, second) == ("places_taken", 1, "all places are taken (1 place at 1 worker)")
    assert told(sdk, third) == ("turn", 2, f"job {second} of project default goes before it")
    assert sdk.fine_tuning.jobs.retrieve(third).x_assay["queue"]["waiting"] == 2
    line.leave()
    place.clock.sleep_s(2.0)
    assert told(sdk, second)[:2] == ("no_worker", 1)


def test_a_worker_that_is_silent_is_not_counted_and_is_forgotten_after_a_day(place) -> None:
    board = WorkerBoard(place.jobs.shelf.store, place.clock)
    line = at_board(place, 3)
    assert [each.places for each in board.seen()] == [3]
    place.clock.sleep_s(SILENT_S - 1)
    assert board.seen()
    line.say()
    place.clock.sleep_s(SILENT_S - 1)
    assert board.seen()
    place.clock.sleep_s(1)
    assert not board.seen()
    board.forget_gone()
    assert [*place.jobs.shelf.store.list("worker/")]
    place.clock.sleep_s(86_400)
    board.forget_gone()
    assert not [*place.jobs.shelf.store.list("worker/")]


def test_a_line_that_was_cut_short_is_passed_over(place) -> None:
    place.jobs.shelf.store.put("worker/0", b'{"name": "w", "pla')
    assert WorkerBoard(place.jobs.shelf.store, place.clock).seen() == []


def test_a_running_job_is_done_at_its_pace(place, sdk) -> None:
    job_id = create(place, sdk)
    jobs, now_s = sdk.fine_tuning.jobs, place.clock.now_s()
    happens(place, job_id, *launched(now_s))
    job = jobs.retrieve(job_id)
    assert (job.estimated_finish, job.x_assay["estimate"]) == (
        None, "it has made no commit yet, by which its pace could be told",
    )  # fmt: skip
    happens(place, job_id, commit(10, now_s + 40))
    assert jobs.retrieve(job_id).estimated_finish == int(now_s + 40 + 90 * 4)
    happens(place, job_id, commit(20, now_s + 60), commit(40, now_s + 100))
    job = jobs.retrieve(job_id)
    assert job.estimated_finish == int(now_s + 100 + 60 * 2)
    assert job.x_assay["estimate"] == "steps 11 to 40 took 2 s each"
    place.clock.sleep_s(10_000)
    assert jobs.retrieve(job_id).estimated_finish == int(place.clock.now_s())


def test_the_pace_is_that_of_the_newest_launch_and_a_pause_is_no_step(place, sdk) -> None:
    job_id = create(place, sdk)
    happens(
        place, job_id, *launched(1000.0), commit(10, 1010.0), commit(20, 1020.0),
        RunLeft(at_s=1021.0, lease=1, step=20), *launched(9000.0, step=20),
    )  # fmt: skip
    state = place.jobs.shelf.state(job_id)
    assert pace_of(state).seconds_per_step == 1.0
    happens(place, job_id, commit(30, 9030.0))
    assert pace_of(place.jobs.shelf.state(job_id)).seconds_per_step == 3.0


def test_waiting_jobs_are_done_after_those_before_them(place, sdk) -> None:
    first, second, third = (create(place, sdk) for _ in range(3))
    line, now_s = at_board(place, 1), place.clock.now_s()
    happens(place, first, *launched(now_s), commit(10, now_s + 20), commit(20, now_s + 40))
    line._said_s = None
    line.say()
    place.clock.sleep_s(2.0)
    end_s = now_s + 40 + 80 * 2
    finishes = [sdk.fine_tuning.jobs.retrieve(each).estimated_finish for each in (first, second, third)]
    assert finishes == [int(end_s), int(end_s + 200), int(end_s + 400)]
    assert f"of {first}, a job of the same model" in sdk.fine_tuning.jobs.retrieve(third).x_assay["estimate"]


def test_what_a_paused_job_waits_for_is_its_owner(place, sdk) -> None:
    job_id = create(place, sdk)
    sdk.fine_tuning.jobs.pause(job_id)
    job = sdk.fine_tuning.jobs.retrieve(job_id)
    assert (job.estimated_finish, job.x_assay["queue"], job.x_assay["estimate"]) == (None, None, "it is paused")


def test_a_job_whose_launch_a_scheduler_holds_is_queued_and_says_so(place, sdk) -> None:
    job_id = create(place, sdk)
    at_board(place, 1)
    held = JobWaits(at_s=2.0, code="scheduler", message="Slurm job 12 is pending: Resources")
    happens(place, job_id, *launched(1.0), held)
    assert told(sdk, job_id) == ("scheduler", None, "Slurm job 12 is pending: Resources")
    assert sdk.fine_tuning.jobs.retrieve(job_id).status == "queued"
    happens(place, job_id, RunBegan(at_s=3.0, lease=1))
    assert told(sdk, job_id)[0] is None
    assert sdk.fine_tuning.jobs.retrieve(job_id).status == "running"
    messages = [event.message for event in sdk.fine_tuning.jobs.list_events(job_id)]
    assert messages[:2] == ["The cluster's scheduler lets it run", f"Waiting: {held.message}"]

"""Whose turn it is, held to the rule said otherwise: one place after another, to whom it is due."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from assay.records.fine_tuning_job import JobCreated
from assay.serving.job import JobState
from assay.serving.queue.fair_share import last_launch_times, launch_order, record_launch_time
from assay.store.objects import open_store


def job(number: int, project: str) -> JobState:
    return JobState.created_by(
        JobCreated(
            job_id=f"ftjob-{number:024x}", project=project, at_s=float(number), model="tiny", base={},
            method="classification", hyperparameters={}, training_file="f", seed=1, request_sha256="",
        ),
    )  # fmt: skip


def ids(states: list[JobState]) -> list[int]:
    return [int(state.created.job_id.removeprefix("ftjob-"), 16) for state in states]


projects = st.sampled_from("abcd")
jobs = st.lists(projects, max_size=25).map(lambda item: [job(n, p) for n, p in enumerate(item)])


@given(jobs, jobs, st.dictionaries(projects, st.floats(0, 1e9)), st.randoms())
def test_every_job_has_its_turn_once_by_age_in_its_project_whatever_order_they_are_told_in(
    waiting, at_work, last, rng
) -> None:
    order = launch_order(waiting, at_work, last)
    assert sorted(ids(order)) == ids(waiting)
    for project in "abcd":
        own = [number for number, state in zip(ids(order), order, strict=True) if state.created.project == project]
        assert own == sorted(own)
    rng.shuffle(waiting)
    assert launch_order(waiting, at_work, last) == order


@given(jobs, jobs, st.dictionaries(projects, st.floats(0, 1e9)))
def test_no_project_gets_a_place_while_another_that_has_jobs_has_fewer_runs(waiting, at_work, last) -> None:
    runs = Counter(state.created.project for state in at_work)
    left = Counter(state.created.project for state in waiting)
    for state in launch_order(waiting, at_work, last):
        own = state.created.project
        assert runs[own] == min(runs[item] for item in left if left[item])
        runs[own] += 1
        left[own] -= 1


def test_with_one_place_projects_take_turns_however_many_jobs_one_has() -> None:
    waiting = [*(job(n, "a") for n in range(5)), *(job(n, "b") for n in range(10, 12))]
    assert ids(launch_order(waiting, [], {"a": 7.0})) == [10, 0, 11, 1, 2, 3, 4]
    assert ids(launch_order(waiting, [], {"a": 7.0, "b": 8.0})) == [0, 10, 1, 11, 2, 3, 4]
    assert ids(launch_order(waiting, [job(99, "b"), job(98, "b")], {})) == [0, 1, 10, 2, 11, 3, 4]


def test_turns_are_remembered_by_project() -> None:
    store = open_store("memory:")
    record_launch_time(store, "a", 5.5)
    record_launch_time(store, "a", 6.25)
    assert last_launch_times(store, ["b", "a"]) == {"a": 6.25}

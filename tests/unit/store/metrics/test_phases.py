from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.records.phase import Phase
from assay.records.run import Attempt, ClusterOf, Run
from assay.store.metrics.phases import (
    NOTHING_LOST,
    RunningPhases,
    device_nanoseconds,
    own_step_seconds,
    rank_phase_seconds,
    running_phase_seconds,
)
from assay.store.metrics.segment import SegmentData, SegmentWriter, read_segment, segment_path
from machine import MACHINE


class ManualClock:
    """A clock that stands until it is moved; the wall is 1000 s ahead."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_s(self) -> float:
        return self.seconds + 1000

    def monotonic_s(self) -> float:
        return self.seconds

    def sleep_s(self, seconds: float) -> None:
        self.seconds += seconds


def lived(path: Path, story: list[tuple[float, Phase | int]]) -> SegmentData:
    """A segment in which, each after so many seconds, a phase is entered or a step ends."""
    clock = ManualClock()
    writer = SegmentWriter(path / "a.seg", run_id="r", attempt=1, rank=0, clock=clock)
    for after_s, what in story:
        clock.sleep_s(after_s)
        write(writer, what)
    writer.close()
    return read_segment(path / "a.seg")


def write(writer: SegmentWriter, what: Phase | int) -> None:
    if isinstance(what, int):
        writer.log(what, {})
    else:
        writer.phase(what)


def device_seconds(
    segment: SegmentData | None, *, held_from_s: float, held_to_s: float, committed_step: int
) -> dict[Phase, float]:
    spent = device_nanoseconds(segment, held_from_s=held_from_s, held_to_s=held_to_s, committed_step=committed_step)
    return {phase: nanoseconds / 1e9 for phase, nanoseconds in spent.items()}


TWO_STEPS: list[tuple[float, Phase | int]] = [
    (5, "data"),
    (1, "compute"),
    (10, 1),
    (0, "checkpoint"),
    (2, "data"),
    (1, "compute"),
    (10, 2),
    (0, "checkpoint"),
    (3, "idle"),
]


def test_time_before_the_first_word_is_startup_and_the_rest_goes_by_phase(tmp_path: Path) -> None:
    seconds = device_seconds(lived(tmp_path, TWO_STEPS), held_from_s=998, held_to_s=1033, committed_step=2)
    assert seconds == {"startup": 7, "data": 2, "compute": 20, "checkpoint": 5, "idle": 1}


def test_work_behind_the_last_commit_is_lost_with_the_checkpoint_that_failed(tmp_path: Path) -> None:
    seconds = device_seconds(lived(tmp_path, TWO_STEPS), held_from_s=1000, held_to_s=1033, committed_step=1)
    assert seconds == {"startup": 5, "data": 1, "compute": 10, "checkpoint": 2, "lost": 14, "idle": 1}


def test_answers_to_prompts_are_work_of_their_step_and_lost_with_it(tmp_path: Path) -> None:
    step: list[tuple[float, Phase | int]] = [
        (0, "data"), (1, "synchronisation"), (2, "generation"), (4, "reward"), (8, "compute"), (16, 1),
    ]  # fmt: skip
    story = [*step, (0, "checkpoint"), (1, "data"), *step[1:-1], (16, 2), (0, "data")]
    seconds = device_seconds(lived(tmp_path, story), held_from_s=1000, held_to_s=1063, committed_step=1)
    assert seconds == {
        "data": 1, "synchronisation": 2, "generation": 4, "reward": 8, "compute": 16, "checkpoint": 1,
        "lost": 31,
    }  # fmt: skip


def test_all_work_is_lost_where_nothing_was_committed(tmp_path: Path) -> None:
    seconds = device_seconds(lived(tmp_path, TWO_STEPS), held_from_s=1000, held_to_s=1033, committed_step=0)
    assert seconds == {"startup": 5, "lost": 27, "idle": 1}


def test_an_attempt_that_resumed_counts_its_steps_from_there(tmp_path: Path) -> None:
    story: list[tuple[float, Phase | int]] = [(5, "data"), (1, "compute"), (10, 101), (0, "data")]
    seconds = device_seconds(lived(tmp_path, story), held_from_s=1000, held_to_s=1020, committed_step=100)
    assert seconds == {"startup": 5, "lost": 15}


def test_a_rank_that_never_wrote_was_starting_up() -> None:
    assert device_seconds(None, held_from_s=10, held_to_s=12.5, committed_step=0) == {"startup": 2.5}


def test_what_happened_outside_the_held_time_does_not_count(tmp_path: Path) -> None:
    seconds = device_seconds(lived(tmp_path, TWO_STEPS), held_from_s=1006, held_to_s=1010, committed_step=2)
    assert seconds == {"compute": 4}


STORIES = st.lists(
    st.tuples(
        st.floats(0, 1e4),
        st.one_of(st.sampled_from(get_args(Phase)), st.integers(min_value=0, max_value=20)),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(
    story=STORIES,
    held=st.tuples(st.floats(0, 2e4), st.floats(0, 1e5)),
    committed_step=st.integers(0, 20),
)
def test_the_phases_sum_to_the_held_time_to_the_nanosecond(
    tmp_path_factory: pytest.TempPathFactory,
    story: list[tuple[float, Phase | int]],
    held: tuple[float, float],
    committed_step: int,
) -> None:
    segment = lived(tmp_path_factory.mktemp("segment"), story)
    held_from_s, held_to_s = held[0], held[0] + held[1]
    spent = device_nanoseconds(segment, held_from_s=held_from_s, held_to_s=held_to_s, committed_step=committed_step)
    assert sum(spent.values()) == round(held_to_s * 1e9) - round(held_from_s * 1e9)
    assert all(nanoseconds > 0 for nanoseconds in spent.values())


@settings(max_examples=80, deadline=None)
@given(story=STORIES, looks=st.lists(st.tuples(st.integers(0, 40), st.floats(0, 2e5)), max_size=8))
def test_sums_of_a_segment_that_grows_are_those_of_the_whole_segment(
    tmp_path_factory: pytest.TempPathFactory,
    story: list[tuple[float, Phase | int]],
    looks: list[tuple[int, float]],
) -> None:
    path, clock = tmp_path_factory.mktemp("segment") / "a.seg", ManualClock()
    writer = SegmentWriter(path, run_id="r", attempt=1, rank=0, clock=clock)
    running = RunningPhases(path, held_from_s=1010.0)
    for index, (after_s, what) in enumerate([*story, (0.0, 21)]):
        clock.sleep_s(after_s)
        write(writer, what)
        for held_to_s in (held_to_s for at, held_to_s in looks if at == index):
            whole = device_nanoseconds(
                read_segment(path), held_from_s=1010.0, held_to_s=held_to_s, committed_step=NOTHING_LOST
            )
            assert running.nanoseconds(held_to_s) == whole
    writer.close()


def test_a_segment_is_not_read_twice(tmp_path: Path) -> None:
    lived(tmp_path, TWO_STEPS)
    running = RunningPhases(tmp_path / "a.seg", held_from_s=1000.0)
    before = running.nanoseconds(1036.0)
    content = bytearray((tmp_path / "a.seg").read_bytes())
    content[300:-8] = bytes(len(content) - 308)
    (tmp_path / "a.seg").write_bytes(content)
    assert running.nanoseconds(1036.0) == before != {}


def test_a_ranks_own_work_is_a_step_without_what_it_waits_for_and_commits(tmp_path: Path) -> None:
    story: list[tuple[float, Phase | int]] = [
        (5, "data"), (1, "compute"), (4, "communication"), (7, "compute"), (1, 1),
        (0, "data"), (2, "compute"), (3, "communication"), (9, "compute"), (1, 2), (0, "evaluation"), (8, 2),
        (1, "checkpoint"), (2, "data"), (1, "compute"), (1, 3), (1, 4), (0, "idle"), (9, 5),
    ]  # fmt: skip
    assert own_step_seconds(lived(tmp_path, story)).tolist() == [2 + 3 + 1, 1 + 1, 1, 0]


def test_of_what_has_no_steps_no_own_work_is_known(tmp_path: Path) -> None:
    assert own_step_seconds(lived(tmp_path, [])).tolist() == []
    (tmp_path / "b").mkdir()
    assert own_step_seconds(lived(tmp_path / "b", [(1, "data"), (1, 1)])).tolist() == []


def cluster_run(folder: Path) -> Run:
    return Run(
        run_id="r", created_s=0.0, recipe={"outer": {"every": 2}}, recipe_sha256="", dataset_fingerprint="",
        code_version="", run_dir=str(folder), store_url=str(folder), num_steps=9,
        cluster_of=ClusterOf(cluster="a", meeting_url=str(folder)),
    )  # fmt: skip


def live_in(run: Run, attempt: int, story: list[tuple[float, Phase | tuple[int, float] | int]]) -> Attempt:
    """Write an attempt's segment; (step, late steps) is an outer step."""
    clock = ManualClock()
    writer = SegmentWriter(
        segment_path(Path(run.run_dir), attempt, 0), run_id="r", attempt=attempt, rank=0, clock=clock
    )
    for after_s, what in story:
        clock.sleep_s(after_s)
        if isinstance(what, tuple):
            writer.log(what[0], {"outer_step": what[0] / 3, "late_steps": what[1]})
        else:
            write(writer, what)
    writer.close()
    return Attempt(run_id="r", attempt=attempt, world_size=1, start_step=0, started_s=1000.0, **MACHINE)


def test_inner_steps_that_no_outer_step_names_are_late_in_all_attempts(tmp_path: Path) -> None:
    run = cluster_run(tmp_path)
    # Steps 1 and 2 are kept, 4 and 5 are not. Attempt 1 dies before it can know, attempt 2 waits in vain.
    first = live_in(
        run,
        1,
        [(0, "data"), (1, 1), (0, "compute"), (2, 2), (0, "meeting"), (4, "communication"), (8, (3, 0)),
         (0, "compute"), (16, 4), (0, "checkpoint"), (32, "data")],
    )  # fmt: skip
    found = rank_phase_seconds(run, first, 0, held_to_s=1064, committed_step=4).seconds
    assert found == {
        "data": 1, "compute": 18, "meeting": 4, "communication": 8, "checkpoint": 32, "lost": 1,
    }  # fmt: skip
    second = live_in(
        run, 2, [(0, "compute"), (1, 5), (0, "meeting"), (2, "communication"), (4, (6, 2)), (0, "compute"), (8, 7)]
    )
    assert rank_phase_seconds(run, second, 0, held_to_s=1015, committed_step=7).seconds == {
        "late": 1, "meeting": 2, "communication": 4, "compute": 8,
    }  # fmt: skip
    assert running_phase_seconds(run, second, 0, held_to_s=1015).seconds["late"] == 1
    again = rank_phase_seconds(run, first, 0, held_to_s=1064, committed_step=4).seconds
    assert again == {**found, "compute": 2, "late": 16}

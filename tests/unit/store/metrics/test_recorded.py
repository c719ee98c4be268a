from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.store.metrics.recorded import last_step_of, recorded_series, recorded_steps
from assay.store.metrics.segment import SegmentWriter, segment_path


def write(run_dir: Path, attempt: int, rank: int, steps: dict[int, dict[str, float]]) -> None:
    writer = SegmentWriter(segment_path(run_dir, attempt, rank), run_id="r", attempt=attempt, rank=rank)
    for step, values in steps.items():
        writer.log(step, values)
    writer.close()


def test_what_a_later_attempt_made_again_hides_what_was_rolled_back(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, {step: {"loss": 10.0 + step} for step in (1, 2, 3, 4)})
    write(tmp_path, 2, 0, {3: {"loss": 23.0}})
    losses = {step: (item.attempt, item.values["loss"]) for step, item in recorded_steps(tmp_path).items()}
    assert losses == {1: (1, 11.0), 2: (1, 12.0), 3: (2, 23.0)}
    request = recorded_steps(tmp_path, attempt=1)
    assert {step: item.attempt for step, item in request.items()} == {1: 1, 2: 1, 3: 1, 4: 1}


def test_steps_come_in_order_also_where_a_metric_was_there_before_the_first(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, {0: {"held_out": 0.1}, 1: {"loss": 0.7}, 2: {"loss": 0.6, "held_out": 0.2}})
    assert list(recorded_steps(tmp_path)) == [1, 2]


def test_each_rank_recorded_the_lane_that_was_checked(tmp_path: Path) -> None:
    for rank in (0, 1):
        checked = {"loss": 0.5, "spot_check_lane": 4.0 * rank, "spot_check_digest": 2.0**51 + rank}
        write(tmp_path, 1, rank, {1: {"loss": 0.7}, 2: checked})
    steps = recorded_steps(tmp_path)
    assert steps[1].lane_digests == {}
    assert steps[2].lane_digests == {0: 2.0**51, 4: 2.0**51 + 1}


def test_the_step_that_an_attempt_died_in_is_the_one_after_its_last(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, {1: {"loss": 0.7}, 2: {"loss": 0.6}})
    write(tmp_path, 2, 0, {})
    assert (last_step_of(tmp_path, 1), last_step_of(tmp_path, 2), last_step_of(tmp_path, 3)) == (2, None, None)


@settings(deadline=None, max_examples=25)
@given(value=st.floats(allow_nan=False))
def test_numbers_come_back_with_every_bit(value: float, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("run")
    write(folder, 1, 0, {1: {"loss": value}})
    assert recorded_steps(folder)[1].values["loss"] == value


def test_series_have_every_kept_step_once_and_only_what_is_wanted(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, {step: {"loss": 10.0 + step, "reward": float(step)} for step in (1, 2, 3, 4)})
    write(tmp_path, 2, 0, {3: {"loss": 23.0, "reward": 33.0, "rows": 8.0}})
    write(tmp_path, 3, 0, {})
    found = recorded_series(tmp_path, lambda name: name != "rows")
    assert found == {"loss": {1: 11.0, 2: 12.0, 3: 23.0}, "reward": {1: 1.0, 2: 2.0, 3: 33.0}}

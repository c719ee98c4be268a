"""Rows of a cluster's lanes: each from its own position, as the loader has them."""

import pytest

from assay.training.outer.rows import LaneRows, slots_of
from assay.training.outer.state import OuterState
from outer_rows import LANE_STEPS, LOADER, row_ids, rows_of_lane

POSITIONS = (0, 7, 7, LANE_STEPS - 2)


@pytest.mark.parametrize("done", [0, 1, 4])
def test_each_lane_is_read_from_its_own_position(done: int) -> None:
    state = OuterState(3, 6, LANE_STEPS, POSITIONS, {}, {})
    slots = slots_of((1, 2, 3), num_lanes=4, world_size=1)
    steps = list(LaneRows(LOADER, state, done).shares(LOADER.cursor_at(20), slots, 6 - done))
    assert len(steps) == 6 - done
    for number, step in enumerate(steps):
        assert [share.lane for share in step.lanes] == [1, 2, 3, 4]
        for share in step.lanes[:3]:
            rows, position = rows_of_lane(share.lane), POSITIONS[share.lane] + done + number
            assert row_ids(share) == (rows[position] if position < LANE_STEPS else [])
        assert row_ids(step.lanes[3]) == []
        assert step.cursor == LOADER.cursor_at(20 + number)


@pytest.mark.parametrize(
    "lanes, world_size, slots",
    [
        ((5, 6, 7), 1, (5, 6, 7, 8)),
        ((5, 6, 7, 0), 3, (5, 6, 7, 0)),
        ((), 1, (8,)),
        ((), 2, (8, 9)),
        ((3,), 4, (3, 8, 9, 10)),
    ],
)
def test_slots_are_a_power_of_two_and_one_a_rank(
    lanes: tuple[int, ...], world_size: int, slots: tuple[int, ...]
) -> None:
    assert slots_of(lanes, num_lanes=8, world_size=world_size) == slots

"""Rows of a cluster's lanes: each from its own position, as the loader has them."""

import numpy as np
import pyarrow as pa
import pytest

from assay.base.seeds import mix64
from assay.data.loader.batch import LaneShare
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader
from assay.training.outer.rows import LaneRows, slots_of
from assay.training.outer.state import OuterState

SIZES = [31, 1, 60, 40, 25]
BORDERS = np.cumsum([0, *SIZES])


class Rows:
    """Row groups of given sizes."""

    fingerprint = "f" * 64
    num_rows = np.array(SIZES, np.int64)
    identities = mix64(np.arange(len(SIZES), dtype=np.uint64))

    def row_ids(self, group: int) -> np.ndarray:
        return np.arange(BORDERS[group], BORDERS[group + 1], dtype=np.uint64)

    def read(self, group: int, columns: list[str]) -> pa.Table:
        return pa.table({"input_ids": pa.array([[1, 2]] * SIZES[group], pa.list_(pa.int32()))}).select(list(columns))

    def shard_of(self, group: int) -> str:
        return f"shard-{group}"


LOADER = Loader(
    Rows(),  # type: ignore[arg-type]
    LoaderConfig(lanes=4, global_batch_size=12, window_rows=6, prefetch_steps=0, threads=1),
    ("input_ids",),
)
LANE_STEPS = 2 * LOADER.steps_per_epoch + 3
POSITIONS = (0, 7, 7, LANE_STEPS - 2)


def row_ids(share: LaneShare) -> list[int]:
    return [int(row) for batch in share.micro_batches for row in batch.row_ids]


def rows_of_lane(lane: int) -> list[list[int]]:
    """Return all rows of a lane, step by step, as the loader has them."""
    return [row_ids(step.lanes[0]) for step in LOADER.shares(LOADER.cursor_at(0), [lane], LANE_STEPS)]


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

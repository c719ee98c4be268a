"""The audit over clusters: rows of each part against the order."""

from collections.abc import Callable

import numpy as np
import pytest

from assay.data.loader.receipts import receipt
from assay.records.outer import LaneSteps, OuterPart
from assay.training.audit_outer import compared_lanes
from outer_rows import LOADER, SIZES, rows_of_lane

LANES = range(LOADER.config.lanes)
ROWS = {lane: rows_of_lane(lane) for lane in LANES}
EPOCH = LOADER.steps_per_epoch
BORDERS = [0, 5, 10, EPOCH]
Rows = list[int]


def part(number: int, change: Callable[[int, Rows], Rows] = lambda lane, rows: rows) -> OuterPart:
    """Return the part that trained all lanes up to a border; `change`: what it trained instead of a lane's rows."""
    first, last = BORDERS[number - 1], BORDERS[number]
    lanes = []
    for lane in LANES:
        rows = change(lane, [row for step in ROWS[lane][first:last] for row in step])
        num_rows, digest = receipt(np.array(rows, np.uint64))
        steps = LaneSteps(lane=lane, from_step=first, to_step=last, num_rows=num_rows, rows_digest=f"{digest:016x}")
        lanes.append(steps)
    return OuterPart(
        outer_step=number, cluster="ab"[number % 2], lanes=tuple(lanes), weight=1, change_sha256="",
        num_bytes=10 * number, weights_digest="", moments_digest="", last_moments_digest="", inner_s=0.5,
    )  # fmt: skip


def problems(parts: list[OuterPart]) -> list[str]:
    return [problem for problem, _ in compared_lanes(LOADER, parts) if problem]


def test_an_epoch_in_parts_has_all_rows_of_the_dataset() -> None:
    parts = [part(number) for number in (1, 2, 3)]
    assert problems(parts) == []
    assert sum(num_rows for _, num_rows in compared_lanes(LOADER, parts)) == sum(SIZES)
    assert sorted(row for lane in LANES for step in ROWS[lane][:EPOCH] for row in step) == list(range(sum(SIZES)))


@pytest.mark.parametrize(
    "change",
    [
        lambda lane, rows: rows[:-1] if lane == 2 else rows,
        lambda lane, rows: [*rows, rows[0]] if lane == 2 else rows,
        lambda lane, rows: [*rows[:-1], sum(SIZES) - rows[-1]] if lane == 2 else rows,
    ],
    ids=["skipped", "repeated", "replaced"],
)
def test_other_rows_are_named_with_their_outer_step_cluster_and_lane(change: Callable[[int, Rows], Rows]) -> None:
    (found,) = problems([part(1), part(2, change), part(3)])
    assert found.startswith("outer step 2: cluster 'a' trained other rows in steps 6 to 10 of lane 2")

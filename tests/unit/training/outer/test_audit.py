"""The audit over clusters: rows of each part against the order, and what a run's page says of the parts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.data.loader.receipts import receipt
from assay.records.outer import LaneSteps, OuterBegan, OuterPart, OuterStep
from assay.records.run import ClusterOf
from assay.reporting.views.runs.clusters import clusters_view
from assay.store.logs.outer_log import outer_log
from assay.store.objects import open_store
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


def test_a_page_counts_the_parts_and_bytes_of_each_cluster(tmp_path: Path) -> None:
    lanes = {"a": (0, 1), "b": (2, 3)}
    log = outer_log(open_store(str(tmp_path)))
    began = OuterBegan(recipe_sha256="", dataset_fingerprint="", inner_steps=5, lane_steps=EPOCH, lanes=lanes)
    steps = [
        OuterStep(outer_step=1, parts=(part(1),), lanes=lanes, absent={"a": 1}),
        OuterStep(outer_step=2, parts=(part(2),), lanes=lanes),
        OuterStep(outer_step=3, parts=(part(3),), lanes=lanes),
    ]
    for entry in (began, *steps):
        log.append(lambda _, entry=entry: entry)  # type: ignore[misc]
    view = clusters_view(ClusterOf(cluster="a", meeting_url=str(tmp_path)))
    assert (view.outer_steps, view.num_parts, view.num_bytes) == (3, {"a": 1, "b": 2}, {"a": 20, "b": 40})
    assert (view.lane_positions, view.lane_steps) == ((EPOCH,) * 4, EPOCH)
    assert [step.absent for step in view.newest] == [("a",), (), ()]
    assert [[item.cluster for item in step.parts] for step in view.newest] == [["b"], ["a"], ["b"]]

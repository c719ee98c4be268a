"""Lanes by what the run has on record of its places."""

from pathlib import Path

import pytest

from assay.elastic.lane_times import ATTEMPTS_BACK, LEAST_STEPS, loads_of, measured_lane_s
from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.metrics.segment import SegmentWriter, segment_path
from clocks import ManualClock
from machine import MACHINE


def lived(
    run: Run,
    number: int,
    hosts: list[str],
    own_s: list[float],
    loads: tuple[int, ...],
    num_steps: int = LEAST_STEPS + 1,
) -> None:
    """An attempt on record, in which each step took a rank so long by itself; then all waited to second 9."""
    attempt = Attempt(
        run_id="r", attempt=number, world_size=len(hosts), start_step=0, started_s=0.0, hosts=tuple(hosts),
        loads=loads, **MACHINE,
    )  # fmt: skip
    save_attempt(Path(run.run_dir), attempt)
    for rank, seconds in enumerate(own_s):
        clock = ManualClock()
        path = segment_path(Path(run.run_dir), number, rank)
        writer = SegmentWriter(path, run_id="r", attempt=number, rank=rank, clock=clock)
        for step in range(1, num_steps + 1):
            writer.phase("compute")
            clock.sleep_s(seconds)
            writer.phase("communication")
            clock.sleep_s(9 - seconds)
            writer.log(step, {"loss": 1.0})
        writer.close()


def test_a_lanes_time_is_a_ranks_own_work_by_how_many_it_had(run) -> None:
    lived(run, 1, ["a", "a", "b"], [3.0, 2.0, 6.0], (3, 2, 3))
    assert measured_lane_s(run, ["a", "a", "b"]) == pytest.approx([1.0, 1.0, 2.0])


def test_a_slow_rank_gets_fewer_lanes_and_a_machine_is_known_again_whatever_its_ranks_are_called(run) -> None:
    lived(run, 1, ["a", "b", "c", "d"], [2.0, 2.0, 2.0, 4.0], (2, 2, 2, 2))
    assert loads_of(run, "equal", ["a", "b", "c", "d"]) == (2, 2, 2, 2)
    assert loads_of(run, "speed", ["d", "c"]) == (2, 6)
    assert loads_of(run, "speed", ["a", "d"]) == (6, 2)


def test_the_newest_measurement_of_a_place_counts_and_a_new_place_is_as_the_others(run) -> None:
    lived(run, 1, ["a", "b"], [1.0, 4.0], (4, 4))
    lived(run, 2, ["b"], [8.0], (8,))
    assert measured_lane_s(run, ["a", "b"]) == pytest.approx([0.25, 1.0])
    assert measured_lane_s(run, ["a", "new"]) == pytest.approx([0.25, 0.25])
    assert measured_lane_s(run, ["new"]) is None
    lived(run, 3, ["a", "b"], [8.0, 8.0], (4, 4), num_steps=LEAST_STEPS)  # died young
    assert measured_lane_s(run, ["a", "b"]) == pytest.approx([0.25, 1.0])


def test_nothing_is_made_of_sharded_weights_of_long_ago_or_of_no_attempt(run) -> None:
    assert loads_of(run, "speed", ["a", "b"]) == (4, 4)
    lived(run, 1, ["a", "b"], [1.0, 4.0], ())
    assert loads_of(run, "speed", ["a", "b"]) == (4, 4)
    lived(run, 2, ["a", "b"], [1.0, 4.0], (4, 4))
    for number in range(3, 3 + ATTEMPTS_BACK):
        lived(run, number, ["a", "b"], [], (4, 4))
    assert measured_lane_s(run, ["a", "b"]) is None


def test_a_record_that_cannot_be_read_stops_nobody(run) -> None:
    lived(run, 1, ["a", "b"], [1.0, 4.0], (4, 4))
    segment_path(Path(run.run_dir), 1, 0).unlink()
    assert measured_lane_s(run, ["a", "b"]) == pytest.approx([1.0, 1.0])


def test_nodes_are_machines_in_a_row(run) -> None:
    """Seven nodes' blocks are joined inside each before anything leaves it, which other loads allow."""
    hosts = [f"node-{node}" for node in range(3) for _ in range(2)]
    assert sum(loads_of(run, "equal", hosts)) == 8

"""Sharded weights, against closed forms and messages that are counted one by one."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.loader.lane_shares import LaneShares
from assay.records.throughput import GradientBucket, NetworkLink
from assay.throughput.advice import advised
from assay.throughput.cluster import Cluster
from assay.throughput.exchange_time import Links
from assay.throughput.forecast import forecast
from assay.throughput.sharded import GATHERS, round_seconds, sharded_bytes, sharded_memory
from throughput_calibrations import MEGABYTE, calibration_of, equal_steps, timed, two

SECOND = NetworkLink(bytes_per_s=8e6, latency_s=0.0)
"""A buffer of 8 MB, which is what is exchanged, takes a second each way."""
FAST = NetworkLink(bytes_per_s=1e15, latency_s=0.0)


def step_of(calibration, world_size: int, cluster: Cluster):
    [found] = forecast(calibration, [world_size], cluster, parallel="fsdp2").sizes
    return found


@pytest.mark.parametrize(("world_size", "rounds"), [(2, 4), (3, 3), (4, 2), (5, 2), (8, 1)])
def test_each_round_of_lanes_gathers_twice_and_sends_its_gradients_on(world_size: int, rounds: int) -> None:
    calibration = calibration_of(equal_steps(8, 0.5, fixed_s=0.1))
    found = step_of(calibration, world_size, Cluster(8, SECOND))
    trip_s = (world_size - 1) / world_size
    assert found.step_s.value == pytest.approx(0.1 + rounds * (0.5 + 3 * trip_s))
    assert found.sent_bytes == pytest.approx(rounds * 3 * trip_s * 8 * MEGABYTE, abs=1)
    assert found.max_lanes == rounds


def test_messages_cost_their_latency_for_each_bucket_in_each_round() -> None:
    buckets = tuple(GradientBucket(num_bytes=4 * MEGABYTE, before_last_s=0.0) for _ in range(2))
    calibration = calibration_of(equal_steps(8, 0.5), buckets=buckets)
    slow = NetworkLink(bytes_per_s=1e15, latency_s=0.01)
    found = step_of(calibration, 4, Cluster(8, slow))
    assert found.step_s.value == pytest.approx(2 * (0.5 + 2 * 3 * 3 * 0.01) + 3 * 0.01)


def test_every_round_waits_for_its_slowest_lane() -> None:
    """Of lanes uniform in [0, 1], four rounds of the larger of two: 8 / 3; and not the larger of two sums."""
    lane_s = np.random.default_rng(2).uniform(size=(400, 8))
    calibration = calibration_of(timed(lane_s.tolist()), two_workers=two(1e15))
    found = step_of(calibration, 2, Cluster(8, FAST))
    assert found.step_s.value == pytest.approx(8 / 3, rel=0.03)
    assert forecast(calibration, [2], Cluster(8, FAST)).sizes[0].step_s.value < 0.96 * found.step_s.value


@pytest.mark.parametrize("world_size", [2, 3, 7, 8])
def test_the_terms_of_a_step_are_its_time(world_size: int) -> None:
    lane_s = np.random.default_rng(3).uniform(0.1, 0.3, (12, 8)).tolist()
    calibration = calibration_of(
        timed(lane_s, data_s=0.2, fixed_s=0.4), two_workers=two(1e8, 1e-3, contention=1.1), updates_per_step=2
    )
    found = step_of(calibration, world_size, Cluster(4, None, NetworkLink(bytes_per_s=1e8, latency_s=1e-3)))
    of_step = [seconds for name, seconds in found.terms.items() if name not in ("commits", "failures")]
    assert sum(of_step) == pytest.approx(found.step_s.value)


def test_what_leaves_a_node_is_shared_by_its_workers() -> None:
    """Two nodes of two: a ring crosses once each way, and 1, 2 and 1 messages at the distances 1, 2 and 3."""
    shares = LaneShares(8, 4, interleaved=True, nodes=(2, 2))
    links = Links(FAST, SECOND, 1e18)
    assert round_seconds(shares, [8 * MEGABYTE], links) == pytest.approx(2 * 3 / 4 + (1 + 2 + 1) / 4)


@given(st.data())
def test_bytes_are_those_of_all_messages(data: st.DataObject) -> None:
    lanes = 2 ** data.draw(st.integers(0, 6))
    size = data.draw(st.integers(1, lanes))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, size - 1)), max_size=min(3, size - 1))))
    nodes = tuple(b - a for a, b in pairwise([0, *cuts, size]))
    shares = LaneShares(lanes, size, interleaved=True, nodes=nodes if len(nodes) > 1 else ())
    node_of = [node for node, ranks in enumerate(shares.ranks_of_nodes) for _ in ranks]
    by_rank, by_node = [0] * size, [0] * size
    for _ in range(shares.most):
        ring = [(rank, (rank + 1) % size) for rank in range(size) for _ in range(size - 1)]
        across = [(rank, other) for rank in range(size) for other in range(size) if other != rank]
        for rank, to in ring * GATHERS + across:
            by_rank[rank] += 1
            by_node[node_of[rank]] += node_of[rank] != node_of[to]
    chunk = 1_000
    assert sharded_bytes(shares, chunk * size) == (chunk * max(by_rank), chunk * max(by_node))


@given(st.integers(0, 8), st.data())
def test_room_is_a_shard_and_a_sum_for_each_power_of_two(power: int, data: st.DataObject) -> None:
    lanes = 2**power
    size = data.draw(st.integers(1, lanes))
    shard, sums = sharded_memory(LaneShares(lanes, size, interleaved=True), 4_000 * size)
    assert shard == 4 * 4_000, "weights, gradients, two moments"
    assert sums == 4_000 * max(number.bit_count() for number in range(lanes))


def test_one_worker_has_nothing_to_shard() -> None:
    calibration = calibration_of(equal_steps(8, 0.5))
    whole, sharded = (forecast(calibration, [1], Cluster(8, FAST), parallel=text) for text in ("ddp", "fsdp2"))
    assert whole.sizes == sharded.sizes and sharded.parallel == "fsdp2"


def test_the_room_of_a_worker_is_said() -> None:
    found = forecast(calibration_of(equal_steps(8, 0.5)), [4], Cluster(8, FAST), parallel="fsdp2")
    expected = "of 4 workers each holds 8.0 MB of weights, gradients and moments, and up to 6.0 MB of lanes' sums"
    assert found.notes[-1].startswith(expected)


def test_whole_weights_are_advised_where_the_trips_of_shards_bind() -> None:
    calibration = calibration_of(equal_steps(8, 0.1), two_workers=two(1e15), commit_every=1_000)
    found = advised(calibration, 4, Cluster(1, None, SECOND), parallel="fsdp2")
    of_whole = next(advice for advice in found if advice.overrides == ("--parallel ddp",))
    assert not of_whole.changes_learning
    assert of_whole.time_saved == pytest.approx(1 - (0.2 + 1.5) / (0.2 + 2 * 2.25), abs=0.01)

"""Steps of many ranks, against closed forms and order statistics."""

import numpy as np
import pytest

from assay.data.loader.lane_shares import LaneShares
from assay.records.throughput import GradientBucket, NetworkLink, ThroughputCalibration
from assay.throughput.exchange_time import Links
from assay.throughput.step_time import ExchangeSetup, MeasuredSteps, SimulatedSteps, StepSamples, simulate_steps
from throughput_calibrations import MEGABYTE, calibration_of, equal_steps, timed, two

LINKS = Links(NetworkLink(bytes_per_s=8e6, latency_s=0.0), None, 1e18)
"""A buffer of 8 MB takes a second each way."""


def drawn(
    calibration: ThroughputCalibration, shares: LaneShares, *, num_samples: int = 64, over: Links = LINKS
) -> SimulatedSteps:
    steps, rng = MeasuredSteps.of(calibration), np.random.default_rng(0)
    draws = StepSamples.generate(len(calibration.steps), calibration.lanes, num_samples=num_samples, rng=rng)
    return simulate_steps(steps, draws, ExchangeSetup.build(calibration, shares), calibration, over)


def test_a_single_rank_takes_what_was_measured() -> None:
    lane_s = np.random.default_rng(1).uniform(0.1, 0.3, (7, 8))
    calibration = calibration_of(timed(lane_s.tolist(), data_s=0.05, fixed_s=0.2))
    found = drawn(calibration, LaneShares.alone(8))
    assert found.step_s.mean() == pytest.approx(lane_s.sum(axis=1).mean() + 0.25)
    assert found.step_s.tolist() == pytest.approx(found.local_s.tolist())


def test_equal_lanes_and_one_bucket_add_the_exchange_to_the_busiest_ranks_lanes() -> None:
    calibration = calibration_of(equal_steps(8, 0.5, fixed_s=0.1))
    found = drawn(calibration, LaneShares(8, 4))
    assert found.step_s == pytest.approx(0.1 + 2 * 0.5 + 2 * 3 / 4)
    assert found.last_rank_s == pytest.approx(0.1 + 2 * 0.5)


@pytest.mark.parametrize(("alone_s", "waited_s"), [(0.0, 0.0), (4.0, 0.0), (6.3, 0.0), (8.3, 0.5)])
def test_a_loader_reads_on_while_gradients_are_exchanged(alone_s: float, waited_s: float) -> None:
    """One that takes 12.4 s for all rows takes 3.1 s for a quarter, of which 2.6 s pass anyway."""
    calibration = calibration_of(equal_steps(8, 0.5, data_s=alone_s, fixed_s=0.1))
    found = drawn(calibration, LaneShares(8, 4))
    assert found.max_data_s == pytest.approx(waited_s, abs=1e-9)
    assert found.step_s == pytest.approx(2.6 + waited_s)


def test_a_wait_that_hardly_was_does_not_grow_where_lanes_are_faster_beside_another_rank() -> None:
    calibration = calibration_of(equal_steps(8, 0.5, data_s=0.001), two_workers=two(1e18, contention=0.9))
    found = drawn(calibration, LaneShares(8, 2), over=Links(NetworkLink(bytes_per_s=1e18, latency_s=0), None, 1e18))
    assert found.step_s == pytest.approx(0.9 * 2.0 + 0.0005)


def test_the_rank_with_the_most_lanes_waits_for_its_rows_the_longest() -> None:
    """Of 12 s for all rows: 4.5 s for three lanes' of eight, 3 s for two's; without, a step takes 1.6 s."""
    calibration = calibration_of(equal_steps(8, 0.5, data_s=7.9, fixed_s=0.1))
    fast = Links(NetworkLink(bytes_per_s=1e18, latency_s=0.0), None, 1e18)
    found = drawn(calibration, LaneShares(8, 3), over=fast)
    assert found.max_data_s == pytest.approx(4.5 - 1.6)
    assert found.data_s == pytest.approx((2 * 2.9 + 1.4) / 3)
    assert found.step_s == pytest.approx(4.5)


def test_messages_cost_their_latency_in_each_round_and_once_more_around_the_ranks() -> None:
    calibration = calibration_of(equal_steps(8, 0.5))
    slow = Links(NetworkLink(bytes_per_s=1e18, latency_s=0.01), None, 1e18)
    found = drawn(calibration, LaneShares(8, 4), over=slow)
    assert found.step_s == pytest.approx(1.0 + 2 * 3 * 0.01 + 3 * 0.01)


def test_buckets_that_are_ready_early_travel_while_backward_goes_on() -> None:
    buckets = (
        GradientBucket(num_bytes=4 * MEGABYTE, before_last_s=0.4),
        GradientBucket(num_bytes=4 * MEGABYTE, before_last_s=0.0),
    )
    calibration = calibration_of(equal_steps(2, 1.0), buckets=buckets)
    assert drawn(calibration, LaneShares(2, 2)).step_s == pytest.approx(1.0 + 1.0 - 0.4)


def test_what_is_done_first_travels_first_so_that_one_block_is_waited_for() -> None:
    """Three ranks of eight lanes: two have a block of two and one of one."""
    shares = LaneShares(8, 3)
    assert shares.loads == (3, 3, 2)
    calibration = calibration_of(equal_steps(8, 10.0))
    one_block_s = 2 * 2 / 3
    assert drawn(calibration, shares).step_s == pytest.approx(30.0 + one_block_s, abs=0.4)
    # Where nothing is computed meanwhile, both blocks are waited for.
    short = calibration_of(equal_steps(8, 0.01))
    assert drawn(short, shares).step_s == pytest.approx(0.01 + 1.5 * one_block_s, abs=0.1)


def test_a_stage_waits_for_its_own_block() -> None:
    """Ranks of 1 and 7 lanes, one lane long: where that is in the block of 2, half a buffer travels behind it,
    and where it is that of 1, two halves."""
    calibration = calibration_of(timed([[10.0] + [0.001] * 7]))
    found = drawn(calibration, LaneShares(8, 2, explicit_loads=(1, 7)), num_samples=4000)
    assert found.step_s.mean() == pytest.approx(11.0 + (1 * 1.0 + 2 * 0.5) / 8, abs=0.03)


@pytest.mark.parametrize("world_size", [2, 8, 32])
def test_the_slowest_rank_is_the_mean_of_the_maximum_of_as_many(world_size: int) -> None:
    """Lanes uniform in [0, 1]: of n of them the largest is n / (n + 1), on average."""
    lane_s = np.random.default_rng(2).uniform(size=(400, world_size))
    calibration = calibration_of(timed(lane_s.tolist()))
    fast = Links(NetworkLink(bytes_per_s=1e18, latency_s=0.0), None, 1e18)
    found = drawn(calibration, LaneShares(world_size, world_size), num_samples=400, over=fast)
    assert found.step_s.mean() == pytest.approx(world_size / (world_size + 1), rel=0.03)


def test_lanes_stay_with_their_step() -> None:
    """A step of long rows is long for all: no rank is slower than another, however the steps differ."""
    calibration = calibration_of(timed([[1.0] * 4, [3.0] * 4]))
    fast = Links(NetworkLink(bytes_per_s=1e18, latency_s=0.0), None, 1e18)
    assert drawn(calibration, LaneShares(4, 4), over=fast).step_s.mean() == pytest.approx(2.0)


def test_each_update_of_a_step_has_an_exchange_of_its_own() -> None:
    once, twice = (calibration_of(equal_steps(4, 1.0), updates_per_step=number) for number in (1, 2))
    shares = LaneShares(4, 2)
    exchange_s = drawn(once, shares).step_s.mean() - 2.0
    assert drawn(twice, shares).step_s.mean() == pytest.approx(2.0 + 2 * exchange_s)


def test_a_spot_check_costs_a_lane_now_and_then() -> None:
    calibration = calibration_of(equal_steps(4, 1.0), spot_check_every=10)
    assert drawn(calibration, LaneShares.alone(4)).step_s.mean() == pytest.approx(4.1)

"""Forecasts as a whole: their terms, what binds, intervals, refusals."""

import numpy as np
import pytest
import yaml

from assay.base.errors import ConfigError
from assay.data.loader.lane_shares import LaneShares
from assay.records.throughput import GradientBucket, NetworkLink, WorldSizeForecast
from assay.throughput.cluster import Cluster, measured_link
from assay.throughput.forecast import forecast, forecast_attempt
from assay.throughput.modes import modes_of, modes_text
from throughput_calibrations import calibration_of, equal_steps, timed, two

FAST = NetworkLink(bytes_per_s=1e15, latency_s=0.0)
LANE_S = np.random.default_rng(3).uniform(0.1, 0.3, (12, 32)).tolist()


NO_NETWORK = Cluster(8, FAST, FAST)


def at(calibration, world_size: int, cluster: Cluster = NO_NETWORK) -> WorldSizeForecast:
    [found] = forecast(calibration, [world_size], cluster).sizes
    return found


def test_one_workers_forecast_is_the_calibration() -> None:
    calibration = calibration_of(timed(LANE_S, data_s=0.2, fixed_s=0.4))
    found = at(calibration, 1)
    measured_s = np.sum(LANE_S, axis=1).mean() + 0.6
    assert found.step_s.value == pytest.approx(measured_s)
    assert (found.speedup.value, found.speedup.low, found.speedup.high) == pytest.approx((1.0, 1.0, 1.0))
    assert found.phases == pytest.approx(
        {"data": 0.2, "generation": 0.0, "reward": 0.0, "compute": measured_s - 0.2, "communication": 0.0}
    )


def test_generation_and_grading_are_forecast_apart() -> None:
    steps = timed([[0.1] * 8] * 2)
    measured = [(4.0, 1.0), (2.0, 0.5)]
    steps = tuple(
        step.model_copy(update={"rollout_s": rollout_s, "reward_s": reward_s})
        for step, (rollout_s, reward_s) in zip(steps, measured, strict=True)
    )
    one, four = (at(calibration_of(steps), world_size).phases for world_size in (1, 4))
    assert one == pytest.approx({"data": 0.0, "generation": 2.25, "reward": 0.75, "compute": 0.8, "communication": 0.0})
    assert (four["generation"], four["reward"]) == pytest.approx((2.25 / 4, 0.75 / 4)), "each worker has its own lanes"


@pytest.mark.parametrize("world_size", [1, 7, 8, 16, 32])
def test_the_terms_of_a_step_are_its_time(world_size: int) -> None:
    calibration = calibration_of(timed(LANE_S, data_s=0.2, fixed_s=0.4), two_workers=two(1e8, 1e-3, contention=1.1))
    found = at(calibration, world_size, Cluster(4, None, NetworkLink(bytes_per_s=1e8, latency_s=1e-3)))
    of_step = [seconds for name, seconds in found.terms.items() if name not in ("commits", "failures")]
    assert sum(of_step) == pytest.approx(found.step_s.value)
    assert min(found.terms.values()) >= -1e-12


def test_the_wait_for_rows_is_that_of_the_rank_with_the_most_lanes() -> None:
    """One loader takes 48 s for all rows; of 7 workers one with 5 lanes of 32 waits 7.5 s less its 3.1 s."""
    calibration = calibration_of(equal_steps(32, 0.6, data_s=28.7, fixed_s=0.1), two_workers=two(1e15))
    found = at(calibration, 7, Cluster(8, FAST, FAST))
    assert found.terms["data"] == pytest.approx(7.5 - 3.1)
    assert found.terms["slowest"] == pytest.approx(0.0, abs=1e-9)


def test_a_perfect_machine_scales_perfectly() -> None:
    calibration = calibration_of(equal_steps(32, 0.1))
    found = forecast(calibration, [8, 32], Cluster(8, FAST, FAST))
    assert [size.speedup.value for size in found.sizes] == pytest.approx([8.0, 32.0])
    assert [size.binds for size in found.sizes] == ["lanes", "lanes"]
    assert [target.probability for target in found.targets] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "cluster", "binds"),
    [
        ({}, Cluster(1, None, NetworkLink(bytes_per_s=1e6, latency_s=0.0)), "bytes"),
        ({}, Cluster(1, None, NetworkLink(bytes_per_s=1e15, latency_s=0.1)), "latency"),
        ({"steps": equal_steps(32, 0.1, data_s=5.0)}, Cluster(8, FAST, FAST), "data"),
        ({"steps": equal_steps(32, 0.1, fixed_s=5.0)}, Cluster(8, FAST, FAST), "fixed"),
        ({"commit_every": 1, "commit_held_s": 3.0}, Cluster(8, FAST, FAST), "commits"),
        ({"restart_s": 600.0}, Cluster(8, FAST, FAST, failures_per_node_h=1.0), "failures"),
        ({"two_workers": two(1e15, contention=2.0)}, Cluster(8, FAST, FAST), "contention"),
        ({"steps": timed([[0.01] * 31 + [1.0]] * 8)}, Cluster(8, FAST, FAST), "slowest"),
    ],
)
def test_the_term_that_costs_the_most_binds(changes: dict[str, object], cluster: Cluster, binds: str) -> None:
    calibration = calibration_of(**{"steps": equal_steps(32, 0.1), "two_workers": two(1e15), **changes})
    assert at(calibration, 16, cluster).binds == binds


def test_lanes_that_do_not_share_evenly_bind_and_the_number_that_would_is_said() -> None:
    calibration = calibration_of(equal_steps(8, 0.1))
    found = forecast(calibration, [7], Cluster(8, FAST))
    assert found.sizes[0].binds == "uneven"
    assert found.sizes[0].speedup.value == pytest.approx(4.0)
    assert "7 workers are no faster than 4" in found.notes[1]
    assert "8 would be faster" in found.notes[1]


def test_the_extrapolation_factor_is_noted() -> None:
    found = forecast(calibration_of(equal_steps(32, 0.1)), [2, 32], Cluster(8, FAST, FAST))
    assert found.notes[0] == (
        "measured on 1 and 2 workers; 32 are 16 times as many: larger sizes are extrapolated by the model"
    )
    widths = [(size.step_s.high - size.step_s.low) / size.step_s.value for size in found.sizes]
    assert widths[1] > 2 * widths[0]


def test_a_speedup_above_the_number_of_workers_says_where_it_comes_from() -> None:
    """Lanes of 3.2 s and 0.4 s that no worker shares: 2 workers take 0.8 of 1.6 s, and 0.4 s."""
    steps = equal_steps(32, 0.1, fixed_s=0.4)
    found = forecast(calibration_of(steps, two_workers=two(1e15, contention=0.5)), [2, 32], Cluster(32, FAST))
    assert found.sizes[0].speedup.value == pytest.approx(3.6 / 1.2)
    assert found.sizes[1].speedup.value < 32
    assert found.notes[0] == (
        "the speedup of 3.00 on 2 workers exceeds their number: next to another worker a lane took 0.50 times "
        "as long as alone, which may be caching or the noise of 13 steps. With lanes as "
        "fast as alone it is 1.80 on 2"
    )
    for contention in (1.0, 1.3):
        usual = forecast(calibration_of(steps, two_workers=two(1e15, contention=contention)), [2], Cluster(8, FAST))
        assert usual.notes == ()


def test_more_workers_than_lanes_are_refused_with_the_number_that_share_them() -> None:
    with pytest.raises(ConfigError, match=r"loader.lanes=8 can be shared by 1 to 8 workers"):
        at(calibration_of(equal_steps(8, 0.1)), 9)


def test_several_nodes_need_a_stated_network() -> None:
    calibration = calibration_of(equal_steps(32, 0.1))
    with pytest.raises(ConfigError, match=r"16 workers need 2 nodes.*--network 25GB/s,5us"):
        at(calibration, 16, Cluster(8))
    alone = calibration.model_copy(update={"two_workers": None})
    with pytest.raises(ConfigError, match=r"network within a node was not measured.*--inside"):
        at(alone, 8, Cluster(8))
    assert at(alone, 8, Cluster(8, FAST)).speedup.value == pytest.approx(8.0, rel=0.01)


def test_two_workers_on_two_nodes_measure_the_network_between_nodes() -> None:
    """4 MB take 0.4 s, as does each way of the exchange of 8 MB between two."""
    calibration = calibration_of(equal_steps(32, 0.1), two_workers=two(1e7, num_nodes=2))
    assert at(calibration, 2, Cluster(1)).step_s.value == pytest.approx(1.6 + 0.8)


def test_a_run_that_would_never_end_is_refused() -> None:
    calibration = calibration_of(equal_steps(32, 10.0), commit_every=1_000_000, num_steps=100_000)
    with pytest.raises(ConfigError, match=r"--failures.*would never end"):
        at(calibration, 32, Cluster(8, FAST, FAST, failures_per_node_h=100.0))


def test_measured_messages_make_a_link() -> None:
    link = measured_link(two(2e8, 3e-4))
    assert (link.bytes_per_s, link.latency_s) == (pytest.approx(2e8), pytest.approx(3e-4))


def test_an_attempt_is_forecast_with_the_lanes_that_its_workers_had() -> None:
    calibration = calibration_of(equal_steps(32, 0.1))
    shares = LaneShares(32, 4, explicit_loads=(10, 9, 9, 4))
    assert forecast_attempt(calibration, shares, Cluster(8, FAST)).step_s.value == pytest.approx(1.0)


def test_modes_are_what_a_program_takes_and_leave_out_what_gains_nothing() -> None:
    calibration = calibration_of(equal_steps(8, 1.0), num_steps=3_500, commit_every=3_500)
    found = forecast(calibration, [1, 4, 7, 8, 2], Cluster(8, FAST))
    modes = [(mode.devices, mode.hours) for mode in modes_of(found).all_modes()]
    assert modes == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert modes_text(found).startswith("modes:\n- {devices: 1, hours: 8}\n")


def test_modes_say_what_was_left_out_and_what_was_rounded() -> None:
    calibration = calibration_of(equal_steps(8, 0.1), num_steps=195, commit_every=195)
    text = modes_text(forecast(calibration, [8, 2], Cluster(8, FAST)))
    assert yaml.safe_load(text) == {"modes": [{"devices": 2, "hours": 1}]}
    assert text.splitlines()[2:] == [
        "# a run takes 1 min 18 s on 2, 19.5 s on 8 workers; a program counts whole hours, so they are rounded up",
        "# left out: 8 workers, which take no fewer whole hours than 2",
    ]


def test_the_same_calibration_gives_the_same_forecast() -> None:
    calibration = calibration_of(timed(LANE_S))
    cluster = Cluster(8, None, FAST, failures_per_node_h=0.02)
    assert forecast(calibration, [8, 32], cluster) == forecast(calibration, [8, 32], cluster)


@pytest.mark.parametrize(("gbit_per_s", "target_probabilities"), [(10, False), (25, True), (100, True)])
def test_the_production_recipe_on_paper(gbit_per_s: int, target_probabilities: bool) -> None:
    """As docs/throughput.md has it: 440 MB of gradients, 74 ms a lane, four nodes of eight."""
    lane_s = 32 * 435 * 6 * 110e6 / 125e12
    noise = np.exp(np.random.default_rng(0).normal(0, 0.05, (16, 64)))
    buckets = tuple(
        GradientBucket(num_bytes=110_000_000, before_last_s=lane_s * 2 / 3 * before / 4) for before in (3, 2, 1, 0)
    )
    calibration = calibration_of(
        timed((lane_s * noise).tolist(), fixed_s=0.01), buckets=buckets, two_workers=None, on_cuda=True
    )
    inside = NetworkLink(bytes_per_s=200e9, latency_s=1e-5)
    network = NetworkLink(bytes_per_s=gbit_per_s / 8 * 1e9, latency_s=1e-5)
    found = forecast(calibration, [8, 32], Cluster(8, inside, network))
    assert found.targets[0].probability == 1.0
    assert (found.targets[1].probability > 0.95) is target_probabilities
    assert (found.targets[1].probability < 0.05) is not target_probabilities
    assert found.sizes[1].inter_node_bytes == pytest.approx(2 * 3 / 4 * 440e6, rel=1e-6)

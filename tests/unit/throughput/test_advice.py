"""What would help, where it is known what does."""

import pytest

from assay.records.throughput import NetworkLink
from assay.throughput.advice import advised
from assay.throughput.cluster import Cluster
from throughput_calibrations import calibration_of, equal_steps, timed, two

FAST = NetworkLink(bytes_per_s=1e15, latency_s=0.0)
SLOW = NetworkLink(bytes_per_s=8e6, latency_s=0.0)


def first(calibration, world_size: int, cluster: Cluster):
    return advised(calibration, world_size, cluster)[0]


def test_half_the_exchanges_help_most_where_the_network_binds() -> None:
    """A step is 0.4 s of lanes and 1.75 s of exchange; one of twice the rows 0.8 s and 1.75 s."""
    calibration = calibration_of(equal_steps(32, 0.1), two_workers=two(1e15))
    best = first(calibration, 8, Cluster(1, None, SLOW))
    assert best.changes_learning
    assert best.overrides[-1] == "loader.global_batch_size=256"
    assert best.time_saved == pytest.approx(1 - (0.8 + 1.75) / 2 / (0.4 + 1.75), abs=0.01)


def test_seldomer_commits_help_most_where_commits_bind() -> None:
    calibration = calibration_of(
        equal_steps(32, 0.1), commit_every=2, commit_held_s=2.0, two_workers=two(1e15), num_steps=100_000
    )
    best = first(calibration, 8, Cluster(8, FAST))
    assert best.overrides[0].startswith("trainer.commit_every=")
    assert not best.changes_learning
    assert best.time_saved > 0.6


@pytest.mark.parametrize(
    ("data_s", "saved"),
    [
        pytest.param(6.4, 1 / 2, id="9.6 s of reading, 8 ranks: 1.2 s a step, then 0.6"),
        pytest.param(1.6, 1 / 3, id="4.8 s of reading, 8 ranks: 0.6 s a step, then less than its 0.4 of lanes"),
    ],
)
def test_more_threads_of_the_loader_are_advised_where_rows_are_waited_for(data_s: float, saved: float) -> None:
    calibration = calibration_of(equal_steps(32, 0.1, data_s=data_s), two_workers=two(1e15), commit_every=1_000)
    threads = next(
        advice for advice in advised(calibration, 8, Cluster(8, FAST)) if advice.overrides == ("loader.threads=4",)
    )
    assert threads.time_saved == pytest.approx(saved, abs=0.01)


def test_fewer_workers_are_advised_where_the_others_gain_nothing() -> None:
    calibration = calibration_of(equal_steps(8, 0.1), two_workers=two(1e15))
    found = {advice.overrides[0]: advice for advice in advised(calibration, 7, Cluster(8, FAST))}
    assert found["--workers 4"].time_saved == pytest.approx(0.0, abs=0.01)
    assert found["--workers 4"].device_hours_saved == pytest.approx(3 / 7, abs=0.01)


def test_nothing_is_advised_that_gains_nothing() -> None:
    calibration = calibration_of(equal_steps(32, 0.1), two_workers=two(1e15), commit_every=1_000)
    assert advised(calibration, 1, Cluster(8, FAST)) == ()


def test_advice_is_sorted_by_the_time_that_it_saves() -> None:
    lanes = timed([[0.1 + 0.01 * lane for lane in range(32)]] * 8, data_s=0.5, fixed_s=0.1)
    found = advised(calibration_of(lanes, commit_held_s=1.0), 8, Cluster(4, None, SLOW))
    assert len(found) > 2
    assert [advice.time_saved for advice in found] == sorted((advice.time_saved for advice in found), reverse=True)


def test_sharded_weights_gain_nothing_where_lanes_differ_and_messages_cost_nothing() -> None:
    """Each round of lanes waits for its slowest, which is later than whoever is slowest over all rounds."""
    lanes = timed([[0.1 + 0.01 * lane for lane in range(32)]] * 8)
    found = advised(calibration_of(lanes, two_workers=two(1e15), commit_every=1_000), 8, Cluster(8, FAST))
    assert "--parallel fsdp2" not in {advice.overrides[0] for advice in found}

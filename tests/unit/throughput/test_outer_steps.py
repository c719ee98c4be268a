"""Several clusters by closed forms: outer steps, synchronous training, one cluster alone."""

import numpy as np
import pytest

from assay.base.errors import ConfigError
from assay.records.throughput import ClustersForecast, GradientBucket, NetworkLink
from assay.throughput.cluster import Cluster
from assay.throughput.forecast import forecast
from assay.throughput.outer_steps import change_bytes, check_clusters, cluster_share, forecast_clusters
from assay.training.outer.change import BLOCK, encode
from assay.training.outer.config import OuterConfig
from throughput_calibrations import MEGABYTE, calibration_of, equal_steps, timed, two

LINK = NetworkLink(bytes_per_s=1e6, latency_s=0.0)
FAST = NetworkLink(bytes_per_s=1e15, latency_s=0.0)
CLUSTER = Cluster(8, FAST, FAST)
NUM_WEIGHTS = 64 * 32_768
TRANSFER_S = (NUM_WEIGHTS / 2 + 2 * NUM_WEIGHTS / BLOCK) / 1e6
"""1.05 MB of codes and 65 kB of scales at 1 MB/s."""
ENCODING_S, DECODING_S = NUM_WEIGHTS * 20e-9, NUM_WEIGHTS * 3e-9
CALIBRATION = calibration_of(
    equal_steps(8, 0.1, fixed_s=0.2),
    buckets=(GradientBucket(num_bytes=4 * NUM_WEIGHTS, before_last_s=0.0),),
    commit_held_s=0.5,
    commit_written_s=1.0,
    restart_s=20.0,
)


def clusters_of(config: OuterConfig, *, calibration=CALIBRATION, world_size: int = 1, link=LINK) -> ClustersForecast:
    sizes = forecast(calibration, [world_size], CLUSTER).sizes
    [found] = forecast_clusters(calibration, sizes, CLUSTER, link, config)
    return found


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_the_bytes_of_a_change_are_those_of_its_file(bits) -> None:
    import torch

    change = {"weight": torch.randn(BLOCK * 500)}
    config = OuterConfig(every=1, bits=bits)
    assert change_bytes(BLOCK * 500, config) == pytest.approx(len(encode(change, bits)), abs=400)


def test_a_step_is_an_inner_step_and_its_part_of_a_commit_and_an_exchange() -> None:
    """Four lanes of 0.1 s and 0.2 s of all else; a change goes up, and one comes down."""
    found = clusters_of(OuterConfig(every=25))
    assert found.pause_s == pytest.approx(3.0 + ENCODING_S + 2 * TRANSFER_S + 2 * DECODING_S)
    outer = found.trainings["outer_steps"]
    assert outer.step_s.value == pytest.approx(0.6 + found.pause_s / 25)
    assert outer.rows_per_s == pytest.approx(32 / outer.step_s.value)
    assert outer.sent_bytes == outer.received_bytes == round(TRANSFER_S * 1e6 / 25)
    assert found.waiting_share == pytest.approx(found.pause_s / (15 + found.pause_s))


def test_synchronous_training_sends_all_gradients_in_each_step() -> None:
    found = clusters_of(OuterConfig(every=25)).trainings
    gradient_bytes = 4 * NUM_WEIGHTS
    assert found["synchronous"].step_s.value == pytest.approx(0.6 + gradient_bytes / 1e6)
    assert found["synchronous"].sent_bytes == gradient_bytes
    assert found["one_cluster"].step_s.value == pytest.approx(1.0)
    assert found["one_cluster"].rows_per_s == pytest.approx(32.0)
    assert (found["one_cluster"].sent_bytes, found["one_cluster"].received_bytes) == (0, 0)


def test_each_cluster_reads_the_changes_of_all_others() -> None:
    """Of eight lanes the busiest of three clusters has three."""
    two_clusters, three = (clusters_of(OuterConfig(every=25, clusters=clusters)) for clusters in (2, 3))
    assert three.pause_s - two_clusters.pause_s == pytest.approx(TRANSFER_S + DECODING_S)
    outer = three.trainings["outer_steps"]
    assert outer.received_bytes == pytest.approx(2 * outer.sent_bytes, abs=1)
    assert outer.step_s.value == pytest.approx(0.5 + three.pause_s / 25)


def test_clusters_wait_at_most_5_percent_from_the_advised_number_of_steps_on() -> None:
    advised = clusters_of(OuterConfig(every=25)).advised_every
    at, before = (clusters_of(OuterConfig(every=every)).waiting_share for every in (advised, advised - 1))
    assert at <= 0.05 < before


def test_each_request_takes_its_way_there_and_back() -> None:
    late = NetworkLink(bytes_per_s=1e6, latency_s=0.01)
    near, far = (clusters_of(OuterConfig(every=25), link=link).pause_s for link in (LINK, late))
    assert far - near == pytest.approx(0.02 * (9 + 4 * 2))


def test_a_deadline_holds_the_inner_steps_of_a_cluster_that_dies_once() -> None:
    found = clusters_of(OuterConfig(every=25))
    assert found.least_deadline_s == pytest.approx(25 * 0.6)
    assert found.deadline_after_death_s == pytest.approx(20 + 25 * 0.6 + 3.0 + ENCODING_S + TRANSFER_S)


def test_a_deadline_holds_the_transfer_and_how_much_clusters_differ() -> None:
    """Steps of 0.5 and 1.5 times the mean deviate by half of it; two clusters, by sqrt(2) of that."""
    calibration = calibration_of(timed([[0.001] * 8, [0.003] * 8] * 4), buckets=CALIBRATION.buckets)
    found = clusters_of(OuterConfig(every=4), calibration=calibration)
    inner_s = 4 * 0.002
    assert found.least_deadline_s == pytest.approx(TRANSFER_S + 3 * np.sqrt(2 * 4) * inner_s / 2)


def test_a_cluster_reads_its_share_of_the_rows_meanwhile() -> None:
    """Reading takes 3.0 s where lanes and all else take 1.0 s; half of it, 0.9 s longer than half the lanes."""
    calibration = calibration_of(equal_steps(8, 0.1, data_s=2.0, fixed_s=0.2))
    share = cluster_share(calibration, 2)
    assert share.lanes == 4
    assert share.steps[0].data_s == pytest.approx(1.5 - 0.6)


def test_workers_of_a_cluster_share_its_lanes() -> None:
    calibration = CALIBRATION.model_copy(update={"two_workers": two(1e15)})
    found = clusters_of(OuterConfig(every=1_000_000), calibration=calibration, world_size=4)
    assert found.trainings["outer_steps"].step_s.value == pytest.approx(0.1 + 0.2, rel=1e-3)
    # Of 8 MB each of two clusters keeps the sum of one half, and sends the other half and that sum.
    assert found.trainings["synchronous"].step_s.value == pytest.approx(
        0.1 + 0.2 + 4 * NUM_WEIGHTS / MEGABYTE, rel=0.01
    )


@pytest.mark.parametrize(
    ("config", "sizes", "parallel", "words"),
    [
        (OuterConfig(every=25, clusters=1), [1], "ddp", "outer.clusters=1: a single cluster has nobody to meet"),
        (OuterConfig(every=25), [1], "fsdp2", "--parallel fsdp2: clusters with sharded weights are not forecast"),
        (OuterConfig(every=25), [2, 8], "ddp", "--workers 8: 2 clusters of as many need 16 lanes, and loader.lanes=8"),
    ],
)
def test_clusters_that_cannot_be_forecast_are_refused(config, sizes, parallel, words) -> None:
    with pytest.raises(ConfigError, match=words):
        check_clusters(8, sizes, config, parallel=parallel)
    check_clusters(8, [4], OuterConfig(every=25), parallel="ddp")

"""Forecasts a recipe over several clusters: with outer steps, synchronous, and on one cluster alone.

    a cluster:  inner steps | commit | encode | its change up | the others' down | decode | inner steps | ...
                              '------------------------ pause ------------------------'

Nothing of a pause overlaps with inner steps. All clusters are assumed to be equally fast, behind equal links to the
store where they meet. What outer steps cost in loss is not modelled.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from assay.base.errors import ConfigError
from assay.records.evaluation import Estimate
from assay.records.throughput import (
    ClustersForecast,
    ClusterTraining,
    NetworkLink,
    ThroughputCalibration,
    WorldSizeForecast,
)
from assay.throughput.cluster import Cluster
from assay.throughput.exchange_time import FLOAT_BYTES
from assay.throughput.forecast import forecast
from assay.training.outer.config import OuterConfig

MOST_WAITING = 0.05
"""Share of the time in pauses up to which `outer.every` is advised."""
NUM_REQUESTS = 9
"""Requests of an outer step in a row, and four for each cluster: parts, entries, lists and changes."""
ENCODING_S, DECODING_S = 20e-9, 3e-9
"""Assumed for each weight: to encode and digest the own change, and to decode and add a cluster's, on one core."""
DIFFERENCE_DEVIATIONS = 3
"""Standard deviations by which two clusters may differ in the time of their inner steps, without a late part."""


def forecast_clusters(
    calibration: ThroughputCalibration,
    sizes: Sequence[WorldSizeForecast],
    cluster: Cluster,
    link: NetworkLink,
    config: OuterConfig,
) -> Iterator[ClustersForecast]:
    """Yield the forecast for clusters of each size; `sizes` are the forecasts of one cluster alone."""
    cluster = cluster._replace(failures_per_node_h=0.0)  # which concern the whole run, and not a step
    num_weights = calibration.gradient_bytes // FLOAT_BYTES
    num_bytes = change_bytes(num_weights, config)
    up_s, others = num_bytes / link.bytes_per_s, config.clusters - 1
    requests_s = 2 * link.latency_s * (4 * config.clusters + NUM_REQUESTS)
    # A cluster's commit also holds the outer weights, and the moments to return to.
    commit_s = 2 * (calibration.commit_held_s + calibration.commit_written_s)
    encoding_s, decoding_s = num_weights * ENCODING_S, num_weights * DECODING_S * config.clusters
    pause_s = commit_s + encoding_s + up_s * (1 + others) + requests_s + decoding_s
    for alone in sizes:
        [inner] = forecast(cluster_share(calibration, config.clusters), [alone.world_size], cluster).sizes
        together = _synchronous(calibration, alone.world_size, cluster, link, config)
        inner_s, sent = inner.step_s.value, num_bytes / config.every
        round_s, far = config.every * inner_s, together.inter_node_bytes
        difference_s = DIFFERENCE_DEVIATIONS * math.sqrt(2 * config.every) * inner_s * _relative_deviation(calibration)
        outer_step = _added(inner.step_s, pause_s / config.every)
        rows = calibration.global_batch_size
        yield ClustersForecast(
            num_clusters=config.clusters,
            every=config.every,
            bits=config.bits,
            world_size=alone.world_size,
            trainings={
                "one_cluster": _training(rows, alone.step_s, 0, 0),
                "synchronous": _training(rows, together.step_s, far, far),
                "outer_steps": _training(rows, outer_step, sent, others * sent),
            },
            pause_s=pause_s,
            waiting_share=pause_s / (round_s + pause_s),
            advised_every=math.ceil((1 - MOST_WAITING) / MOST_WAITING * pause_s / inner_s),
            least_deadline_s=max(round_s, up_s + requests_s + difference_s),
            deadline_after_death_s=cluster.restarts_s(calibration)
            + round_s
            + commit_s
            + encoding_s
            + up_s
            + requests_s,
        )


def check_clusters(lanes: int, sizes: Sequence[int], config: OuterConfig, *, parallel: str) -> None:
    """Raise `ConfigError` if these clusters cannot be forecast."""
    if config.clusters < 2:
        raise ConfigError(f"outer.clusters={config.clusters}: a single cluster has nobody to meet. Leave --link out.")
    if parallel != "ddp":
        raise ConfigError(f"--parallel {parallel}: clusters with sharded weights are not forecast. Leave --link out.")
    if (needed := config.clusters * max(sizes)) > lanes:
        raise ConfigError(
            f"--workers {max(sizes)}: {config.clusters} clusters of as many need {needed} lanes, and "
            f"loader.lanes={lanes}. Use fewer workers, or a recipe with more lanes, which changes the row order."
        )


def change_bytes(num_weights: int, config: OuterConfig) -> int:
    """Return the bytes of one cluster's change: a code a weight and, below 32 bits, a scale of two bytes a block."""
    from assay.training.outer.change import BLOCK  # imports torch

    scales = 0 if config.bits == 32 else 2 * -(-num_weights // BLOCK)
    return num_weights * config.bits // 8 + scales


def cluster_share(calibration: ThroughputCalibration, clusters: int) -> ThroughputCalibration:
    """Return the calibration as the cluster with the most lanes would have measured it.

    Its lanes are padded to a power of two, as `training.outer.rows.slots_of` does; the others take no time.
    """
    lanes, steps = -(-calibration.lanes // clusters), []
    slots = 1 << (lanes - 1).bit_length()
    for index, step in enumerate(calibration.steps):
        own = [step.lane_s[(index * lanes + lane) % calibration.lanes] for lane in range(lanes)]
        # A loader that is slower than its share of the step is waited for.
        data_s = max(0.0, step.data_s * lanes / calibration.lanes - step.fixed_s * (1 - lanes / calibration.lanes))
        steps.append(step.model_copy(update={"lane_s": (*own, *[0.0] * (slots - lanes)), "data_s": data_s}))
    return calibration.model_copy(update={"lanes": slots, "steps": tuple(steps)})


def _synchronous(
    calibration: ThroughputCalibration, world_size: int, cluster: Cluster, link: NetworkLink, config: OuterConfig
) -> WorldSizeForecast:
    """Forecast one run over all clusters, each as one node with the slowest network that it has inside."""
    inside = cluster.between if world_size > cluster.devices_per_node else cluster.inside
    clusters = cluster._replace(devices_per_node=world_size, inside=inside, between=link)
    [found] = forecast(calibration, [config.clusters * world_size], clusters).sizes
    return found


def _relative_deviation(calibration: ThroughputCalibration) -> float:
    """Return the standard deviation of a measured step's time, as a share of its mean."""
    step_s = [sum(step.lane_s) + step.data_s + step.fixed_s for step in calibration.steps]
    return float(np.std(step_s) / np.mean(step_s))


def _added(estimate: Estimate, seconds: float) -> Estimate:
    assert estimate.low is not None and estimate.high is not None, "a forecast has an interval"
    names = ("value", "low", "high")
    return estimate.model_copy(update={name: getattr(estimate, name) + seconds for name in names})


def _training(rows: int, step_s: Estimate, sent: float, received: float) -> ClusterTraining:
    return ClusterTraining(
        step_s=step_s, rows_per_s=rows / step_s.value, sent_bytes=round(sent), received_bytes=round(received)
    )

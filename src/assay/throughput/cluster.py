"""Describes the cluster to forecast: workers per node and the network, as stated or as two workers measured
it."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from assay.base.errors import ConfigError
from assay.records.throughput import NetworkLink, ThroughputCalibration, TwoWorkers
from assay.throughput.exchange_time import Links

NUM_MESSAGE_RESAMPLES = 5
"""Versions of the measured messages: one as measured, the others resampled."""
ADDED_BYTES_PER_S = {False: 5e9, True: 5e11}
"""on CUDA -> rate of adding gradients, assumed if no two workers measured it."""


class Cluster(NamedTuple):
    """The cluster to forecast."""

    devices_per_node: int
    inside: NetworkLink | None = None
    """Network within a node. None: as measured between two workers."""
    between: NetworkLink | None = None
    """Bandwidth and latency of one node to all others, shared by its workers. None: as measured between two
    nodes."""
    failures_per_node_h: float = 0.0
    restart_s: float | None = None
    """Seconds from a failure to the next step, e.g. until a new node arrives. None: as measured."""

    def nodes(self, world_size: int) -> tuple[int, ...]:
        """Return the workers of each node; the last node has the remainder."""
        full, rest = divmod(world_size, self.devices_per_node)
        return (self.devices_per_node,) * full + ((rest,) if rest else ())

    def between_failures_s(self, num_nodes: int) -> float:
        """Return the mean seconds between failures of any of `num_nodes` nodes; infinite if none fails."""
        rate = self.failures_per_node_h * num_nodes
        return 3600.0 / rate if rate else math.inf

    def restarts_s(self, calibration: ThroughputCalibration) -> float:
        return calibration.restart_s if self.restart_s is None else self.restart_s


def measured_link(two: TwoWorkers) -> NetworkLink:
    """Return bandwidth and latency from the median times of the smallest and largest messages."""
    by_size: dict[int, list[float]] = {}
    for message in two.messages:
        by_size.setdefault(message.num_bytes, []).append(message.seconds)
    small, large = min(by_size), max(by_size)
    small_s, large_s = (float(np.median(by_size[size])) for size in (small, large))
    bytes_per_s = (large - small) / max(large_s - small_s, 1e-9)
    return NetworkLink(bytes_per_s=bytes_per_s, latency_s=max(0.0, small_s - small / bytes_per_s))


def measured_network(two: TwoWorkers | None, *, num_nodes: int) -> NetworkLink | None:
    """Return the link that two workers measured, if they were on `num_nodes` nodes."""
    return measured_link(two) if two is not None and two.num_nodes == num_nodes else None


def resolve_links(cluster: Cluster, nodes: Sequence[int], *, two: TwoWorkers | None, on_cuda: bool = False) -> Links:
    """Return the links between these workers.

    The stated latency between nodes is added to the latency that messages have on this machine.
    """
    intra_node, far = measured_network(two, num_nodes=1), measured_network(two, num_nodes=2)
    inside, between = cluster.inside or intra_node, cluster.between or far
    if cluster.between is not None and intra_node is not None:
        latency_s = cluster.between.latency_s + intra_node.latency_s
        between = cluster.between.model_copy(update={"latency_s": latency_s})
    world_size = sum(nodes)
    if max(nodes) > 1 and inside is None:
        raise ConfigError(
            f"{world_size} workers: the network within a node was not measured, because only one worker "
            "fits here. State it, e.g. --inside 50GB/s,5us, or calibrate where two workers fit and use "
            "--calibration."
        )
    if len(nodes) > 1 and between is None:
        raise missing_network_error(nodes)
    return Links(inside, between, two.added_bytes_per_s if two is not None else ADDED_BYTES_PER_S[on_cuda])


def missing_network_error(nodes: Sequence[int]) -> ConfigError:
    """Return the error for workers on several nodes without a known network."""
    return ConfigError(
        f"{sum(nodes)} workers need {len(nodes)} nodes: state the network between them, e.g. "
        "--network 25GB/s,5us, or put more workers on a node with --devices-per-node."
    )


def resampled_messages(two: TwoWorkers | None) -> list[TwoWorkers | None]:
    """Return the messages as measured, followed by resampled versions."""
    if two is None:
        return [None]
    rng, found = np.random.default_rng(1), [two]
    by_size: dict[int, list[int]] = {}
    for index, message in enumerate(two.messages):
        by_size.setdefault(message.num_bytes, []).append(index)
    for _ in range(NUM_MESSAGE_RESAMPLES - 1):
        chosen = [int(index) for same_size in by_size.values() for index in rng.choice(same_size, len(same_size))]
        found.append(two.model_copy(update={"messages": tuple(two.messages[index] for index in chosen)}))
    return [*found]


def without_latency(links: Links) -> Links:
    """Return the links with zero latency."""
    inside, between = (None if link is None else link.model_copy(update={"latency_s": 0.0}) for link in links[:2])
    return links._replace(inside=inside, between=between)


_RATE = re.compile(r"([\d.]+(?:e[+-]?\d+)?)\s*([kMGT]?)(B|bit)/s")
_TIME = re.compile(r"([\d.]+(?:e[+-]?\d+)?)\s*(ns|us|µs|ms|s)")
_FAILURES = re.compile(r"([\d.]+(?:e[+-]?\d+)?)\s*/\s*(h|d)")
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
HOURS = {"h": 1.0, "d": 24.0}


def parse_link(text: str, *, option: str) -> NetworkLink:
    """Parse `25GB/s,5us`: bytes or bits per second in each direction, and seconds per message."""
    rate, _, time = (part.strip() for part in text.partition(","))
    found, latency = _RATE.fullmatch(rate), _TIME.fullmatch(time) if time else None
    bytes_per_s = _number(found[1]) * _SCALE[found[2]] / (8 if found[3] == "bit" else 1) if found else 0.0
    if not bytes_per_s or (time and latency is None):
        raise ConfigError(
            f"{option} {text}: expected bandwidth and latency, e.g. 25GB/s,5us or 100Gbit/s,10us: what one "
            "node sends (and receives at the same time), and the latency of a message."
        )
    latency_s = _number(latency[1]) * _SECONDS[latency[2]] if latency else 0.0
    return NetworkLink(bytes_per_s=bytes_per_s, latency_s=latency_s)


def parse_failure_rate(text: str) -> float:
    """Parse `0.02/h`, the failures of one node per hour."""
    found = _FAILURES.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--failures {text}: expected failures of a node in an hour or a day, e.g. 0.02/h or 0.1/d.")
    return _number(found[1]) / HOURS[found[2]]


def parse_world_sizes(text: str) -> list[int]:
    """Parse `8,16,32` and return the numbers in ascending order."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise ConfigError(f"--workers {text}: expected numbers of workers, e.g. 8,16,32.")
    return sizes


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0

"""What a step adds to its passes: collectives, sums of lanes, the optimizer. All of it is estimated."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from assay.base.units import number_of
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange_plan import exchange_plan
from assay.records.devices import DeviceSheet
from assay.records.throughput import NetworkLink, ParallelMode
from assay.throughput.cluster import ADDED_BYTES_PER_S, Cluster, resolve_links
from assay.throughput.device_time import REACHED_BYTES
from assay.throughput.exchange_time import FLOAT_BYTES, Links, after_rounds, exchange_traffic
from assay.throughput.sharded import round_seconds, sharded_bytes

MESSAGE_S = 10e-6
"""Assumed cost of a message between cards."""
UPDATE_BYTES = 40
"""Bytes a weight for the gradient's norm and scale, and for AdamW, which reads four numbers and writes three."""
LANE_SUM_BYTES = 12
"""Bytes a weight to add a lane's gradient to a sum."""


class Collective(NamedTuple):
    """Communication of all workers in a step."""

    name: str
    num_bytes: int
    """Sent by the busiest worker."""
    seconds: float
    """Nothing of it overlaps with passes."""


def device_links(device: DeviceSheet, cluster: Cluster, nodes: tuple[int, ...]) -> Links:
    """Return the links between workers: as stated, else as the maker builds its nodes. Raises `ConfigError` if they
    have several nodes and the network between these is unknown."""
    inside = cluster.inside or NetworkLink(bytes_per_s=device.link_bytes_per_s, latency_s=MESSAGE_S)
    between = cluster.between
    if between is None and device.network_bytes_per_s is not None:
        rate = device.network_bytes_per_s * cluster.devices_per_node / 8
        between = NetworkLink(bytes_per_s=rate, latency_s=MESSAGE_S)
    known = cluster._replace(inside=inside, between=between)
    return resolve_links(known, nodes, two=None, on_cuda=True)._replace(added_bytes_per_s=ADDED_BYTES_PER_S[True])


def collectives(shares: LaneShares, num_weights: int, links: Links, parallel: ParallelMode) -> Iterator[Collective]:
    """Yield the collectives of a step in which the gradients of so many weights are exchanged."""
    num_bytes = FLOAT_BYTES * num_weights
    if shares.world_size == 1:
        return
    if parallel == "fsdp2":
        sent, _ = sharded_bytes(shares, num_bytes)
        seconds = shares.most * round_seconds(shares, [num_bytes], links)
        yield Collective("gathers of weights, sums of gradients", sent, seconds)
        return
    _, late = exchange_traffic(exchange_plan(shares, early=False), shares)
    ready_s = np.zeros((1, shares.world_size))
    for between, rounds in groupby(late, key=lambda traffic: bool(traffic.between.any())):
        grouped = list(rounds)
        largest = [float((traffic.own_between if between else traffic.inside).max()) for traffic in grouped]
        done_s = after_rounds(ready_s, grouped, num_bytes, links)
        name = f"sum of gradients {'between' if between else 'inside'} nodes, {number_of(len(grouped), 'round')}"
        yield Collective(name, round(num_bytes * sum(largest)), float(done_s.max() - ready_s.max()))
        ready_s = done_s


def update_seconds(num_weights: int, num_lanes: int, device: DeviceSheet, *, num_shards: int = 1) -> float:
    """Return the seconds of a worker for the sums of its lanes and the optimizer."""
    num_bytes = num_weights * (UPDATE_BYTES + LANE_SUM_BYTES * num_lanes) / num_shards
    return num_bytes / (REACHED_BYTES * device.memory_bytes_per_s)

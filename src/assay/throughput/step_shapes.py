"""The estimated time of a step: passes, collectives, sums of lanes, optimizer; and what a change of shapes saves."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from assay.base.units import number_of
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange_plan import exchange_plan
from assay.models.traced import PassTrace
from assay.records.devices import DeviceSheet
from assay.records.throughput import NetworkLink
from assay.throughput.cluster import Cluster, resolve_links
from assay.throughput.device_time import REACHED_BYTES, PassTime
from assay.throughput.exchange_time import FLOAT_BYTES, Links, after_rounds, exchange_traffic
from assay.throughput.shape_changes import ADDS_WORK, ShapeChange
from assay.throughput.sharded import round_seconds, sharded_bytes

MESSAGE_S = 10e-6
"""Assumed cost of a message between cards."""
UPDATE_BYTES = 40
"""Bytes a weight for the gradient's norm and scale, and for AdamW, which reads four numbers and writes three."""
LANE_SUM_BYTES = 12
"""Bytes a weight to add a lane's gradient to a sum."""


class Collective(NamedTuple):
    """Communication of all workers in a step; nothing of it overlaps with passes."""

    name: str
    num_bytes: int
    """Sent by the busiest worker."""
    seconds: float


class StepEstimate(NamedTuple):
    """The estimated time of a step."""

    trace: PassTrace
    """A pass over the micro-batch with a median number of tokens."""
    pass_time: PassTime
    num_passes: float
    """Passes of the busiest worker."""
    num_tokens: float
    """Computed by all workers, padding counted."""
    exchange: tuple[Collective, ...]
    update_s: float

    @property
    def passes_s(self) -> float:
        return self.num_passes * self.pass_time.seconds

    @property
    def rest_s(self) -> float:
        return self.update_s + sum(part.seconds for part in self.exchange)

    @property
    def seconds(self) -> float:
        return self.passes_s + self.rest_s

    def corrected(self, factors: PassTime) -> "StepEstimate":
        """Return the step with each part of its passes as many times as long."""
        parts = zip(self.pass_time, factors, strict=True)
        return self._replace(pass_time=PassTime(*(seconds * factor for seconds, factor in parts)))


class Saved(NamedTuple):
    """What a change saves, as shares of a step's time: for as many tokens, and for as much arithmetic of the model."""

    time: float
    waste: float


def saved(step: StepEstimate, changed: StepEstimate, change: ShapeChange) -> Saved:
    """Return what a change saves, without the updates that a larger batch has fewer of for as many tokens."""
    share = step.num_tokens / changed.num_tokens
    seconds = share * changed.passes_s + (changed if change.changes == "model" else step).rest_s
    work = share * (changed.num_passes * changed.trace.flops) / (step.num_passes * step.trace.flops)
    left = seconds / step.seconds
    # While a pass waits for the host, more work for the device costs nothing, and is no gain either.
    is_scaled = change.aspect in ADDS_WORK and not step.pass_time.host
    return Saved(1.0 - left, 1.0 - left / (work if is_scaled else 1.0))


def collectives(shares: LaneShares, num_weights: int, device: DeviceSheet, cluster: Cluster) -> Iterator[Collective]:
    """Yield the collectives of a step in which the gradients of so many weights are exchanged. Raises `ConfigError` if
    there are several nodes and the network between them is unknown."""
    if shares.world_size == 1:
        return
    num_bytes, links = FLOAT_BYTES * num_weights, _links(device, cluster, shares.nodes)
    if shares.interleaved:
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


def _links(device: DeviceSheet, cluster: Cluster, nodes: tuple[int, ...]) -> Links:
    """Return the links between workers: as stated, else as the maker builds its nodes."""
    inside = cluster.inside or NetworkLink(bytes_per_s=device.link_bytes_per_s, latency_s=MESSAGE_S)
    between = cluster.between
    if between is None and device.network_bytes_per_s is not None:
        rate = device.network_bytes_per_s * cluster.devices_per_node / 8
        between = NetworkLink(bytes_per_s=rate, latency_s=MESSAGE_S)
    known = cluster._replace(inside=inside, between=between)
    return resolve_links(known, nodes, two=None, on_cuda=True)


def update_seconds(num_weights: int, shares: LaneShares, device: DeviceSheet) -> float:
    """Return the seconds of a worker for the sums of its lanes and the optimizer."""
    num_bytes = num_weights * (UPDATE_BYTES + LANE_SUM_BYTES * shares.most)
    num_shards = shares.world_size if shares.interleaved else 1
    return num_bytes / (num_shards * REACHED_BYTES * device.memory_bytes_per_s)

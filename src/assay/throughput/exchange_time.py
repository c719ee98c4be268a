"""What the exchange of gradients takes: the plan that ranks carry out, walked through in seconds.

A round ends for a rank when its peers have come to it, and what it sends and takes in is through:

    round of a rank = latest of its peers + latency + bytes / bandwidth + what it adds / rate of adding

Inside a node every rank has a link of its own; ranks of a node share what leaves it. The bytes are those of
the plan, counted part by part.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from assay.base.shapes import Float64, Int64
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange_plan import Cells, ExchangePlan, ExchangeRound
from assay.records.throughput import NetworkLink

FLOAT_BYTES = 4
"""Gradients are summed in float32."""


class Links(NamedTuple):
    """What lies between ranks, and what adding costs."""

    inside: NetworkLink | None
    """None where no two ranks share a node."""
    between: NetworkLink | None
    """None where there is one node."""
    added_bytes_per_s: float


class RoundTraffic(NamedTuple):
    """One round, for a buffer of any size."""

    peers: Int64[np.ndarray, "rank peer"]
    """Whom each rank waits for; itself where it has fewer."""
    is_inside: Float64[np.ndarray, "rank"]
    """1 where it has messages within its node, else 0;"""
    inside: Float64[np.ndarray, "rank"]
    """and the share of the buffer that they are, the larger of the two directions."""
    is_between: Float64[np.ndarray, "rank"]
    between: Float64[np.ndarray, "rank"]
    """Likewise to and from other nodes; the share that the busiest node on its way has to let through."""
    own_between: Float64[np.ndarray, "rank"]
    """Its own part of that."""
    added: Float64[np.ndarray, "rank"]
    """The share that it adds afterwards."""

    def seconds(self, num_bytes: float, links: Links) -> Float64[np.ndarray, "rank"]:
        """Once its peers are there, of a buffer of so many bytes."""
        took = self.added * num_bytes / links.added_bytes_per_s
        inside_s = self.inside * 0.0
        if links.inside is not None:
            inside_s = self.is_inside * links.inside.latency_s + self.inside * (
                num_bytes / links.inside.bytes_per_s
            )
        between_s = self.between * 0.0
        if links.between is not None:
            between_s = self.between * (num_bytes / links.between.bytes_per_s)
            if links.inside is not None:  # no rank sends faster than it can within its node
                between_s = np.maximum(between_s, self.own_between * (num_bytes / links.inside.bytes_per_s))
            between_s += self.is_between * links.between.latency_s
        total: Float64[np.ndarray, "rank"] = took + np.maximum(inside_s, between_s)
        return total


class ExchangeTraffic(NamedTuple):
    """A whole exchange."""

    early: tuple[tuple[RoundTraffic, ...], ...]
    """[stage]: its rounds."""
    late: tuple[RoundTraffic, ...]


def exchange_traffic(plan: ExchangePlan, shares: LaneShares) -> ExchangeTraffic:
    """The plan's rounds, as shares of a buffer."""
    node_of = [node for node, ranks in enumerate(shares.ranks_of_nodes) for _ in ranks]
    rounds = iter(
        _round_traffic([of_rank.rounds[number] for of_rank in plan.ranks], plan.num_cells, node_of)
        for number in range(len(plan.ranks[0].rounds))
    )
    return ExchangeTraffic(tuple(tuple(islice(rounds, size)) for size in plan.stages), tuple(rounds))


def sent_bytes(plan: ExchangePlan, shares: LaneShares, buckets: Sequence[int]) -> tuple[int, int]:
    """What the rank that sends the most sends in one step, and what leaves the node that sends the most.

    `buckets`: bytes of each; they are exchanged one by one.
    """
    node_of = [node for node, ranks in enumerate(shares.ranks_of_nodes) for _ in ranks]
    by_rank, by_node = defaultdict[int, int](int), defaultdict[int, int](int)
    for rank, of_rank in enumerate(plan.ranks):
        for part in (part for each in of_rank.rounds for part in each.sends):
            num_bytes = sum(FLOAT_BYTES * _width(part.cells, plan, bucket // FLOAT_BYTES) for bucket in buckets)
            by_rank[rank] += num_bytes
            if node_of[part.peer] != node_of[rank]:
                by_node[node_of[rank]] += num_bytes
    return max(by_rank.values(), default=0), max(by_node.values(), default=0)


def _width(cells: Cells, plan: ExchangePlan, numbers: int) -> int:
    """Numbers of a stretch of cells, as an `Exchange` cuts a buffer."""
    return cells.stop * numbers // plan.num_cells - cells.first * numbers // plan.num_cells


class _RankTraffic(NamedTuple):
    """A rank's parts of a round, as shares of the buffer."""

    sent: float
    taken: float
    peers: frozenset[int]

    @classmethod
    def of(cls, made: ExchangeRound, others: Collection[int], num_cells: int) -> "_Sides":
        """Those that go to these or come from them."""
        sends, receives = (
            [part for part in parts if part.peer in others] for parts in (made.sends, made.receives)
        )
        sent, taken = (
            sum(part.cells.stop - part.cells.first for part in parts) / num_cells for parts in (sends, receives)
        )
        return cls(sent, taken, frozenset(part.peer for part in (*sends, *receives)))


def _round_traffic(now: Sequence[ExchangeRound], num_cells: int, node_of: Sequence[int]) -> RoundTraffic:
    ranks = range(len(now))
    node_peers = [{peer for peer in ranks if node_of[peer] == node_of[rank]} for rank in ranks]
    intra_node = [_RankTraffic.of(made, home, num_cells) for made, home in zip(now, node_peers, strict=True)]
    inter_node = [
        _RankTraffic.of(made, {*ranks} - home, num_cells) for made, home in zip(now, node_peers, strict=True)
    ]
    traffic = np.zeros((2, max(node_of) + 1))
    for rank, sides in enumerate(inter_node):
        traffic[:, node_of[rank]] += sides.sent, sides.taken
    busiest = [
        max((traffic[:, node_of[each]].max() for each in {rank, *sides.peers}), default=0.0)
        if sides.peers
        else 0.0
        for rank, sides in enumerate(inter_node)
    ]
    peers = [sorted(a.peers | b.peers) for a, b in zip(intra_node, inter_node, strict=True)]
    most = max(1, *map(len, peers))
    return RoundTraffic(
        peers=np.array([each + [rank] * (most - len(each)) for rank, each in enumerate(peers)], np.int64),
        is_inside=np.array([bool(sides.peers) for sides in intra_node], np.float64),
        inside=np.array([max(sides.sent, sides.taken) for sides in intra_node], np.float64),
        is_between=np.array([bool(sides.peers) for sides in inter_node], np.float64),
        between=np.array(busiest, np.float64),
        own_between=np.array([max(sides.sent, sides.taken) for sides in inter_node], np.float64),
        added=np.array([_added_cells(made) / num_cells for made in now], np.float64),
    )


def _added_cells(made: ExchangeRound) -> int:
    return sum(cells.stop - cells.first for _, _, cells in made.additions)


def after_rounds(
    ready_s: Float64[np.ndarray, "draw rank"],
    rounds: Sequence[RoundTraffic],
    num_bytes: float,
    links: Links,
) -> Float64[np.ndarray, "draw rank"]:
    """When each rank is through these rounds, where it comes to them at `free_s`."""
    for each in rounds:
        ready_s = np.maximum(ready_s, ready_s[:, each.peers].max(axis=2)) + each.seconds(num_bytes, links)
    return ready_s

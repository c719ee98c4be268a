"""Simulates the time of a gradient exchange by walking through the plan that ranks execute.

A round ends for a rank when its peers have reached it, and its messages are sent and received:

    round of a rank = latest of its peers + latency + bytes / bandwidth + added bytes / rate of adding

Within a node every rank has its own link; the ranks of a node share the link to other nodes.
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
    """The network between ranks, and the rate at which a rank adds gradients."""

    inside: NetworkLink | None
    """None if no two ranks share a node."""
    between: NetworkLink | None
    """None if there is one node."""
    added_bytes_per_s: float


class RoundTraffic(NamedTuple):
    """Traffic of one round, as shares of a buffer of any size."""

    peers: Int64[np.ndarray, "rank peer"]
    """The ranks that each rank waits for, padded with its own."""
    is_inside: Float64[np.ndarray, "rank"]
    """1 if the rank exchanges messages within its node, else 0."""
    inside: Float64[np.ndarray, "rank"]
    """Share of the buffer sent or received within the node, whichever is larger."""
    is_between: Float64[np.ndarray, "rank"]
    between: Float64[np.ndarray, "rank"]
    """Share that the busiest node on the rank's route sends or receives, because ranks of a node share its
    link."""
    own_between: Float64[np.ndarray, "rank"]
    """Share that the rank itself sends to or receives from other nodes."""
    added: Float64[np.ndarray, "rank"]
    """Share that the rank adds after the round."""

    def seconds(self, num_bytes: float, links: Links) -> Float64[np.ndarray, "rank"]:
        """Return each rank's seconds for this round of a buffer of `num_bytes`, once its peers are ready."""
        adding_s = self.added * num_bytes / links.added_bytes_per_s
        inside_s = self.inside * 0.0
        if links.inside is not None:
            inside_s = self.is_inside * links.inside.latency_s + self.inside * (num_bytes / links.inside.bytes_per_s)
        between_s = self.between * 0.0
        if links.between is not None:
            between_s = self.between * (num_bytes / links.between.bytes_per_s)
            if links.inside is not None:  # no rank sends faster than it can within its node
                between_s = np.maximum(between_s, self.own_between * (num_bytes / links.inside.bytes_per_s))
            between_s += self.is_between * links.between.latency_s
        total: Float64[np.ndarray, "rank"] = adding_s + np.maximum(inside_s, between_s)
        return total


Rounds = tuple[RoundTraffic, ...]


def exchange_traffic(plan: ExchangePlan, shares: LaneShares) -> tuple[tuple[Rounds, ...], Rounds]:
    """Return the rounds of `plan`: of each stage that overlaps with backward passes, and after the last pass."""
    node_of = [node for node, ranks in enumerate(shares.ranks_of_nodes) for _ in ranks]
    rounds = iter(
        _round_traffic([of_rank.rounds[number] for of_rank in plan.ranks], plan.num_cells, node_of)
        for number in range(len(plan.ranks[0].rounds))
    )
    return tuple(tuple(islice(rounds, size)) for size in plan.stages), tuple(rounds)


def sent_bytes(plan: ExchangePlan, shares: LaneShares, buckets: Sequence[int]) -> tuple[int, int]:
    """Return the bytes per step sent by the busiest rank, and by the busiest node to other nodes.

    `buckets` holds the bytes of each bucket; they are exchanged one by one.
    """
    node_of = [node for node, ranks in enumerate(shares.ranks_of_nodes) for _ in ranks]
    by_rank, by_node = defaultdict[int, int](int), defaultdict[int, int](int)
    for rank, of_rank in enumerate(plan.ranks):
        for part in (part for exchange_round in of_rank.rounds for part in exchange_round.sends):
            num_bytes = sum(FLOAT_BYTES * _width(part.cells, plan, bucket // FLOAT_BYTES) for bucket in buckets)
            by_rank[rank] += num_bytes
            if node_of[part.peer] != node_of[rank]:
                by_node[node_of[rank]] += num_bytes
    return max(by_rank.values(), default=0), max(by_node.values(), default=0)


def _width(cells: Cells, plan: ExchangePlan, numbers: int) -> int:
    """Return how many numbers a range of cells holds, rounded as `Exchange` cuts a buffer."""
    return cells.stop * numbers // plan.num_cells - cells.start * numbers // plan.num_cells


def _rank_traffic(
    exchange_round: ExchangeRound, others: Collection[int], num_cells: int
) -> tuple[float, float, frozenset[int]]:
    """Return what a rank sends to the ranks in `others` and receives from them, as shares of the buffer, and those
    with which it exchanges anything."""
    sends, receives = (
        [part for part in parts if part.peer in others] for parts in (exchange_round.sends, exchange_round.receives)
    )
    sent, received = (
        sum(part.cells.stop - part.cells.start for part in parts) / num_cells for parts in (sends, receives)
    )
    return sent, received, frozenset(part.peer for part in (*sends, *receives))


def _round_traffic(rank_rounds: Sequence[ExchangeRound], num_cells: int, node_of: Sequence[int]) -> RoundTraffic:
    ranks = range(len(rank_rounds))
    node_peers = [{peer for peer in ranks if node_of[peer] == node_of[rank]} for rank in ranks]
    intra_node = [
        _rank_traffic(exchange_round, home, num_cells)
        for exchange_round, home in zip(rank_rounds, node_peers, strict=True)
    ]
    inter_node = [
        _rank_traffic(exchange_round, {*ranks} - home, num_cells)
        for exchange_round, home in zip(rank_rounds, node_peers, strict=True)
    ]
    node_traffic = np.zeros((2, max(node_of) + 1))
    for rank, (sent, received, _) in enumerate(inter_node):
        node_traffic[:, node_of[rank]] += sent, received
    busiest = [
        max(node_traffic[:, node_of[peer]].max() for peer in {rank, *far}) if far else 0.0
        for rank, (_, _, far) in enumerate(inter_node)
    ]
    peers = [sorted(near | far) for (_, _, near), (_, _, far) in zip(intra_node, inter_node, strict=True)]
    max_peers = max(1, *map(len, peers))
    return RoundTraffic(
        peers=np.array([of_rank + [rank] * (max_peers - len(of_rank)) for rank, of_rank in enumerate(peers)], np.int64),
        is_inside=np.array([bool(near) for _, _, near in intra_node], np.float64),
        inside=np.array([max(sent, received) for sent, received, _ in intra_node], np.float64),
        is_between=np.array([bool(far) for _, _, far in inter_node], np.float64),
        between=np.array(busiest, np.float64),
        own_between=np.array([max(sent, received) for sent, received, _ in inter_node], np.float64),
        added=np.array([_added_cells(exchange_round) / num_cells for exchange_round in rank_rounds], np.float64),
    )


def _added_cells(exchange_round: ExchangeRound) -> int:
    return sum(cells.stop - cells.start for _, _, cells in exchange_round.additions)


def after_rounds(
    ready_s: Float64[np.ndarray, "sample rank"],
    rounds: Sequence[RoundTraffic],
    num_bytes: float,
    links: Links,
) -> Float64[np.ndarray, "sample rank"]:
    """Return when each rank finishes these rounds if it is ready for them at `ready_s`."""
    for traffic in rounds:
        ready_s = np.maximum(ready_s, ready_s[:, traffic.peers].max(axis=2)) + traffic.seconds(num_bytes, links)
    return ready_s

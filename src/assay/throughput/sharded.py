"""What sharded weights (FSDP2) cost on so many workers, in closed form: bytes, seconds, room.

    a round of lanes, one a worker:  gather | forward | gather | backward | a chunk of its lane to every other

A bucket of B bytes is W chunks of B / W. A gather hands them round in a ring, in W - 1 messages of a chunk;
gradients go to every worker in as many, at distance 1, 2, ... . Nothing is hidden behind arithmetic, and ranks
that meet in every gather wait in every round for its slowest lane. All layers are taken as gathered twice, in
float32, and as many as the gradients have buckets.
"""

from collections.abc import Sequence
from typing import NamedTuple

from assay.data.loader.lane_shares import LaneShares
from assay.records.throughput import NetworkLink
from assay.throughput.exchange_time import Links

GATHERS = 2
"""Times that a layer's weights are gathered for each lane: before forward and before backward."""
COPIES = 4
"""What a worker holds of its shard: weights, gradients, and AdamW's two moments."""


class ShardedMemory(NamedTuple):
    """Bytes that a worker holds, beside activations and the layer that is gathered."""

    shard: int
    """Weights, gradients and moments."""
    sums: int
    """Sums of lanes that wait for others, at most."""


def round_seconds(shares: LaneShares, buckets: Sequence[int], links: Links) -> float:
    """What crosses the workers for one lane of each."""
    return sum(
        GATHERS * _ring_s(shares, num_bytes, links) + _exchange_s(shares, num_bytes, links)
        for num_bytes in buckets
    )


def sharded_bytes(shares: LaneShares, num_bytes: int) -> tuple[int, int]:
    """What a worker sends for an update, and what leaves the node that sends the most."""
    size, rounds = shares.world_size, shares.most
    share = num_bytes * (size - 1) / size
    sent = rounds * (GATHERS + 1) * share
    if len(shares.nodes) < 2:
        return round(sent), 0
    crossing = max(len(ranks) * (size - len(ranks)) for ranks in shares.ranks_of_nodes)
    return round(sent), round(rounds * (GATHERS * share + num_bytes * crossing / size))


def sharded_memory(shares: LaneShares, num_bytes: int) -> ShardedMemory:
    """A worker's counter of lanes holds a sum for each power of two in their number so far."""
    chunk = -(-num_bytes // shares.world_size)
    return ShardedMemory(COPIES * chunk, (shares.num_lanes.bit_length() - 1) * chunk)


def _ring_s(shares: LaneShares, num_bytes: int, links: Links) -> float:
    """Each to its neighbour: of a node's messages one goes out and one comes in."""
    chunk = num_bytes / shares.world_size
    intra_node = [links.inside] if max(shares.nodes or (shares.world_size,)) > 1 else []
    far = [links.between] if len(shares.nodes) > 1 else []
    return (shares.world_size - 1) * max(_message_s(link, chunk) for link in (*intra_node, *far))


def _exchange_s(shares: LaneShares, num_bytes: int, links: Links) -> float:
    """At each distance the messages of a node that cross share what leaves it."""
    size, chunk, total_s = shares.world_size, num_bytes / shares.world_size, 0.0
    for distance in range(1, size):
        crossing = [
            sum((rank + distance) % size not in ranks for rank in ranks) for ranks in shares.ranks_of_nodes
        ]
        is_inside = any(
            len(ranks) > inter_node for ranks, inter_node in zip(shares.ranks_of_nodes, crossing, strict=True)
        )
        inside_s = _message_s(links.inside, chunk) if is_inside else 0.0
        between_s = _message_s(links.between, max(crossing) * chunk) if any(crossing) else 0.0
        total_s += max(inside_s, between_s)
    return total_s


def _message_s(link: NetworkLink | None, num_bytes: float) -> float:
    assert link is not None, "who asks for a forecast has said what lies there"
    return link.latency_s + num_bytes / link.bytes_per_s

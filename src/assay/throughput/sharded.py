"""Costs of sharded weights (FSDP2) in closed form: bytes, seconds, memory.

    a round of lanes, one per worker:  gather | forward | gather | backward | a chunk of its lane to every other

A bucket of B bytes is W chunks of B / W. A gather passes them around a ring, in W - 1 messages of one chunk.
Gradients are sent to every other worker in as many messages, at distances 1, 2, ... . Nothing overlaps with
compute, and in every round all ranks wait for the slowest lane. All layers are counted as gathered twice, in
float32, in as many messages as the gradients have buckets.
"""

from collections.abc import Sequence

from assay.data.loader.lane_shares import LaneShares
from assay.records.throughput import NetworkLink
from assay.throughput.exchange_time import Links

GATHERS = 2
"""A layer's weights are gathered for each lane before forward and again before backward."""
COPIES = 4
"""Tensors that a worker holds of its shard: weights, gradients, and AdamW's two moments."""


def round_seconds(shares: LaneShares, buckets: Sequence[int], links: Links) -> float:
    """Return the seconds of communication for one lane per worker."""
    return sum(
        GATHERS * _ring_s(shares, num_bytes, links) + _exchange_s(shares, num_bytes, links) for num_bytes in buckets
    )


def sharded_bytes(shares: LaneShares, num_bytes: int) -> tuple[int, int]:
    """Return the bytes sent per update by a worker, and by the busiest node to other nodes."""
    size, rounds = shares.world_size, shares.most
    share = num_bytes * (size - 1) / size
    sent = rounds * (GATHERS + 1) * share
    if len(shares.nodes) < 2:
        return round(sent), 0
    crossing = max(len(ranks) * (size - len(ranks)) for ranks in shares.ranks_of_nodes)
    return round(sent), round(rounds * (GATHERS * share + num_bytes * crossing / size))


def sharded_memory(shares: LaneShares, num_bytes: int) -> tuple[int, int]:
    """Return the bytes of a worker's shard (weights, gradients and moments), and at most of its waiting lane sums.

    Lane sums form a binary counter, so up to log2(lanes) sums wait for their partner in the summation tree.
    Activations and the gathered layer come on top.
    """
    chunk = -(-num_bytes // shares.world_size)
    return COPIES * chunk, (shares.num_lanes.bit_length() - 1) * chunk


def _ring_s(shares: LaneShares, num_bytes: int, links: Links) -> float:
    """Every rank sends to its neighbour, so one message leaves each node and one enters it."""
    chunk = num_bytes / shares.world_size
    intra_node = [links.inside] if max(shares.nodes or (shares.world_size,)) > 1 else []
    far = [links.between] if len(shares.nodes) > 1 else []
    return (shares.world_size - 1) * max(_message_s(link, chunk) for link in (*intra_node, *far))


def _exchange_s(shares: LaneShares, num_bytes: int, links: Links) -> float:
    """At each distance, the messages of a node that leave it share its link."""
    size, chunk, total_s = shares.world_size, num_bytes / shares.world_size, 0.0
    for distance in range(1, size):
        crossing = [sum((rank + distance) % size not in ranks for rank in ranks) for ranks in shares.ranks_of_nodes]
        is_inside = any(
            len(ranks) > inter_node for ranks, inter_node in zip(shares.ranks_of_nodes, crossing, strict=True)
        )
        inside_s = _message_s(links.inside, chunk) if is_inside else 0.0
        between_s = _message_s(links.between, max(crossing) * chunk) if any(crossing) else 0.0
        total_s += max(inside_s, between_s)
    return total_s


def _message_s(link: NetworkLink | None, num_bytes: float) -> float:
    assert link is not None, "the network is known"
    return link.latency_s + num_bytes / link.bytes_per_s

"""Assigns lanes to ranks, for any world size up to the number of lanes.

The sum over lanes is a fixed binary tree. A rank with n lanes holds one aligned block for each power of two in n
(5 lanes: a block of 4 and a block of 1) and sums each block locally. Blocks are assigned largest first, which
keeps all of them aligned without gaps.

    blocks         rank 0: 0 1 + 6   rank 1: 2 3 + 7   rank 2: 4 5    a rank sums its own lanes first
    interleaved    rank 0: 0 3 6     rank 1: 1 4 7     rank 2: 2 5    each round of lanes is summed over ranks
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

import numpy as np

from assay.base.errors import ConfigError
from assay.base.shapes import Int64


class LaneBlock(NamedTuple):
    """An aligned block of lanes, whose sum is one node of the tree: 2^k lanes from a multiple of 2^k on."""

    first: int
    size: int
    rank: int

    @property
    def lanes(self) -> range:
        return range(self.first, self.first + self.size)


@dataclass(frozen=True)
class LaneShares:
    """The lanes of all ranks. Raises `ConfigError` if the world size exceeds the number of lanes."""

    num_lanes: int
    world_size: int
    interleaved: bool = False
    nodes: tuple[int, ...] = ()
    """Number of (consecutive) ranks on each node; by default all ranks share one node."""
    explicit_loads: tuple[int, ...] | None = None
    """Lanes of each rank, at least one, e.g. from `loads_by_speed`; by default `equal_loads`."""

    def __post_init__(self) -> None:
        if not 1 <= self.world_size <= self.num_lanes:
            raise ConfigError(
                f"--workers {self.world_size}: loader.lanes={self.num_lanes} can be shared by 1 to "
                f"{self.num_lanes} workers, each with at least one lane. Use fewer workers, or a recipe with more "
                "lanes, which changes the row order."
            )
        assert not self.nodes or (sum(self.nodes) == self.world_size and min(self.nodes) > 0), self.nodes
        loads = self.explicit_loads
        if loads is not None:
            assert len(loads) == self.world_size and min(loads) > 0 and sum(loads) == self.num_lanes, loads
            assert not self.interleaved, "interleaved lanes are shared equally"

    @classmethod
    def alone(cls, num_lanes: int) -> Self:
        return cls(num_lanes, 1)

    @cached_property
    def loads(self) -> tuple[int, ...]:
        if self.interleaved:
            return tuple(len(self.of_rank(rank)) for rank in range(self.world_size))
        return self.explicit_loads or equal_loads(self.num_lanes, self.nodes or (self.world_size,))

    @property
    def most(self) -> int:
        return max(self.loads)

    @property
    def ranks_of_nodes(self) -> list[range]:
        stops = accumulate(self.nodes or (self.world_size,))
        return [range(first, stop) for first, stop in pairwise((0, *stops))]

    @cached_property
    def blocks(self) -> tuple[LaneBlock, ...]:
        assert not self.interleaved, "interleaved lanes form no blocks"
        of_nodes: list[list[range]] = [[] for _ in self.ranks_of_nodes]
        sizes = [sum(self.loads[rank] for rank in ranks) for ranks in self.ranks_of_nodes]
        for node, lanes in _assign_blocks(sizes, [range(self.num_lanes)]):
            of_nodes[node].append(lanes)
        found = [
            LaneBlock(lanes.start, len(lanes), ranks[index])
            for ranks, of_node in zip(self.ranks_of_nodes, of_nodes, strict=True)
            for index, lanes in _assign_blocks([self.loads[rank] for rank in ranks], of_node)
        ]
        return tuple(sorted(found))

    def blocks_of(self, rank: int) -> tuple[LaneBlock, ...]:
        """Return a rank's blocks in processing order: the largest last."""
        return tuple(sorted((block for block in self.blocks if block.rank == rank), key=lambda block: block.size))

    def of_rank(self, rank: int) -> tuple[int, ...]:
        if self.interleaved:
            return tuple(range(rank, self.num_lanes, self.world_size))
        return tuple(lane for block in self.blocks_of(rank) for lane in block.lanes)


def _assign_blocks(loads: Sequence[int], blocks: Sequence[range]) -> Iterator[tuple[int, range]]:
    """Yield (owner, aligned block of lanes) for each power of two in each load, largest first.

    `blocks` are aligned blocks with as many lanes in total, largest first. An assigned block never crosses the
    end of one of them, because each is a multiple of all sizes still to come.
    """
    lanes = [lane for block in blocks for lane in block]
    sizes = [(size, owner) for owner, load in enumerate(loads) for size in powers_of_two(load)]
    start = 0
    for size, owner in sorted(sizes, key=lambda item: (-item[0], item[1])):
        yield owner, range(lanes[start], lanes[start] + size)
        start += size


def powers_of_two(load: int) -> list[int]:
    """Return the powers of two that sum to `load`, largest first."""
    return [1 << power for power in reversed(range(load.bit_length())) if load >> power & 1]


@lru_cache(maxsize=64)
def equal_loads(num_lanes: int, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Return loads that minimize the largest load, and then the number of blocks.

    A step takes as long as the rank with the most lanes, and every block is a partial sum that ranks exchange.
    Within a node the larger loads come first.
    """
    most = -(-num_lanes // sum(nodes))
    loads = _of_fewest_blocks([most] * sum(nodes), num_lanes, nodes)
    return tuple(load for ranks in _neighbours(nodes, loads) for load in sorted(ranks, reverse=True))


LEAST_GAIN = 0.05
"""Relative gain of step time below which equal loads are kept: it is within measurement error."""


def loads_by_speed(lane_s: Sequence[float], num_lanes: int, nodes: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return loads that minimize the slowest rank's time, and then the number of blocks.

    Rank r takes `lane_s[r]` seconds a lane. Every rank has at least one lane. Equal loads are returned if others
    gain less than `LEAST_GAIN`.
    """
    nodes = nodes or (len(lane_s),)
    equal = equal_loads(num_lanes, nodes)
    least_s = _least_seconds(lane_s, num_lanes)
    if least_s > (1 - LEAST_GAIN) * max(load * seconds for load, seconds in zip(equal, lane_s, strict=True)):
        return equal
    # The factor absorbs rounding: (n * s) / s may be slightly less than n.
    most = [max(1, math.floor(least_s / seconds * (1 + 1e-9))) for seconds in lane_s]
    return tuple(_of_fewest_blocks(most, num_lanes, nodes))


def _least_seconds(lane_s: Sequence[float], num_lanes: int) -> float:
    """Return the least possible time of the slowest rank: greedily give each lane to the rank done first."""
    done_s = [(2 * seconds, seconds) for seconds in lane_s]
    heapq.heapify(done_s)
    least_s = max(lane_s)
    for _ in range(num_lanes - len(lane_s)):
        now_s, seconds = done_s[0]
        heapq.heapreplace(done_s, (now_s + seconds, seconds))
        least_s = max(least_s, now_s)
    return least_s


def _neighbours(nodes: Sequence[int], of_ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    for first, stop in pairwise((0, *accumulate(nodes))):
        yield of_ranks[first:stop]


def _of_fewest_blocks(most: Sequence[int], num_lanes: int, nodes: tuple[int, ...]) -> list[int]:
    """Return loads of at most `most[rank]` lanes with the fewest blocks.

    Blocks of nodes are minimized before blocks of ranks, because ranks of a node combine theirs first.
    """
    of_load = {load: _blocks_up_to(load, max(most)) for load in set(most)}
    ranks_of_nodes = [[of_load[rank] for rank in ranks] for ranks in _neighbours(nodes, most)]
    of_ranks = {
        tuple(ranks): _fewest_blocks([of_load[rank] for rank in ranks], num_lanes)[-1]
        for ranks in set(map(tuple, _neighbours(nodes, most)))
    }
    alone = np.array([load.bit_count() for load in range(num_lanes + 1)], np.int64)
    more = num_lanes * len(nodes)
    of_nodes = [np.minimum(more * alone + of_ranks[tuple(ranks)], _UNREACHABLE) for ranks in _neighbours(nodes, most)]
    shared = _loads(of_nodes, num_lanes)
    return [load for costs, of_node in zip(ranks_of_nodes, shared, strict=True) for load in _loads(costs, of_node)]


def _blocks_up_to(most: int, largest: int) -> "Costs":
    """Return the number of blocks for loads of 1 to `most`; other loads up to `largest` are unreachable."""
    blocks = np.array([load.bit_count() for load in range(largest + 1)], np.int64)
    blocks[0] = blocks[most + 1 :] = _UNREACHABLE
    return blocks


_UNREACHABLE = np.iinfo(np.int64).max // 4


Costs = Int64[np.ndarray, "load"]
"""[load]: cost of a rank or node with that many lanes."""


def _fewest_blocks(costs: Sequence[Costs], num_lanes: int) -> list[Int64[np.ndarray, "lane"]]:
    """Return tables[n][lanes]: the least cost at which the first n ranks share so many lanes."""
    least = np.full(num_lanes + 1, _UNREACHABLE, np.int64)
    least[0] = 0
    tables = [least]
    for of_load in costs:
        shared = np.full(num_lanes + 1, _UNREACHABLE, np.int64)
        for load in np.flatnonzero(of_load[: num_lanes + 1] < _UNREACHABLE).tolist():
            shared[load:] = np.minimum(shared[load:], tables[-1][: num_lanes + 1 - load] + of_load[load])
        tables.append(np.minimum(shared, _UNREACHABLE))
    return tables


def _loads(costs: Sequence[Costs], num_lanes: int) -> list[int]:
    """Return the loads of least cost; ties give the largest load to the first rank."""
    tables = _fewest_blocks(costs[::-1], num_lanes)
    left, loads = num_lanes, []
    for of_load, whole, rest in zip(costs, tables[:0:-1], tables[-2::-1], strict=True):
        possible = range(min(len(of_load) - 1, left), 0, -1)
        load = next(n for n in possible if of_load[n] < _UNREACHABLE and rest[left - n] + of_load[n] == whole[left])
        loads.append(load)
        left -= load
    return loads


def useful_world_size(num_lanes: int, world_size: int) -> int:
    """Return the fewest ranks whose largest load equals that of `world_size`; more ranks save no time."""
    most = -(-num_lanes // world_size)
    return -(-num_lanes // most)


def next_useful_world_size(num_lanes: int, world_size: int) -> int | None:
    """Return the fewest ranks with a smaller largest load; None if that load is 1."""
    most = -(-num_lanes // world_size)
    return -(-num_lanes // (most - 1)) if most > 1 else None

"""Which lanes each rank works on, for any number of ranks of at most that of lanes.

The one place that knows the rule. The sum over lanes is a binary tree, so a rank with n lanes holds one
aligned block for each power of two in n, and sums each block by itself: one of 5 lanes has a block of 4 and
one of 1. The blocks of all ranks are handed out largest first, each behind the last, which keeps them aligned
without a gap.

    blocks         rank 0: 0 1 + 6   rank 1: 2 3 + 7   rank 2: 4 5    a rank adds its own lanes first
    interleaved    rank 0: 0 3 6     rank 1: 1 4 7     rank 2: 2 5    each round of lanes is added over the
    ranks
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
    """Lanes whose sum is one node of the tree: 2^k of them, from a multiple of 2^k on."""

    first: int
    size: int
    rank: int

    @property
    def lanes(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.size)


@dataclass(frozen=True)
class LaneShares:
    """The lanes of all ranks; `ConfigError` for a number of ranks that cannot share them."""

    num_lanes: int
    world_size: int
    interleaved: bool = False
    nodes: tuple[int, ...] = ()
    """Ranks of each node, neighbours; by default, all are on one."""
    explicit_loads: tuple[int, ...] | None = None
    """[rank]: how many lanes it has, at least one, e.g. `loads_by_speed`; by default, `equal_loads`."""

    def __post_init__(self) -> None:
        if not 1 <= self.world_size <= self.num_lanes:
            raise ConfigError(
                f"--workers {self.world_size}: loader.lanes={self.num_lanes} can be shared by 1 to "
                f"{self.num_lanes} workers, each with a lane at least. Use as many, or a recipe of more lanes, "
                "which is another order of its rows."
            )
        assert not self.nodes or (sum(self.nodes) == self.world_size and min(self.nodes) > 0), self.nodes
        loads = self.explicit_loads
        if loads is not None:
            assert len(loads) == self.world_size and min(loads) > 0 and sum(loads) == self.num_lanes, loads
            assert not self.interleaved, "rounds of lanes are dealt to all ranks alike"

    @classmethod
    def alone(cls, num_lanes: int) -> Self:
        """One rank has them all."""
        return cls(num_lanes, 1)

    @cached_property
    def loads(self) -> tuple[int, ...]:
        """[rank]: how many lanes it has."""
        if self.interleaved:
            return tuple(len(self.of_rank(rank)) for rank in range(self.world_size))
        return self.explicit_loads or equal_loads(self.num_lanes, self.nodes or (self.world_size,))

    @property
    def most(self) -> int:
        """Lanes of the rank that has the most."""
        return max(self.loads)

    @property
    def ranks_of_nodes(self) -> list[range]:
        """[node]: its ranks."""
        stops = accumulate(self.nodes or (self.world_size,))
        return [range(first, stop) for first, stop in pairwise((0, *stops))]

    @cached_property
    def blocks(self) -> tuple[LaneBlock, ...]:
        """All ranks' blocks, in lane order."""
        assert not self.interleaved, "lanes of a round are no block of a rank"
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
        """In the order in which the rank works on them: the largest, whose sum is there last, comes last."""
        return tuple(sorted((block for block in self.blocks if block.rank == rank), key=lambda block: block.size))

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """In the order in which the rank works on them."""
        if self.interleaved:
            return tuple(range(rank, self.num_lanes, self.world_size))
        return tuple(lane for block in self.blocks_of(rank) for lane in block.lanes)


def _assign_blocks(loads: Sequence[int], blocks: Sequence[range]) -> Iterator[tuple[int, range]]:
    """Whose load it is, and an aligned block of lanes for each power of two in it; the largest first.

    `places` are aligned blocks of as many lanes in all, the largest first. What is handed out fits between
    their ends, since all are multiples of what is still to come.
    """
    lanes = [lane for block in blocks for lane in block]
    sizes = [(size, owner) for owner, load in enumerate(loads) for size in powers_of_two(load)]
    start = 0
    for size, owner in sorted(sizes, key=lambda item: (-item[0], item[1])):
        yield owner, range(lanes[start], lanes[start] + size)
        start += size


def powers_of_two(load: int) -> list[int]:
    """Those that add up to it, the largest first."""
    return [1 << power for power in reversed(range(load.bit_length())) if load >> power & 1]


@lru_cache(maxsize=64)
def equal_loads(num_lanes: int, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Loads under which the rank with the most lanes has as few as may be; of these, those of the fewest
    blocks.

    A step takes as long as that rank, and each block is a partial sum that crosses ranks. The larger loads of a
    node come first.
    """
    most = -(-num_lanes // sum(nodes))
    loads = _of_fewest_blocks([most] * sum(nodes), num_lanes, nodes)
    return tuple(load for ranks in _neighbours(nodes, loads) for load in sorted(ranks, reverse=True))


LEAST_GAIN = 0.05
"""A share of a step's time. Less is within what a measurement says of itself, and may cost blocks."""


def loads_by_speed(lane_s: Sequence[float], num_lanes: int, nodes: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Loads under which the slowest rank is done soonest, where rank r takes `lane_s[r]` seconds for a lane; of
    these, those of the fewest blocks. Every rank has a lane at least.

    Equal loads where others gain less than `LEAST_GAIN`.
    """
    nodes = nodes or (len(lane_s),)
    equal = equal_loads(num_lanes, nodes)
    least_s = _least_seconds(lane_s, num_lanes)
    if least_s > (1 - LEAST_GAIN) * max(load * seconds for load, seconds in zip(equal, lane_s, strict=True)):
        return equal
    # A product that is divided again may come out as a little less than it was.
    most = [max(1, math.floor(least_s / seconds * (1 + 1e-9))) for seconds in lane_s]
    return tuple(_of_fewest_blocks(most, num_lanes, nodes))


def _least_seconds(lane_s: Sequence[float], num_lanes: int) -> float:
    """That the slowest rank takes at best: lanes are alike, so each goes to who would be done with it first."""
    done_s = [(2 * seconds, seconds) for seconds in lane_s]
    heapq.heapify(done_s)
    least_s = max(lane_s)
    for _ in range(num_lanes - len(lane_s)):
        now_s, seconds = done_s[0]
        heapq.heapreplace(done_s, (now_s + seconds, seconds))
        least_s = max(least_s, now_s)
    return least_s


def _neighbours(nodes: Sequence[int], of_ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    """[node]: what its ranks have."""
    for first, stop in pairwise((0, *accumulate(nodes))):
        yield of_ranks[first:stop]


def _of_fewest_blocks(most: Sequence[int], num_lanes: int, nodes: tuple[int, ...]) -> list[int]:
    """Loads of at most `most[rank]` lanes that have the fewest blocks.

    Blocks of nodes, whose ranks join theirs first, count before blocks of ranks.
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


def _blocks_up_to(most: int, anybodys: int) -> "Costs":
    """What a rank of 1 to `most` lanes costs, up to the most that anybody has."""
    blocks = np.array([load.bit_count() for load in range(anybodys + 1)], np.int64)
    blocks[0] = blocks[most + 1 :] = _UNREACHABLE
    return blocks


_UNREACHABLE = np.iinfo(np.int64).max // 4


Costs = Int64[np.ndarray, "load"]
"""[load]: of a rank or a node that has so many lanes."""


def _fewest_blocks(costs: Sequence[Costs], num_lanes: int) -> list[Int64[np.ndarray, "lane"]]:
    """[how many][lanes]: the least cost at which the first so many of them share so many lanes."""
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
    """The loads of least cost; of several, the first has as much as may be."""
    tables = _fewest_blocks(costs[::-1], num_lanes)
    left, loads = num_lanes, []
    for of_load, whole, rest in zip(costs, tables[:0:-1], tables[-2::-1], strict=True):
        possible = range(min(len(of_load) - 1, left), 0, -1)
        load = next(n for n in possible if of_load[n] < _UNREACHABLE and rest[left - n] + of_load[n] == whole[left])
        loads.append(load)
        left -= load
    return loads


def useful_world_size(num_lanes: int, world_size: int) -> int:
    """The fewest ranks under which nobody has more lanes than under `world_size`: the others gain no time."""
    most = -(-num_lanes // world_size)
    return -(-num_lanes // most)


def next_useful_world_size(num_lanes: int, world_size: int) -> int | None:
    """The fewest ranks under which the rank with the most lanes has fewer; None if it has but one."""
    most = -(-num_lanes // world_size)
    return -(-num_lanes // (most - 1)) if most > 1 else None

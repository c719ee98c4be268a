"""Which lanes each rank works on, for any number of ranks of at most that of lanes.

The one place that knows the rule. The sum over lanes is a binary tree, so a rank with n lanes holds one
aligned block for each power of two in n, and sums each block by itself: one of 5 lanes has a block of 4 and
one of 1. The blocks of all ranks are handed out largest first, each behind the last, which keeps them aligned
without a gap.

    blocks         rank 0: 0 1 + 6   rank 1: 2 3 + 7   rank 2: 4 5    a rank adds its own lanes first
    interleaved    rank 0: 0 3 6     rank 1: 1 4 7     rank 2: 2 5    each round of lanes is added over the
    ranks
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import numpy as np

from assay.base.errors import ConfigError


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
    given_loads: tuple[int, ...] | None = None
    """[rank]: how many lanes it has, at least one; by default, see `equal_loads`."""

    def __post_init__(self) -> None:
        if not 1 <= self.world_size <= self.num_lanes:
            raise ConfigError(
                f"--workers {self.world_size}: loader.lanes={self.num_lanes} can be shared by 1 to "
                f"{self.num_lanes} workers, each with a lane at least. Use as many, or a recipe of more lanes, "
                "which is another order of its rows."
            )
        loads = self.given_loads
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
        return self.given_loads or equal_loads(self.num_lanes, self.world_size)

    @property
    def most(self) -> int:
        """Lanes of the rank that has the most."""
        return max(self.loads)

    @cached_property
    def blocks(self) -> tuple[LaneBlock, ...]:
        """Of all ranks, in lane order."""
        assert not self.interleaved, "lanes of a round are no block of a rank"
        sizes = [(size, rank) for rank, load in enumerate(self.loads) for size in powers_of_two(load)]
        found, first = [], 0
        for size, rank in sorted(sizes, key=lambda each: (-each[0], each[1])):
            found.append(LaneBlock(first, size, rank))
            first += size
        return tuple(found)

    def blocks_of(self, rank: int) -> tuple[LaneBlock, ...]:
        """In the order in which the rank works on them: the largest, whose sum is there last, comes last."""
        return tuple(sorted((block for block in self.blocks if block.rank == rank), key=lambda each: each.size))

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """In the order in which the rank works on them."""
        if self.interleaved:
            return tuple(range(rank, self.num_lanes, self.world_size))
        return tuple(lane for block in self.blocks_of(rank) for lane in block.lanes)


def powers_of_two(load: int) -> list[int]:
    """Those that add up to it, the largest first."""
    return [1 << power for power in reversed(range(load.bit_length())) if load >> power & 1]


@lru_cache(maxsize=64)
def equal_loads(num_lanes: int, world_size: int) -> tuple[int, ...]:
    """Loads under which the rank with the most lanes has as few as may be; of these, those of the fewest
    blocks.

    A step takes as long as that rank, and each block is a partial sum that crosses ranks. The larger loads come
    first.
    """
    most = -(-num_lanes // world_size)
    unreachable = np.iinfo(np.int32).max // 2
    least = np.full(
        num_lanes + 1, unreachable, np.int32
    )  # [lanes]: the fewest blocks by which so many are shared
    least[0] = 0
    tables = [least]
    for _ in range(world_size):
        shared = np.full(num_lanes + 1, unreachable, np.int32)
        for load in range(1, most + 1):
            shared[load:] = np.minimum(shared[load:], tables[-1][:-load] + load.bit_count())
        tables.append(shared)
    left, loads = num_lanes, []
    for num_ranks in range(world_size, 0, -1):
        fewest, before = tables[num_ranks][left], tables[num_ranks - 1]
        load = next(n for n in range(min(most, left), 0, -1) if before[left - n] + n.bit_count() == fewest)
        loads.append(load)
        left -= load
    return tuple(sorted(loads, reverse=True))


def useful_world_size(num_lanes: int, world_size: int) -> int:
    """The fewest ranks under which nobody has more lanes than under `world_size`: the others gain no time."""
    most = -(-num_lanes // world_size)
    return -(-num_lanes // most)


def next_useful_world_size(num_lanes: int, world_size: int) -> int | None:
    """The fewest ranks under which the rank with the most lanes has fewer; None if it has but one."""
    most = -(-num_lanes // world_size)
    return -(-num_lanes // (most - 1)) if most > 1 else None

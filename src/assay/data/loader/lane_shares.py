"""Which lanes each rank works on, and how many ranks can share them.

The one place that knows the rule: ranks share the lanes out evenly, so their number is a power of two of at
most the number of lanes (the sum over lanes is a binary tree, of which each rank computes whole subtrees).

    blocks         rank 0: 0 1 2 3   rank 1: 4 5 6 7     a rank adds its own lanes first
    interleaved    rank 0: 0 2 4 6   rank 1: 1 3 5 7     each round of lanes is added over the ranks at once
"""

from dataclasses import dataclass
from typing import Self

from assay.base.errors import ConfigError


@dataclass(frozen=True)
class LaneShares:
    """The lanes of all ranks; `ConfigError` for a number of ranks that cannot share them."""

    num_lanes: int
    world_size: int
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.world_size not in world_sizes(self.num_lanes):
            sizes = ", ".join(map(str, world_sizes(self.num_lanes)))
            raise ConfigError(
                f"--workers {self.world_size}: with loader.lanes={self.num_lanes} it is one of {sizes}."
            )

    @classmethod
    def alone(cls, num_lanes: int) -> Self:
        """One rank has them all."""
        return cls(num_lanes, 1)

    def of_rank(self, rank: int) -> range:
        """Rising, and as many for each rank."""
        if self.interleaved:
            return range(rank, self.num_lanes, self.world_size)
        per_rank = self.num_lanes // self.world_size
        return range(rank * per_rank, (rank + 1) * per_rank)


def world_sizes(num_lanes: int) -> tuple[int, ...]:
    """Numbers of ranks that can share so many lanes."""
    return tuple(1 << power for power in range(num_lanes.bit_length()))


def largest_world_size(*, at_most: int) -> int:
    """The most ranks of `at_most` (1 or more) that can share lanes, if there are enough of these."""
    return world_sizes(at_most)[-1]

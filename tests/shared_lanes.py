"""Lanes shared by the ranks of a test, and the sum over them."""

from typing import Any

from torch import nn

from assay.data.loader.lane_shares import LaneShares
from assay.distributed.lane_sum import LaneSum
from assay.distributed.ranks import Ranks
from assay.distributed.sharded_lane_sum import ShardedLaneSum


def shares_of(ranks: Ranks, num_lanes: int) -> LaneShares:
    """As training shares them."""
    return LaneShares(num_lanes, ranks.world_size, interleaved=ranks.inner is not None)


def lane_sum_of(model: nn.Module, ranks: Ranks, num_lanes: int, **of_shards: Any) -> LaneSum | ShardedLaneSum:
    """`of_shards`: what else `ShardedLaneSum` takes."""
    shares = shares_of(ranks, num_lanes)
    if ranks.inner is None:
        return LaneSum(model, ranks, shares)
    return ShardedLaneSum(model, ranks, shares, **of_shards)

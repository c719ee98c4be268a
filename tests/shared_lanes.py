"""Lanes shared by the ranks of a test, the sum over them, and where their samples come from."""

from typing import Any

from torch import nn

from assay.data.loader.lane_shares import LaneShares
from assay.distributed.lane_sum import LaneSum
from assay.distributed.ranks import Ranks
from assay.distributed.sharded_lane_sum import ShardedLaneSum
from assay.training.rollouts.source import RolloutMethod, Rollouts
from assay.training.samples import DatasetRows, SampleSource
from assay.training.trainer.lane_forward import LaneForward


def shares_of(ranks: Ranks, num_lanes: int) -> LaneShares:
    """As training shares them."""
    return LaneShares(num_lanes, ranks.world_size, interleaved=ranks.inner is not None)


def lane_sum_of(model: nn.Module, ranks: Ranks, num_lanes: int, **of_shards: Any) -> LaneSum | ShardedLaneSum:
    """`of_shards`: what else `ShardedLaneSum` takes."""
    shares = shares_of(ranks, num_lanes)
    if ranks.inner is None:
        return LaneSum(model, ranks, shares)
    return ShardedLaneSum(model, ranks, shares, **of_shards)


def source_of(
    method: Any, forward: LaneForward, lane_sum: LaneSum | ShardedLaneSum, ranks: Ranks, seed: int, **choices: Any
) -> SampleSource:
    """As training chooses it."""
    if not isinstance(method, RolloutMethod):
        return DatasetRows()
    parts = {"frozen_models": forward.frozen_models, "autocast": forward.autocast, "seed": seed, **choices}
    return Rollouts(method, lane_sum, ranks, **parts)

"""What every part of a rank needs, and the parts that training and a replay build from it.

RankContext --> model --> lane sum --> losses, samples --> optimizer --> spot check --> Stepper
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from assay.base.clock import Clock
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader
from assay.distributed.lane_sum import LaneGradients, LaneSum
from assay.distributed.ranks import Ranks
from assay.distributed.sharded_lane_sum import ShardedLaneSum
from assay.records.phase import EnterPhase
from assay.store.commit_log import CommitLog
from assay.training.checkpoint.parts import StatefulPart, training_parts
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.rollouts.source import RolloutMethod, Rollouts
from assay.training.samples import DatasetRows, SampleSource
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.lane_recomputer import LaneRecomputer, ShardedLaneRecomputer
from assay.training.trainer.method import Method
from assay.training.trainer.optimizer import build_optimizer
from assay.training.trainer.spot_check import SpotCheck
from assay.training.trainer.step import Stepper, trained_model


@dataclass(frozen=True)
class RankContext:
    """One rank of one attempt, or of a replay."""

    ranks: Ranks
    """Rank, world size, device and process groups."""
    method: Method
    loader: Loader
    """Training rows, with the loader's configuration."""
    config: TrainerConfig
    seed: int
    """Seed of weights, dropout and rollouts."""
    log: CommitLog
    """The run's store, and the attempt that writes to it."""
    clock: Clock
    enter_phase: EnterPhase = lambda phase: None
    is_stopping: Callable[[], bool] = lambda: False
    """Returns whether this rank received SIGTERM."""
    is_replay: bool = False
    """True if nothing may be written and no judge may be called."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.config.num_steps(self.loader.steps_per_epoch)


class RankParts:
    """Model, optimizer and samples of a rank, with the stepper that advances them."""

    def __init__(self, context: RankContext, shares: LaneShares, *, times_lanes: bool = False) -> None:
        """`shares`: the lanes of all ranks. `times_lanes`: see `Stepper`."""
        config, ranks, seed = context.config, context.ranks, context.seed
        self.model = trained_model(context.method, config, seed=seed, device=ranks.device)
        self.lane_sum = _lane_sum(context, self.model, shares)
        self.lanes = shares.of_rank(ranks.rank)
        """This rank's lanes."""
        self.forward = LaneForward(
            context.method,
            device=ranks.device,
            precision=config.precision,
            seed=seed,
            updates_per_step=context.method.updates_per_rollout if isinstance(context.method, RolloutMethod) else 1,
        )
        self.source = _source(context, self.forward, self.lane_sum)
        self.recomputer = (
            ShardedLaneRecomputer(self.forward, self.source, self.lane_sum)
            if isinstance(self.lane_sum, ShardedLaneSum)
            else LaneRecomputer(self.forward, self.source, self.model)
        )
        optimizer = build_optimizer(self.model, config.optimizer)
        self.state: dict[str, StatefulPart] = {**training_parts(self.model, optimizer), **self.source.parts}
        """What a commit holds, by name."""
        self.stepper = Stepper(
            self.source,
            self.forward,
            self.lane_sum,
            optimizer,
            ranks,
            config=config.optimizer,
            num_steps=context.num_steps,
            spot_check=SpotCheck(self.recomputer, self.lane_sum, ranks, is_due=config.is_spot_checked, seed=seed),
            times_lanes=times_lanes,
        )


def _lane_sum(context: RankContext, model: nn.Module, shares: LaneShares) -> LaneSum | ShardedLaneSum:
    ranks = context.ranks
    if ranks.inner is None:
        return LaneSum(model, ranks, shares, context.config.gradient_sum, enter_phase=context.enter_phase)
    return ShardedLaneSum(
        model,
        ranks,
        shares,
        several_passes=context.loader.config.max_micro_batch_tokens is not None,
        gathers=isinstance(context.method, RolloutMethod),
        enter_phase=context.enter_phase,
    )


def _source(context: RankContext, forward: LaneForward, lane_sum: LaneGradients) -> SampleSource:
    if not isinstance(context.method, RolloutMethod):
        return DatasetRows()
    return Rollouts(
        context.method,
        lane_sum,
        context.ranks,
        frozen_models=forward.frozen_models,
        autocast=forward.autocast,
        seed=context.seed,
        max_tokens=context.loader.config.max_micro_batch_tokens,
        reward_cache=RewardCache(context.log.store, attempt=context.log.attempt, is_read_only=context.is_replay),
        is_stopping=context.is_stopping,
    )

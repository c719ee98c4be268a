"""What every part of a rank needs, and the parts that training and a replay build from it.

RankContext --> model --> lane sum --> losses, samples --> optimizer --> spot check --> Stepper
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from assay.base.clock import Clock
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader
from assay.distributed.flat_lane_sum import FlatLaneSum
from assay.distributed.lane_sum import LaneGradients, LaneSum
from assay.distributed.ranks import Ranks
from assay.distributed.sharded_lane_sum import ShardedLaneSum
from assay.models.compute_copy import ComputeCopy
from assay.models.graph_capture import Capture, GraphCapture
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
from assay.training.trainer.step import Stepper, initial_model

NOT_CAPTURED = (
    "Passes are not captured as CUDA graphs: gradients are exchanged while they go on. The bits are the same, but the "
    "host starts each kernel, so a GPU may wait for it (docs/gpu.md)."
)


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
    schedule_step: Callable[[int], int] = lambda step: step
    """Returns the step of the learning rate's schedule for a step of the run."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.config.num_steps(self.loader.steps_per_epoch)


class StepForm(NamedTuple):
    """How a rank runs its steps. All forms compute the same bits."""

    is_flat: bool
    """Gradients lie in one buffer, without DDP."""
    capture: Capture | None
    """How passes are captured; None: they are not."""
    defers: bool
    """Steps are started before the totals of the last one are read."""


def step_form(context: RankContext, *, times_lanes: bool) -> StepForm:
    """Return how steps run: on a GPU without other ranks, the host starts kernels ahead of the device."""
    ranks = context.ranks
    has_copy = context.config.weights.compute == "bfloat16"
    if ranks.device.type != "cuda" or times_lanes:
        return StepForm(has_copy, None, defers=False)
    if ranks.world_size > 1:
        if ranks.rank == 0:
            print(NOT_CAPTURED, file=sys.stderr, flush=True)
        return StepForm(has_copy, None, defers=False)
    # Other layouts have passes whose shapes differ and that ask the device for values.
    capture = None if context.loader.line is None else GraphCapture()
    return StepForm(True, capture, defers=not isinstance(context.method, RolloutMethod))


class RankParts:
    """Model, optimizer and samples of a rank, with the stepper that advances them."""

    def __init__(self, context: RankContext, shares: LaneShares, *, times_lanes: bool = False) -> None:
        """`shares`: the lanes of all ranks. `times_lanes`: see `Stepper`."""
        config, ranks, seed = context.config, context.ranks, context.seed
        form = step_form(context, times_lanes=times_lanes)
        self.model = initial_model(context.method, seed=seed, device=ranks.device)
        """The model with the weights that the optimizer owns and commits hold."""
        copy = ComputeCopy(self.model) if config.weights.compute == "bfloat16" else None
        self.compute_model = self.model if copy is None else copy.model
        """The model that computes passes and samples rollouts."""
        self.forward = LaneForward(
            context.method,
            device=ranks.device,
            precision=config.precision,
            seed=seed,
            updates_per_step=context.method.updates_per_rollout if isinstance(context.method, RolloutMethod) else 1,
            compute_copy=copy is not None,
        )
        if config.compile:
            # Imported here: torch.compile's modules take seconds to import.
            from assay.models.compiled import compile_layers

            compile_layers(self.compute_model, self.forward.autocast, context.loader.line)
        self.lane_sum = self._lane_sum(context, shares, is_flat=form.is_flat)
        self.lanes = shares.of_rank(ranks.rank)
        """This rank's lanes."""
        self.source = _source(context, self.forward, self.lane_sum)
        self.recomputer = (
            ShardedLaneRecomputer(self.forward, self.source, self.lane_sum)
            if isinstance(self.lane_sum, ShardedLaneSum)
            else LaneRecomputer(
                self.forward, self.source, self.compute_model, dtype=None if copy is None else torch.float32
            )
        )
        optimizer = build_optimizer(self.model, config.optimizer)
        self.weights_changed: Callable[[], None] = copy.refresh if copy is not None else lambda: None
        """Must be called when anything but the stepper has changed the model's weights."""
        self.state: dict[str, StatefulPart] = {
            **training_parts(self.model, optimizer, self.weights_changed),
            **self.source.parts,
        }
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
            capture=form.capture,
            defers=form.defers,
            updated=self.weights_changed,
            schedule_step=context.schedule_step,
        )

    def _lane_sum(
        self, context: RankContext, shares: LaneShares, *, is_flat: bool
    ) -> LaneSum | FlatLaneSum | ShardedLaneSum:
        ranks, model, enter_phase = context.ranks, self.compute_model, context.enter_phase
        if ranks.inner is None and is_flat:
            return FlatLaneSum(model, ranks, shares, master=self.model, enter_phase=enter_phase)
        if ranks.inner is None:
            return LaneSum(model, ranks, shares, context.config.gradient_sum, enter_phase=enter_phase)
        assert model is self.model, "a copy of the weights is whole; see `workflows.run.check_parallel`"
        return ShardedLaneSum(
            model,
            ranks,
            shares,
            several_passes=context.loader.config.has_budget,
            gathers=isinstance(context.method, RolloutMethod),
            enter_phase=enter_phase,
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

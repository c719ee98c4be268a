"""One optimizer step: a micro-batch from each lane, one sum, one update.

    for each of this rank's lanes:   seed the generators by (seed, step, lane); forward, backward
    over all lanes of all ranks:     gradients are summed as a tree, losses and counts gathered
    once:                            divide by the step's rows, clip, AdamW

Nothing here remembers anything between steps but the weights and the optimizer's moments.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import StepShare
from assay.records.run import Phase
from assay.training.parallel.ranks import Ranks
from assay.training.trainer.config import OptimizerConfig, Precision
from assay.training.trainer.lane_forward import LaneForward, num_backwards
from assay.training.trainer.method import Method
from assay.training.trainer.numerics import digest_of_tensors
from assay.training.trainer.optimizer import average_and_clip, learning_rate, whole_tensor
from assay.training.trainer.spot_check import Checked, SpotCheck


class StepTotals(NamedTuple):
    """What a step did, over all lanes of all ranks: the same numbers, bit for bit, on every rank."""

    num_rows: int
    num_tokens: int
    loss_sum: float
    gradient_norm: float
    """Of the mean over the step's rows, before clipping. Not finite: the update was not made."""
    learning_rate: float
    stop_asked: bool
    """Some rank was asked to stop (SIGTERM)."""
    commit_asked: bool
    """Rank 0 asked for a commit after this update."""
    exchange_s: float
    """Seconds that this rank waited for the other ranks' gradients."""
    bad_lanes: tuple[int, ...]
    """Lanes whose loss is not finite; the update was not made."""
    is_verified: bool = False
    """Every rank's arithmetic was spot-checked in this step, and found right."""
    digests: Mapping[str, float] = MappingProxyType({})
    """Of the spot check, for a replay to compare with: exact integers, by metric name."""

    def asks_for_commit(self) -> bool:
        """Somebody wants this update to be durable."""
        return self.stop_asked or self.commit_asked

    @property
    def is_made(self) -> bool:
        """The update was made: losses and gradient are finite."""
        return not self.bad_lanes and math.isfinite(self.gradient_norm)

    @property
    def loss(self) -> float:
        """Mean over the step's rows."""
        return self.loss_sum / max(1, self.num_rows)


class _LaneTotals(NamedTuple):
    """One lane in one step. All are numbers that a float64 holds exactly, as which they travel."""

    lane: float
    num_rows: float
    num_tokens: float
    loss: float
    stop_asked: float
    commit_asked: float


class LaneGradients(Protocol):
    """Sums the gradients of all lanes of all ranks: replicated (`LaneSum`) or sharded (`ShardedLaneSum`)."""

    enter_phase: Callable[[Phase], None]

    @property
    def module(self) -> nn.Module:
        """The model, wrapped."""
        ...

    def begin_lane(self, position: int, *, num_backwards: int) -> None:
        """The rank's lane number `position` comes next, with so many backward passes."""
        ...

    def local(self) -> AbstractContextManager[None]:
        """Backward passes inside are not the step's last."""
        ...

    def step_is_done(self) -> float:
        """`.grad` is complete now; returns the seconds that the rank waited for others."""
        ...


class Stepper:
    """Makes the optimizer steps of one rank."""

    def __init__(
        self,
        method: Method,
        lane_sum: LaneGradients,
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        *,
        config: OptimizerConfig,
        precision: Precision,
        seed: int,
        num_steps: int,
        spot_check: SpotCheck | None = None,
    ) -> None:
        self._forward = LaneForward(
            method, lane_sum.module, device=ranks.device, precision=precision, seed=seed
        )
        self._lane_sum = lane_sum
        self._optimizer = optimizer
        self._ranks = ranks
        self._config = config
        self._num_steps = num_steps
        self._spot_check = spot_check
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]

    def step(self, share: StepShare, *, step: int, stop_asked: bool, commit_asked: bool = False) -> StepTotals:
        """Make update number `step` (from 1) from this rank's share of it."""
        check = self._spot_check if self._spot_check and self._spot_check.is_due(step) else None
        if check:
            check.begin(share, step=step)
        losses = [self._backward(share, position, step=step) for position in range(len(share.lanes))]
        exchange_s = self._lane_sum.step_is_done()
        lanes = self._gather(share, losses, stop_asked, commit_asked)
        self._lane_sum.enter_phase("compute")
        rate = learning_rate(self._config, step=step, num_steps=self._num_steps)
        totals = StepTotals(
            num_rows=int(sum(lane.num_rows for lane in lanes)),
            num_tokens=int(sum(lane.num_tokens for lane in lanes)),
            loss_sum=sum(lane.loss for lane in lanes),
            gradient_norm=float("nan"),
            learning_rate=rate,
            stop_asked=any(lane.stop_asked for lane in lanes),
            commit_asked=bool(lanes[0].commit_asked),
            exchange_s=exchange_s,
            bad_lanes=tuple(int(lane.lane) for lane in lanes if not math.isfinite(lane.loss)),
        )
        if totals.bad_lanes:
            return totals
        if check:
            digests = self._digests(check.finish(share, step=step))
            totals = totals._replace(is_verified=True, digests=digests)
        norm = self._update(totals.num_rows, rate)
        return totals._replace(gradient_norm=norm)

    def _digests(self, checked: Checked) -> dict[str, float]:
        # The digest of the sum over all lanes, which sharded ranks have to put together.
        whole = map(whole_tensor, self._gradients())
        return {
            "spot_check_lane": float(checked.lane),
            "spot_check_digest": float(checked.digest),
            "gradient_digest": float(digest_of_tensors(whole)),
        }

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._trained if p.grad is not None]

    def _backward(self, share: StepShare, position: int, *, step: int) -> Tensor:
        """The summed loss of one of this rank's lanes; its gradients are added to the tree."""
        lane, is_last_lane = share.lanes[position], position == len(share.lanes) - 1
        count = num_backwards(lane)
        self._lane_sum.begin_lane(position, num_backwards=count)
        total = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        for index in range(count):
            exchanges = is_last_lane and index == count - 1
            with nullcontext() if exchanges else self._lane_sum.local():
                loss = self._forward.loss_sum(lane, index, step=step)
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _gather(
        self, share: StepShare, losses: list[Tensor], stop_asked: bool, commit_asked: bool
    ) -> list[_LaneTotals]:
        """What each lane of all ranks did, in lane order: the order in which the losses are added."""
        mine = [
            _LaneTotals(lane.lane, lane.num_rows, lane.num_tokens, loss, stop_asked, commit_asked)
            for lane, loss in zip(share.lanes, torch.stack(losses).tolist(), strict=True)
        ]
        if self._ranks.world_size == 1:
            return mine
        sent = torch.tensor(mine, dtype=torch.float64)
        everyone = sent.new_empty(self._ranks.world_size * len(mine), sent.shape[1])
        dist.all_gather_single(everyone, sent, group=self._ranks.control)
        return [_LaneTotals(*line) for line in everyone.tolist()]

    def _update(self, num_rows: int, rate: float) -> float:
        gradients = self._gradients()
        norm = average_and_clip(gradients, num_rows=max(1, num_rows), max_norm=self._config.max_gradient_norm)
        if not math.isfinite(norm):
            return norm
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm


Network = nn.Module
"""A model under training, for those who only pass it on and import no torch."""


def initial_model(method: Method, *, seed: int, device: torch.device) -> Network:
    """The method's model, its random weights drawn from the run's seed."""
    torch.manual_seed(derive_key(seed, "weights"))
    return method.build_model().to(device)

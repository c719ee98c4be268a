"""One optimizer step: a micro-batch from each lane, one sum, one update.

    where rows are prompts:          all of this rank's lanes become what they learn from
    for each of this rank's lanes:   seed the generators by (seed, step, lane); forward, backward
    over all lanes of all ranks:     gradients are summed as a tree, losses and counts gathered
    once:                            divide by the step's weight, clip, AdamW

Nothing here remembers anything between steps but the weights and the optimizer's moments.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.base.shapes import Float, Float64
from assay.data.loader.batch import LaneShare, StepShare
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.lane_sum import BucketReady
from assay.distributed.ranks import Ranks
from assay.inference.rollout import GenerationAbandonedError
from assay.records.journal import JournaledGroup
from assay.records.phase import Phase
from assay.training.trainer.config import OptimizerConfig, TrainerConfig
from assay.training.trainer.lane_forward import LaneForward, means_of, num_backwards
from assay.training.trainer.method import Method, MetricSum, RolledOut
from assay.training.trainer.numerics import added_in_order, autocast, combined_digest, digest_of_tensors
from assay.training.trainer.optimizer import average_and_clip, learning_rate, whole_tensor
from assay.training.trainer.spot_check import Checked, SpotCheck

LANE_S = "lane_{:04d}_s"
"""The metric of what a lane took in a step, where lanes are timed."""
BUCKET_BYTES = "bucket_{:03d}_bytes"
BUCKET_BEFORE_S = "bucket_{:03d}_before_last_s"


class StepTotals(NamedTuple):
    """What a step did, over all lanes of all ranks: the same numbers, bit for bit, on every rank."""

    num_rows: int
    num_tokens: int
    weight: int
    """What the sums are divided by: rows, tokens, pairs, as the method counts."""
    loss_sum: float
    gradient_norm: float
    """The norm of the mean, before clipping. Not finite: the update was not made."""
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
    metrics: Mapping[str, float] = MappingProxyType({})
    """The method's own, as means; without those that weigh nothing in this step."""
    digests: Mapping[str, float] = MappingProxyType({})
    """Digests of what the model said to learn from, and of the spot check, for a replay to compare with: exact
    integers, by metric name."""
    costs: Mapping[str, float] = MappingProxyType({})
    """What this rank spent on a step of rollouts, by metric name: not the same on every rank."""
    journal: tuple[JournaledGroup, ...] | None = None
    """What became of the prompts of this rank's lanes; None where rows are no prompts."""

    def asks_for_commit(self) -> bool:
        """Somebody wants this update to be durable."""
        return self.stop_asked or self.commit_asked

    @property
    def is_made(self) -> bool:
        """The update was made: losses and gradient are finite."""
        return not self.bad_lanes and math.isfinite(self.gradient_norm)

    @property
    def loss(self) -> float:
        """Mean over what the step weighs."""
        return self.loss_sum / max(1, self.weight)


class StepAbandonedError(Exception):
    """Some rank was asked to stop while the model said what it was to learn from: no rank makes the step."""


class _LaneTotals(NamedTuple):
    """One lane in one step. All are numbers that a float64 holds exactly, as which they travel."""

    lane: float
    num_rows: float
    num_tokens: float
    weight: float
    stop_asked: float
    commit_asked: float
    rolled_out: float
    """The digest of what its prompts became."""
    loss: float
    metrics: list[float]
    """The sum and the weight of each metric, one after the other."""


_METRICS = _LaneTotals._fields.index("metrics")


class LaneGradients(Protocol):
    """Sums the gradients of all lanes of all ranks: replicated (`LaneSum`) or sharded (`ShardedLaneSum`)."""

    shares: LaneShares
    """Which rank has which lanes."""
    enter_phase: Callable[[Phase], None]
    gathers_weights: bool
    """`whole_model` waits for other ranks."""

    @property
    def module(self) -> nn.Module:
        """The model, wrapped."""
        ...

    def whole_model(self) -> nn.Module:
        """The model as it is now, with all of its weights and not wrapped; all ranks ask for it together."""
        ...

    def begin_step(self, num_backwards: Sequence[int]) -> Sequence[int]:
        """Says how many backward passes each lane of this rank takes; returns how many the rank makes for it.

        More than the lane takes where another rank's lane takes more, and all must go side by side; and for
        more lanes than the rank has, where others have one more.
        """
        ...

    def backward_pass(self, position: int, index: int) -> AbstractContextManager[None]:
        """Around forward and backward number `index` for the rank's lane number `position`; in this order."""
        ...

    def step_is_done(self) -> float:
        """`.grad` is complete now; returns the seconds that the rank waited for others."""
        ...

    def buckets(self) -> Sequence[BucketReady]:
        """The parts in which the gradients of the step that is done were exchanged, in their order."""
        ...


class Stepper:
    """Makes the optimizer steps of one rank."""

    def __init__(
        self,
        forward: LaneForward,
        lane_sum: LaneGradients,
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        *,
        config: OptimizerConfig,
        num_steps: int,
        spot_check: SpotCheck | None = None,
        times_lanes: bool = False,
    ) -> None:
        """`times_lanes`: the costs of a step say what each lane took, and when which gradients were ready; the
        device is waited for after each lane."""
        self._forward = forward
        self._lane_sum = lane_sum
        self._optimizer = optimizer
        self._ranks = ranks
        self._config = config
        self._num_steps = num_steps
        self._spot_check = spot_check
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._spent_s: dict[str, float] = {}
        """On the passes of the step under way."""
        self._times_lanes = times_lanes
        self._lane_s: dict[int, float] = {}
        """[lane]: of the step under way, without waiting for others."""

    def step(self, share: StepShare, *, step: int, stop_asked: bool, commit_asked: bool = False) -> StepTotals:
        """Make update number `step` (from 1) from this rank's share of it.

        Where the method makes several of one share, the numbers are those of the last; the first is checked.
        """
        check = self._spot_check if self._spot_check and self._spot_check.is_due(step) else None
        learned = self._forward.settled(self._learned(share, step), step=step, everyones=self._everyones)
        self._lane_sum.enter_phase("compute")
        if check:
            check.begin(share, step=step)
        costs, self._spent_s = self._forward.rollout_costs, {"forward_s": 0.0, "backward_s": 0.0}
        self._lane_s.clear()
        asked = stop_asked, commit_asked and self._ranks.rank == 0
        totals = self._made(share, learned, check, asked, step=step, update=0)
        for update in range(1, self._forward.updates_per_step):
            if totals.is_made:
                again = self._made(share, learned, None, asked, step=step, update=update)
                totals = again._replace(is_verified=totals.is_verified, digests=totals.digests)
        if totals.is_made:
            self._forward.is_made(step=step)
        if self._forward.makes_rollouts:
            totals = totals._replace(journal=tuple(group for each in learned for group in each.journal))
        spent = {} if costs is None else {**costs, **self._spent_s}
        return totals._replace(costs=spent | self._lane_times()) if spent or self._times_lanes else totals

    def _lane_times(self) -> dict[str, float]:
        if not self._times_lanes:
            return {}
        times = {LANE_S.format(lane): seconds for lane, seconds in self._lane_s.items()}
        for number, bucket in enumerate(self._lane_sum.buckets()):
            times[BUCKET_BYTES.format(number)] = float(bucket.num_bytes)
            times[BUCKET_BEFORE_S.format(number)] = bucket.before_last_s
        return times

    def _whole_model(self) -> nn.Module:
        if self._lane_sum.gathers_weights:
            self._lane_sum.enter_phase("synchronisation")
        return self._lane_sum.whole_model()

    def _learned(self, share: StepShare, step: int) -> list[RolledOut]:
        """What the lanes learn from. Where ranks have the model say it, they agree that all of it is there."""
        learned: list[RolledOut] = []
        is_abandoned = False
        try:
            learned = self._forward.learned(
                self._whole_model,
                share.lanes,
                step=step,
                ahead=share.ahead,
                may_abandon=True,
                enter_phase=self._lane_sum.enter_phase,
            )
        except GenerationAbandonedError:
            is_abandoned = True
        if self._forward.makes_rollouts:
            self._lane_sum.enter_phase("communication")
            if any(asked for [asked] in self._ranks.everyones([is_abandoned])):
                self._forward.abandon(step=step)
                raise StepAbandonedError
        return learned

    def _made(
        self,
        share: StepShare,
        learned: list[RolledOut],
        check: SpotCheck | None,
        asked: tuple[bool, bool],
        *,
        step: int,
        update: int,
    ) -> StepTotals:
        """One update; `asked`: for a stop, for a commit."""
        num_passes = self._lane_sum.begin_step([num_backwards(each.lane) for each in learned])
        sums = [
            self._timed_backward(each, position, num_passes[position], step=step, update=update)
            for position, each in enumerate(learned)
        ]
        for position in range(len(learned), len(num_passes)):
            blank = RolledOut(LaneShare(learned[-1].lane.lane, ()))
            self._backward(blank, position, num_passes[position], step=step, update=update)
        exchange_s = self._lane_sum.step_is_done()
        if self._times_lanes:
            self._lane_s[learned[-1].lane.lane] -= exchange_s
        lanes = self._gather(share, learned, sums, asked)
        self._lane_sum.enter_phase("compute")
        rate = learning_rate(self._config, step=step, num_steps=self._num_steps)
        totals = StepTotals(
            num_rows=int(sum(lane.num_rows for lane in lanes)),
            num_tokens=int(sum(lane.num_tokens for lane in lanes)),
            weight=int(sum(lane.weight for lane in lanes)),
            loss_sum=added_in_order(lane.loss for lane in lanes),
            gradient_norm=float("nan"),
            learning_rate=rate,
            stop_asked=any(lane.stop_asked for lane in lanes),
            commit_asked=any(lane.commit_asked for lane in lanes),
            exchange_s=exchange_s,
            bad_lanes=tuple(int(lane.lane) for lane in lanes if not math.isfinite(lane.loss)),
            metrics=self._metrics(lanes),
            digests=self._rollout_digests(lanes),
        )
        if totals.bad_lanes:
            return totals
        self._forward.check_step(totals.metrics, step=step)
        if check:
            num_passes = [num_backwards(each.lane) for each in learned]
            digests = self._digests(
                check.finish(self._forward.as_checked(share, step=step), num_passes, step=step)
            )
            totals = totals._replace(is_verified=True, digests={**totals.digests, **digests})
        norm = self._update(totals.weight, rate)
        return totals._replace(gradient_norm=norm)

    def _digests(self, checked: Checked) -> dict[str, float]:
        # The digest of the sum over all lanes, which sharded ranks have to put together.
        digests = {"gradient_digest": float(digest_of_tensors(map(whole_tensor, self._gradients())))}
        if checked.digest is not None:
            digests["spot_check_lane"] = float(checked.lane)
            digests["spot_check_digest"] = float(checked.digest)
        return digests

    def _gradients(self) -> list[Float[Tensor, "..."]]:
        return [p.grad for p in self._trained if p.grad is not None]

    def _metrics(self, lanes: list[_LaneTotals]) -> dict[str, float]:
        """Sums and weights added in lane order, then divided."""
        return means_of(self._forward.metrics, [[lane.lane, *lane.metrics] for lane in lanes])

    def _timed_backward(
        self, learned: RolledOut, position: int, num_passes: int, *, step: int, update: int
    ) -> Float64[Tensor, "number"]:
        """Likewise `_backward`, whose seconds are noted where lanes are timed."""
        began_s = time.monotonic()
        sums = self._backward(learned, position, num_passes, step=step, update=update)
        if self._times_lanes:
            if self._ranks.device.type == "cuda":
                torch.cuda.synchronize(self._ranks.device)
            lane = learned.lane.lane
            self._lane_s[lane] = self._lane_s.get(lane, 0.0) + time.monotonic() - began_s
        return sums

    def _backward(
        self, learned: RolledOut, position: int, num_passes: int, *, step: int, update: int
    ) -> Float64[Tensor, "number"]:
        """The lane's loss, then the sum and the weight of each metric; its gradients are added to the tree."""
        total = torch.zeros(1 + 2 * len(self._forward.metrics), dtype=torch.float64, device=self._ranks.device)
        if learned.metrics:
            total += self._sums(total[0], learned.metrics)
        for index in range(num_passes):
            with self._lane_sum.backward_pass(position, index):
                began_s = time.monotonic()
                loss = self._forward.loss(self._lane_sum.module, learned.lane, index, step=step, update=update)
                self._spent_s["forward_s"] += (half_s := time.monotonic()) - began_s
                loss.sum.backward()  # type: ignore[no-untyped-call]
                self._spent_s["backward_s"] += time.monotonic() - half_s
            total += self._sums(loss.sum, loss.metrics)
        return total

    def _sums(self, loss: Float[Tensor, ""], metrics: Mapping[str, MetricSum]) -> Float64[Tensor, "number"]:
        """Zeros where a metric is not among these: it comes with the rollouts, or it comes with the losses."""
        parts = [loss.detach().double()]
        nothing = MetricSum(torch.zeros_like(parts[0]), 0.0)
        for name in self._forward.metrics:
            metric = metrics.get(name, nothing)
            parts += [metric.sum.detach().to(parts[0]), torch.as_tensor(metric.weight).to(parts[0])]
        return torch.stack(parts)

    def _rollout_digests(self, lanes: list[_LaneTotals]) -> dict[str, float]:
        if not any(lane.rolled_out for lane in lanes):
            return {}
        return {"rollout_digest": float(combined_digest(int(lane.rolled_out) for lane in lanes))}

    def _gather(
        self,
        share: StepShare,
        learned: list[RolledOut],
        sums: list[Float64[Tensor, "number"]],
        asked: tuple[bool, bool],
    ) -> list[_LaneTotals]:
        """What each lane of all ranks did, in lane order: the order in which everything is added."""
        mine = []
        for lane, made, numbers in zip(share.lanes, learned, torch.stack(sums).tolist(), strict=True):
            counts = lane.lane, lane.num_rows, made.lane.num_tokens, self._forward.weight(made.lane)
            mine.append([*counts, *asked, made.digest, *numbers])
        return [_LaneTotals._make([*line[:_METRICS], line[_METRICS:]]) for line in self._everyones(mine)]

    def _everyones(self, mine: list[list[float]]) -> list[list[float]]:
        """The numbers of all lanes of all ranks, each line beginning with its lane's, in lane order."""
        if self._ranks.world_size == 1:
            return mine
        no_lane = [[-1.0] * len(mine[0])] * (self._lane_sum.shares.most - len(mine))
        sent = torch.tensor([*mine, *no_lane], dtype=torch.float64)
        everyone = sent.new_empty(self._ranks.world_size, *sent.shape)
        dist.all_gather(list(everyone), sent, group=self._ranks.control)
        return sorted(line for line in everyone.flatten(0, 1).tolist() if line[0] >= 0)

    def _update(self, weight: int, rate: float) -> float:
        gradients = self._gradients()
        norm = average_and_clip(gradients, weight=max(1, weight), max_norm=self._config.max_gradient_norm)
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
    """The method's model, its random weights drawn from the run's seed; in training mode, whoever built it."""
    torch.manual_seed(derive_key(seed, "weights"))
    return method.build_model().to(device).train()


def trained_model(method: Method, config: TrainerConfig, *, seed: int, device: torch.device) -> Network:
    """Likewise, with its layers as training computes them."""
    model = initial_model(method, seed=seed, device=device)
    if config.compile:
        # Only here, since it brings along what other runs need not wait for.
        from assay.models.compiled import compile_layers

        compile_layers(model, autocast(config.precision, device))
    return model

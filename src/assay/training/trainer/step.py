"""One optimizer step: a micro-batch from each lane, one gradient sum, one update.

    RL methods:                      this rank's lanes of prompts become lanes of rollouts
    for each lane of this rank:      seed the generators by (seed, step, lane); forward, backward
    over all lanes of all ranks:     gradients are summed as a binary tree, losses and counts are all-gathered
    once:                            divide by the step's weight, clip, AdamW

Only the weights and the optimizer's moments persist between steps.
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
from assay.inference.rollout import GenerationCancelledError
from assay.records.phase import Phase
from assay.records.rollout_log import LoggedGroup
from assay.training.trainer.config import OptimizerConfig, TrainerConfig
from assay.training.trainer.lane_forward import LaneForward, means_of, num_backwards
from assay.training.trainer.method import LaneSamples, Method, MetricSum
from assay.training.trainer.numerics import added_in_order, autocast, combined_digest, digest_of_tensors
from assay.training.trainer.optimizer import average_and_clip, learning_rate, whole_tensor
from assay.training.trainer.spot_check import Checked, SpotCheck

LANE_S = "lane_{:04d}_s"
"""Metric of the seconds that a lane took in a step, if lanes are timed."""
BUCKET_BYTES = "bucket_{:03d}_bytes"
BUCKET_BEFORE_S = "bucket_{:03d}_before_last_s"


class StepTotals(NamedTuple):
    """Results of a step over all lanes of all ranks, with equal bits on each rank."""

    num_rows: int
    num_tokens: int
    weight: int
    """Divisor of the sums: rows, tokens or pairs, as the method counts."""
    loss_sum: float
    gradient_norm: float
    """Norm of the mean gradient before clipping. If it is not finite, the update was skipped."""
    learning_rate: float
    stop_requested: bool
    """Some rank received SIGTERM."""
    commit_requested: bool
    """Rank 0 requested a commit after this update."""
    exchange_s: float
    """Seconds that this rank waited for other ranks' gradients."""
    bad_lanes: tuple[int, ...]
    """Lanes with a loss that is not finite; the update was skipped."""
    is_verified: bool = False
    """Each rank's arithmetic was spot-checked in this step and found right."""
    metrics: Mapping[str, float] = MappingProxyType({})
    """The method's metrics as means; a metric of zero weight is left out."""
    digests: Mapping[str, float] = MappingProxyType({})
    """Digests of rollouts and of the spot check, which a replay compares: exact integers, by metric name."""
    costs: Mapping[str, float] = MappingProxyType({})
    """Costs of a step with rollouts on this rank, by metric name; ranks differ."""
    rollout_log: tuple[LoggedGroup, ...] | None = None
    """Log of the prompts of this rank's lanes; None if rows are no prompts."""

    def requests_commit(self) -> bool:
        return self.stop_requested or self.commit_requested

    @property
    def is_applied(self) -> bool:
        """True if the update was applied: losses and gradient are finite."""
        return not self.bad_lanes and math.isfinite(self.gradient_norm)

    @property
    def loss(self) -> float:
        return self.loss_sum / max(1, self.weight)


class StepCancelledError(Exception):
    """A rank received SIGTERM during rollout generation, so all ranks cancel the step."""


class _LaneTotals(NamedTuple):
    """One lane in one step. Values travel as float64, which holds all of them exactly."""

    lane: float
    num_rows: float
    num_tokens: float
    weight: float
    stop_requested: float
    commit_requested: float
    rollout_digest: float
    loss: float
    metrics: list[float]
    """Sum and weight of each metric, in turn."""


_METRICS = _LaneTotals._fields.index("metrics")


class LaneGradients(Protocol):
    """Sums the gradients of all lanes of all ranks: replicated (`LaneSum`) or sharded (`ShardedLaneSum`)."""

    shares: LaneShares
    """Lanes of each rank."""
    enter_phase: Callable[[Phase], None]
    gathers_weights: bool
    """True if `whole_model` is a collective."""

    @property
    def module(self) -> nn.Module: ...

    def whole_model(self) -> nn.Module:
        """Return the unwrapped model with all weights; all ranks must call this together."""
        ...

    def begin_step(self, num_backwards: Sequence[int]) -> Sequence[int]:
        """Tell how many backward passes each lane of this rank needs; return how many the rank must make.

        The rank makes more if another rank's lane needs more, because sharded ranks run passes together; and it
        makes passes for an extra lane if other ranks have one more.
        """
        ...

    def backward_pass(self, position: int, index: int) -> AbstractContextManager[None]:
        """Wrap forward and backward pass `index` of the rank's lane `position`; passes run in order."""
        ...

    def step_is_done(self) -> float:
        """Finish the step: `.grad` is complete. Return the seconds that the rank waited for others."""
        ...

    def buckets(self) -> Sequence[BucketReady]:
        """Return the buckets in which the last step's gradients were exchanged, in order."""
        ...


class Stepper:
    """Runs the optimizer steps of one rank."""

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
        """If `times_lanes`, the costs report the seconds of each lane and when gradients were ready; the device
        is synchronized after each lane."""
        self._forward = forward
        self._lane_sum = lane_sum
        self._optimizer = optimizer
        self._ranks = ranks
        self._config = config
        self._num_steps = num_steps
        self._spot_check = spot_check
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._spent_s: dict[str, float] = {}
        """Seconds of the current step's passes."""
        self._times_lanes = times_lanes
        self._lane_s: dict[int, float] = {}
        """[lane]: seconds in the current step without waiting for others."""

    def step(self, share: StepShare, *, step: int, stop_requested: bool, commit_requested: bool = False) -> StepTotals:
        """Run optimizer step `step` (from 1) on this rank's share.

        If the method makes several updates of a share, the totals are the last update's; the first is spot-checked.
        """
        check = self._spot_check if self._spot_check and self._spot_check.is_due(step) else None
        rollouts = self._collect_rollouts(share, step)
        samples = self._forward.normalize_advantages(rollouts, step=step, gather_lanes=self._all_gather_lanes)
        self._lane_sum.enter_phase("compute")
        if check:
            check.begin(share, step=step)
        costs, self._spent_s = self._forward.rollout_costs, {"forward_s": 0.0, "backward_s": 0.0}
        self._lane_s.clear()
        requests = stop_requested, commit_requested and self._ranks.rank == 0
        totals = self._run_update(share, samples, check, requests, step=step, update=0)
        for update in range(1, self._forward.updates_per_step):
            if totals.is_applied:
                again = self._run_update(share, samples, None, requests, step=step, update=update)
                totals = again._replace(is_verified=totals.is_verified, digests=totals.digests)
        if totals.is_applied:
            self._forward.release(step=step)
        if self._forward.uses_rollouts:
            groups = tuple(group for lane_samples in samples for group in lane_samples.rollout_log)
            totals = totals._replace(rollout_log=groups)
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

    def _collect_rollouts(self, share: StepShare, step: int) -> list[LaneSamples]:
        """Return the training samples of this rank's lanes: dataset rows, or rollouts that are generated now.

        Raises `StepCancelledError` on all ranks if any rank received SIGTERM during generation.
        """
        samples: list[LaneSamples] = []
        is_cancelled = False
        try:
            samples = self._forward.training_samples(
                self._whole_model,
                share.lanes,
                step=step,
                upcoming=share.upcoming,
                is_cancellable=True,
                enter_phase=self._lane_sum.enter_phase,
            )
        except GenerationCancelledError:
            is_cancelled = True
        if self._forward.uses_rollouts:
            self._lane_sum.enter_phase("communication")
            if any(flag for [flag] in self._ranks.all_gather_numbers([is_cancelled])):
                self._forward.cancel(step=step)
                raise StepCancelledError
        return samples

    def _run_update(
        self,
        share: StepShare,
        samples: list[LaneSamples],
        check: SpotCheck | None,
        requests: tuple[bool, bool],
        *,
        step: int,
        update: int,
    ) -> StepTotals:
        """Run one update; `requests` are for a stop and for a commit."""
        num_passes = self._lane_sum.begin_step([num_backwards(lane_samples.lane) for lane_samples in samples])
        sums = [
            self._timed_backward(lane_samples, position, num_passes[position], step=step, update=update)
            for position, lane_samples in enumerate(samples)
        ]
        for position in range(len(samples), len(num_passes)):
            blank = LaneSamples(LaneShare(samples[-1].lane.lane, ()))
            self._backward(blank, position, num_passes[position], step=step, update=update)
        exchange_s = self._lane_sum.step_is_done()
        if self._times_lanes:
            self._lane_s[samples[-1].lane.lane] -= exchange_s
        lanes = self._gather(share, samples, sums, requests)
        self._lane_sum.enter_phase("compute")
        rate = learning_rate(self._config, step=step, num_steps=self._num_steps)
        totals = StepTotals(
            num_rows=int(sum(lane.num_rows for lane in lanes)),
            num_tokens=int(sum(lane.num_tokens for lane in lanes)),
            weight=int(sum(lane.weight for lane in lanes)),
            loss_sum=added_in_order(lane.loss for lane in lanes),
            gradient_norm=float("nan"),
            learning_rate=rate,
            stop_requested=any(lane.stop_requested for lane in lanes),
            commit_requested=any(lane.commit_requested for lane in lanes),
            exchange_s=exchange_s,
            bad_lanes=tuple(int(lane.lane) for lane in lanes if not math.isfinite(lane.loss)),
            # Added in lane order, then divided.
            metrics=means_of(self._forward.metrics, [[lane.lane, *lane.metrics] for lane in lanes]),
            digests=self._rollout_digests(lanes),
        )
        if totals.bad_lanes:
            return totals
        self._forward.check_step(totals.metrics, step=step)
        if check:
            num_passes = [num_backwards(lane_samples.lane) for lane_samples in samples]
            digests = self._digests(
                check.finish(self._forward.for_recomputation(share, step=step), num_passes, step=step)
            )
            totals = totals._replace(is_verified=True, digests={**totals.digests, **digests})
        norm = self._update(totals.weight, rate)
        return totals._replace(gradient_norm=norm)

    def _digests(self, checked: Checked) -> dict[str, float]:
        # All ranks must call this together: sharded gradients are gathered.
        digests = {"gradient_digest": float(digest_of_tensors(map(whole_tensor, self._gradients())))}
        if checked.digest is not None:
            digests["spot_check_lane"] = float(checked.lane)
            digests["spot_check_digest"] = float(checked.digest)
        return digests

    def _gradients(self) -> list[Float[Tensor, "..."]]:
        return [p.grad for p in self._trained if p.grad is not None]

    def _timed_backward(
        self, samples: LaneSamples, position: int, num_passes: int, *, step: int, update: int
    ) -> Float64[Tensor, "number"]:
        """Run `_backward`, and record its seconds if lanes are timed."""
        began_s = time.monotonic()
        sums = self._backward(samples, position, num_passes, step=step, update=update)
        if self._times_lanes:
            if self._ranks.device.type == "cuda":
                torch.cuda.synchronize(self._ranks.device)
            lane = samples.lane.lane
            self._lane_s[lane] = self._lane_s.get(lane, 0.0) + time.monotonic() - began_s
        return sums

    def _backward(
        self, samples: LaneSamples, position: int, num_passes: int, *, step: int, update: int
    ) -> Float64[Tensor, "number"]:
        """Return the lane's loss, then sum and weight of each metric; its gradients are added to the tree."""
        total = torch.zeros(1 + 2 * len(self._forward.metrics), dtype=torch.float64, device=self._ranks.device)
        if samples.metrics:
            total += self._sums(total[0], samples.metrics)
        for index in range(num_passes):
            with self._lane_sum.backward_pass(position, index):
                began_s = time.monotonic()
                loss = self._forward.loss(self._lane_sum.module, samples.lane, index, step=step, update=update)
                self._spent_s["forward_s"] += (half_s := time.monotonic()) - began_s
                loss.sum.backward()  # type: ignore[no-untyped-call]
                self._spent_s["backward_s"] += time.monotonic() - half_s
            total += self._sums(loss.sum, loss.metrics)
        return total

    def _sums(self, loss: Float[Tensor, ""], metrics: Mapping[str, MetricSum]) -> Float64[Tensor, "number"]:
        """Return loss, sums and weights as one vector; zeros for metrics that are not among these."""
        parts = [loss.detach().double()]
        nothing = MetricSum(torch.zeros_like(parts[0]), 0.0)
        for name in self._forward.metrics:
            metric = metrics.get(name, nothing)
            parts += [metric.sum.detach().to(parts[0]), torch.as_tensor(metric.weight).to(parts[0])]
        return torch.stack(parts)

    def _rollout_digests(self, lanes: list[_LaneTotals]) -> dict[str, float]:
        if not any(lane.rollout_digest for lane in lanes):
            return {}
        return {"rollout_digest": float(combined_digest(int(lane.rollout_digest) for lane in lanes))}

    def _gather(
        self,
        share: StepShare,
        samples: list[LaneSamples],
        sums: list[Float64[Tensor, "number"]],
        requests: tuple[bool, bool],
    ) -> list[_LaneTotals]:
        """Return the totals of each lane of all ranks in lane order, the order of all additions."""
        local_lanes = []
        for lane, lane_samples, numbers in zip(share.lanes, samples, torch.stack(sums).tolist(), strict=True):
            counts = (
                lane.lane,
                lane.num_rows,
                lane_samples.lane.num_tokens,
                self._forward.weight(lane_samples.lane),
            )
            local_lanes.append([*counts, *requests, lane_samples.digest, *numbers])
        return [_LaneTotals._make([*line[:_METRICS], line[_METRICS:]]) for line in self._all_gather_lanes(local_lanes)]

    def _all_gather_lanes(self, local_lanes: list[list[float]]) -> list[list[float]]:
        """All-gather rows of numbers that begin with a lane index; return them in lane order."""
        if self._ranks.world_size == 1:
            return local_lanes
        # all_gather needs equal shapes: ranks with fewer lanes send rows that are filtered out below.
        no_lane = [[-1.0] * len(local_lanes[0])] * (self._lane_sum.shares.most - len(local_lanes))
        sent = torch.tensor([*local_lanes, *no_lane], dtype=torch.float64)
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
"""A model under training, as a type for modules that import no torch."""


def initial_model(method: Method, *, seed: int, device: torch.device) -> Network:
    """Return the method's model in training mode, with random weights from the run's seed."""
    torch.manual_seed(derive_key(seed, "weights"))
    return method.build_model().to(device).train()


def trained_model(method: Method, config: TrainerConfig, *, seed: int, device: torch.device) -> Network:
    """Return the method's model with its layers compiled if the configuration says so."""
    model = initial_model(method, seed=seed, device=device)
    if config.compile:
        # Imported here: torch.compile's modules take seconds to import.
        from assay.models.compiled import compile_layers

        compile_layers(model, autocast(config.precision, device))
    return model

"""One optimizer step: a micro-batch from each lane, one gradient sum, one update.

    once:                            collect the training samples of this rank's lanes
    for each lane of this rank:      seed the generators by (seed, step, lane); forward, backward
    over all lanes of all ranks:     gradients are summed as a binary tree, losses and counts are all-gathered
    once:                            divide by the step's weight, clip, AdamW

Only the weights and the optimizer's moments persist between steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.base.shapes import Float, Float64
from assay.data.loader.batch import StepShare
from assay.distributed.lane_sum import LaneGradients
from assay.distributed.ranks import Ranks
from assay.models.graph_capture import Capture
from assay.training.numerics import added_in_order, combined_digest, digest_of_tensors, means_of
from assay.training.samples import LaneSamples, SampleLog, SampleSource
from assay.training.trainer.captured import LanePasses
from assay.training.trainer.config import OptimizerConfig
from assay.training.trainer.gpu_use import GpuUse
from assay.training.trainer.lane_forward import LaneForward, num_backwards
from assay.training.trainer.method import LossMethod
from assay.training.trainer.optimizer import apply_update, average_and_clip, learning_rate, whole_tensor
from assay.training.trainer.spot_check import Checked, SpotCheck

SAMPLES_DIGEST = "rollout_digest"
"""Metric of the digest of all samples that were generated in a step; runs have recorded it under this name."""


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
    """Digests of samples and of the spot check, which a replay compares: exact integers, by metric name."""
    costs: Mapping[str, float] = MappingProxyType({})
    """Costs of a step on this rank whose samples cost time, by metric name; ranks differ."""
    log: SampleLog | None = None
    """Log of the samples of this rank's lanes; None for dataset rows."""

    def requests_commit(self) -> bool:
        return self.stop_requested or self.commit_requested

    @property
    def is_applied(self) -> bool:
        """True if the update was applied: losses and gradient are finite."""
        return not self.bad_lanes and math.isfinite(self.gradient_norm)

    @property
    def loss(self) -> float:
        return self.loss_sum / max(1, self.weight)


class StartedStep(NamedTuple):
    """A step whose operators were started."""

    totals: Callable[[], StepTotals]
    """Waits for the step if the device is still running it."""
    is_running: bool
    """True if the device may still run the step; the next one can be started before the totals are read."""


class _LaneTotals(NamedTuple):
    """One lane in one step. Values travel as float64, which holds all of them exactly."""

    lane: float
    num_rows: float
    num_tokens: float
    weight: float
    stop_requested: float
    commit_requested: float
    digest: float
    loss: float
    metrics: list[float]
    """Sum and weight of each metric, in turn."""


_METRICS = _LaneTotals._fields.index("metrics")


class Stepper:
    """Runs the optimizer steps of one rank."""

    def __init__(
        self,
        source: SampleSource,
        forward: LaneForward,
        lane_sum: LaneGradients,
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        *,
        config: OptimizerConfig,
        num_steps: int,
        spot_check: SpotCheck | None = None,
        times_lanes: bool = False,
        capture: Capture | None = None,
        defers: bool = False,
        updated: Callable[[], None] = lambda: None,
        schedule_step: Callable[[int], int] = lambda step: step,
    ) -> None:
        """If `times_lanes`, the costs report the seconds of each lane and when gradients were ready; the device
        is synchronized after each lane. `capture`: see `LanePasses`. If `defers`, steps without a spot check are
        started without waiting for the device: this rank is alone, and its samples are dataset rows. `updated` is
        called after each update. `schedule_step`: see `RankContext`."""
        self._source = source
        self._forward = forward
        self._lane_sum = lane_sum
        self._optimizer = optimizer
        self._ranks = ranks
        self._config = config
        self._num_steps = num_steps
        self._spot_check = spot_check
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._gpu_use = GpuUse(ranks.device, forward)
        self._passes = LanePasses(forward, lane_sum, ranks.device, times_lanes=times_lanes, capture=capture)
        self._defers = defers
        self._updated = updated
        self._schedule_step = schedule_step
        self.before_update: Callable[[], None] = lambda: None
        """Called before each update."""

    def step(self, share: StepShare, *, step: int, stop_requested: bool, commit_requested: bool = False) -> StepTotals:
        """Run optimizer step `step` (from 1) on this rank's share; see `start`."""
        return self.start(share, step=step, stop_requested=stop_requested, commit_requested=commit_requested).totals()

    def start(
        self, share: StepShare, *, step: int, stop_requested: bool, commit_requested: bool = False
    ) -> StartedStep:
        """Start optimizer step `step` (from 1) on this rank's share, and wait for it unless it can be deferred.

        If samples serve several updates, the totals are the last update's; the first is spot-checked. Raises
        `StepCancelledError` on all ranks if samples could not be collected.
        """
        with self._gpu_use.step():
            return self._start(share, (stop_requested, commit_requested and self._ranks.rank == 0), step=step)

    def _start(self, share: StepShare, requests: tuple[bool, bool], *, step: int) -> StartedStep:
        """Start a step; `requests` are for a stop and for a commit."""
        samples = self._source.collect(share, step=step)
        self._lane_sum.enter_phase("compute")
        self._passes.reset_times()
        check = self._spot_check if self._spot_check and self._spot_check.is_due(step) else None
        is_running = self._defers and check is None
        if is_running:
            read = self._start_update(share, samples, requests, step=step)
        else:
            trained = self._run_updates(share, samples, check, requests, step=step)
            read = lambda: trained  # noqa: E731
        logs = [lane_samples.log for lane_samples in samples if lane_samples.log is not None]
        log = tuple(chain.from_iterable(logs)) if logs else None
        costs = {} if self._source.costs is None else {**self._source.costs, **self._passes.spent_s}
        lanes = [lane_samples.lane for lane_samples in samples]
        costs |= self._gpu_use.costs(lanes, num_updates=self._source.updates_per_step)
        costs |= self._passes.lane_times()
        return StartedStep(lambda: read()._replace(log=log, costs=costs), is_running)

    def _run_updates(
        self,
        share: StepShare,
        samples: list[LaneSamples],
        check: SpotCheck | None,
        requests: tuple[bool, bool],
        *,
        step: int,
    ) -> StepTotals:
        """Run all updates of a step."""
        totals = self._run_update(share, samples, check, requests, step=step, update=0)
        for update in range(1, self._source.updates_per_step):
            if totals.is_applied:
                again = self._run_update(share, samples, None, requests, step=step, update=update)
                totals = again._replace(is_verified=totals.is_verified, digests=totals.digests)
        if totals.is_applied:
            self._source.release(step=step)
        return totals

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
        """Run one update."""
        if check:
            check.begin(share, step=step)
        sums, exchange_s = self._passes.sum_gradients(samples, step=step, update=update)
        lanes = self._gather(share, samples, sums.tolist(), requests)
        self._lane_sum.enter_phase("compute")
        totals = self._totals(lanes, step=step)._replace(exchange_s=exchange_s)
        if totals.bad_lanes:
            return totals
        self._source.check(totals.metrics, step=step)
        if check:
            num_passes = [num_backwards(lane_samples.lane) for lane_samples in samples]
            checked = check.finish(self._source.for_recomputation(share, step=step), num_passes, step=step)
            totals = totals._replace(is_verified=True, digests={**totals.digests, **self._digests(checked)})
        return totals._replace(gradient_norm=float(self._update(totals.weight, sums[:, 0], step=step)))

    def _start_update(
        self, share: StepShare, samples: list[LaneSamples], requests: tuple[bool, bool], *, step: int
    ) -> Callable[[], StepTotals]:
        """Start an update of a rank alone without waiting for the device; return a function that reads the totals."""
        sums, exchange_s = self._passes.sum_gradients(samples, step=step, update=0)
        weight = sum(self._forward.weight(lane_samples.lane) for lane_samples in samples)
        norm = self._update(weight, sums[:, 0], step=step)
        read = read_later(torch.cat([sums.flatten(), norm[None]]))
        width = sums.shape[1]

        def totals() -> StepTotals:
            *numbers, norm = read()
            of_lanes = [numbers[start : start + width] for start in range(0, len(numbers), width)]
            found = self._totals(self._gather(share, samples, of_lanes, requests), step=step)
            return found._replace(exchange_s=exchange_s, gradient_norm=math.nan if found.bad_lanes else norm)

        return totals

    def _totals(self, lanes: list[_LaneTotals], *, step: int) -> StepTotals:
        """Return the totals over all lanes, added in lane order, before the update."""
        digests = [int(lane.digest) for lane in lanes]
        return StepTotals(
            num_rows=int(sum(lane.num_rows for lane in lanes)),
            num_tokens=int(sum(lane.num_tokens for lane in lanes)),
            weight=int(sum(lane.weight for lane in lanes)),
            loss_sum=added_in_order(lane.loss for lane in lanes),
            gradient_norm=math.nan,
            learning_rate=self._rate(step),
            stop_requested=any(lane.stop_requested for lane in lanes),
            commit_requested=any(lane.commit_requested for lane in lanes),
            exchange_s=0.0,
            bad_lanes=tuple(int(lane.lane) for lane in lanes if not math.isfinite(lane.loss)),
            metrics=means_of(self._forward.metrics, [[lane.lane, *lane.metrics] for lane in lanes]),
            digests={SAMPLES_DIGEST: float(combined_digest(digests))} if any(digests) else {},
        )

    def _digests(self, checked: Checked) -> dict[str, float]:
        # All ranks must call this together: sharded gradients are gathered.
        digests = {"gradient_digest": float(digest_of_tensors(map(whole_tensor, self._gradients())))}
        if checked.digest is not None:
            digests["spot_check_lane"] = float(checked.lane)
            digests["spot_check_digest"] = float(checked.digest)
        return digests

    def _gradients(self) -> list[Float[Tensor, "..."]]:
        return [p.grad for p in self._trained if p.grad is not None]

    def _gather(
        self, share: StepShare, samples: list[LaneSamples], sums: Sequence[Sequence[float]], requests: tuple[bool, bool]
    ) -> list[_LaneTotals]:
        """Return the totals of each lane of all ranks in lane order, the order of all additions."""
        local_lanes = []
        for lane, lane_samples, numbers in zip(share.lanes, samples, sums, strict=True):
            counts = (lane.lane, lane.num_rows, lane_samples.lane.num_tokens, self._forward.weight(lane_samples.lane))
            local_lanes.append([*counts, *requests, lane_samples.digest, *numbers])
        everyone = self._ranks.all_gather_lanes(local_lanes, most=self._lane_sum.shares.most)
        return [_LaneTotals._make([*line[:_METRICS], line[_METRICS:]]) for line in everyone]

    def _rate(self, step: int) -> float:
        return learning_rate(self._config, step=self._schedule_step(step), num_steps=self._num_steps)

    def _update(self, weight: int, losses: Float64[Tensor, "lane"], *, step: int) -> Float64[Tensor, ""]:
        """Make the update unless a loss or the gradient is not finite; return the gradient's norm, on the device."""
        self.before_update()
        norm = average_and_clip(self._gradients(), weight=max(1, weight), max_norm=self._config.max_gradient_norm)
        apply_update(self._optimizer, self._rate(step), norm.isfinite() & losses.isfinite().all())
        self._updated()
        return norm


def read_later(numbers: Float64[Tensor, "number"]) -> Callable[[], list[float]]:
    """Start to copy numbers to the host; the result waits for them, and not for what was started afterwards."""
    if not numbers.is_cuda:
        return numbers.tolist
    copied = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
    is_copied = torch.cuda.current_stream().record_event()

    def read() -> list[float]:
        is_copied.synchronize()
        found: list[float] = copied.tolist()
        return found

    return read


Network = nn.Module
"""A model under training, as a type for modules that import no torch."""


def initial_model(method: LossMethod, *, seed: int, device: torch.device) -> Network:
    """Return the method's model in training mode, with random weights from the run's seed."""
    torch.manual_seed(derive_key(seed, "weights"))
    return method.build_model().to(device).train()

"""Forward passes of one lane: the only place where rows, random generators and precision are combined.

The training step, its spot check, its replay and the search for bad rows all compute losses here, so they start
from the same bits. So do the rollouts of RL methods:

    lane of prompts  --training_samples-->  lane of completions  --loss-->  sums
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.base.shapes import Shaped
from assay.data.loader.batch import LaneShare, MicroBatch, StepShare
from assay.inference.rollout import GenerationCancelledError
from assay.training.checkpoint.parts import ROLLOUTS, StatefulPart
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.trainer.config import Precision
from assay.training.trainer.method import (
    EnterPhase,
    LaneSamples,
    Loss,
    Method,
    MetricSum,
    ReplayedRollout,
    RolloutMethod,
)
from assay.training.trainer.numerics import added_in_order, autocast, seed_generators
from assay.training.trainer.rollout_buffer import BufferedLane, RolloutBuffer


class LaneForward:
    """Computes losses of a method with whichever model is passed in."""

    def __init__(
        self,
        method: Method,
        *,
        device: torch.device,
        precision: Precision,
        seed: int,
        max_micro_batch_tokens: int | None = None,
        reward_cache: RewardCache | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        lanes: Sequence[int] = (),
    ) -> None:
        """`max_micro_batch_tokens` is `LoaderConfig`'s; rollouts are split by it, too. `reward_cache`: see
        `RolloutMethod`. `is_stopping` returns whether this rank received SIGTERM, so generation should stop.
        `lanes` are this rank's."""
        self._method = method
        self._rollout_method = method if isinstance(method, RolloutMethod) else None
        self.frozen_models = {
            name: model.to(device).eval().requires_grad_(False) for name, model in method.build_frozen_models().items()
        }
        """Frozen models that the loss reads, such as a reference model."""
        self._device = device
        self._autocast = autocast(precision, device)
        self._seed = seed
        self._max_tokens = max_micro_batch_tokens
        self._reward_cache = reward_cache
        self._is_stopping = is_stopping
        self.updates_per_step = self._rollout_method.updates_per_rollout if self._rollout_method else 1
        """Optimizer updates from the samples of one step."""
        self.staleness = self._rollout_method.staleness if self._rollout_method else 0
        """Steps between generating rollouts and training on them."""
        self._rollout_buffer = RolloutBuffer(lanes)
        self._carried: dict[tuple[int, int], Mapping[str, Shaped[Tensor, "..."]]] = {}
        """(lane, micro-batch) -> tensors that the step's first update computed for the later ones."""
        self._statistics: tuple[int, Mapping[str, float]] = (0, {})
        """The last step whose advantages were normalized, and its statistics."""
        self.metrics = tuple(method.metrics)
        """Names of the metrics that losses or rollouts report."""
        self.lane: int | None = None
        self.micro_batch: MicroBatch | None = None
        """Lane and micro-batch of the last loss; None for a blank."""
        self.is_under_way = False
        """True while a loss is computed, also between modules."""

    def training_samples(
        self,
        whole_model: Callable[[], nn.Module],
        lanes: Sequence[LaneShare],
        *,
        step: int,
        upcoming: Sequence[Sequence[LaneShare]] = (),
        is_cancellable: bool = False,
        is_recomputation: bool = False,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> list[LaneSamples]:
        """Return the training samples of optimizer step `step`: dataset rows, or rollouts for RL methods.

        `whole_model` returns the unwrapped model with all weights; it is called only if something is generated.
        `enter_phase` is called when generation and grading begin. If `is_cancellable`, raises
        `GenerationCancelledError` when this rank receives SIGTERM. `is_recomputation` says that another rank
        already generated the samples, so grades are read from the reward cache. With `staleness`, missing
        rollouts of this step and of those `upcoming` are generated.
        """
        if self._rollout_method is None:
            return [LaneSamples(lane) for lane in lanes]
        if not self.staleness:
            return self._generate(
                whole_model(),
                lanes,
                step=step,
                is_cancellable=is_cancellable,
                is_recomputation=is_recomputation,
                enter_phase=enter_phase,
            )
        if all(isinstance(lane, BufferedLane) for lane in lanes):
            return [LaneSamples(lane) for lane in lanes]
        missing = [
            (future_step, step_lanes)
            for future_step, step_lanes in enumerate([lanes, *upcoming], step)
            if not all(self._rollout_buffer.has(future_step, lane.lane) for lane in step_lanes)
        ]
        model = whole_model() if missing else None
        for future_step, step_lanes in missing:
            assert model is not None
            try:
                samples = self._generate(
                    model, step_lanes, step=future_step, is_cancellable=is_cancellable, enter_phase=enter_phase
                )
            except GenerationCancelledError:
                self._rollout_buffer.discard_sampled_by(step - 1)
                raise
            self._rollout_buffer.put(future_step, step_lanes, samples, policy_step=step - 1)
        return [self._rollout_buffer.of(step, lane) for lane in lanes]

    def regenerated_digests(self, whole_model: Callable[[], nn.Module], lane: LaneShare) -> list[int]:
        """Generate again what a lane generated for later steps in this step; return the digests."""
        upcoming = lane.upcoming if isinstance(lane, BufferedLane) else ()
        model = whole_model() if upcoming else None
        return [
            self._generate(model, [prompts], step=future_step, is_recomputation=True)[0].digest
            for future_step, prompts in upcoming
            if model is not None
        ]

    def for_recomputation(self, share: StepShare, *, step: int) -> StepShare:
        """Return the share with all that another rank needs to recompute its lanes."""
        if not self.staleness:
            return share
        steps = list(enumerate([share.lanes, *share.upcoming], step))
        lanes = [
            self._rollout_buffer.for_recomputation(
                step, lane, {future_step: step_lanes[index] for future_step, step_lanes in steps}
            )
            for index, lane in enumerate(share.lanes)
        ]
        return replace(share, lanes=tuple(lanes))

    def cancel(self, *, step: int) -> None:
        """Discard what was generated in step `step`."""
        self._rollout_buffer.discard_sampled_by(step - 1)

    def release(self, *, step: int) -> None:
        """Discard the buffered samples of step `step`, which has been trained."""
        self._rollout_buffer.discard_trained(step)

    @property
    def parts(self) -> Mapping[str, StatefulPart]:
        """Return the state that a commit must hold: rollouts that are generated and not yet trained."""
        return {ROLLOUTS: self._rollout_buffer} if self.staleness else {}

    def _generate(
        self,
        model: nn.Module,
        lanes: Sequence[LaneShare],
        *,
        step: int,
        is_cancellable: bool = False,
        is_recomputation: bool = False,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> list[LaneSamples]:
        assert self._rollout_method is not None
        seed, reward_cache = derive_key(self._seed, "rollout", step), self._reward_cache
        with torch.no_grad(), self._autocast:
            return self._rollout_method.rollouts(
                model,
                lanes,
                self.frozen_models,
                step=step,
                seed=seed,
                max_tokens=self._max_tokens,
                reward_cache=reward_cache.read_only() if reward_cache and is_recomputation else reward_cache,
                is_stopping=self._is_stopping if is_cancellable else lambda: False,
                enter_phase=enter_phase,
            )

    def rollout(self, model: nn.Module, lane: LaneShare, *, step: int, row_id: int, sample: int) -> ReplayedRollout:
        """Generate one completion of one prompt of a lane alone, as in step `step`."""
        assert self._rollout_method is not None, "its rows are no prompts"
        seed = derive_key(self._seed, "rollout", step)
        with torch.no_grad(), self._autocast:
            return self._rollout_method.rollout(
                model,
                lane,
                self.frozen_models,
                row_id=row_id,
                sample=sample,
                step=step,
                seed=seed,
                reward_cache=self._reward_cache,
            )

    def normalize_advantages(
        self,
        samples: Sequence[LaneSamples],
        *,
        step: int,
        gather_lanes: Callable[[list[list[float]]], list[list[float]]] | None = None,
    ) -> list[LaneSamples]:
        """Return the samples with advantages normalized by statistics over all lanes of the step.

        `gather_lanes` all-gathers rows of numbers that begin with the lane index, in lane order. If it is None,
        the statistics of the last normalization are used: the lane is recomputed.
        """
        method = self._rollout_method
        if method is None or not method.step_statistics:
            return list(samples)
        if gather_lanes is not None:
            sums = gather_lanes([_numbers(sample, method.step_statistics) for sample in samples])
            self._statistics = step, means_of(method.step_statistics, sums)
        assert self._statistics[0] == step, (self._statistics, step)
        return [
            sample._replace(lane=method.normalize_advantages(sample.lane, self._statistics[1])) for sample in samples
        ]

    @property
    def uses_rollouts(self) -> bool:
        """True if the dataset's rows are prompts."""
        return self._rollout_method is not None

    @property
    def rollout_costs(self) -> Mapping[str, float] | None:
        """Costs of the last `training_samples` in this process (see `RolloutMethod`); None for methods without
        rollouts."""
        return self._rollout_method.rollout_costs if self._rollout_method else None

    def check_step(self, metrics: Mapping[str, float], *, step: int) -> None:
        if self._rollout_method is not None:
            self._rollout_method.check_step(metrics, step=step)

    def loss(self, model: nn.Module, lane: LaneShare, index: int, *, step: int, update: int = 0) -> Loss:
        """Return the loss of micro-batch `index` of a lane of training samples in step `step` (from 1).

        The generators are seeded by (seed, step, lane, index), and by `update` if a step makes several. Beyond
        the lane's last micro-batch, the loss is that of a blank whose sums and weights are zero: ranks compute
        it to keep collectives in step.
        """
        again = ("update", update) if update else ()
        seed_generators(derive_key(self._seed, "forward", step, lane.lane, index, *again))
        if index < len(lane.micro_batches):
            self.lane = lane.lane
            if update:
                return self.loss_of(model, lane.micro_batches[index], self._carried[lane.lane, index])
            loss = self.loss_of(model, lane.micro_batches[index])
            if self.updates_per_step > 1:
                self._carried[lane.lane, index] = loss.carried
            return loss
        self.lane = self.micro_batch = None
        with self._autocast:
            blank = self._method.loss(model, self._method.blank(self._device), self.frozen_models)
        nothing = {name: MetricSum(0.0 * metric.sum, 0.0) for name, metric in blank.metrics.items()}
        return Loss(0.0 * blank.sum, nothing)

    def loss_of(
        self,
        model: nn.Module,
        micro_batch: MicroBatch,
        carried: Mapping[str, Shaped[Tensor, "..."]] = MappingProxyType({}),
    ) -> Loss:
        """Return the loss of one micro-batch without seeding the generators; `carried`: see `Loss`."""
        self.micro_batch, self.is_under_way = micro_batch, True
        try:
            with self._autocast:
                tensors = self._method.tensors(micro_batch, self._device)
                return self._method.loss(model, {**tensors, **carried}, self.frozen_models)
        finally:
            self.is_under_way = False

    def weight_of(self, micro_batch: MicroBatch) -> int:
        return self._method.weight(micro_batch)

    def weight(self, lane: LaneShare) -> int:
        return sum(map(self._method.weight, lane.micro_batches))


def means_of(names: Sequence[str], lanes: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return weighted means of metrics; a metric of zero weight is left out.

    A line holds the lane index, then sum and weight of each metric. Lines are added in the given order.
    """
    totals = [added_in_order(of_lanes) for of_lanes in zip(*lanes, strict=True)][1:]
    named = zip(names, totals[::2], totals[1::2], strict=True)
    return {name: total / weight for name, total, weight in named if weight}


def num_backwards(lane: LaneShare) -> int:
    """Return the number of backward passes of a lane: one for each micro-batch, and at least one."""
    return max(1, len(lane.micro_batches))


def _numbers(samples: LaneSamples, names: Sequence[str]) -> list[float]:
    """Return the lane index, then sum and weight of each metric."""
    found = [samples.metrics[name] for name in names]
    return [samples.lane.lane, *(float(part) for metric in found for part in metric)]

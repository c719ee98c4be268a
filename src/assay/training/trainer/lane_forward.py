"""A lane's forward passes: the one place where rows, generators and precision meet.

The step, its spot check, its replay and the search for bad rows all compute losses through here, so they
begin with the same bits. So do the rollouts of methods whose rows are prompts:

    lane of prompts  --learned-->  lane of what they became  --loss-->  sums
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.base.shapes import Shaped
from assay.data.loader.batch import LaneShare, MicroBatch, StepShare
from assay.inference.rollout import GenerationAbandonedError
from assay.training.checkpoint.grade_book import GradeBook
from assay.training.checkpoint.parts import ROLLOUTS, StatefulPart
from assay.training.trainer.config import Precision
from assay.training.trainer.method import (
    EnterPhase,
    Helpers,
    Loss,
    Method,
    MetricSum,
    RolledOut,
    RolloutAlone,
    RolloutMethod,
)
from assay.training.trainer.numerics import added_in_order, autocast, seed_generators
from assay.training.trainer.rollout_buffer import AnsweredLane, InFlight


class LaneForward:
    """Computes losses with any model of a method, whose weights are taken as they are."""

    def __init__(
        self,
        method: Method,
        *,
        device: torch.device,
        precision: Precision,
        seed: int,
        max_micro_batch_tokens: int | None = None,
        book: GradeBook | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        lanes: Sequence[int] = (),
    ) -> None:
        """`max_micro_batch_tokens`: what `LoaderConfig` says; rollouts are cut by it, too. `book`: see
        `RolloutMethod`. `is_stopping`: whether this rank was asked to leave, so that no more rollouts are worth
        while. `lanes`: this rank's."""
        self._method = method
        self._rollout_method = method if isinstance(method, RolloutMethod) else None
        self.helpers = _frozen(method.build_helpers(), device)
        """Models that the loss asks beside the one under training."""
        self._device = device
        self._autocast = autocast(precision, device)
        self._seed = seed
        self._max_tokens = max_micro_batch_tokens
        self._book = book
        self._is_stopping = is_stopping
        self.updates_per_step = self._rollout_method.updates_per_rollout if self._rollout_method else 1
        """From the rows of one step."""
        self.steps_ahead = self._rollout_method.staleness if self._rollout_method else 0
        """By which rollouts are made before they are learned."""
        self._in_flight = InFlight(lanes)
        self._kept: dict[tuple[int, int], Mapping[str, Shaped[Tensor, "..."]]] = {}
        """Lane, micro-batch -> what the step's first update found there, for the later ones."""
        self._settled: tuple[int, Mapping[str, float]] = (0, {})
        """The step that was settled last, and by what."""
        self.metrics = tuple(method.metrics)
        """Names of the metrics that come with every loss, or with rollouts."""
        self.lane: int | None = None
        self.micro_batch: MicroBatch | None = None
        """The lane and the micro-batch whose loss was asked for last; None where that was a blank."""
        self.is_under_way = False
        """A loss is being computed, in modules of a model or between them."""

    def learned(
        self,
        whole_model: Callable[[], nn.Module],
        lanes: Sequence[LaneShare],
        *,
        step: int,
        ahead: Sequence[Sequence[LaneShare]] = (),
        may_abandon: bool = False,
        is_again: bool = False,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> list[RolledOut]:
        """What the lanes learn from in update number `step`: their rows, or what these became.

        `whole_model` is asked for the model, not wrapped and with all of its weights, where anything is made;
        `enter_phase` is told how far that is. If it `may_abandon` that, a `GenerationAbandonedError` comes
        where this rank is asked to stop meanwhile. `is_again`: somebody has made them in this step, and what
        cannot be made twice is in the book. Of a method that makes rollouts `steps_ahead`, those are made that
        are not there, of this step and of those `ahead`.
        """
        if self._rollout_method is None:
            return [RolledOut(lane) for lane in lanes]
        if not self.steps_ahead:
            return self._rolled_out(
                whole_model(),
                lanes,
                step=step,
                may_abandon=may_abandon,
                is_again=is_again,
                enter_phase=enter_phase,
            )
        if all(isinstance(lane, AnsweredLane) for lane in lanes):
            return [RolledOut(lane) for lane in lanes]
        missing = [
            (to_come, of_step)
            for to_come, of_step in enumerate([lanes, *ahead], step)
            if not all(self._in_flight.has(to_come, lane.lane) for lane in of_step)
        ]
        model = whole_model() if missing else None
        for to_come, of_step in missing:
            assert model is not None
            try:
                made = self._rolled_out(
                    model, of_step, step=to_come, may_abandon=may_abandon, enter_phase=enter_phase
                )
            except GenerationAbandonedError:
                self._in_flight.forget_said_by(step - 1)
                raise
            self._in_flight.put(to_come, of_step, made, policy_step=step - 1)
        return [self._in_flight.of(step, lane) for lane in lanes]

    def said_again(self, whole_model: Callable[[], nn.Module], lane: LaneShare) -> list[int]:
        """Digests of what a lane said ahead in this step, made again."""
        ahead = lane.ahead if isinstance(lane, AnsweredLane) else ()
        model = whole_model() if ahead else None
        return [
            self._rolled_out(model, [prompts], step=to_come, is_again=True)[0].digest
            for to_come, prompts in ahead
            if model is not None
        ]

    def as_checked(self, share: StepShare, *, step: int) -> StepShare:
        """Its lanes as another rank needs them to do their work of update number `step` again."""
        if not self.steps_ahead:
            return share
        steps = list(enumerate([share.lanes, *share.ahead], step))
        lanes = [
            self._in_flight.as_checked(step, lane, {to_come: of_step[place] for to_come, of_step in steps})
            for place, lane in enumerate(share.lanes)
        ]
        return replace(share, lanes=tuple(lanes))

    def abandon(self, *, step: int) -> None:
        """Leave nothing of update number `step`."""
        self._in_flight.forget_said_by(step - 1)

    def is_made(self, *, step: int) -> None:
        """What update number `step` learned from is not held any longer."""
        self._in_flight.forget(learned=step)

    @property
    def parts(self) -> Mapping[str, StatefulPart]:
        """What a commit must hold of what was made and not learned."""
        return {ROLLOUTS: self._in_flight} if self.steps_ahead else {}

    def _rolled_out(
        self,
        model: nn.Module,
        lanes: Sequence[LaneShare],
        *,
        step: int,
        may_abandon: bool = False,
        is_again: bool = False,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> list[RolledOut]:
        assert self._rollout_method is not None
        seed, book = derive_key(self._seed, "rollout", step), self._book
        with torch.no_grad(), self._autocast:
            return self._rollout_method.rollouts(
                model,
                lanes,
                self.helpers,
                step=step,
                seed=seed,
                max_tokens=self._max_tokens,
                book=book.read_only() if book and is_again else book,
                is_stopping=self._is_stopping if may_abandon else lambda: False,
                enter_phase=enter_phase,
            )

    def rollout(
        self, model: nn.Module, lane: LaneShare, *, step: int, row_id: int, sample: int
    ) -> RolloutAlone:
        """One answer to one prompt of a lane, as it is made in update number `step`, by itself."""
        assert self._rollout_method is not None, "its rows are no prompts"
        seed = derive_key(self._seed, "rollout", step)
        with torch.no_grad(), self._autocast:
            return self._rollout_method.rollout(
                model,
                lane,
                self.helpers,
                row_id=row_id,
                sample=sample,
                step=step,
                seed=seed,
                book=self._book,
            )

    def settled(
        self,
        learned: Sequence[RolledOut],
        *,
        step: int,
        everyones: Callable[[list[list[float]]], list[list[float]]] | None = None,
    ) -> list[RolledOut]:
        """What is learned, by what all lanes of the step found together.

        `everyones` brings the numbers of all lanes of all ranks, which begin with the lane's, in lane order.
        Without it, they are those with which this step was made: of a lane that is made again.
        """
        method = self._rollout_method
        if method is None or not method.settled_by:
            return list(learned)
        if everyones is not None:
            sums = everyones([_numbers(each, method.settled_by) for each in learned])
            self._settled = step, means_of(method.settled_by, sums)
        assert self._settled[0] == step, (self._settled, step)
        return [each._replace(lane=method.settled(each.lane, self._settled[1])) for each in learned]

    @property
    def makes_rollouts(self) -> bool:
        """Rows are prompts."""
        return self._rollout_method is not None

    @property
    def rollout_costs(self) -> Mapping[str, float] | None:
        """What was `learned` last cost this process, see `RolloutMethod`; None where it need not be made."""
        return self._rollout_method.rollout_costs if self._rollout_method else None

    def check_step(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise where the method will not have a step with these metrics become an update."""
        if self._rollout_method is not None:
            self._rollout_method.check_step(metrics, step=step)

    def loss(self, model: nn.Module, lane: LaneShare, index: int, *, step: int, update: int = 0) -> Loss:
        """The loss of micro-batch number `index` of a lane that is `learned`, in update number `step` (from 1).

        Its randomness is that of (seed, step, lane, index), and of `update` where a step makes several, from 0.
        Beyond the lane's last micro-batch it is a blank, all of whose sums and weights are zero: what ranks
        compute while they wait for others.
        """
        again = ("update", update) if update else ()
        seed_generators(derive_key(self._seed, "forward", step, lane.lane, index, *again))
        if index < len(lane.micro_batches):
            self.lane = lane.lane
            if update:
                return self.loss_of(model, lane.micro_batches[index], self._kept[lane.lane, index])
            loss = self.loss_of(model, lane.micro_batches[index])
            if self.updates_per_step > 1:
                self._kept[lane.lane, index] = loss.kept
            return loss
        self.lane = self.micro_batch = None
        with self._autocast:
            blank = self._method.loss(model, self._method.blank(self._device), self.helpers)
        nothing = {name: MetricSum(0.0 * metric.sum, 0.0) for name, metric in blank.metrics.items()}
        return Loss(0.0 * blank.sum, nothing)

    def loss_of(
        self,
        model: nn.Module,
        micro_batch: MicroBatch,
        kept: Mapping[str, Shaped[Tensor, "..."]] = MappingProxyType({}),
    ) -> Loss:
        """The loss of a micro-batch by itself, with the generators as they are; `kept`: see `Loss`."""
        self.micro_batch, self.is_under_way = micro_batch, True
        try:
            with self._autocast:
                tensors = self._method.tensors(micro_batch, self._device)
                return self._method.loss(model, {**tensors, **kept}, self.helpers)
        finally:
            self.is_under_way = False

    def weight_of(self, micro_batch: MicroBatch) -> int:
        """What the micro-batch counts in the step's mean."""
        return self._method.weight(micro_batch)

    def weight(self, lane: LaneShare) -> int:
        """What the lane counts in the step's mean."""
        return sum(map(self._method.weight, lane.micro_batches))


def means_of(names: Sequence[str], lanes: Sequence[Sequence[float]]) -> dict[str, float]:
    """Means of metrics, without those that weigh nothing.

    Each line has a lane's number, then sum and weight of each metric; they are added in the order given.
    """
    totals = [added_in_order(of_lanes) for of_lanes in zip(*lanes, strict=True)][1:]
    named = zip(names, totals[::2], totals[1::2], strict=True)
    return {name: total / weight for name, total, weight in named if weight}


def num_backwards(lane: LaneShare) -> int:
    """Backward passes that a lane takes: one for each micro-batch, and at least one."""
    return max(1, len(lane.micro_batches))


def _numbers(learned: RolledOut, names: Sequence[str]) -> list[float]:
    """The lane's, then sum and weight of each metric."""
    found = [learned.metrics[name] for name in names]
    return [learned.lane.lane, *(float(part) for each in found for part in each)]


def _frozen(helpers: Helpers, device: torch.device) -> Helpers:
    return {name: helper.to(device).eval().requires_grad_(False) for name, helper in helpers.items()}

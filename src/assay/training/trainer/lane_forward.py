"""A lane's forward passes: the one place where rows, generators and precision meet.

The step, its spot check, its replay and the search for bad rows all compute losses through here, so they
begin with the same bits.
"""

import torch
from torch import nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare, MicroBatch
from assay.training.trainer.config import Precision
from assay.training.trainer.method import Helpers, Loss, Method, MetricSum
from assay.training.trainer.numerics import autocast, seed_generators


class LaneForward:
    """Computes losses with any model of a method, whose weights are taken as they are."""

    def __init__(self, method: Method, *, device: torch.device, precision: Precision, seed: int) -> None:
        self._method = method
        self.helpers = _frozen(method.build_helpers(), device)
        """Models that the loss asks beside the one under training."""
        self._device = device
        self._autocast = autocast(precision, device)
        self._seed = seed
        self.metrics = tuple(method.metrics)
        """Names of the metrics that come with every loss."""
        self.micro_batch: MicroBatch | None = None
        """The one whose loss was asked for last; None where that was a blank."""
        self.is_under_way = False
        """A loss is being computed, in modules of a model or between them."""

    def loss(self, model: nn.Module, lane: LaneShare, index: int, *, step: int) -> Loss:
        """The loss of micro-batch number `index` of the lane, in update number `step` (from 1).

        Its randomness is that of (seed, step, lane, index). Beyond the lane's last micro-batch it is a blank,
        all of whose sums and weights are zero: what ranks compute while they wait for others.
        """
        seed_generators(derive_key(self._seed, "forward", step, lane.lane, index))
        if index < len(lane.micro_batches):
            return self.loss_of(model, lane.micro_batches[index])
        self.micro_batch = None
        with self._autocast:
            blank = self._method.loss(model, self._method.blank(self._device), self.helpers)
        nothing = {name: MetricSum(0.0 * metric.sum, 0.0) for name, metric in blank.metrics.items()}
        return Loss(0.0 * blank.sum, nothing)

    def loss_of(self, model: nn.Module, micro_batch: MicroBatch) -> Loss:
        """The loss of a micro-batch by itself, with the generators as they are."""
        self.micro_batch, self.is_under_way = micro_batch, True
        try:
            with self._autocast:
                tensors = self._method.tensors(micro_batch, self._device)
                return self._method.loss(model, tensors, self.helpers)
        finally:
            self.is_under_way = False

    def weight_of(self, micro_batch: MicroBatch) -> int:
        """What the micro-batch counts in the step's mean."""
        return self._method.weight(micro_batch)

    def weight(self, lane: LaneShare) -> int:
        """What the lane counts in the step's mean."""
        return sum(map(self._method.weight, lane.micro_batches))


def num_backwards(lane: LaneShare) -> int:
    """Backward passes that a lane takes: one for each micro-batch, and at least one."""
    return max(1, len(lane.micro_batches))


def _frozen(helpers: Helpers, device: torch.device) -> Helpers:
    return {name: helper.to(device).eval().requires_grad_(False) for name, helper in helpers.items()}

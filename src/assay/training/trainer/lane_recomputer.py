"""Recomputes the gradient of one lane, without the sum over lanes and without changing `.grad`.

The operations, their order and the random keys are the trainer's own, so the bits are equal on any rank. Spot
checks, replays and the search for bad rows rely on that.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from assay.base.shapes import Float
from assay.data.loader.batch import LaneShare
from assay.distributed.lane_sum import trained_parameters
from assay.distributed.sharded_lane_sum import ShardedLaneSum
from assay.training.numerics import GradientDigest, digest_of_tensors, extended_digest
from assay.training.samples import SampleSource
from assay.training.trainer.lane_forward import LaneForward, num_backwards


class LaneGradient(NamedTuple):
    """The loss and gradient of one lane."""

    loss_sum: float
    weight: int
    """The lane's weight in the step's mean."""
    gradients: list[Float[Tensor, "..."]]
    """Gradients of `loss_sum`, one for each trained parameter in the model's order."""


class LaneRecomputer:
    """Recomputes lanes if this process holds all weights."""

    def __init__(
        self, forward: LaneForward, source: SampleSource, model: nn.Module, *, dtype: torch.dtype | None = None
    ) -> None:
        """`dtype`: the type in which gradients are summed, if not that of the model's weights."""
        self._forward = forward
        self._source = source
        self._model = model
        self._parameters = trained_parameters(model)
        self._dtype = dtype

    def of(self, lane: LaneShare, *, step: int) -> LaneGradient:
        """Return the loss and gradient of a lane of dataset rows in step `step` (from 1)."""
        return self.gradient_of_samples(self._source.recollect(lane, step=step), step=step)

    def gradient_of_samples(self, lane: LaneShare, *, step: int) -> LaneGradient:
        """Return the loss and gradient of a lane of training samples, or of a part of them."""
        loss_sum, gradients = 0.0, list[Tensor]()
        for index in range(num_backwards(lane)):
            loss = self._forward.loss(self._model, lane, index, step=step).sum
            parts = [part.to(self._dtype or part.dtype) for part in torch.autograd.grad(loss, self._parameters)]
            if gradients:
                torch._foreach_add_(gradients, parts)
            gradients = gradients or parts
            loss_sum += float(loss.detach().double())
        return LaneGradient(loss_sum, self._forward.weight(lane), gradients)

    def digest(self, lane: LaneShare, *, step: int) -> int:
        """Return the digest of the lane's gradient, and of what the lane computed besides."""
        digest = digest_of_tensors(self.of(lane, step=step).gradients)
        return extended_digest(digest, self._source.recollect_further(lane))


class ShardedLaneRecomputer:
    """Recomputes lanes if weights are sharded: all ranks call it together, each with one lane.

    No rank has memory for a whole gradient, so each layer of each pass is digested and dropped.
    """

    def __init__(self, forward: LaneForward, source: SampleSource, lane_sum: ShardedLaneSum) -> None:
        self._forward = forward
        self._source = source
        self._lane_sum = lane_sum

    def digest(self, lane: LaneShare, *, step: int) -> int:
        """Return the digest of the gradients of the lane's passes, as `ShardedLaneSum.on_own_gradients` sees them."""
        own_lane = self._source.recollect(lane, step=step)
        digest = GradientDigest()
        own = num_backwards(own_lane)
        for index in range(self._lane_sum.most_passes(own)):
            with self._lane_sum.separate_pass(index, digest.take if index < own else None):
                self._forward.loss(self._lane_sum.module, own_lane, index, step=step).sum.backward()  # type: ignore[no-untyped-call]
        return extended_digest(digest.combined(), self._source.recollect_further(lane))

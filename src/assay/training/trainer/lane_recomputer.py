"""One lane's gradient, computed apart: no sum over lanes, `.grad` untouched.

The same operations in the same order as the trainer's own pass over the lane, from the same keys; so the bits
are the same, on whichever rank. Spot checks, replays and the search for bad rows stand on that.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from assay.base.shapes import Float
from assay.data.loader.batch import LaneShare
from assay.distributed.sharded_lane_sum import ShardedLaneSum
from assay.training.trainer.lane_forward import LaneForward, num_backwards
from assay.training.trainer.numerics import GradientDigest, digest_of_tensors
from assay.training.trainer.rollout_buffer import with_said


class LaneGradient(NamedTuple):
    """What a lane adds to a step."""

    loss_sum: float
    """Over the lane."""
    weight: int
    """What it counts in the step's mean."""
    gradients: list[Float[Tensor, "..."]]
    """The gradients of `loss_sum`, one per trained parameter in the order of the model."""


class LaneRecomputer:
    """Computes lanes where this process has all weights."""

    def __init__(self, forward: LaneForward, model: nn.Module) -> None:
        self._forward = forward
        self._model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def of(self, lane: LaneShare, *, step: int) -> LaneGradient:
        """The loss and gradient of a lane of rows in update number `step` (from 1)."""
        return self.of_learned(self.learned(lane, step=step), step=step)

    def learned(self, lane: LaneShare, *, step: int) -> LaneShare:
        """What the lane learns from in update number `step`."""
        made = self._forward.learned(lambda: self._model, [lane], step=step, is_again=True)
        return self._forward.settled(made, step=step)[0].lane

    def of_learned(self, lane: LaneShare, *, step: int) -> LaneGradient:
        """Likewise of what it learns from, or a part of that."""
        loss_sum, gradients = 0.0, list[Tensor]()
        for index in range(num_backwards(lane)):
            loss = self._forward.loss(self._model, lane, index, step=step).sum
            parts = list(torch.autograd.grad(loss, self._parameters))
            if gradients:
                torch._foreach_add_(gradients, parts)
            gradients = gradients or parts
            loss_sum += float(loss.detach().double())
        return LaneGradient(loss_sum, self._forward.weight(lane), gradients)

    def digest(self, lane: LaneShare, *, step: int) -> int:
        """The digest of the lane's gradient, and of what it said ahead."""
        digest = digest_of_tensors(self.of(lane, step=step).gradients)
        return with_said(digest, self._forward.said_again(lambda: self._model, lane))


class ShardedLaneRecomputer:
    """Computes lanes where each rank has a shard of the weights: all ranks call it together, each with a lane.

    No rank has room for a whole gradient: it is digested pass by pass and layer by layer, and dropped.
    """

    def __init__(self, forward: LaneForward, lane_sum: ShardedLaneSum) -> None:
        self._forward = forward
        self._lane_sum = lane_sum

    def digest(self, lane: LaneShare, *, step: int) -> int:
        """The digest of the gradients of a lane's passes, as `ShardedLaneSum.on_own_gradients` has them."""
        made = self._forward.learned(self._lane_sum.whole_model, [lane], step=step, is_again=True)
        [(learned, *_)] = self._forward.settled(made, step=step)
        digest = GradientDigest()
        own = num_backwards(learned)
        for index in range(self._lane_sum.most_passes(own)):
            with self._lane_sum.apart(index, digest.take if index < own else None):
                self._forward.loss(self._lane_sum.module, learned, index, step=step).sum.backward()  # type: ignore[no-untyped-call]
        return with_said(digest.combined(), self._forward.said_again(self._lane_sum.whole_model, lane))

"""A lane's forward passes: the one place where rows, generators and precision meet.

The step, its spot check and its replay all compute lanes through here, so they begin with the same bits.
"""

import torch
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare
from assay.training.trainer.config import Precision
from assay.training.trainer.method import Method
from assay.training.trainer.numerics import autocast, seed_generators


class LaneForward:
    """Computes losses with a model's weights as they are."""

    def __init__(
        self, method: Method, model: nn.Module, *, device: torch.device, precision: Precision, seed: int
    ) -> None:
        self._method = method
        self._model = model
        self._device = device
        self._autocast = autocast(precision, device)
        self._seed = seed

    def loss_sum(self, lane: LaneShare, index: int, *, step: int) -> Tensor:
        """Over the rows of micro-batch number `index` of the lane, in update number `step` (from 1).

        Its randomness is that of (seed, step, lane, index). A lane without rows computes a blank one, with
        weight zero, as its micro-batch number 0.
        """
        seed_generators(derive_key(self._seed, "forward", step, lane.lane, index))
        with self._autocast:
            if not lane.micro_batches:
                return 0.0 * self._method.loss_sum(self._model, self._method.blank(self._device))
            tensors = self._method.tensors(lane.micro_batches[index], self._device)
            return self._method.loss_sum(self._model, tensors)


def num_backwards(lane: LaneShare) -> int:
    """Backward passes that a lane takes: one for each micro-batch, and at least one."""
    return max(1, len(lane.micro_batches))

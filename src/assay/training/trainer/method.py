"""What a method must say for the trainer to train it: which columns it reads, its model, its loss.

A loss is a *sum* over rows. The trainer adds the sums of all lanes and divides once, by the number of rows
behind the step, so that no batch size, packing or world size can change the mean.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from assay.data.loader.batch import MicroBatch


class Method(Protocol):
    """Batch to loss."""

    @property
    def columns(self) -> Sequence[str]:
        """Dataset columns to read."""
        ...

    def build_model(self) -> nn.Module:
        """The model with its starting weights; the caller has seeded torch."""
        ...

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Mapping[str, Tensor]:
        """What the model needs of a micro-batch, on the device."""
        ...

    def blank(self, device: torch.device) -> Mapping[str, Tensor]:
        """One row that means nothing: what a lane without rows computes, with weight zero."""
        ...

    def loss_sum(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """The sum of the rows' losses; scalar, float32."""
        ...


class PredictingMethod(Method, Protocol):
    """A method whose model can be asked about rows: what runs are evaluated and compared by."""

    def predictions(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Columns by name, one value a row, as the configuration's `predictions` says; in evaluation mode."""
        ...

"""The protocol between the trainer and a method: model, tensors, loss.

A loss is a *sum*, and so is each metric. The trainer adds the sums of all lanes in lane order and divides once
by the step's weight: rows for a classifier, trained tokens for a language model, pairs for preferences.
Therefore no batch size, packing or world size changes the mean.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from assay.base.shapes import Float, Float32, Shaped
from assay.data.loader.batch import MicroBatch
from assay.models.exporting import ExportOptions
from assay.records.exported_model import ModelForm
from assay.training.numerics import MetricSum
from assay.training.trainer.method_config import MethodConfig

FrozenModels = Mapping[str, nn.Module]
"""Frozen models that a loss reads, by name."""


Tensors = Mapping[str, Shaped[Tensor, "..."]]
"""What a method makes of a micro-batch, by name."""


class Loss(NamedTuple):
    """A micro-batch's contribution to a step."""

    sum: Float32[Tensor, ""]
    """Sum over the units that `Method.weight` counts."""
    metrics: Mapping[str, MetricSum]
    """One for each name in `Method.metrics` that samples do not report."""
    carried: Tensors = MappingProxyType({})
    """Tensors that later updates of the same step receive with the micro-batch."""


class LossMethod(Protocol):
    """Maps a batch to a loss: what passes need of a training method."""

    @property
    def config(self) -> MethodConfig: ...

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the metrics that are logged with each step."""
        ...

    def build_model(self) -> nn.Module:
        """Return the model with its initial weights; the caller has seeded torch."""
        ...

    def build_frozen_models(self) -> FrozenModels:
        """Return the models that are never trained and not committed, unsharded on each rank, e.g. a reference
        model."""
        ...

    def weight(self, micro_batch: MicroBatch) -> int:
        """Return the micro-batch's weight in the step's mean; called before the forward pass."""
        ...

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Tensors:
        """Return the micro-batch's tensors on the device."""
        ...

    def blank(self, device: torch.device) -> Tensors:
        """Return one arbitrary row: a lane without rows computes it with weight zero."""
        ...

    def loss(self, model: nn.Module, tensors: Tensors, frozen_models: FrozenModels) -> Loss:
        """Return the loss of the rows in `tensors`."""
        ...


class Method(LossMethod, Protocol):
    """A training method: maps a batch to a loss, and rows to predictions."""

    def predictions(self, model: nn.Module, tensors: Tensors) -> Tensors:
        """Return columns with one value a row, as `MethodConfig.predictions` declares; the model is in evaluation
        mode. Evaluation and comparison rest on them."""
        ...


@runtime_checkable
class ExportableMethod(Method, Protocol):
    """A method whose model can be exported as files that other tools load."""

    form: ModelForm
    """The kind of model that other tools load."""

    def save_exported(self, model: nn.Module, folder: Path, options: ExportOptions) -> None:
        """Write weights as safetensors, `config.json`, and the model code if transformers has no such class.
        The model must not be used afterwards."""
        ...


@runtime_checkable
class LoadableMethod(ExportableMethod, Protocol):
    """A method whose exported model can be loaded again and predicts on unlabeled rows."""

    def predict(self, model: nn.Module, tensors: Tensors) -> Mapping[str, list[Any]]:
        """Return columns with one value a row, for rows without a label; the model is in evaluation mode."""
        ...

    def load_exported(self, folder: Path) -> nn.Module:
        """Load an exported model for `predictions` and `predict`; no code of the folder is run."""
        ...


@runtime_checkable
class EmbeddingMethod(LoadableMethod, Protocol):
    """A method whose model computes an embedding of each row."""

    def embeddings(self, model: nn.Module, tensors: Tensors) -> Float[Tensor, "row width"]:
        """Return the head's input without metadata, for unlabeled rows; the model is in evaluation mode."""
        ...

"""Kinds of labels as tensors: targets, loss and predictions.

kind       outputs        loss, a sum over rows                    predictions on validation rows
binary     a logit        -[y log p + (1 - y) log(1 - p)]          label, probability
classes    K logits       -log p of the row's class                predicted class, accuracy, log_loss
number     a number z     (z - (label - mean) / scale)^2           prediction, absolute_error, squared_error
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, log_softmax, mse_loss

from assay.base.errors import DataError
from assay.base.shapes import Float, Int, Shaped
from assay.training.methods.classify.label_config import BinaryLabel, ClassesLabel, NumberLabel
from assay.training.numerics import MetricSum
from assay.training.trainer.method import Loss


class BinaryTargets:
    """Labels 0 and 1."""

    metrics = ("accuracy",)

    def __init__(self, config: BinaryLabel) -> None:
        self._positive = config.positive

    def targets(self, column: pa.Array) -> Float[Tensor, "row"]:
        """Return 1 for positive rows, else 0."""
        if self._positive is not None:
            column = pc.equal(column.cast(pa.string()), self._positive)
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype(np.float32))

    def blank(self, device: torch.device) -> Float[Tensor, "1"]:
        return torch.zeros(1, device=device)

    def loss(self, outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]) -> Loss:
        """Return the sum of cross-entropies in nats; `accuracy`: share of rows whose label is more probable."""
        is_right = (outputs.detach() > 0) == (targets > 0.5)
        loss = binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
        return Loss(loss, {"accuracy": MetricSum(is_right.sum(), len(targets))})

    def predictions(
        self, outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]
    ) -> Mapping[str, Shaped[Tensor, "row"]]:
        return {"label": targets.to(torch.int8), "probability": torch.sigmoid(outputs.double())}

    def predict(self, outputs: Float[Tensor, "row"]) -> Mapping[str, list[Any]]:
        return {"probability": torch.sigmoid(outputs.double()).tolist()}


class ClassTargets:
    """Class labels as indices into the names."""

    metrics = ("accuracy",)

    def __init__(self, config: ClassesLabel) -> None:
        self._names = pa.array(config.names, pa.string())

    def targets(self, column: pa.Array) -> Int[Tensor, "row"]:
        """Return the index of each row's class."""
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        indices = pc.index_in(column.cast(pa.string()), value_set=self._names)
        if indices.null_count:
            (unexpected, *_) = column.filter(indices.is_null()).to_pylist()
            raise DataError(f"a row's label is {unexpected!r}, which method.label.names does not list.")
        return torch.from_numpy(indices.to_numpy().astype(np.int64))

    def blank(self, device: torch.device) -> Int[Tensor, "1"]:
        return torch.zeros(1, dtype=torch.int64, device=device)

    def loss(self, outputs: Float[Tensor, "row class"], targets: Int[Tensor, "row"]) -> Loss:
        """Return the sum of cross-entropies in nats; `accuracy`: share of rows whose class is the most probable."""
        is_right = outputs.detach().argmax(dim=1) == targets
        loss = cross_entropy(outputs, targets, reduction="sum")
        return Loss(loss, {"accuracy": MetricSum(is_right.sum(), len(targets))})

    def predictions(
        self, outputs: Float[Tensor, "row class"], targets: Int[Tensor, "row"]
    ) -> Mapping[str, Shaped[Tensor, "row"]]:
        """Return the most probable class, whether it is the row's, and -log p of the row's class in nats."""
        logs = log_softmax(outputs.double(), dim=1)
        predicted = outputs.argmax(dim=1)
        return {
            "predicted": predicted,
            "accuracy": (predicted == targets).double(),
            "log_loss": -logs.gather(1, targets[:, None]).squeeze(1),
        }

    def predict(self, outputs: Float[Tensor, "row class"]) -> Mapping[str, list[Any]]:
        """Return the most probable class, and the probability of each class."""
        names, shares = self._names.to_pylist(), log_softmax(outputs.double(), dim=1).exp()
        probabilities = {f"probability_{name}": shares[:, index].tolist() for index, name in enumerate(names)}
        return {"predicted": [names[index] for index in outputs.argmax(dim=1).tolist()], **probabilities}


class NumberTargets:
    """Numbers, centred and scaled."""

    metrics = ("absolute_error",)

    def __init__(self, config: NumberLabel) -> None:
        self._mean, self._scale = config.mean, config.scale

    def targets(self, column: pa.Array) -> Float[Tensor, "row"]:
        """Return (label - mean) / scale."""
        labels = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return torch.from_numpy(((labels - self._mean) / self._scale).astype(np.float32))

    def blank(self, device: torch.device) -> Float[Tensor, "1"]:
        return torch.zeros(1, device=device)

    def loss(self, outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]) -> Loss:
        """Return the sum of squared errors of scaled labels; `absolute_error` in the label's unit."""
        errors = (outputs.detach() - targets).abs().sum() * self._scale
        loss = mse_loss(outputs, targets, reduction="sum")
        return Loss(loss, {"absolute_error": MetricSum(errors, len(targets))})

    def predictions(
        self, outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]
    ) -> Mapping[str, Shaped[Tensor, "row"]]:
        errors = (outputs.double() - targets.double()) * self._scale
        return {
            "prediction": outputs.double() * self._scale + self._mean,
            "absolute_error": errors.abs(),
            "squared_error": errors.square(),
        }

    def predict(self, outputs: Float[Tensor, "row"]) -> Mapping[str, list[Any]]:
        return {"prediction": (outputs.double() * self._scale + self._mean).tolist()}


Labels = BinaryTargets | ClassTargets | NumberTargets
"""A kind of label: `metrics` logged with each step, targets of dataset labels, a blank target, loss, predictions as
`MethodConfig.predictions` declares, and predictions of unlabeled rows."""


def labels_of(config: BinaryLabel | ClassesLabel | NumberLabel) -> Labels:
    """Return the targets of the configured kind."""
    match config:
        case ClassesLabel():
            return ClassTargets(config)
        case NumberLabel():
            return NumberTargets(config)
        case _:
            return BinaryTargets(config)

"""What each kind of label is in tensors: the targets, their loss, and what a trained model says of a row.

kind       outputs        loss, a sum over rows                    said of a validation row
binary     a logit        -[y log p + (1 - y) log(1 - p)]          label, probability
classes    K logits       -log p of the row's class                predicted class, accuracy, log_loss
number     a number z     (z - (label - mean) / scale)^2           prediction, absolute_error, squared_error
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from assay.base.errors import DataError
from assay.base.shapes import Float, Int, Num, Shaped
from assay.training.methods.classify.label_config import BinaryLabel, ClassesLabel, NumberLabel
from assay.training.methods.classify.loss import (
    class_cross_entropy_sum,
    cross_entropy_sum,
    squared_error_sum,
)
from assay.training.trainer.method import Loss, MetricSum


class Labels(ABC):
    """A kind of label."""

    metrics: tuple[str, ...]
    """What is written down with every step, beside the loss."""

    @abstractmethod
    def targets(self, column: pa.Array) -> Num[Tensor, "row"]:
        """The targets of the rows' labels as the dataset holds them."""

    @abstractmethod
    def blank(self, device: torch.device) -> Num[Tensor, "1"]:
        """A target that means nothing."""

    @abstractmethod
    def loss(self, outputs: Float[Tensor, "row ..."], targets: Num[Tensor, "row"]) -> Loss:
        """The loss of the rows."""

    @abstractmethod
    def predictions(
        self, outputs: Float[Tensor, "row ..."], targets: Num[Tensor, "row"]
    ) -> Mapping[str, Shaped[Tensor, "row"]]:
        """Columns, as the configuration's `predictions` says."""

    @abstractmethod
    def predict(self, outputs: Float[Tensor, "row ..."]) -> Mapping[str, list[Any]]:
        """Columns of what is said of rows whose label nobody knows."""


class BinaryTargets(Labels):
    """0 and 1."""

    metrics = ("accuracy",)

    def __init__(self, config: BinaryLabel) -> None:
        self._positive = config.positive

    def targets(self, column: pa.Array) -> Float[Tensor, "row"]:
        """1 where the row is positive."""
        if self._positive is not None:
            column = pc.equal(column.cast(pa.string()), self._positive)
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype(np.float32))

    def blank(self, device: torch.device) -> Float[Tensor, "1"]:
        """See `Labels`."""
        return torch.zeros(1, device=device)

    def loss(self, outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]) -> Loss:
        """Cross-entropies, in nats; `accuracy`: the share of rows whose label is the likelier."""
        is_right = (outputs.detach() > 0) == (targets > 0.5)
        return Loss(cross_entropy_sum(outputs, targets), {"accuracy": MetricSum(is_right.sum(), len(targets))})

    def predictions(
        self, outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]
    ) -> Mapping[str, Shaped[Tensor, "row"]]:
        """The rows' labels, and their probabilities of label 1."""
        return {"label": targets.to(torch.int8), "probability": torch.sigmoid(outputs.double())}

    def predict(self, outputs: Float[Tensor, "row"]) -> Mapping[str, list[Any]]:
        """The rows' probabilities of label 1."""
        return {"probability": torch.sigmoid(outputs.double()).tolist()}


class ClassTargets(Labels):
    """Places among the names."""

    metrics = ("accuracy",)

    def __init__(self, config: ClassesLabel) -> None:
        self._names = pa.array(config.names, pa.string())

    def targets(self, column: pa.Array) -> Int[Tensor, "row"]:
        """The place of each row's name."""
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        indices = pc.index_in(column.cast(pa.string()), value_set=self._names)
        if indices.null_count:
            (unexpected, *_) = column.filter(indices.is_null()).to_pylist()
            raise DataError(f"a row's label is {unexpected!r}, which method.label.names does not list.")
        return torch.from_numpy(indices.to_numpy().astype(np.int64))

    def blank(self, device: torch.device) -> Int[Tensor, "1"]:
        """See `Labels`."""
        return torch.zeros(1, dtype=torch.int64, device=device)

    def loss(self, outputs: Float[Tensor, "row class"], targets: Int[Tensor, "row"]) -> Loss:
        """Cross-entropies, in nats; `accuracy`: the share of rows whose class is the likeliest."""
        is_right = outputs.detach().argmax(dim=1) == targets
        return Loss(class_cross_entropy_sum(outputs, targets), {"accuracy": MetricSum(is_right.sum(), len(targets))})

    def predictions(
        self, outputs: Float[Tensor, "row class"], targets: Int[Tensor, "row"]
    ) -> Mapping[str, Shaped[Tensor, "row"]]:
        """The likeliest class, whether it is the row's, and the surprise at the row's, in nats."""
        logs = log_softmax(outputs.double(), dim=1)
        predicted = outputs.argmax(dim=1)
        return {
            "predicted": predicted,
            "accuracy": (predicted == targets).double(),
            "log_loss": -logs.gather(1, targets[:, None]).squeeze(1),
        }

    def predict(self, outputs: Float[Tensor, "row class"]) -> Mapping[str, list[Any]]:
        """The name of the likeliest class, and the probability of each."""
        names, shares = self._names.to_pylist(), log_softmax(outputs.double(), dim=1).exp()
        probabilities = {f"probability_{name}": shares[:, index].tolist() for index, name in enumerate(names)}
        return {"predicted": [names[index] for index in outputs.argmax(dim=1).tolist()], **probabilities}


class NumberTargets(Labels):
    """Numbers, centred and scaled."""

    metrics = ("absolute_error",)

    def __init__(self, config: NumberLabel) -> None:
        self._mean, self._scale = config.mean, config.scale

    def targets(self, column: pa.Array) -> Float[Tensor, "row"]:
        """(label - mean) / scale."""
        labels = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return torch.from_numpy(((labels - self._mean) / self._scale).astype(np.float32))

    def blank(self, device: torch.device) -> Float[Tensor, "1"]:
        """See `Labels`."""
        return torch.zeros(1, device=device)

    def loss(self, outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]) -> Loss:
        """Squared errors, in scales; `absolute_error` in the label's unit."""
        errors = (outputs.detach() - targets).abs().sum() * self._scale
        return Loss(squared_error_sum(outputs, targets), {"absolute_error": MetricSum(errors, len(targets))})

    def predictions(
        self, outputs: Float[Tensor, "row"], targets: Float[Tensor, "row"]
    ) -> Mapping[str, Shaped[Tensor, "row"]]:
        """In the label's unit."""
        errors = (outputs.double() - targets.double()) * self._scale
        return {
            "prediction": outputs.double() * self._scale + self._mean,
            "absolute_error": errors.abs(),
            "squared_error": errors.square(),
        }

    def predict(self, outputs: Float[Tensor, "row"]) -> Mapping[str, list[Any]]:
        """In the label's unit."""
        return {"prediction": (outputs.double() * self._scale + self._mean).tolist()}


def labels_of(config: BinaryLabel | ClassesLabel | NumberLabel) -> Labels:
    """The kind that was chosen."""
    match config:
        case ClassesLabel():
            return ClassTargets(config)
        case NumberLabel():
            return NumberTargets(config)
        case _:
            return BinaryTargets(config)

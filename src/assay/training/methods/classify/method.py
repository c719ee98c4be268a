"""Joins the classifier's parts to the trainer's protocol."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from assay.data.loader.batch import MicroBatch
from assay.training.methods.classify.batch import classifier_tensors
from assay.training.methods.classify.config import ClassifyConfig
from assay.training.methods.classify.loss import cross_entropy_sum
from assay.training.methods.classify.network import ClassifierNetwork
from assay.training.trainer.method import Helpers, Loss, MetricSum


class ClassifyMethod:
    """Text and metadata to the probability of label 1."""

    metrics = ("accuracy",)
    """What is written down with every step, beside the loss."""

    def __init__(self, config: ClassifyConfig) -> None:
        self.config = config

    def build_helpers(self) -> Helpers:
        """None: the loss asks the one network."""
        return {}

    def build_model(self) -> nn.Module:
        """The network; its random weights come from torch's generator."""
        return ClassifierNetwork(self.config)

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Mapping[str, Shaped[Tensor, "row ..."]]:
        """See `classifier_tensors`."""
        return classifier_tensors(micro_batch, self.config, device)

    def blank(self, device: torch.device) -> Mapping[str, Shaped[Tensor, "row ..."]]:
        """One row of one token."""
        num_columns = len(self.config.metadata_columns)
        return {
            "input_ids": torch.zeros(1, 1, dtype=torch.int64, device=device),
            "lengths": torch.ones(1, dtype=torch.int32, device=device),
            "metadata_buckets": torch.zeros(1, num_columns, dtype=torch.int64, device=device),
            "labels": torch.zeros(1, device=device),
        }

    def weight(self, micro_batch: MicroBatch) -> int:
        """Rows."""
        return len(micro_batch.row_ids)

    def loss(
        self,
        model: nn.Module,
        tensors: Mapping[str, Shaped[Tensor, "row ..."]],
        helpers: Helpers,  # noqa: ARG002
    ) -> Loss:
        """The rows' cross-entropies, in nats; `accuracy`: the share of rows whose label is the likelier."""
        logits, labels = self.logits(model, tensors), tensors["labels"]
        is_right = (logits.detach() > 0) == (labels > 0.5)
        return Loss(cross_entropy_sum(logits, labels), {"accuracy": MetricSum(is_right.sum(), len(labels))})

    def predictions(
        self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "row ..."]]
    ) -> Mapping[str, Shaped[Tensor, "row"]]:
        """The rows' labels, and their probabilities of label 1."""
        probabilities = torch.sigmoid(self.logits(model, tensors).double())
        return {"label": tensors["labels"].to(torch.int8), "probability": probabilities}

    def logits(
        self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "row ..."]]
    ) -> Float[Tensor, "row"]:
        """The rows' log-odds of label 1."""
        logits: Tensor = model(
            tensors["input_ids"],
            tensors["lengths"],
            tensors["metadata_buckets"],
            tensors.get("attention_mask"),
        )
        return logits

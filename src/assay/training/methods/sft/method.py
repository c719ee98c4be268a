"""Connects supervised fine-tuning to the trainer's protocol.

The loss is the sum of -log p over the trained tokens, and a step's mean is over all of its trained tokens: a
long row counts more than a short one, independent of padding, packing and ranks.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from assay.base.shapes import Float64, Shaped
from assay.data.loader.batch import MicroBatch
from assay.models.exporting import ExportOptions, save_model
from assay.models.head import TokenScores
from assay.models.token_scores import CausalNetwork, line_of
from assay.records.evaluation import TRAINED_TOKENS
from assay.records.exported_model import ModelForm
from assay.training.methods.sft.batch import sft_tensors, trained_tokens
from assay.training.methods.sft.config import NATS_PER_TOKEN, TOKEN_ACCURACY, SftConfig
from assay.training.numerics import MetricSum
from assay.training.trainer.method import FrozenModels, Loss, Tensors


class SftMethod:
    """Trains a language model on texts."""

    form: ModelForm = "language_model"

    metrics = ("entropy", "token_accuracy")
    """Metrics that are logged with each step."""

    def __init__(self, config: SftConfig) -> None:
        self.config = config

    def build_model(self) -> nn.Module:
        return CausalNetwork(self.config.model)

    def build_frozen_models(self) -> FrozenModels:
        return {}

    def weight(self, micro_batch: MicroBatch) -> int:
        return int(trained_tokens(micro_batch, in_spans=self.config.train_on == "spans").sum())

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Tensors:
        return sft_tensors(micro_batch, self.config, device)

    def blank(self, device: torch.device) -> Tensors:
        return {
            "input_ids": torch.zeros(1, 2, dtype=torch.int64, device=device),
            "scored": torch.ones(1, 1, dtype=torch.bool, device=device),
            "num_trained": torch.ones(1, dtype=torch.int64, device=device),
        }

    def loss(self, model: nn.Module, tensors: Tensors, frozen_models: FrozenModels) -> Loss:  # noqa: ARG002
        num_trained = tensors["num_trained"].sum()
        if (line := line_of(tensors)) is None:
            scores = self._scores(model, tensors)
            loss = -scores.logprobs.sum()
        else:
            inputs = tensors["input_ids"], tensors["position_ids"], tensors["scored"]
            loss, scores = model(*inputs, line=line, with_loss=True)
        return Loss(
            loss,
            {
                "entropy": MetricSum(scores.entropies.detach().sum(), num_trained),
                "token_accuracy": MetricSum(scores.is_argmax.sum(), num_trained),
            },
        )

    def predictions(self, model: nn.Module, tensors: Tensors) -> Mapping[str, Shaped[Tensor, "row"]]:
        """Return means over each row's trained tokens (0 if it has none), and their number."""
        scores, num_trained = self._scores(model, tensors), tensors["num_trained"].clamp(min=1)
        return {
            NATS_PER_TOKEN.name: _of_rows(-scores.logprobs, tensors) / num_trained,
            TOKEN_ACCURACY.name: _of_rows(scores.is_argmax, tensors) / num_trained,
            TRAINED_TOKENS: tensors["num_trained"],
        }

    def save_exported(self, model: nn.Module, folder: Path, options: ExportOptions) -> None:
        assert isinstance(model, CausalNetwork), type(model)
        save_model(model.network, self.config.model, folder, options)

    def _scores(self, model: nn.Module, tensors: Tensors) -> TokenScores:
        scores: TokenScores = model(
            tensors["input_ids"], tensors.get("position_ids"), tensors["scored"], line=line_of(tensors)
        )
        return scores


def _of_rows(values: Shaped[Tensor, "line target"], tensors: Tensors) -> Float64[Tensor, "row"]:
    """Return the sum of each row."""
    if "row_of" not in tensors:
        return values.double().sum(dim=1)
    sums = torch.zeros(len(tensors["num_trained"]), dtype=torch.float64, device=values.device)
    return sums.index_add(0, tensors["row_of"].flatten(), values.double().flatten())

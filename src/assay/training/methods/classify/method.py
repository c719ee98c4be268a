"""Connects the classifier to the trainer's protocol."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.base.errors import ConfigError
from assay.base.shapes import Float, Shaped
from assay.data.loader.batch import MicroBatch
from assay.models.exporting import ExportOptions
from assay.records.exported_model import ModelForm
from assay.training.methods.classify.batch import classifier_tensors
from assay.training.methods.classify.config import ClassifyConfig
from assay.training.methods.classify.exporting import load_exported, save_exported
from assay.training.methods.classify.labels import labels_of
from assay.training.methods.classify.network import ClassifierNetwork
from assay.training.trainer.method import FrozenModels, Loss, Tensors


class ClassifyMethod:
    """Predicts a label from text and metadata: the probability of 1, of each class, or a number."""

    form: ModelForm = "classifier"

    def __init__(self, config: ClassifyConfig) -> None:
        self.config = config
        self._labels = labels_of(config.label)

    @property
    def metrics(self) -> tuple[str, ...]:
        return self._labels.metrics

    def build_frozen_models(self) -> FrozenModels:
        return {}

    def build_model(self) -> nn.Module:
        return ClassifierNetwork(self.config)

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Tensors:
        return classifier_tensors(micro_batch, self.config, self._labels, device)

    def blank(self, device: torch.device) -> Tensors:
        num_columns = len(self.config.metadata_columns)
        return {
            "input_ids": torch.zeros(1, 1, dtype=torch.int64, device=device),
            "lengths": torch.ones(1, dtype=torch.int32, device=device),
            "metadata_buckets": torch.zeros(1, num_columns, dtype=torch.int64, device=device),
            "labels": self._labels.blank(device),
        }

    def weight(self, micro_batch: MicroBatch) -> int:
        return len(micro_batch.row_ids)

    def loss(self, model: nn.Module, tensors: Tensors, frozen_models: FrozenModels) -> Loss:  # noqa: ARG002
        return self._labels.loss(self.outputs(model, tensors), tensors["labels"])

    def predictions(self, model: nn.Module, tensors: Tensors) -> Mapping[str, Shaped[Tensor, "row"]]:
        return self._labels.predictions(self.outputs(model, tensors), tensors["labels"])

    def predict(self, model: nn.Module, tensors: Tensors) -> Mapping[str, list[Any]]:
        return self._labels.predict(self.outputs(model, tensors))

    def embeddings(self, model: nn.Module, tensors: Tensors) -> Float[Tensor, "row width"]:
        """Return the mean of each row's states."""
        assert isinstance(model, ClassifierNetwork), type(model)
        return model.pooled(tensors["input_ids"], tensors["lengths"], tensors.get("attention_mask"))

    def save_exported(self, model: nn.Module, folder: Path, options: ExportOptions) -> None:
        assert isinstance(model, ClassifierNetwork), type(model)
        if options.adapters == "apart":
            raise ConfigError("--adapters apart: a classifier has no adapters. Leave the option out.")
        save_exported(model, self.config, folder, options.columns)

    def load_exported(self, folder: Path) -> nn.Module:
        return load_exported(folder)

    def outputs(self, model: nn.Module, tensors: Tensors) -> Float[Tensor, "row ..."]:
        outputs: Tensor = model(
            tensors["input_ids"], tensors["lengths"], tensors["metadata_buckets"], tensors.get("attention_mask")
        )
        return outputs

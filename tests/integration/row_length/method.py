"""Joins the regression's parts to the trainer's protocol."""

from collections.abc import Mapping

import torch
from assay.training.methods.row_length.config import RowLengthConfig
from assay.training.methods.row_length.network import RowLengthNetwork
from torch import Tensor, nn

from assay.data.loader.batch import MicroBatch
from assay.training.numerics import MetricSum
from assay.training.trainer.method import FrozenModels, Loss


class RowLengthMethod:
    """Tokens to the logarithm of how many they are."""

    def __init__(self, config: RowLengthConfig) -> None:
        self.config = config

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is written down with every step, beside the loss."""
        return ("absolute_error",)

    def build_model(self) -> nn.Module:
        """The network; its random weights come from torch's generator."""
        return RowLengthNetwork(self.config)

    def build_frozen_models(self) -> FrozenModels:
        """None: the loss asks the one network."""
        return {}

    def weight(self, micro_batch: MicroBatch) -> int:
        """Rows."""
        return len(micro_batch.row_ids)

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Mapping[str, Tensor]:
        """`input_ids` [row, token], `mask` [row, token], `log_lengths` [row]."""
        tokens = micro_batch.tokens
        tensors = {
            "input_ids": torch.from_numpy(tokens.values),
            "mask": torch.from_numpy(tokens.mask()),
            "log_lengths": torch.from_numpy(tokens.lengths).float().log(),
        }
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    def blank(self, device: torch.device) -> Mapping[str, Tensor]:
        """One row of one token."""
        return {
            "input_ids": torch.zeros(1, 1, dtype=torch.int64, device=device),
            "mask": torch.ones(1, 1, dtype=torch.bool, device=device),
            "log_lengths": torch.zeros(1, device=device),
        }

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor], frozen_models: FrozenModels) -> Loss:
        """The rows' squared errors."""
        errors = self._errors(model, tensors)
        return Loss(
            errors.square().sum(),
            {"absolute_error": MetricSum(errors.detach().abs().sum(), len(errors))},
        )

    def predictions(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The rows' errors."""
        errors = self._errors(model, tensors).double()
        return {"squared_error": errors.square(), "absolute_error": errors.abs()}

    def _errors(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        guesses: Tensor = model(tensors["input_ids"], tensors["mask"])
        return guesses - tensors["log_lengths"]

"""Joins the sleeping network to the trainer's protocol.

How long a lane sleeps is drawn from the generator that the trainer seeds by (seed, step, lane): the same lane
of the same step takes as long wherever it runs, but for how slow the node is.
"""

import math
import os
from collections.abc import Mapping

import torch
from assay.training.methods.asleep.config import AsleepConfig
from assay.training.methods.asleep.network import AsleepNetwork
from torch import Tensor, nn

from assay.data.loader.batch import MicroBatch
from assay.training.trainer.method import FrozenModels, Loss

SLOWNESS = "ASLEEP_SLOWNESS"
"""Environment of a node: by how much longer its lanes take than others'; 1 where it is not set."""


class AsleepMethod:
    """Lengths to lengths."""

    def __init__(self, config: AsleepConfig) -> None:
        self.config = config
        self._slowness = float(os.environ.get(SLOWNESS) or 1.0)

    @property
    def metrics(self) -> tuple[str, ...]:
        """None beside the loss."""
        return ()

    def build_model(self) -> nn.Module:
        """The network, whose weights begin as zeros."""
        return AsleepNetwork(self.config.num_parameters(), self.config.num_stages)

    def build_frozen_models(self) -> FrozenModels:
        """None: the loss asks the one network."""
        return {}

    def weight(self, micro_batch: MicroBatch) -> int:
        """Rows."""
        return len(micro_batch.row_ids)

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Mapping[str, Tensor]:
        """`log_lengths` [row]."""
        return {"log_lengths": torch.from_numpy(micro_batch.tokens.lengths).float().log1p().to(device)}

    def blank(self, device: torch.device) -> Mapping[str, Tensor]:
        """One row."""
        return {"log_lengths": torch.zeros(1, device=device)}

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor], frozen_models: FrozenModels) -> Loss:
        """The rows' squared errors, late."""
        return Loss(self._errors(model, tensors, self._drawn_s(tensors)).square().sum(), {})

    def predictions(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The rows' squared errors, at once."""
        return {"squared_error": self._errors(model, tensors, 0.0).double().square()}

    def _errors(self, model: nn.Module, tensors: Mapping[str, Tensor], seconds: float) -> Tensor:
        guesses: Tensor = model(tensors["log_lengths"], seconds)
        return guesses - 2.0

    def _drawn_s(self, tensors: Mapping[str, Tensor]) -> float:
        """Lognormal, with the mean that the configuration says."""
        sigma, lane_rows = self.config.step_time_sd, self.config.lane_rows
        drawn = math.exp(sigma * float(torch.randn(())) - sigma**2 / 2)
        share = len(tensors["log_lengths"]) / lane_rows if lane_rows else 1.0
        return self.config.lane_s * share * drawn * self._slowness

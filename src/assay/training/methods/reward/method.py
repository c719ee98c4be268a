"""Connects the reward model to the trainer's protocol."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from assay.base.shapes import Float, Float32, Shaped
from assay.data.dataset.columns import REJECTED
from assay.data.loader.batch import MicroBatch
from assay.data.loader.line import LineShape, distinct_indices, in_slots, line_arrays
from assay.models.exporting import ExportOptions
from assay.models.line_attention import Borders
from assay.models.pairs import Pairs, pairs_of
from assay.models.reward_network import RewardNetwork
from assay.records.evaluation import ACCURACY, CHOSEN_REWARD, LOG_LOSS, REJECTED_REWARD
from assay.records.exported_model import ModelForm
from assay.training.methods.reward.config import MARGIN_OF_REWARDS, RewardConfig
from assay.training.methods.reward.exporting import load_exported, save_exported
from assay.training.methods.reward.loss import reward_losses
from assay.training.numerics import MetricSum
from assay.training.trainer.method import FrozenModels, Loss, Tensors


class RewardMethod:
    """Trains a reward model on preference pairs."""

    form: ModelForm = "reward_model"

    metrics = ("accuracy", "margin", "mean_reward")
    """Metrics that are logged with each step."""

    def __init__(self, config: RewardConfig) -> None:
        self.config = config

    def build_model(self) -> nn.Module:
        return RewardNetwork(self.config.model)

    def build_frozen_models(self) -> FrozenModels:
        return {}

    def weight(self, micro_batch: MicroBatch) -> int:
        return len(micro_batch.row_ids)

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Tensors:
        """Return `input_ids` [2 pair, token], `lengths` [2 pair], `margins` [pair]; for single sequences, as in
        `predict`, the first two.

        A line has the arrays of `line_arrays`; `lengths` are the indices at which its sequences end, counted from 1;
        and `is_pair` [pair] is False for pairs that the line does not hold.
        """
        if REJECTED not in micro_batch.ragged:
            tokens = micro_batch.tokens
            return {
                "input_ids": torch.from_numpy(tokens.values).to(device),
                "lengths": torch.from_numpy(tokens.lengths).to(device),
            }
        pairs, margins = pairs_of(micro_batch), np.zeros(len(micro_batch.row_ids), np.float32)
        if self.config.margin_column is not None:
            column = micro_batch.columns[self.config.margin_column].fill_null(0)
            margins = column.to_numpy(zero_copy_only=False).astype(np.float32)
        arrays = {"input_ids": pairs.input_ids, "lengths": pairs.lengths, "margins": margins}
        if micro_batch.line is not None:
            arrays = _line_arrays(pairs, margins, micro_batch.line)
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def blank(self, device: torch.device) -> Tensors:
        return {
            "input_ids": torch.zeros(2, 1, dtype=torch.int64, device=device),
            "lengths": torch.ones(2, dtype=torch.int32, device=device),
            "margins": torch.zeros(1, device=device),
        }

    def loss(self, model: nn.Module, tensors: Tensors, frozen_models: FrozenModels) -> Loss:  # noqa: ARG002
        chosen, rejected = self._rewards(model, tensors)
        losses = reward_losses(chosen, rejected, tensors["margins"], centring=self.config.centring)
        margins, totals = (chosen - rejected).detach(), (chosen + rejected).detach()
        is_right = margins > 0
        num_pairs: Shaped[Tensor, ""] | int = len(chosen)
        if (is_pair := tensors.get("is_pair")) is not None:
            losses, margins, totals = losses * is_pair, margins * is_pair, totals * is_pair
            is_right, num_pairs = is_right & is_pair, is_pair.sum()
        return Loss(
            losses.sum(),
            {
                "accuracy": MetricSum(is_right.sum(), num_pairs),
                "margin": MetricSum(margins.sum(), num_pairs),
                "mean_reward": MetricSum(totals.sum(), 2 * num_pairs),
            },
        )

    def predictions(self, model: nn.Module, tensors: Tensors) -> Mapping[str, Shaped[Tensor, "pair"]]:
        chosen, rejected = (rewards.double() for rewards in self._rewards(model, tensors))
        return {
            ACCURACY.name: (chosen > rejected).double(),
            LOG_LOSS.name: -logsigmoid(chosen - rejected),
            MARGIN_OF_REWARDS.name: chosen - rejected,
            CHOSEN_REWARD.name: chosen,
            REJECTED_REWARD.name: rejected,
        }

    def predict(self, model: nn.Module, tensors: Tensors) -> Mapping[str, list[Any]]:
        return {"reward": model(tensors["input_ids"], tensors["lengths"]).double().tolist()}

    def embeddings(self, model: nn.Module, tensors: Tensors) -> Float[Tensor, "line width"]:
        """Return the state at each sequence's last token."""
        assert isinstance(model, RewardNetwork), type(model)
        return model.last_states(tensors["input_ids"], tensors["lengths"])

    def save_exported(self, model: nn.Module, folder: Path, options: ExportOptions) -> None:
        assert isinstance(model, RewardNetwork), type(model)
        save_exported(model, self.config, folder, options)

    def load_exported(self, folder: Path) -> nn.Module:
        return load_exported(folder)

    def _rewards(self, model: nn.Module, tensors: Tensors) -> tuple[Float[Tensor, "pair"], Float[Tensor, "pair"]]:
        arguments: list[Any] = [tensors["input_ids"], tensors["lengths"]]
        if "borders" in tensors:
            arguments += [tensors["position_ids"], Borders(tensors["borders"], tensors["longest_row"])]
        chosen, rejected = model(*arguments).chunk(2)
        return chosen, rejected


def _line_arrays(
    pairs: Pairs, margins: Float32[np.ndarray, "row"], line: LineShape
) -> dict[str, Shaped[np.ndarray, "..."]]:
    # Unused slots have indices of their own: gradients are written to distinct indices.
    slots, ends = pairs.slots(line), np.cumsum(pairs.lengths, dtype=np.int64)
    indices = distinct_indices(ends - 1, line.num_slots, line)
    unused = np.setdiff1d(np.arange(line.num_slots), slots)
    return {
        **line_arrays(pairs.input_ids, pairs.lengths, line),
        "lengths": in_slots(indices + 1, np.concatenate([slots, unused]), line.num_slots),
        "margins": in_slots(margins, slots[: len(margins)], line.rows),
        "is_pair": np.arange(line.rows) < len(margins),
    }

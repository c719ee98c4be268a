"""Connects the losses of requests to the trainer's protocol: a language model whose loss comes with each request."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from assay.base.shapes import Float, Float32, Int64, Shaped
from assay.data.loader.batch import MicroBatch
from assay.models.head import TokenScores
from assay.models.token_scores import CausalNetwork
from assay.training.sessions.batch import TARGETS
from assay.training.sessions.losses import LOSSES, NamedLoss
from assay.training.trainer.method import FrozenModels, Loss, Tensors
from assay.training.trainer.method_config import CausalMethodConfig

_INDICES, _SCORED = "indices", "scored"


class SessionMethod:
    """Computes the loss of the current request, and remembers each datum's logprobs."""

    metrics: tuple[str, ...] = ()

    def __init__(self, config: CausalMethodConfig, base: Any = None) -> None:
        """`config`: of a method that trains language models, for its model. `base`: see `CausalNetwork`."""
        self.config = config
        self._base = base

    def build_model(self) -> nn.Module:
        return CausalNetwork(self.config.model, self._base)

    def build_frozen_models(self) -> FrozenModels:
        return {}

    def weight(self, micro_batch: MicroBatch) -> int:
        return int(micro_batch.ragged[TARGETS].lengths.sum())

    def begin(self, loss: NamedLoss, settings: Mapping[str, float]) -> None:
        """Begin a request."""
        self._loss, self._settings = loss, settings
        self._scored: list[tuple[Int64[Tensor, "_"], Float[Tensor, "_ _"]]] = []

    def logprobs(self) -> dict[int, Float32[np.ndarray, "_"]]:
        """Return the logprobs of this rank's datums since `begin`, padded, by their index in the request."""
        found = [(indices.tolist(), logprobs.float().cpu().numpy()) for indices, logprobs in self._scored]
        return {index: row for indices, rows in found for index, row in zip(indices, rows, strict=True)}

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Tensors:
        targets = micro_batch.ragged[TARGETS]
        scored = targets.mask()
        arrays = {
            "input_ids": micro_batch.tokens.values,
            TARGETS: targets.values,
            _SCORED: scored,
            _INDICES: micro_batch.row_ids.astype(np.int64),
            **{name: _padded(column, scored) for name, column in micro_batch.columns.items()},
        }
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def blank(self, device: torch.device) -> Tensors:
        number = torch.zeros(1, 1, device=device)
        inputs = {name: number for loss in LOSSES.values() for name in (*loss.required, *loss.optional)}
        ids = torch.zeros(1, 2, dtype=torch.int64, device=device)
        return {"input_ids": ids, TARGETS: ids[:, :1], _SCORED: ids[:, :1] == 0, **inputs}

    def loss(self, model: nn.Module, tensors: Tensors, frozen_models: FrozenModels) -> Loss:  # noqa: ARG002
        scores: TokenScores = model(tensors["input_ids"], None, tensors[_SCORED], targets=tensors[TARGETS])
        if _INDICES in tensors:
            self._scored.append((tensors[_INDICES], scores.logprobs.detach()))
        return Loss(self._loss.of_tokens(scores.logprobs, tensors, self._settings).sum(), {})


def _padded(column: pa.Array, mask: Shaped[np.ndarray, "row target"]) -> Float32[np.ndarray, "row target"]:
    """Return a column of lists as rows with zeros on padding."""
    values = np.zeros(mask.shape, np.float32)
    values[mask] = column.flatten().to_numpy()
    return values

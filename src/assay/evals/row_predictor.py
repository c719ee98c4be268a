"""Predictions of a model for unlabelled rows: tokens and metadata in, columns out, in the order of the rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from assay.data.dataset.columns import TOKENS
from assay.data.loader.batch import MicroBatch, Ragged
from assay.distributed.rank_device import device_of
from assay.training.trainer.method import EmbeddingMethod, LoadableMethod

MICRO_BATCH_ROWS = 64


class RowPredictor:
    """Predicts rows with one model, in micro-batches."""

    def __init__(self, method: LoadableMethod, model: nn.Module) -> None:
        self._device = device_of()
        self._method = method
        self._model = model.to(self._device).eval()

    @torch.inference_mode()
    def predict(self, tokens: Sequence[Sequence[int]], columns: Mapping[str, pa.Array]) -> dict[str, list[Any]]:
        """Return one value per row for each column. Rows of similar length are computed together to reduce padding."""
        order = np.argsort([len(row) for row in tokens], kind="stable")
        found: dict[str, list[Any]] = {}
        for first in range(0, len(order), MICRO_BATCH_ROWS):
            batch = self._micro_batch(order[first : first + MICRO_BATCH_ROWS], tokens, columns)
            predicted = self._method.predict(self._model, self._method.tensors(batch, self._device))
            for name, values in predicted.items():
                found.setdefault(name, []).extend(values)
        positions = np.argsort(order).tolist()
        return {name: [values[index] for index in positions] for name, values in found.items()}

    @property
    def embeds(self) -> bool:
        """Whether the method has embeddings."""
        return isinstance(self._method, EmbeddingMethod)

    @torch.inference_mode()
    def embeddings(self, tokens: Sequence[Sequence[int]], columns: Mapping[str, pa.Array]) -> list[list[float]]:
        """Return a vector for each row, computed alone, so that it does not depend on the other rows."""
        assert isinstance(self._method, EmbeddingMethod), type(self._method)
        found: list[list[float]] = []
        for row in range(len(tokens)):
            batch = self._micro_batch([row], tokens, columns)
            tensors = self._method.tensors(batch, self._device)
            found += self._method.embeddings(self._model, tensors).double().tolist()
        return found

    def _micro_batch(self, rows: Any, tokens: Sequence[Sequence[int]], columns: Mapping[str, pa.Array]) -> MicroBatch:
        lengths = np.array([len(tokens[row]) for row in rows], np.int32)
        values = np.zeros((len(rows), int(lengths.max())), np.int64)
        for line, row in enumerate(rows):
            values[line, : lengths[line]] = tokens[row]
        batch_columns = {name: column.take(pa.array(rows)) for name, column in columns.items()}
        return MicroBatch(np.asarray(rows, np.uint64), {TOKENS: Ragged(values, lengths)}, batch_columns)

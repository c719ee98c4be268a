"""Dataset rows as tensors, with a mask of the trained tokens."""

import numpy as np
import torch
from torch import Tensor

from assay.base.shapes import Bool, Shaped
from assay.data.dataset.columns import SPANS
from assay.data.loader.batch import MicroBatch
from assay.data.loader.line import scored_arrays
from assay.training.methods.sft.config import SftConfig


def trained_tokens(batch: MicroBatch, *, in_spans: bool) -> Bool[np.ndarray, "line token"]:
    """Return which tokens are trained: all or those in spans; never a row's first, never padding."""
    if batch.packing is None:
        shown = batch.tokens.mask()
        shown[:, :1] = False
    else:
        shown = batch.packing.position_ids > 0
    if in_spans:
        shown &= _inside_spans(batch)
    return shown


def _inside_spans(batch: MicroBatch) -> Bool[np.ndarray, "line token"]:
    """Return which tokens lie in one of their row's spans: begins add 1 along the line, ends subtract it."""
    spans, (lines, starts) = batch.ragged[SPANS], batch.row_starts()
    num_lines, width = batch.tokens.values.shape
    changes = np.zeros((num_lines, width + 1), np.int32)
    rows, numbers = np.nonzero(spans.mask())
    at = starts[rows] + spans.values[rows, numbers]
    np.add.at(changes, (lines[rows], at), np.where(numbers % 2, -1, 1))
    inside: Bool[np.ndarray, "line token"] = changes[:, :-1].cumsum(axis=1) > 0
    return inside


def sft_tensors(batch: MicroBatch, config: SftConfig, device: torch.device) -> dict[str, Shaped[Tensor, "..."]]:
    """Return `input_ids` [line, token], `scored` [line, token - 1], `num_trained` [row].

    A line has the arrays of `scored_arrays`, and `num_trained` [1]. For packed rows also `position_ids` [line, token]
    and `row_of` [line, token - 1], the row of the next token.
    """
    trained = trained_tokens(batch, in_spans=config.train_on == "spans")
    if batch.line is not None:
        tensors = scored_arrays(batch.tokens.values, batch.tokens.lengths, trained[:, 1:], batch.line)
        tensors["num_trained"] = trained.sum(keepdims=True)[0]
    else:
        tensors = {"input_ids": batch.tokens.values, "scored": trained[:, 1:]}
        if batch.packing is None:
            tensors["num_trained"] = trained.sum(axis=1)
        else:
            row_of = batch.row_of_tokens()
            tensors["num_trained"] = np.bincount(row_of[trained], minlength=len(batch.row_ids))
            tensors["position_ids"] = batch.packing.position_ids.astype(np.int64)
            tensors["row_of"] = row_of[:, 1:]
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in tensors.items()}

"""Preference pairs as arrays: both completions of a row stand in one batch, so that one pass sees them.

line i, i < n    the prompt of row i, then what was chosen
line n + i       the same prompt, then what was rejected
"""

from typing import NamedTuple

import numpy as np

from assay.base.shapes import Bool, Int32, Int64
from assay.data.dataset.columns import PROMPT_TOKENS, REJECTED
from assay.data.loader.batch import MicroBatch


class Pairs(NamedTuple):
    """Chosen before rejected."""

    input_ids: Int64[np.ndarray, "line token"]
    lengths: Int32[np.ndarray, "line"]
    prompt_tokens: Int32[np.ndarray, "line"]
    """The leading tokens that are the prompt's alone, and so stand in both lines of a row."""

    def in_completion(self) -> Bool[np.ndarray, "line target"]:
        """Which tokens but a line's first, which nothing stands before, are a completion's."""
        positions = np.arange(1, self.input_ids.shape[1])
        inside: np.ndarray = (positions >= self.prompt_tokens[:, None]) & (positions < self.lengths[:, None])
        return inside


def pairs_of(batch: MicroBatch) -> Pairs:
    """The rows' pairs."""
    sides, num_rows = (batch.tokens, batch.ragged[REJECTED]), len(batch.row_ids)
    lines = np.zeros((2 * num_rows, max(side.values.shape[1] for side in sides)), np.int64)
    for first, side in zip((0, num_rows), sides, strict=True):
        lines[first : first + num_rows, : side.values.shape[1]] = side.values
    prompts = np.tile(batch.columns[PROMPT_TOKENS].to_numpy(zero_copy_only=False), 2).astype(np.int32)
    return Pairs(lines, np.concatenate([side.lengths for side in sides]), prompts)

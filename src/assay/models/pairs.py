"""Preference pairs as arrays: one batch holds both completions of each row, for one forward pass.

line i, i < n    the prompt of row i, then the chosen completion
line n + i       the same prompt, then the rejected completion

With micro-batches that are lines, all sequences stand end to end in one line, in this order. Per-sequence arrays then
have a fixed length of two per row of the line's shape: rejected ones start in the middle.
"""

from typing import NamedTuple

import numpy as np

from assay.base.shapes import Bool, Int32, Int64
from assay.data.dataset.columns import PROMPT_TOKENS, REJECTED
from assay.data.loader.batch import MicroBatch
from assay.data.loader.line import LineShape


class Pairs(NamedTuple):
    """Pairs as lines, chosen ones first."""

    input_ids: Int64[np.ndarray, "line token"]
    lengths: Int32[np.ndarray, "line"]
    prompt_tokens: Int32[np.ndarray, "line"]
    """Prompt tokens of each line; both lines of a row begin with them."""

    def slots(self, line: LineShape) -> Int64[np.ndarray, "line"]:
        """Return each sequence's slot in a line."""
        rows = np.arange(len(self.lengths) // 2)
        return np.concatenate([rows, line.rows + rows])

    def in_completion(self) -> Bool[np.ndarray, "line target"]:
        """Return which tokens, except a line's first, belong to a completion."""
        positions = np.arange(1, self.input_ids.shape[1])
        inside: np.ndarray = (positions >= self.prompt_tokens[:, None]) & (positions < self.lengths[:, None])
        return inside


def pairs_of(batch: MicroBatch) -> Pairs:
    """Return the pairs of the rows."""
    sides, num_rows = (batch.tokens, batch.ragged[REJECTED]), len(batch.row_ids)
    lines = np.zeros((2 * num_rows, max(side.values.shape[1] for side in sides)), np.int64)
    for first, side in zip((0, num_rows), sides, strict=True):
        lines[first : first + num_rows, : side.values.shape[1]] = side.values
    prompts = np.tile(batch.columns[PROMPT_TOKENS].to_numpy(zero_copy_only=False), 2).astype(np.int32)
    return Pairs(lines, np.concatenate([side.lengths for side in sides]), prompts)

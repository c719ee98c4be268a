"""What a step is made of: arrays, and whose they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from assay.base.shapes import Bool, Int, Int32, Int64, UInt64
from assay.data.dataset.columns import TOKENS, sequences_of
from assay.records.commit import Quarantined
from assay.records.cursor import Cursor


@dataclass(frozen=True)
class Packing:
    """Where the rows lie in packed sequences."""

    position_ids: Int32[np.ndarray, "sequence token"]
    """Place in its row; 0 on padding."""
    segment_ids: Int32[np.ndarray, "sequence token"]
    """1 for the sequence's first row, 2 for its second, ...; 0 on padding."""
    cu_seqlens: Int32[np.ndarray, "border"]
    """[rows + 1]: borders of the rows among the tokens that are not padding, in the order of `row_ids`."""


@dataclass(frozen=True)
class Ragged:
    """A column whose rows are lists of whole numbers, side by side: tokens, or borders of spans."""

    values: Int64[np.ndarray, "line place"]
    """[row, place], padded with 0 to the longest; if packed: [sequence, token]. As wide as embeddings want
    them, so that nobody copies them again."""
    lengths: Int32[np.ndarray, "row"]
    """Numbers in its list."""

    @property
    def is_padded(self) -> bool:
        """Some row is shorter than the longest."""
        return bool((self.lengths != self.values.shape[1]).any())

    def mask(self) -> Bool[np.ndarray, "row place"]:
        """True on what a row holds, false on padding. Means nothing where rows are packed."""
        return np.arange(self.values.shape[1]) < self.lengths[:, None]

    def take(self, rows: Int[np.ndarray, "taken"]) -> "Ragged":
        """Some of the rows, padded as wide as before."""
        return Ragged(self.values[rows], self.lengths[rows])


class RowStarts(NamedTuple):
    """Where the tokens of each row begin."""

    lines: Int[np.ndarray, "row"]
    starts: Int[np.ndarray, "row"]
    """In the line."""


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward and backward pass: list columns as arrays, the others as Arrow has them."""

    row_ids: UInt64[np.ndarray, "row"]
    """Place in the dataset."""
    ragged: Mapping[str, Ragged]
    """The list columns asked for; always the tokens (`input_ids`)."""
    columns: Mapping[str, pa.Array]
    """The other columns asked for, [row] each, nulls kept."""
    packing: Packing | None = None
    """Where the tokens' rows lie if they are packed."""

    @property
    def tokens(self) -> Ragged:
        """The column of tokens."""
        return self.ragged[TOKENS]

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences, without padding."""
        return sum(int(self.ragged[name].lengths.sum()) for name in sequences_of(self.ragged))

    def row_starts(self) -> RowStarts:
        """Places of every row, in the order of `row_ids`: a line each, or one after another in shared ones."""
        if self.packing is None:
            return RowStarts(np.arange(len(self.row_ids)), np.zeros(len(self.row_ids), np.intp))
        return RowStarts(*np.nonzero((self.packing.position_ids == 0) & (self.packing.segment_ids > 0)))

    def take(self, rows: Sequence[int]) -> "MicroBatch":
        """Some of the rows, padded as wide as before; packed ones are taken apart, a line for each."""
        chosen = np.asarray(rows, np.intp)
        ragged = {name: column.take(chosen) for name, column in self.ragged.items() if name != TOKENS}
        return MicroBatch(
            row_ids=self.row_ids[chosen],
            ragged={**ragged, TOKENS: self._tokens_apart(chosen)},
            columns={name: column.take(pa.array(chosen)) for name, column in self.columns.items()},
        )

    def _tokens_apart(self, chosen: Int[np.ndarray, "taken"]) -> Ragged:
        if self.packing is None:
            return self.tokens.take(chosen)
        lengths, row_starts = self.tokens.lengths[chosen], self.row_starts()
        lines = np.zeros((len(chosen), int(lengths.max(initial=0))), np.int64)
        for line, row in zip(lines, chosen.tolist(), strict=True):
            start, length = int(row_starts.starts[row]), int(self.tokens.lengths[row])
            line[:length] = self.tokens.values[row_starts.lines[row], start : start + length]
        return Ragged(lines, lengths)


@dataclass(frozen=True)
class LaneShare:
    """A lane's part of a step; no micro-batches where the lane has run out of rows."""

    lane: int
    micro_batches: tuple[MicroBatch, ...]
    quarantined: tuple[Quarantined, ...] = ()
    """Damaged row groups of the step's window: some of their rows would have been in this step, or in another
    of the window. Said with each of its steps, so that a resume in its midst hears of it too."""

    @property
    def num_rows(self) -> int:
        """In this lane and step."""
        return sum(len(batch.row_ids) for batch in self.micro_batches)

    @property
    def num_tokens(self) -> int:
        """Without padding."""
        return sum(batch.num_tokens for batch in self.micro_batches)


@dataclass(frozen=True)
class StepShare:
    """What the lanes of one rank bring to a step."""

    cursor: Cursor
    lanes: tuple[LaneShare, ...]
    ahead: tuple[tuple[LaneShare, ...], ...] = ()
    """The lanes of the next steps, where what they are to learn from is made before."""

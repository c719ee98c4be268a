"""Micro-batches of NumPy arrays, and the lanes and steps that they belong to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from assay.base.shapes import Bool, Int, Int32, Int64, UInt64
from assay.data.dataset.columns import TOKENS, sequences_of
from assay.data.loader.line import LineShape
from assay.records.commit import Quarantined
from assay.records.cursor import Cursor


@dataclass(frozen=True)
class Packing:
    """Position and segment of each token in packed sequences."""

    position_ids: Int32[np.ndarray, "sequence token"]
    """Index of the token in its row; 0 on padding."""
    segment_ids: Int32[np.ndarray, "sequence token"]
    """1 for the sequence's first row, 2 for its second, ...; 0 on padding."""
    cu_seqlens: Int32[np.ndarray, "boundary"]
    """[rows + 1]: cumulative row lengths without padding, in the order of `row_ids`."""


@dataclass(frozen=True)
class Ragged:
    """A padded column of integer lists: tokens, or the boundaries of spans."""

    values: Int64[np.ndarray, "line index"]
    """[row, index], padded with 0 to the longest; if packed: [sequence, token]. int64, which embeddings take
    without another copy."""
    lengths: Int32[np.ndarray, "row"]
    """Length of each row's list."""

    @property
    def is_padded(self) -> bool:
        return bool((self.lengths != self.values.shape[1]).any())

    def mask(self) -> Bool[np.ndarray, "row index"]:
        """Return True on values and False on padding. Undefined for packed rows."""
        return np.arange(self.values.shape[1]) < self.lengths[:, None]

    def take(self, rows: Int[np.ndarray, "selected"]) -> "Ragged":
        return Ragged(self.values[rows], self.lengths[rows])


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward and backward pass: list columns as arrays, other columns as Arrow arrays."""

    row_ids: UInt64[np.ndarray, "row"]
    """Dataset-wide row ids."""
    ragged: Mapping[str, Ragged]
    """Requested list columns, always including the tokens (`input_ids`)."""
    columns: Mapping[str, pa.Array]
    """Other requested columns, [row] each, with nulls."""
    packing: Packing | None = None
    """Layout of the tokens if they are packed."""
    line: LineShape | None = None
    """Shape of the line that the rows are laid out in on the device (see `line_arrays`); here they are padded."""

    @property
    def tokens(self) -> Ragged:
        return self.ragged[TOKENS]

    @property
    def num_tokens(self) -> int:
        return sum(int(self.ragged[name].lengths.sum()) for name in sequences_of(self.ragged))

    def row_of_tokens(self) -> Int[np.ndarray, "line token"]:
        """Return the row index of each token of packed sequences; on padding, that of the row before it."""
        assert self.packing is not None, "each row has a line of its own"
        begins = (self.packing.position_ids == 0) & (self.packing.segment_ids > 0)
        rows: np.ndarray = np.maximum(begins.cumsum().reshape(begins.shape) - 1, 0)
        return rows

    def row_starts(self) -> tuple[Int[np.ndarray, "row"], Int[np.ndarray, "row"]]:
        """Return the line and the column where each row begins, in the order of `row_ids`.

        Unpacked rows have a line of their own.
        """
        if self.packing is None:
            return np.arange(len(self.row_ids)), np.zeros(len(self.row_ids), np.intp)
        lines, starts = np.nonzero((self.packing.position_ids == 0) & (self.packing.segment_ids > 0))
        return lines, starts

    def take(self, rows: Sequence[int]) -> "MicroBatch":
        """Return some of the rows, padded to the same width; packed rows are unpacked, one line each."""
        chosen = np.asarray(rows, np.intp)
        ragged = {name: column.take(chosen) for name, column in self.ragged.items() if name != TOKENS}
        return MicroBatch(
            row_ids=self.row_ids[chosen],
            ragged={**ragged, TOKENS: self._tokens_apart(chosen)},
            columns={name: column.take(pa.array(chosen)) for name, column in self.columns.items()},
        )

    def _tokens_apart(self, chosen: Int[np.ndarray, "selected"]) -> Ragged:
        if self.packing is None:
            return self.tokens.take(chosen)
        lengths, (line_of_row, start_of_row) = self.tokens.lengths[chosen], self.row_starts()
        lines = np.zeros((len(chosen), int(lengths.max(initial=0))), np.int64)
        for line, row in zip(lines, chosen.tolist(), strict=True):
            start, length = int(start_of_row[row]), int(self.tokens.lengths[row])
            line[:length] = self.tokens.values[line_of_row[row], start : start + length]
        return Ragged(lines, lengths)


@dataclass(frozen=True)
class LaneShare:
    """The micro-batches of one lane in one step; none if the lane has no rows left."""

    lane: int
    micro_batches: tuple[MicroBatch, ...]
    quarantined: tuple[Quarantined, ...] = ()
    """Damaged row groups of the step's window. Repeated with every step of the window, so that a resume in the
    middle of it reports them too."""
    further_digests: tuple[int, ...] = ()
    """Digests of what the step computes for later steps besides the lane's gradient; a recomputation compares them."""

    @property
    def num_rows(self) -> int:
        return sum(len(batch.row_ids) for batch in self.micro_batches)

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.micro_batches)


@dataclass(frozen=True)
class StepShare:
    """The lane shares of one rank in one step."""

    cursor: Cursor
    lanes: tuple[LaneShare, ...]
    upcoming: tuple[tuple[LaneShare, ...], ...] = ()
    """Lane shares of the next steps, for sources of samples that look ahead."""

"""Reads, decodes and arranges a lane's window, so that a step only slices and pads.

spans of row groups --read, verify, decode--> a segment's rows, in 16 bits a token if all ids fit
                    --take-->                 its slices, copied so that the segment can be freed
                    --concatenate, take-->    a window's rows in the order in which they are served
"""

import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from assay.base.errors import DamagedDataError, DataError
from assay.base.shapes import Bool, Int, Int32, Int64, UInt16, UInt64
from assay.data.dataset.columns import TOKENS, is_ragged, sequences_of
from assay.data.loader.batch import MicroBatch, Packing, Ragged
from assay.data.loader.layouts import Arrangement, Piece
from assay.data.loader.order import Span
from assay.data.loader.source import RowSource
from assay.records.commit import Quarantined

NUM_LOCKS = 64
MOST_IN_16_BITS = (1 << 16) - 1


@dataclass(frozen=True)
class RaggedRows:
    """A list column of some rows: values and offsets."""

    values: Int32[np.ndarray, "place"] | UInt16[np.ndarray, "place"]
    offsets: Int64[np.ndarray, "boundary"]
    """[rows + 1]: row boundaries in `values`, starting at 0. A damaged row is empty."""

    @cached_property
    def lengths(self) -> Int32[np.ndarray, "row"]:
        return np.diff(self.offsets).astype(np.int32)

    @classmethod
    def concatenate(cls, parts: "Sequence[RaggedRows]") -> "RaggedRows":
        """Concatenate; in 16 bits if all values fit, which halves the memory."""
        dtype = np.uint16 if all(map(_fits_in_16_bits, parts)) else np.int32
        numbers = [np.zeros(0, np.int32), *(part.values for part in parts)]
        values = np.concatenate(numbers, dtype=dtype, casting="unsafe")
        ends = np.cumsum([0, *(len(part.values) for part in parts)]).tolist()
        offsets = [part.offsets[1:] + before for part, before in zip(parts, ends, strict=False)]
        return cls(values, np.concatenate([[0], *offsets], dtype=np.int64))

    def take(self, rows: Int[np.ndarray, "selected"]) -> "RaggedRows":
        """Copy some of the rows.

        The lists are viewed as binary strings, because Arrow copies strings much faster than lists.
        """
        width, whole = self.values.itemsize, pa.large_binary()
        buffers = [None, pa.py_buffer(self.offsets * width), pa.py_buffer(self.values)]
        selected = pa.LargeBinaryArray.from_buffers(whole, len(self.lengths), buffers).take(pa.array(rows))
        _, offsets, values = selected.buffers()
        return RaggedRows(
            np.frombuffer(values or b"", self.values.dtype), np.frombuffer(offsets, np.int64)[: len(rows) + 1] // width
        )

    def padded(self, rows: slice) -> Ragged:
        boundaries, lengths = self.offsets[rows.start : rows.stop + 1].tolist(), self.lengths[rows]
        lines = np.zeros((len(lengths), int(lengths.max())), np.int64)
        # One copy of a row's bytes each: half the time of gathering them by an index array.
        for line, (start, stop) in zip(lines, pairwise(boundaries), strict=True):
            line[: stop - start] = self.values[start:stop]
        return Ragged(lines, lengths)

    def row(self, index: int) -> Int32[np.ndarray, "place"] | UInt16[np.ndarray, "place"]:
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]


def _fits_in_16_bits(rows: RaggedRows) -> bool:
    values = rows.values
    return values.dtype == np.uint16 or int(values.view(np.uint32).max(initial=0)) <= MOST_IN_16_BITS


@dataclass(frozen=True)
class WindowRows:
    """Decoded rows in the order of the virtual sequence."""

    row_ids: UInt64[np.ndarray, "row"]
    present: Bool[np.ndarray, "row"]
    """False for damaged rows."""
    ragged: dict[str, RaggedRows]
    columns: pa.Table
    """Other columns, of the rows that are present only."""
    quarantined: tuple[Quarantined, ...]

    def take(self, rows: Int[np.ndarray, "selected"]) -> "WindowRows":
        """Copy some of the rows; the list of quarantined row groups is kept whole."""
        columns = self.columns
        if columns.num_columns:
            in_table = np.cumsum(self.present) - 1
            columns = columns.take(pa.array(in_table[rows[self.present[rows]]]))
        ragged = {name: column.take(rows) for name, column in self.ragged.items()}
        return WindowRows(self.row_ids[rows], self.present[rows], ragged, columns, self.quarantined)

    def slices(self, numbers: Int64[np.ndarray, "row"], count: int) -> "list[WindowRows]":
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        return [self.take(rows) for rows in np.split(order, np.cumsum(np.bincount(numbers, minlength=count))[:-1])]

    @classmethod
    def concatenate(cls, parts: "Sequence[WindowRows]") -> "WindowRows":
        tables = [part.columns for part in parts if part.columns.num_columns]
        names = dict.fromkeys([TOKENS, *(name for part in parts for name in part.ragged)])
        return cls(
            np.concatenate([np.zeros(0, np.uint64), *(part.row_ids for part in parts)]),
            np.concatenate([np.zeros(0, bool), *(part.present for part in parts)]),
            {name: RaggedRows.concatenate([part.lists(name) for part in parts]) for name in names},
            pa.concat_tables(tables).combine_chunks() if tables else pa.table({}),
            tuple({item.row_group: item for part in parts for item in part.quarantined}.values()),
        )

    def lists(self, name: str) -> RaggedRows:
        nothing = RaggedRows(np.zeros(0, np.int32), np.zeros(len(self.row_ids) + 1, np.int64))
        return self.ragged.get(name, nothing)

    @property
    def lengths(self) -> Int32[np.ndarray, "row"]:
        """Tokens of each row's longest sequence."""
        return reduce(np.maximum, (self.ragged[name].lengths for name in sequences_of(self.ragged)))


class Window:
    """An arranged window, from which the micro-batches of its steps are cut."""

    def __init__(self, rows: WindowRows, arrangement: Arrangement, *, sequence_tokens: int | None) -> None:
        served = rows.take(arrangement.order)
        self.quarantined = rows.quarantined
        self.steps = arrangement.steps
        self._sequence_tokens = sequence_tokens
        self._row_ids = served.row_ids
        self._ragged = served.ragged
        columns = served.columns
        self._columns = {name: _one_chunk(columns[name]) for name in columns.column_names}

    def micro_batches(self, step: int) -> tuple[MicroBatch, ...]:
        return tuple(self._micro_batch(piece) for piece in self.steps[step])

    def _micro_batch(self, piece: Piece) -> MicroBatch:
        rows = slice(piece.start, piece.stop)
        packs = self._sequence_tokens is not None
        ragged = {name: column.padded(rows) for name, column in self._ragged.items() if not (packs and name == TOKENS)}
        packing = None
        if self._sequence_tokens is not None:
            ragged[TOKENS], packing = _packed(self._ragged[TOKENS], piece, self._sequence_tokens)
        return MicroBatch(
            row_ids=self._row_ids[rows],
            ragged=ragged,
            columns={
                name: column.slice(piece.start, piece.stop - piece.start) for name, column in self._columns.items()
            },
            packing=packing,
        )


def _packed(tokens: RaggedRows, piece: Piece, sequence_tokens: int) -> tuple[Ragged, Packing]:
    shape = (len(piece.sequence_rows), sequence_tokens)
    input_ids = np.zeros(shape, np.int64)
    position_ids, segment_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    counted = np.arange(sequence_tokens, dtype=np.int32)
    row = piece.start
    for line, num_rows in enumerate(piece.sequence_rows):
        offset = 0
        for segment in range(1, num_rows + 1):
            in_row = tokens.row(row)
            stop = offset + len(in_row)
            input_ids[line, offset:stop] = in_row
            position_ids[line, offset:stop] = counted[: len(in_row)]
            segment_ids[line, offset:stop] = segment
            offset, row = stop, row + 1
    lengths = tokens.lengths[piece.start : piece.stop]
    boundaries = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return Ragged(input_ids, lengths), Packing(position_ids, segment_ids, boundaries)


Group: TypeAlias = pa.Table | Quarantined


class SharedGroups:
    """Decoded row groups, shared by the lanes through weak references.

    Two lanes need the same row group only at a lane boundary, or if row groups are larger than lanes; such a
    group is decoded once instead of once per lane.
    """

    def __init__(self, source: RowSource, columns: Sequence[str], *, quarantines: bool) -> None:
        self.source = source
        self._columns = [TOKENS, *(name for name in columns if name != TOKENS)]
        self._quarantines = quarantines
        self._alive: weakref.WeakValueDictionary[int, pa.Table] = weakref.WeakValueDictionary()
        self._locks = [threading.Lock() for _ in range(NUM_LOCKS)]

    def read(self, index: int) -> Group:
        with self._locks[index % NUM_LOCKS]:
            group: Group | None = self._alive.get(index)
            if group is not None:
                return group
            try:
                group = self.source.read(index, self._columns)
            except DamagedDataError as error:
                if not self._quarantines:
                    raise
                return quarantined(self.source, index, str(error))
            self._alive[index] = group
            return group


def quarantined(source: RowSource, index: int, reason: str) -> Quarantined:
    """Return the record of a skipped row group."""
    return Quarantined(
        row_group=index, shard=source.shard_of(index), num_rows=int(source.num_rows[index]), reason=reason
    )


class LaneReader:
    """Reads one lane's segments in order; holds the last row group, which the next segment may share."""

    def __init__(self, groups: SharedGroups) -> None:
        self.source = groups.source
        self._groups = groups
        self._last: tuple[int, Group] | None = None

    def read(self, spans: Sequence[Span], skipped: Collection[int] = ()) -> WindowRows:
        groups = [
            quarantined(self.source, span.group, "it was damaged when its window was first read")
            if span.group in skipped
            else self._group(span.group)
            for span in spans
        ]
        return WindowRows.concatenate(
            [_rows(self.source, span, group) for span, group in zip(spans, groups, strict=True)]
        )

    def _group(self, index: int) -> Group:
        if self._last is None or self._last[0] != index:
            self._last = (index, self._groups.read(index))
        return self._last[1]


def _rows(source: RowSource, span: Span, group: Group) -> WindowRows:
    row_ids = source.row_ids(span.group)[span.first : span.stop]
    if isinstance(group, Quarantined):
        return WindowRows(row_ids, np.zeros(len(row_ids), bool), {}, pa.table({}), (group,))
    table = group.slice(span.first, span.stop - span.first)
    names = [field.name for field in table.schema if is_ragged(field.type)]
    lists = {}
    for name in names:
        try:
            lists[name] = _lists(table[name])
        except DataError as error:
            shard = source.shard_of(span.group)
            raise DataError(f"{shard}: the dataset's row group {span.group}: column '{name}' {error}") from error
    return WindowRows(row_ids, np.ones(len(row_ids), bool), lists, table.drop_columns(names), ())


def _lists(column: pa.ChunkedArray) -> RaggedRows:
    if not pa.types.is_integer(column.type.value_type):
        raise DataError(
            f"holds lists of {column.type.value_type}; expected lists of integers. "
            "Rebuild the dataset with another type."
        )
    lists = _one_chunk(column)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    values = lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if nulls := column.null_count + values.null_count:
        raise DataError(f"has {nulls} nulls. Drop these rows, and index the dataset again.")
    numbers = values.to_numpy()
    if not np.can_cast(numbers.dtype, np.int32) and len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        if not -(2**31) <= low <= high < 2**31:
            wrong = low if low < -(2**31) else high
            raise DataError(f"holds {wrong}, which exceeds 32 bits. Drop these rows, and index the dataset again.")
    return RaggedRows(numbers.astype(np.int32, copy=False), offsets - offsets[0])


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    # `combine_chunks` copies even a single chunk.
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)

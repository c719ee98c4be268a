"""Reads, decodes and arranges a lane's window, so that a step only slices and pads.

spans of row groups --read, verify, decode--> a segment's rows, in 16 bits a token if all ids fit
                    --take-->                 its slices, copied so that the segment can be freed
                    --concatenate, take-->    a window's rows in the order in which they are served

    segment s --read, cut---> slices for the windows s - radius .. s + radius
    window w  <--concatenate- its slices, which are then freed
"""

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from assay.base.errors import DamagedDataError, DataError
from assay.base.shapes import Bool, Int, Int32, Int64, UInt16, UInt64
from assay.data.dataset.columns import TOKENS, is_ragged, sequences_of
from assay.data.loader.batch import MicroBatch, Packing, Ragged
from assay.data.loader.layouts import Arrangement, Piece
from assay.data.loader.line import LineShape
from assay.data.loader.order import Geometry, Span, WindowIndex
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

    @property
    def total_lengths(self) -> Int32[np.ndarray, "row"]:
        """Tokens of all sequences of each row."""
        return reduce(np.add, (self.ragged[name].lengths for name in sequences_of(self.ragged)))


class Window:
    """An arranged window, from which the micro-batches of its steps are cut."""

    def __init__(
        self, rows: WindowRows, arrangement: Arrangement, *, sequence_tokens: int | None, line: LineShape | None = None
    ) -> None:
        served = rows.take(arrangement.order)
        self.quarantined = rows.quarantined
        self.steps = arrangement.steps
        self._sequence_tokens = sequence_tokens
        self._line = line
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
            line=self._line,
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


class RowSource(Protocol):
    """What the loader reads from: the selected rows of a dataset, by row group."""

    @property
    def fingerprint(self) -> str:
        """Digest that identifies the rows and their bytes."""
        ...

    @property
    def identities(self) -> UInt64[np.ndarray, "group"]:
        """Keys that determine the order of the row groups."""
        ...

    @property
    def num_rows(self) -> Int[np.ndarray, "group"]: ...

    def row_ids(self, group: int) -> UInt64[np.ndarray, "row"]:
        """Return dataset-wide ids of a group's selected rows, in file order; reads no data."""
        ...

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return a group's selected rows, in file order. Raises `DamagedDataError` if its bytes changed."""
        ...

    def shard_of(self, group: int) -> str: ...


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


class LaneWindows:
    """Reads the windows of one lane in order, each segment once.

    Slices are freed with their window, so about half of the rows of the segments within the radius are in memory. A
    reader that starts mid-epoch drops the slices of earlier windows.
    """

    def __init__(
        self,
        groups: SharedGroups,
        geometry: Geometry,
        spans: Callable[[WindowIndex], Sequence[Span]],
        numbers: Callable[[WindowIndex], Int64[np.ndarray, "row"]],
    ) -> None:
        """`spans` returns the rows of a segment; `numbers` the slice index of each row."""
        self._groups, self._geometry = groups, geometry
        self._spans, self._numbers = spans, numbers
        self._epoch = -1
        self._slices: dict[tuple[int, int], WindowRows] = {}
        """(segment, slice) -> rows."""
        self._last: tuple[int, Group] | None = None
        """The last row group, which the next segment may share."""
        self._skipped: set[int] = set()

    def read(self, index: WindowIndex, skipped: Collection[int] = ()) -> WindowRows:
        """Return the rows of a window. Rows of `skipped` row groups count as damaged until the epoch ends.

        Without that, a row group that spans two segments could be damaged in one and intact in the other.
        """
        if index.epoch != self._epoch:
            self._epoch = index.epoch
            self._slices.clear()
            self._skipped.clear()
        self._skipped.update(skipped)
        parts = []
        for segment, number in self._geometry.slices_of_window(index.window):
            if (segment, number) not in self._slices:
                self._read_segment(segment, index.window)
            parts.append(self._slices.pop((segment, number)))
        return WindowRows.concatenate(parts)

    def _read_segment(self, segment: int, window: int) -> None:
        index = WindowIndex(self._epoch, segment)
        rows = self.read_spans(self._spans(index), self._skipped)
        if segment >= self._geometry.num_whole or self._geometry.num_slices == 1:
            self._slices[segment, 0] = rows
            return
        numbers = np.arange(self._geometry.num_slices)
        windows = self._geometry.windows_of(np.full(len(numbers), segment), numbers)
        slices = rows.slices(self._numbers(index), len(numbers))
        for number in np.flatnonzero(windows >= window).tolist():
            self._slices[segment, number] = self._with_its_damage(slices[number])

    def _with_its_damage(self, segment_slice: WindowRows) -> WindowRows:
        """Keep only the quarantined row groups that have rows in the slice."""
        row_ids = self._groups.source.row_ids
        own = (
            item for item in segment_slice.quarantined if np.isin(row_ids(item.row_group), segment_slice.row_ids).any()
        )
        return replace(segment_slice, quarantined=tuple(own)) if segment_slice.quarantined else segment_slice

    def read_spans(self, spans: Sequence[Span], skipped: Collection[int] = ()) -> WindowRows:
        """Return the rows of spans; those of `skipped` row groups count as damaged."""
        source = self._groups.source
        groups = [
            quarantined(source, span.group, "it was damaged when its window was first read")
            if span.group in skipped
            else self._group(span.group)
            for span in spans
        ]
        return WindowRows.concatenate([_rows(source, span, group) for span, group in zip(spans, groups, strict=True)])

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

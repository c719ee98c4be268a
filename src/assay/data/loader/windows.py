"""A window of a lane, read, decoded and arranged: what is left to do for a step is to slice and to pad.

spans of row groups --read, verify, decode--> tokens as decoded, [place, length] of each row
                    --cut, join-->            portions of several stretches, each with memory of its own
                    --arrange-->              the same rows in the order in which they are served
"""

import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from assay.base.errors import DamagedDataError, DataError
from assay.base.shapes import Bool, Int, Int32, Int64, Shaped, UInt16, UInt64
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
    """A list column of a window's rows, as decoded: nothing is copied until a row goes to its batch."""

    lengths: Int32[np.ndarray, "row"]
    """0 for a damaged row."""
    parts: Int32[np.ndarray, "row"]
    """Which of `values` holds it."""
    starts: Int64[np.ndarray, "row"]
    """Where each row's list begins in there."""
    values: list[Int32[np.ndarray, "_"] | UInt16[np.ndarray, "_"]]
    """One array per row group, or per portion of a stretch."""

    def take(self, order: Int[np.ndarray, "present"]) -> "RaggedRows":
        """The same rows in another order."""
        return RaggedRows(self.lengths[order], self.parts[order], self.starts[order], self.values)

    def copied(self, rows: Int[np.ndarray, "taken"]) -> "RaggedRows":
        """Some rows by themselves, so that the others' values may go."""
        lengths = self.lengths[rows]
        stops = np.cumsum(lengths, dtype=np.int64)
        parts, starts = self.parts[rows].tolist(), self.starts[rows].tolist()
        lists = [
            self.values[part][start : start + length]
            for part, start, length in zip(parts, starts, lengths.tolist(), strict=True)
        ]
        values = np.concatenate(lists) if lists else np.zeros(0, np.int32)
        return RaggedRows(lengths, np.zeros(len(rows), np.int32), stops - lengths, [values])

    def narrowed(self) -> "RaggedRows":
        """In 16 bits if all values fit: half the memory."""
        if any(len(each) and int(each.view(np.uint32).max()) > MOST_IN_16_BITS for each in self.values):
            return self
        return replace(self, values=[each.astype(np.uint16) for each in self.values])

    def padded(self, rows: slice) -> Ragged:
        """Consecutive rows side by side."""
        lengths, values = self.lengths[rows], self.values
        lines = np.zeros((len(lengths), int(lengths.max())), np.int64)
        # One copy of a row's bytes each: half the time of gathering them by an index array.
        parts, starts = self.parts[rows].tolist(), self.starts[rows].tolist()
        for line, part, start, length in zip(lines, parts, starts, lengths.tolist(), strict=True):
            line[:length] = values[part][start : start + length]
        return Ragged(lines, lengths)

    def row(self, index: int) -> Int32[np.ndarray, "place"] | UInt16[np.ndarray, "place"]:
        """One row's list."""
        start, values = int(self.starts[index]), self.values[int(self.parts[index])]
        return values[start : start + int(self.lengths[index])]


@dataclass(frozen=True)
class WindowRows:
    """The rows of a window in the order of the virtual sequence, before anything else was read."""

    row_ids: UInt64[np.ndarray, "row"]
    present: Bool[np.ndarray, "row"]
    """Not damaged."""
    ragged: dict[str, RaggedRows]
    columns: pa.Table
    """The other columns of the rows that are present."""
    quarantined: tuple[Quarantined, ...]

    def portions(self, numbers: Int64[np.ndarray, "row"], count: int) -> "list[WindowRows]":
        """The rows of each number from 0 on, each portion with memory of its own.

        What is quarantined is said with all of them.
        """
        narrow = {name: column.narrowed() for name, column in self.ragged.items()}
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        in_table = np.cumsum(self.present) - 1
        return [
            WindowRows(
                self.row_ids[rows],
                self.present[rows],
                {name: column.copied(rows) for name, column in narrow.items()},
                self.columns.take(pa.array(in_table[rows[self.present[rows]]]))
                if self.columns.num_columns
                else self.columns,
                self.quarantined,
            )
            for rows in np.split(order, np.cumsum(np.bincount(numbers, minlength=count))[:-1])
        ]

    @classmethod
    def together(cls, parts: "Sequence[WindowRows]") -> "WindowRows":
        """The rows of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        tables = [part.columns for part in parts if part.columns.num_columns]
        names = dict.fromkeys(name for part in parts for name in part.ragged)
        return cls(
            np.concatenate([part.row_ids for part in parts]),
            np.concatenate([part.present for part in parts]),
            {name: _one_behind_another(parts, name) for name in names},
            pa.concat_tables(tables) if tables else pa.table({}),
            tuple({item.row_group: item for part in parts for item in part.quarantined}.values()),
        )

    @property
    def lengths(self) -> Int32[np.ndarray, "row"]:
        """Tokens of the longest sequence."""
        return reduce(np.maximum, (self.ragged[name].lengths for name in sequences_of(self.ragged)))


def _one_behind_another(parts: Sequence[WindowRows], name: str) -> RaggedRows:
    """A list column of all parts; where all of a part is damaged, its lists are empty."""
    columns = [part.ragged.get(name) or _no_lists(len(part.row_ids)) for part in parts]
    before = np.cumsum([0, *(len(column.values) for column in columns)]).tolist()
    return RaggedRows(
        np.concatenate([column.lengths for column in columns]),
        np.concatenate(
            [column.parts + np.int32(first) for column, first in zip(columns, before, strict=False)]
        ),
        np.concatenate([column.starts for column in columns]),
        [values for column in columns for values in column.values],
    )


def _no_lists(num_rows: int) -> RaggedRows:
    nothing = np.zeros(num_rows, np.int32)
    return RaggedRows(nothing, nothing, nothing.astype(np.int64), [np.zeros(0, np.int32)])


class Window:
    """The micro-batches of a window's steps."""

    def __init__(self, rows: WindowRows, arrangement: Arrangement, *, sequence_tokens: int | None) -> None:
        order = arrangement.order
        self.quarantined = rows.quarantined
        self.steps = arrangement.steps
        self._sequence_tokens = sequence_tokens
        self._row_ids = rows.row_ids[order]
        self._ragged = {name: column.take(order) for name, column in rows.ragged.items()}
        in_table = order if rows.present.all() else (np.cumsum(rows.present) - 1)[order]
        self._columns = {
            name: _one_chunk(rows.columns[name].take(pa.array(in_table))) for name in rows.columns.column_names
        }

    def micro_batches(self, step: int) -> tuple[MicroBatch, ...]:
        """The micro-batches of one of the window's steps; none if the lane has no rows left for it."""
        return tuple(self._micro_batch(piece) for piece in self.steps[step])

    def _micro_batch(self, piece: Piece) -> MicroBatch:
        rows = slice(piece.start, piece.stop)
        packs = self._sequence_tokens is not None
        ragged = {
            name: column.padded(rows) for name, column in self._ragged.items() if not (packs and name == TOKENS)
        }
        packing = None
        if self._sequence_tokens is not None:
            ragged[TOKENS], packing = _packed(self._ragged[TOKENS], piece, self._sequence_tokens)
        return MicroBatch(
            row_ids=self._row_ids[rows],
            ragged=ragged,
            columns={
                name: column.slice(piece.start, piece.stop - piece.start)
                for name, column in self._columns.items()
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
        place = 0
        for segment in range(1, num_rows + 1):
            in_row = tokens.row(row)
            stop = place + len(in_row)
            input_ids[line, place:stop] = in_row
            position_ids[line, place:stop] = counted[: len(in_row)]
            segment_ids[line, place:stop] = segment
            place, row = stop, row + 1
    lengths = tokens.lengths[piece.start : piece.stop]
    borders = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return Ragged(input_ids, lengths), Packing(position_ids, segment_ids, borders)


Group: TypeAlias = pa.Table | Quarantined


class SharedGroups:
    """Row groups as they are read, shared by the lanes for as long as one of them still holds on to it.

    Lanes meet inside a row group only where one ends and the next begins, or where row groups are larger than
    lanes; there a group is decoded once and not once per lane.
    """

    def __init__(self, source: RowSource, columns: Sequence[str], *, quarantines: bool) -> None:
        self.source = source
        self._columns = [TOKENS, *(name for name in columns if name != TOKENS)]
        self._quarantines = quarantines
        self._alive: weakref.WeakValueDictionary[int, pa.Table] = weakref.WeakValueDictionary()
        self._locks = [threading.Lock() for _ in range(NUM_LOCKS)]

    def read(self, index: int) -> Group:
        """A group's rows, or why there are none; raises `DamagedDataError` unless damage is quarantined."""
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
    """A row group that is skipped."""
    return Quarantined(
        row_group=index, shard=source.shard_of(index), num_rows=int(source.num_rows[index]), reason=reason
    )


class LaneReader:
    """Reads one lane's stretches one after another; keeps the row group that two neighbours share."""

    def __init__(self, groups: SharedGroups) -> None:
        self.source = groups.source
        self._groups = groups
        self._last: tuple[int, Group] | None = None

    def read(self, spans: Sequence[Span], skipped: Collection[int] = ()) -> WindowRows:
        """Read and decode the rows of some spans; those of `skipped` groups count as damaged."""
        groups = [
            quarantined(self.source, span.group, "it was damaged when its window was begun")
            if span.group in skipped
            else self._group(span.group)
            for span in spans
        ]
        parts = [_part(self.source, span, group) for span, group in zip(spans, groups, strict=True)]
        return _joined(parts, tuple(group for group in groups if isinstance(group, Quarantined)))

    def _group(self, index: int) -> Group:
        if self._last is None or self._last[0] != index:
            self._last = (index, self._groups.read(index))
        return self._last[1]


class _Lists(NamedTuple):
    """A list column of one span."""

    values: Int32[np.ndarray, "place"]
    offsets: Int64[np.ndarray, "border"]
    """[rows + 1]: borders of the rows in `values`."""


@dataclass(frozen=True)
class _Part:
    """The rows of one span."""

    row_ids: UInt64[np.ndarray, "row"]
    ragged: dict[str, _Lists]
    """Empty where the rows are damaged."""
    columns: pa.Table | None
    """None: damaged."""

    def lists(self, name: str) -> _Lists:
        """A list column; damaged rows have empty lists."""
        nothing = _Lists(np.zeros(0, np.int32), np.zeros(len(self.row_ids) + 1, np.int64))
        return self.ragged.get(name, nothing)


def _part(source: RowSource, span: Span, group: Group) -> _Part:
    row_ids = source.row_ids(span.group)[span.first : span.stop]
    if isinstance(group, Quarantined):
        return _Part(row_ids, {}, None)
    table = group.slice(span.first, span.stop - span.first)
    names = [field.name for field in table.schema if is_ragged(field.type)]
    lists = {}
    for name in names:
        try:
            lists[name] = _lists(table[name])
        except DataError as error:
            shard = source.shard_of(span.group)
            raise DataError(
                f"{shard}: the dataset's row group {span.group}: column '{name}' {error}"
            ) from error
    return _Part(row_ids, lists, table.drop_columns(names))


def _lists(column: pa.ChunkedArray) -> _Lists:
    if not pa.types.is_integer(column.type.value_type):
        raise DataError(
            f"holds lists of {column.type.value_type}; a list column that a method reads holds whole numbers. "
            "Build the dataset anew with another type."
        )
    lists = _one_chunk(column)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    values = lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if nulls := column.null_count + values.null_count:
        raise DataError(f"has {nulls} nulls. Drop these rows, and index the dataset anew.")
    numbers = values.to_numpy()
    if not np.can_cast(numbers.dtype, np.int32) and len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        if not -(2**31) <= low <= high < 2**31:
            wrong = low if low < -(2**31) else high
            raise DataError(f"holds {wrong}, beyond 32 bits. Drop these rows, and index the dataset anew.")
    return _Lists(numbers.astype(np.int32, copy=False), offsets - offsets[0])


def _joined(parts: Sequence[_Part], quarantined: tuple[Quarantined, ...]) -> WindowRows:
    sizes = [len(part.row_ids) for part in parts]
    tables = [part.columns for part in parts if part.columns is not None]
    names = dict.fromkeys([TOKENS, *(name for part in parts for name in part.ragged)])
    part_of_row = np.repeat(np.arange(len(parts), dtype=np.int32), sizes)
    return WindowRows(
        row_ids=_concatenated([part.row_ids for part in parts], np.uint64),
        present=np.repeat(np.array([part.columns is not None for part in parts], bool), sizes),
        ragged={name: _ragged_rows([part.lists(name) for part in parts], part_of_row) for name in names},
        columns=pa.concat_tables(tables) if tables else pa.table({}),
        quarantined=tuple({item.row_group: item for item in quarantined}.values()),
    )


def _ragged_rows(parts: Sequence[_Lists], part_of_row: Int32[np.ndarray, "row"]) -> RaggedRows:
    return RaggedRows(
        lengths=_concatenated([np.diff(part.offsets) for part in parts], np.int32),
        parts=part_of_row,
        starts=_concatenated([part.offsets[:-1] for part in parts], np.int64),
        values=[part.values for part in parts],
    )


def _concatenated(arrays: Sequence[Shaped[np.ndarray, "_"]], dtype: type) -> Shaped[np.ndarray, "all"]:
    return np.concatenate(arrays, dtype=dtype) if arrays else np.zeros(0, dtype)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    # `combine_chunks` copies even a single chunk.
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)

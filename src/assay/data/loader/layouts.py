"""Assigns the rows of a window to steps and micro-batches: pure functions of lengths and keys.

A window feeds the same number of steps under every layout; the layout decides which row goes to which step.

    padded     rows in hashed order, cut into steps
    bucketed   rows sorted by length (with optional jitter), cut into steps; the order of the steps is hashed
               and the same for all lanes
    packed     rows packed into sequences by best fit, and the sequences assigned to steps
    line       as packed; each sequence is a micro-batch, and holds a limited number of rows

Damaged rows keep their positions in padded and bucketed steps, which are then short. So they never move another
row to another step (padded), or only within the window (bucketed).
"""

import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from assay.base.seeds import derive_key, keyed_order, mix64
from assay.base.shapes import Bool, Float64, Int, Int32, Int64, Shaped, UInt64
from assay.data.loader.config import BucketedLayout, LineLayout, PackedLayout, PaddedLayout

RowIds = UInt64[np.ndarray, "row"]
Lengths = Int32[np.ndarray, "row"]
Present = Bool[np.ndarray, "row"]
"""False for damaged rows."""
Rows = Int[np.ndarray, "chosen"]
"""Indices of some rows, in an order."""
Boundaries = Int64[np.ndarray, "boundary"]


class Piece(NamedTuple):
    """One micro-batch: the rows `order[start:stop]` of an arrangement."""

    start: int
    stop: int
    sequence_rows: tuple[int, ...] = ()
    """Packed and line layout: the number of rows in each sequence."""


class Arrangement(NamedTuple):
    """The order in which a window's rows are served, and how it is cut."""

    order: Rows
    """Row indices; every row that is present occurs once."""
    steps: list[tuple[Piece, ...]]
    """Micro-batches of each step; together they cover `order` from front to back."""


class WindowKeys(NamedTuple):
    """Derives the keys of the hashed choices within a window."""

    seed: int
    epoch: int
    window: int

    def of_rows(self) -> int:
        return derive_key(self.seed, "rows", self.epoch)

    def of_lengths(self) -> int:
        return derive_key(self.seed, "lengths", self.epoch)

    def of_steps(self) -> int:
        """Return the key of the step order, the same for all lanes."""
        return derive_key(self.seed, "steps", self.epoch, self.window)


def arrange(
    row_ids: RowIds,
    lengths: Lengths,
    present: Present,
    layout: PaddedLayout | BucketedLayout | PackedLayout | LineLayout,
    keys: WindowKeys,
    *,
    step_rows: Sequence[int],
    max_tokens: int | None,
    max_rows: int | None = None,
) -> Arrangement:
    """Assign a window's rows to its steps; `step_rows` is the number of rows of each, damaged ones included.

    `max_rows` limits the rows of a line. In the packed and the line layout steps have about equal tokens, so their
    row counts differ from `step_rows`.
    """
    shuffled = keyed_order(row_ids, keys.of_rows())
    if isinstance(layout, PackedLayout):
        steps = _packed_steps(shuffled[present[shuffled]], lengths, layout.sequence_tokens, keys, len(step_rows))
        return _packed(steps, layout.sequence_tokens, max_tokens)
    if isinstance(layout, LineLayout):
        steps = _packed_steps(shuffled[present[shuffled]], lengths, layout.tokens, keys, len(step_rows), max_rows)
        return _packed(steps, layout.tokens, layout.tokens)
    if isinstance(layout, BucketedLayout):
        lengths = _with_lengths_for_damaged(lengths, present, row_ids, keys)
        order, boundaries = _bucketed(shuffled, _jittered(lengths, row_ids, layout.jitter, keys), keys, step_rows)
    else:
        order, boundaries = shuffled, _boundaries(step_rows)
    if not present.all():
        stays = present[order]
        boundaries = _boundaries(stays)[boundaries]
        order = order[stays]
    if max_tokens is None:
        return Arrangement(order, [_pieces(start, stop) for start, stop in _pairs(boundaries)])
    return _within_budget(order, lengths, boundaries, max_tokens)


def _jittered(
    lengths: Lengths, row_ids: RowIds, jitter: float, keys: WindowKeys
) -> Lengths | Float64[np.ndarray, "row"]:
    if not jitter:
        return lengths
    share = (mix64(row_ids ^ np.uint64(keys.of_lengths())) >> np.uint64(32)).astype(np.float64) / 2**31
    longer: Float64[np.ndarray, "row"] = lengths * (1 + jitter * (share - 1))
    return longer


def _bucketed(
    shuffled: Rows, lengths: Lengths | Float64[np.ndarray, "row"], keys: WindowKeys, step_rows: Sequence[int]
) -> tuple[Rows, Boundaries]:
    """Order rows by step; the rows of a step are one slice of the rows sorted by length."""
    by_length = shuffled[np.argsort(_sortable(lengths[shuffled]), kind="stable")]
    # The same order for all lanes, so that in each step all ranks have rows of about the same length.
    step_of_slice = _common_order(len(step_rows), keys.of_steps())
    slices = np.split(by_length, np.cumsum(np.asarray(step_rows)[step_of_slice])[:-1])
    steps = [shuffled[:0]] * len(step_rows)
    for step, rows in zip(step_of_slice.tolist(), slices, strict=True):
        steps[step] = rows
    return np.concatenate(steps), _boundaries(step_rows)


def _sortable(lengths: Shaped[np.ndarray, "row"]) -> Shaped[np.ndarray, "row"]:
    """Return the integers in 16 bits if they fit, for which NumPy's stable sort takes linear time."""
    fits = lengths.dtype == np.int32 and lengths.max(initial=0) <= np.iinfo(np.uint16).max
    return lengths.astype(np.uint16) if fits else lengths


def _with_lengths_for_damaged(lengths: Lengths, present: Present, row_ids: RowIds, keys: WindowKeys) -> Lengths:
    """Give each damaged row the length of a hashed intact row, so that damage shortens all steps equally."""
    intact = lengths[present]
    if len(intact) in (0, len(lengths)):
        return lengths
    lenders = mix64(row_ids[~present] ^ np.uint64(keys.of_rows())) % np.uint64(len(intact))
    filled = lengths.copy()
    filled[~present] = intact[lenders.astype(np.intp)]
    return filled


def _within_budget(order: Rows, lengths: Lengths, boundaries: Boundaries, max_tokens: int) -> Arrangement:
    """Sort each step's rows by falling length, and cut where the padded tokens would exceed the budget."""
    step_of_row = np.repeat(np.arange(len(boundaries) - 1), np.diff(boundaries))
    order = order[np.lexsort((-lengths[order].astype(np.int64), step_of_row))]
    steps = []
    for start, stop in _pairs(boundaries):
        pieces = []
        while start < stop:
            size = max(1, max_tokens // max(1, int(lengths[order[start]])))
            pieces.append(Piece(start, min(stop, start + size)))
            start += size
        steps.append(tuple(pieces))
    return Arrangement(order, steps)


def _packed_steps(
    rows: Rows, lengths: Lengths, sequence_tokens: int, keys: WindowKeys, num_steps: int, max_rows: int | None = None
) -> list[list[Int[np.ndarray, "_"]]]:
    """Return the packed sequences of each step, in numbers as equal as possible; no step is empty if avoidable."""
    sequences = pack(rows, lengths, sequence_tokens, max_rows)
    if len(sequences) >= num_steps:
        step_order = _common_order(len(sequences), keys.of_steps())
        return [[sequences[index] for index in step_order[step::num_steps]] for step in range(num_steps)]
    # Full sequences would leave some steps empty: assign rows to steps first, then pack each step.
    return [pack(rows[step::num_steps], lengths, sequence_tokens, max_rows) for step in range(num_steps)]


def pack(rows: Rows, lengths: Lengths, sequence_tokens: int, max_rows: int | None = None) -> list[Int[np.ndarray, "_"]]:
    """Pack rows by best-fit decreasing: longest row first, into the sequence with the least sufficient space.

    No row may be longer than a sequence. Ties follow the order of `rows`. Uses at most 11/9 of the optimal number
    of sequences, plus one (Johnson 1974), unless sequences are full because they hold `max_rows` rows.
    """
    sequences: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (tokens free, sequence), sorted
    by_length = rows[np.argsort(-lengths[rows].astype(np.int64), kind="stable")]
    for row, length in zip(by_length.tolist(), lengths[by_length].tolist(), strict=True):
        index = bisect_left(spaces, (length, -1))
        if index < len(spaces):
            space, sequence = spaces.pop(index)
        else:
            space, sequence = sequence_tokens, len(sequences)
            sequences.append([])
        sequences[sequence].append(row)
        if len(sequences[sequence]) != max_rows:
            insort(spaces, (space - length, sequence))
    return [np.array(sequence, np.intp) for sequence in sequences]


def _packed(steps: list[list[Int[np.ndarray, "_"]]], sequence_tokens: int, max_tokens: int | None) -> Arrangement:
    pieces_of_steps, start = [], 0
    for sequences in steps:
        sizes = [len(rows) for rows in sequences]
        per_piece = max(1, len(sizes) if max_tokens is None else max_tokens // sequence_tokens)
        pieces = []
        for first in range(0, len(sizes), per_piece):
            sequence_rows = tuple(sizes[first : first + per_piece])
            pieces.append(Piece(start, start + sum(sequence_rows), sequence_rows))
            start += sum(sequence_rows)
        pieces_of_steps.append(tuple(pieces))
    rows = [rows for sequences in steps for rows in sequences]
    return Arrangement(np.concatenate(rows) if rows else np.zeros(0, np.intp), pieces_of_steps)


def _pieces(start: int, stop: int) -> tuple[Piece, ...]:
    return (Piece(start, stop),) if stop > start else ()


def _boundaries(sizes: Sequence[int] | Bool[np.ndarray, "size"]) -> Boundaries:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _pairs(boundaries: Boundaries) -> list[tuple[int, int]]:
    return list(itertools.pairwise(boundaries.tolist()))


def _common_order(count: int, key: int) -> Int[np.ndarray, "index"]:
    return keyed_order(np.arange(count, dtype=np.uint64), key)

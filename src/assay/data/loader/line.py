"""A micro-batch as one line: rows end to end in arrays whose shapes follow from the recipe alone.

    input_ids     row 0 | row 1 | ... | blank         [token]
    position_ids  0 1 2 | 0 1   | ... | 0 1 2 ...     [token]
    borders       0, 3, 5, ..., tokens, tokens, ...   [border]: unused borders repeat the line's end
    indices        where the next token is scored      [place]: half of the line, or all of it

The head computes scores at `indices` only. Two sizes instead of one keep shapes few, and spare half of the head's work
where only completions are scored.
"""

from typing import NamedTuple

import numpy as np

from assay.base.shapes import Bool, Int, Int64, Shaped


class LineShape(NamedTuple):
    """The fixed sizes of lines."""

    tokens: int
    """Length of a line."""
    rows: int
    """Most rows of a line."""
    row_tokens: int
    """Longest sequence of a row."""
    sequences: int = 1
    """Sequences of each row: two if rows are pairs."""

    @property
    def num_slots(self) -> int:
        """Most sequences of a line, each of which has a slot in arrays with an entry for each sequence."""
        return self.rows * self.sequences

    @property
    def num_borders(self) -> int:
        """Borders of all sequences, and of the blank rest, cut to `row_tokens`."""
        return self.num_slots + -(-self.tokens // self.row_tokens) + 1


def line_arrays(
    input_ids: Int[np.ndarray, "sequence token"], lengths: Int[np.ndarray, "sequence"], line: LineShape
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return padded sequences as a line: `input_ids` and `position_ids` [1, token], `borders` [border], and
    `longest_row`, an empty array with `row_tokens` entries, whose shape tells attention the longest row."""
    num_tokens, mask = int(lengths.sum()), _mask(input_ids, lengths)
    ids, positions = np.zeros((1, line.tokens), np.int64), np.zeros((1, line.tokens), np.int64)
    ids[0, :num_tokens] = input_ids[mask]
    positions[0, :num_tokens] = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)[mask]
    positions[0, num_tokens:] = np.arange(line.tokens - num_tokens) % line.row_tokens
    borders = np.full(line.num_borders, line.tokens, np.int32)
    borders[: len(lengths) + 1] = np.concatenate([[0], np.cumsum(lengths)])
    blank = np.arange(num_tokens, line.tokens, line.row_tokens)
    borders[len(lengths) : len(lengths) + len(blank)] = blank
    return {
        "input_ids": ids,
        "position_ids": positions,
        "borders": borders,
        "longest_row": np.zeros(line.row_tokens, np.bool_),
    }


def scored_arrays(
    input_ids: Int[np.ndarray, "sequence token"],
    lengths: Int[np.ndarray, "sequence"],
    scored: Bool[np.ndarray, "sequence target"],
    line: LineShape,
    *,
    slots: Int[np.ndarray, "sequence"] | None = None,
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return `line_arrays` with what the head computes of the line: `targets` [place], `scored` [1, place], and
    `indices` unless they are the whole line; with `slots`, one for each sequence, also `row_of` [place], the slot of
    the place's sequence, and `num_scored` [slot].

    `scored` [sequence, token - 1] marks the tokens that are scored, except first ones. Scored indices come first, in
    the order of the line; the others are distinct, and `scored` is False there.
    """
    mask, num_tokens = _mask(input_ids, lengths), int(lengths.sum())
    predicts = np.zeros(mask.shape, bool)
    predicts[:, :-1] = scored
    is_scored, targets = np.zeros(line.tokens, bool), np.zeros(line.tokens, np.int64)
    is_scored[:num_tokens] = predicts[mask]
    targets[:num_tokens] = np.roll(input_ids[mask], -1)
    entries, others = {"targets": targets, "scored": is_scored}, line_arrays(input_ids, lengths, line)
    if slots is not None:
        entries["row_of"] = np.zeros(line.tokens, np.int64)
        entries["row_of"][:num_tokens] = np.repeat(slots, lengths)
        others["num_scored"] = in_slots(scored.sum(axis=1), slots, line.num_slots)
    half = line.tokens // 2
    if is_scored.sum() <= half:
        others["indices"] = distinct_indices(np.flatnonzero(is_scored), half, line)
        entries = {name: array[others["indices"]] for name, array in entries.items()}
    return {**others, **entries, "scored": entries["scored"][None]}


def in_slots(
    values: Shaped[np.ndarray, "sequence"], slots: Int[np.ndarray, "sequence"], size: int
) -> Shaped[np.ndarray, "slot"]:
    """Return an array of `size` with the values in their slots, and zeros elsewhere."""
    found = np.zeros(size, values.dtype)
    found[slots] = values
    return found


def distinct_indices(indices: Int64[np.ndarray, "given"], count: int, line: LineShape) -> Int64[np.ndarray, "place"]:
    """Return `indices` with further indices of the line, up to `count`; all are distinct."""
    is_free = np.ones(line.tokens, bool)
    is_free[indices] = False
    return np.concatenate([indices, np.flatnonzero(is_free)[: count - len(indices)]])


def _mask(
    input_ids: Int[np.ndarray, "sequence token"], lengths: Int[np.ndarray, "sequence"]
) -> Bool[np.ndarray, "sequence token"]:
    mask: Bool[np.ndarray, "sequence token"] = np.arange(input_ids.shape[1]) < lengths[:, None]
    return mask

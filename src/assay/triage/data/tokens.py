"""Finds changes in token ids and loss masks: which tokens occur where, and in how many rows.

A mask that is off by one changes the tokens at its boundaries in every row, while the number of trained
tokens hardly changes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.dataset.columns import SPANS
from assay.triage.data.kinds import IGNORED
from assay.triage.data.sizes import MAX_P_VALUE, MIN_DISTANCE, Change, change, distance
from assay.triage.data.texts import SAMPLE, moved_feature


def token_changes(name: str, old: Sequence[Any], new: Sequence[Any], rng: np.random.Generator) -> Iterator[Change]:
    """Find the token whose share of rows changed most, with its position."""
    samples = [_sample(len(values), rng) for values in (old, new)]
    rows = [[values[row] for row in sample if values[row]] for values, sample in zip((old, new), samples, strict=True)]
    found = moved_feature([Counter(f for ids in row for f in _features(ids)) for row in rows], [*map(len, rows)])
    if found is not None:
        (where, *ids), size = found
        yield change(name, "tokens", size, tokens=ids, at=where)


def _features(ids: list[int]) -> set[tuple[Any, ...]]:
    counts = Counter(ids)
    found: set[tuple[Any, ...]] = {("", token_id) for token_id in counts}
    found |= {("twice", token_id) for token_id, count in counts.items() if count > 1}
    return found | {("^", ids[0]), ("^", *ids[:2]), ("$", ids[-1])}


def mask_changes(
    name: str,
    old: tuple[Sequence[Any], Sequence[Any] | None],
    new: tuple[Sequence[Any], Sequence[Any] | None],
    rng: np.random.Generator,
) -> Iterator[Change]:
    """`old` and `new` are the mask's column, and the tokens' column if there is one."""
    facts = []
    shares = []
    for values, ids in (old, new):
        rows = [row for row in _sample(len(values), rng) if values[row] is not None]
        masks = [_trained(name, values[row], None if ids is None else ids[row]) for row in rows]
        facts.append(
            [_facts(m, values[row], None if ids is None else ids[row]) for m, row in zip(masks, rows, strict=True)]
        )
        shares.append(np.array([mask.mean() if len(mask) else 0.0 for mask in masks]))
    found = moved_feature([Counter(f for row in rows for f in row) for rows in facts], [*map(len, facts)])
    if found is not None:
        (property_name, value), size = found
        yield change(name, "mask", size, property=property_name, value=value)
    elif min(map(len, shares)) >= 20:
        moved = distance(*shares)
        if moved.effect >= MIN_DISTANCE and moved.p_value < MAX_P_VALUE:
            yield change(name, "mask", moved)


def _sample(num_rows: int, rng: np.random.Generator) -> list[int]:
    if num_rows <= SAMPLE:
        return list(range(num_rows))
    return [int(row) for row in np.sort(rng.choice(num_rows, SAMPLE, replace=False))]


def _trained(name: str, value: Any, ids: list[int] | None) -> NDArray[np.bool_]:
    if isinstance(value, int | float):
        mask = np.ones(len(ids or ()), bool)
        mask[: int(value)] = False
        return mask
    numbers = np.asarray(value, np.int64)
    if name.rpartition(".")[2] != SPANS:
        return numbers > 0 if not (numbers == IGNORED).any() and numbers.max(initial=0) <= 1 else numbers != IGNORED
    mask = np.zeros(max(len(ids or ()), int(numbers.max(initial=0))), bool)
    for begin, end in zip(numbers[::2].tolist(), numbers[1::2].tolist(), strict=False):
        mask[begin:end] = True
    return mask


def _facts(mask: NDArray[np.bool_], value: Any, ids: list[int] | None) -> set[tuple[str, Any]]:
    positions = np.flatnonzero(mask)
    if not len(positions):
        return {("stretches", 0)}
    first, last = int(positions[0]), int(positions[-1])
    num_spans = int((np.diff(mask.astype(np.int8)) == 1).sum()) + bool(mask[0])
    found: set[tuple[str, Any]] = {("end", len(mask) - 1 - last), ("start", bool(mask[0])), ("stretches", num_spans)}
    if ids is None:
        return found
    at = dict(enumerate(ids))
    found |= {
        ("first", at.get(first)), ("before", at.get(first - 1)), ("last", at.get(last)), ("after", at.get(last + 1)),
        ("fits", len(mask) == len(ids)),
    }  # fmt: skip
    if isinstance(value, list) and len(value) == len(ids) and IGNORED in value:
        found.add(("shifted", all(value[position] == ids[position] for position in positions.tolist())))
    return found

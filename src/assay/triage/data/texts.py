"""Finds changes in texts: lengths, truncation, and templates around words.

An additional space in a template appears in no column statistics. It appears in which runs of spaces and
punctuation occur, with adjacent words, in how many rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.triage.data.sizes import (
    MAX_P_VALUE,
    MIN_DISTANCE,
    MIN_SHARE_CHANGE,
    Change,
    Size,
    change,
    distance,
    share_change,
    without,
)

MIN_SHARE = 0.02
"""Minimal change of the share of rows with a feature."""
SAMPLE = 4_000
"""Number of rows whose words are examined."""
MAX_CHARACTERS = 4_000
"""Examined characters of each row, half from each end."""
MIN_FRAMED_SHARE = 0.3
"""Features in at least this share of the rows come from a template."""
_PART = re.compile(r"\w+|\W+")
Counted = Counter[Hashable]


def as_text(value: Any) -> str:
    """Return a text unchanged; join the contents of messages and lists, one part per line."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if "content" in value:
            return f"<{value.get('role', '')}>{as_text(value['content'])}"
        return "\n".join(as_text(part) for part in value.values())
    if isinstance(value, list):
        return "\n".join(as_text(part) for part in value)
    return "" if value is None else str(value)


def length_changes(name: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Change]:
    """Find truncation of texts (in characters or words) or lists (in parts), or else changed lengths.

    Missing and empty values are excluded.
    """
    is_text = any(isinstance(value, str) for value in (*old[:100], *new[:100]))
    measures: dict[str, Callable[[Any], int]] = {"parts": len}
    if is_text:
        measures = {"characters": len, "words": lambda text: len(text.split())}
    lengths = {
        unit: tuple(
            np.array([measure(value) if isinstance(value, str | list) else 0 for value in values])
            for values in (old, new)
        )
        for unit, measure in measures.items()
    }
    cuts = [
        found
        for unit, (old_values, new_values) in lengths.items()
        if (found := _cut(name, unit, old_values, new_values))
    ]
    if cuts:
        # The measure it was cut by is that at which rows pile up.
        yield max(cuts, key=lambda found: found[0])[1]
        return
    for unit, (old_values, new_values) in lengths.items():
        present = old_values[old_values > 0].astype(float), new_values[new_values > 0].astype(float)
        if min(map(len, present)) < 20:
            continue
        size = distance(*present)
        if size.effect >= MIN_DISTANCE and size.p_value < MAX_P_VALUE:
            yield change(name, "lengths", size, unit=unit)
            return


def _cut(name: str, unit: str, old: NDArray[np.int64], new: NDArray[np.int64]) -> tuple[float, Change] | None:
    """Return the truncation, with the share of rows at the limit."""
    for longer, shorter, is_now in ((old, new, True), (new, old, False)):
        if not len(longer) or not len(shorter) or not shorter.max():
            continue
        limit = int(shorter.max())
        size = share_change(float((old > limit).mean()), len(old), float((new > limit).mean()), len(new))
        if abs(size.effect) < MIN_SHARE_CHANGE or size.p_value >= MAX_P_VALUE:
            continue
        pile = float((shorter >= limit).mean() - (longer == limit).mean())
        details = {"limit": limit, "unit": unit, "share": float((longer > limit).mean()), "is_now": is_now}
        # Rows that were cut to within a word of the limit are among those that were left alone otherwise.
        return pile, change(name, "truncation", size, without(old >= 0.98 * limit, new >= 0.98 * limit), **details)
    return None


def template_changes(name: str, old: Sequence[Any], new: Sequence[Any], rng: np.random.Generator) -> Iterator[Change]:
    """Find changed text around words, or else changed words."""
    counts, sizes = zip(*(_documents(values, text_parts, rng) for values in (old, new)), strict=True)
    found = moved_feature(counts, sizes)
    if found is None:
        return
    feature, size = found
    details: dict[str, Any] = {"text": "".join(feature[1:]), "at": feature[0]}
    is_framing = any(not part.isalnum() for part in feature[1:]) and max(size.before, size.after) >= MIN_FRAMED_SHARE
    bare = _bare(feature)
    if is_framing and bare is not None:
        now = max(
            (count for count in counts[1] if _bare(count) == bare and count != feature),
            key=lambda count: counts[1][count] - counts[0][count],
            default=None,
        )
        if now is not None and size.effect < 0:
            details |= {"instead": "".join(now[1:]), "instead_share": counts[1][now] / sizes[1]}
    yield change(name, "template" if is_framing else "words", size, **details)


def _bare(feature: Any) -> tuple[str, ...] | None:
    return tuple(re.sub(r"\s+", "", part) for part in feature)


def _documents(
    values: Sequence[Any], parts: Callable[[Any], set[Any]], rng: np.random.Generator
) -> tuple[Counter[Any], int]:
    """Return feature -> number of sampled rows with it, and the sample size."""
    present = [value for value in values if value]
    if len(present) > SAMPLE:
        present = [present[row] for row in rng.choice(len(present), SAMPLE, replace=False).tolist()]
    return Counter(feature for value in present for feature in parts(value)), len(present)


def text_parts(value: Any) -> set[tuple[str, ...]]:
    """Return non-word runs with their adjacent words, and the start and end of the text."""
    text = as_text(value)
    if len(text) > MAX_CHARACTERS:
        text = text[: MAX_CHARACTERS // 2] + text[-MAX_CHARACTERS // 2 :]
    parts = _PART.findall(text)
    found: set[tuple[str, ...]] = {("", *pair) for pair in pairwise(parts)}
    found |= {("", part) for part in parts}
    if parts:
        found |= {("^", parts[0]), ("^", *parts[:2]), ("$", parts[-1]), ("$", *parts[-2:])}
    return found


def moved_feature(counts: Sequence[Counter[Any]], sizes: Sequence[int]) -> tuple[Any, Size] | None:
    """Return the feature with the largest significant change; of several equal ones the longest."""
    if min(sizes, default=0) < 20:
        return None
    names = list(counts[0].keys() | counts[1].keys())
    shares = [np.array([count[name] for name in names]) / size for count, size in zip(counts, sizes, strict=True)]
    gaps = np.abs(shares[1] - shares[0])
    if not len(gaps) or gaps.max() < MIN_SHARE:
        return None
    tied = np.flatnonzero(gaps >= 0.98 * gaps.max())
    best = max(tied.tolist(), key=lambda index: (len(names[index]), str(names[index])))
    size = share_change(shares[0][best], sizes[0], shares[1][best], sizes[1])
    num_tests = int((np.maximum(*shares) >= MIN_SHARE / 2).sum())
    return (names[best], size) if size.p_value * num_tests < MAX_P_VALUE else None

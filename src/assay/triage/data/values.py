"""Finds changes within one column: missing and empty values, new values, shares, units, distributions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from assay.triage.data.kinds import ColumnKind, is_number
from assay.triage.data.rows import is_missing
from assay.triage.data.sizes import (
    MAX_P_VALUE,
    MIN_DISTANCE,
    MIN_SHARE_CHANGE,
    Change,
    Size,
    Strata,
    change,
    distance,
    factor,
    flag_change,
    share_change,
    without,
)

MAX_VALUES = 50
"""Number of values whose shares are tested separately; the others are pooled."""
OPEN = 0.3
"""A column in which at least this share of new rows has a new value anyway is not categorical."""
MIN_RATIO = 1.5
"""A share that changes by this factor counts from 0.3 percentage points on."""
WHOLE_FACTORS = (10, 12, 24, 60, 100, 1_000, 1_024, 3_600, 86_400, 1_000_000, 1_000_000_000)
"""Factors between commonly confused units."""


def value_changes(name: str, kind: ColumnKind, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Change]:
    """Find at most one change of each kind; `old` and `new` are all values of a column."""
    gone = is_missing(old), is_missing(new)
    yield from _flags(name, "missing", *gone)
    if kind in ("text", "names", "lists", "tokens", "mask"):
        yield from _flags(name, "empty", *([_is_empty(value) for value in values] for values in (old, new)))
    if kind == "categories":
        yield from _category_changes(name, old, new)
    if kind in ("numbers", "times"):
        yield from _number_changes(name, kind, old, new)


def _is_empty(value: Any) -> bool:
    return value is not None and not (value.strip() if isinstance(value, str) else value or value == 0)


def _flags(name: str, kind: Any, old: Any, new: Any) -> Iterator[Change]:
    old, new = np.asarray(old, bool), np.asarray(new, bool)
    size = flag_change(old, new)
    if size is not None and abs(size.effect) >= MIN_SHARE_CHANGE and size.p_value < MAX_P_VALUE:
        yield change(name, kind, size, without(old, new))


def _keys(values: Sequence[Any]) -> list[str | None]:
    return [None if value is None or value != value else _shown(value) for value in values]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _category_changes(name: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Change]:
    numbers = _numbers(old), _numbers(new)
    if min(len(number) for number in numbers) > 0.9 * max(1, min(len(old), len(new))):
        size = factor(*numbers)
        if size is not None:
            yield change(name, "unit", size)
            return
    old_values, new_values = _keys(old), _keys(new)
    counts = (
        Counter(key for key in old_values if key is not None),
        Counter(key for key in new_values if key is not None),
    )
    unseen = {key for key in counts[1] if key not in counts[0]}
    found = _unseen(counts[0], counts[1], unseen)
    seen = Counter({key: count for key, count in counts[1].items() if key not in unseen})
    renamed = None
    if found is not None:
        most = max(unseen, key=lambda key: counts[1][key])
        renamed = _renamed(counts[0], seen, counts[1].total() - seen.total())
        flags = (np.zeros(len(old_values), bool), np.array([key in unseen for key in new_values], bool))
        yield change(name, "unseen", found, without(*flags), value=most, rows=counts[1][most], instead=renamed)
    moved = _moved(counts[0], seen)
    if moved is not None and renamed is None:
        value, size = moved
        names = {key: index for index, (key, _) in enumerate((counts[0] + seen).most_common(MAX_VALUES))}
        strata = Strata(
            *(
                np.array([names.get(key or "", MAX_VALUES) for key in keys], np.int64)
                for keys in (old_values, new_values)
            )
        )
        yield change(name, "share", size, strata, value=value)


def _renamed(old: Counter[str], seen: Counter[str], num_unseen: int) -> str | None:
    """Return the value that new values replaced: with them it would have its old share."""
    for key, _ in old.most_common(MAX_VALUES):
        together = seen + Counter({key: num_unseen})
        is_less = share_change(old[key] / old.total(), old.total(), seen[key] / together.total(), together.total())
        if is_less.effect < 0 and is_less.p_value < MAX_P_VALUE and _moved(old, together) is None:
            return key
    return None


def _unseen(old: Counter[str], new: Counter[str], unseen: set[str]) -> Size | None:
    """Compare with the expected share of new values: the share of values seen once (Good, 1953)."""
    num_old, num_new = old.total(), new.total()
    if not num_old or not num_new:
        return None
    expected = sum(count == 1 for count in old.values()) / num_old
    if expected > OPEN:
        return None
    size = share_change(expected, num_old, sum(new[key] for key in unseen) / num_new, num_new)
    enough = size.effect >= MIN_SHARE_CHANGE / 2 and size.p_value < MAX_P_VALUE
    return size if enough else None


def _moved(old: Counter[str], new: Counter[str]) -> tuple[str, Size] | None:
    """Return the value whose share changed, and its size: the value without which the others changed least."""
    num_old, num_new = old.total(), new.total()
    if not num_old or not num_new:
        return None
    sizes = {
        key: share_change(old[key] / num_old, num_old, new[key] / num_new, num_new)
        for key, _ in (old + new).most_common(MAX_VALUES)
    }
    large = {key: size for key, size in sizes.items() if size.p_value < MAX_P_VALUE and _is_large(size)}
    if not large:
        return None
    table = np.array([[old[key], new[key]] for key in sizes], float)
    keys = list(sizes)
    rests = {key: _unevenness(np.delete(table, keys.index(key), axis=0)) for key in large}
    # Of two values alone either explains the other: the rarer one, as it changed more for its size.
    value = min(large, key=lambda key: (round(rests[key], 6), old[key] + new[key]))
    return value, sizes[value]


def _is_large(size: Size) -> bool:
    low, high = sorted((size.before, size.after))
    return abs(size.effect) >= 0.01 or (abs(size.effect) >= 0.003 and high >= MIN_RATIO * low)


def _unevenness(table: NDArray[np.float64]) -> float:
    """Return the chi-square statistic of independence, without empty rows and columns."""
    table = table[table.sum(1) > 0]
    if len(table) < 2 or (table.sum(0) == 0).any():
        return 0.0
    return float(stats.chi2_contingency(table, correction=False).statistic)


def _numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    found = np.array([value for value in values if is_number(value)], np.float64)
    return found[np.isfinite(found)]


def _number_changes(name: str, kind: ColumnKind, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Change]:
    old_values, new_values = _numbers(old), _numbers(new)
    if min(len(old_values), len(new_values)) < 20:
        return
    not_numbers = [np.array([isinstance(value, str | list | dict) for value in values], bool) for values in (old, new)]
    size = flag_change(*not_numbers)
    if kind == "numbers" and size is not None and size.effect >= MIN_SHARE_CHANGE / 2 and size.p_value < MAX_P_VALUE:
        which = next((v for v, flag in zip(new, not_numbers[1], strict=True) if flag), "")
        yield change(name, "unseen", size, without(*not_numbers), text=str(which))
    if (found := factor(old_values, new_values)) is not None:
        yield change(name, "unit", found)
    elif kind == "numbers":
        yield from _shape_changes(name, old_values, new_values)


def _shape_changes(name: str, old: NDArray[np.float64], new: NDArray[np.float64]) -> Iterator[Change]:
    outside = (new < old.min()) | (new > old.max())
    size = share_change(2 / len(old), len(old), float(outside.mean()), len(new))
    if size.effect >= MIN_SHARE_CHANGE / 2 and size.p_value < MAX_P_VALUE:
        unit = _mixed_unit(old, new[outside])
        details: dict[str, Any] = {"low": float(old.min()), "high": float(old.max())}
        if unit is not None:
            yield change(name, "unit", size, factor=unit, **details)
            return
        yield change(name, "range", size, value=float(np.median(new[outside])), **details)
    value, count = Counter(new.tolist()).most_common(1)[0]
    spike = share_change(float((old == value).mean()), len(old), count / len(new), len(new))
    if spike.p_value < MAX_P_VALUE and _is_large(spike) and not size.effect >= MIN_SHARE_CHANGE / 2:
        yield change(name, "share", spike, value=value)
    shape = distance(old, new)
    if shape.effect >= MIN_DISTANCE and shape.p_value < MAX_P_VALUE:
        yield change(name, "distribution", shape)


def _mixed_unit(old: NDArray[np.float64], outside: NDArray[np.float64]) -> int | None:
    """Return the factor that converts values outside the old range into it; it must fit the upper part,
    because the lower part overlaps with other values."""
    if len(outside) < 30 or old.min() < 0:
        return None
    for times in WHOLE_FACTORS:
        hidden = old[old * times > old.max()]
        if len(hidden) >= 30 and distance(hidden, outside / times).p_value > 1e-3:
            return times
    return None

"""Cut rows into slices by one metadata column at a time, to find where a good average hides a bad part.

Text is cut by value (the 20 most frequent, the rest together), numbers by quartile; null is a value of its own.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from assay.base.shapes import Bool
from assay.base.units import count_text
from assay.records.evaluation import TRAINED_TOKENS, Estimate
from assay.statistics.predictions import CLUSTER, ROW_ID
from assay.statistics.verdict import SliceDifference

MISSING = "(missing)"
MAX_VALUES = 20
MIN_ROWS = 50
"""Smaller slices get no interval: the normal approximation does not hold for them."""


class Slice(NamedTuple):
    """The rows for which one column has one value."""

    column: str
    value: str
    chosen: Bool[np.ndarray, "row"]


def metadata_slices(table: Any, *, scores: Collection[str]) -> Iterator[Slice]:
    """Return the slices of each metadata column: all columns but ids, clusters, weights and scores."""
    for name in table.column_names:
        if name not in (ROW_ID, CLUSTER, TRAINED_TOKENS) and name not in scores:
            yield from slices_of(name, table[name])


def slice_differences(
    baseline: Any, difference: Callable[[Bool[np.ndarray, "row"]], Estimate | None], *, scores: Collection[str]
) -> tuple[SliceDifference, ...]:
    """Return the paired difference in each slice of the baseline's table.

    The intervals are not corrected for the number of slices: one in twenty 95% intervals misses its true value.
    """
    found = []
    for slice_part in metadata_slices(baseline, scores=scores):
        num_rows = int(np.count_nonzero(slice_part.chosen))
        estimate = difference(slice_part.chosen) if num_rows >= MIN_ROWS else None
        found.append(SliceDifference(slice_part.column, slice_part.value, num_rows, estimate))
    return tuple(found)


def slices_of(column: str, values: Any) -> Iterator[Slice]:
    """Cut an Arrow column into non-empty slices that together hold each row once."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    is_missing = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if _is_number(values.type) and pc.count_distinct(values).as_py() > MAX_VALUES:
        yield from _by_quartile(column, values, is_missing)
    else:
        yield from _by_value(column, values, is_missing)
    if is_missing.any():
        yield Slice(column, MISSING, is_missing)


def _is_number(type_: Any) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _by_quartile(column: str, values: Any, is_missing: Bool[np.ndarray, "row"]) -> Iterator[Slice]:
    numbers = pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    edges = np.unique(np.quantile(numbers[~is_missing], [0.25, 0.5, 0.75], method="lower"))
    # NaN sorts beyond every edge; its rows belong to no quartile.
    quartile = np.where(is_missing, -1, np.searchsorted(edges, numbers, side="left"))
    for index in range(edges.size + 1):
        chosen = quartile == index
        if chosen.any():
            inside = numbers[chosen]
            yield Slice(column, f"{_short(inside.min())} to {_short(inside.max())}", chosen)


def _by_value(column: str, values: Any, is_missing: Bool[np.ndarray, "row"]) -> Iterator[Slice]:
    counts = sorted(
        ((pair["values"], pair["counts"]) for pair in pc.value_counts(values.drop_null()).to_pylist()),
        key=lambda pair: (-pair[1], str(pair[0])),
    )
    is_other = ~is_missing
    for value, _ in counts[:MAX_VALUES]:
        if value != value:  # NaN is missing
            continue
        chosen = pc.fill_null(pc.equal(values, pa.scalar(value, values.type)), False)
        mask = chosen.to_numpy(zero_copy_only=False)
        is_other &= ~mask
        yield Slice(column, str(value), mask)
    if is_other.any():
        num_others = len(counts) - MAX_VALUES
        yield Slice(column, f"({count_text(num_others)} other values)", is_other)


def _short(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e15 else f"{number:.4g}"

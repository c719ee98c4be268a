"""Profiles a dataset: lengths, and the values and missing rates of each column.

Counts of shards are merged into the profile of the dataset.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from assay.data.dataset.columns import ITEM, is_text
from assay.records.dataset import ColumnProfile, Format, LengthProfile

Counts = npt.NDArray[np.int64]

MAX_LENGTH = 1 << 20
"""Longer rows count as this long in the length histogram."""
MAX_DISTINCT = 10_000
"""Distinct values counted per column and shard; rarer ones beyond this are dropped."""
NUM_TOP_VALUES = 20


@dataclass
class ColumnCounts:
    """Accumulated counts of one column."""

    num_rows: int = 0
    num_missing: int = 0
    values: Counter[str] = field(default_factory=Counter)
    packed: list[pa.Table] = field(default_factory=list)
    """The values of counted shards, with their counts: a quarter of the memory that a `Counter` of 10,000 takes."""
    minimum: Any = None
    maximum: Any = None
    num_endless: int = 0
    """Infinite numbers, which count for the limits and not for the mean."""
    total: float = 0.0

    def add(self, column: pa.ChunkedArray) -> None:
        self.num_rows += len(column)
        missing = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))
        num_missing = int(pc.sum(missing).as_py() or 0)
        self.num_missing += num_missing
        if num_missing == len(column):
            return
        column = column.filter(pc.invert(missing))
        if is_text(column.type) or pa.types.is_boolean(column.type):
            counts = pc.value_counts(column.cast(pa.string()))
            pairs = zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True)
            self.values.update(dict(pairs))
            if len(self.values) > MAX_DISTINCT:
                self.values = Counter(dict(self.values.most_common(MAX_DISTINCT)))
            return
        if not _has_limits(column.type):
            return
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        limits = pc.min_max(column)
        # Keep times as integers: Python has no datetimes before year 1 and after 9999.
        low, high = (getattr(limits[end], "value", None) for end in ("min", "max"))
        if low is None:
            low, high = limits["min"].as_py(), limits["max"].as_py()
        self._extend(low, high)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            numbers = pc.cast(column, pa.float64(), safe=False)
            is_finite = pc.is_finite(numbers)
            if num_endless := len(numbers) - int(pc.sum(is_finite).as_py()):
                self.num_endless += num_endless
                numbers = numbers.filter(is_finite)
            self.total += float(pc.sum(numbers).as_py() or 0.0)

    def pack(self) -> None:
        """Pack the values. Called when a shard is counted."""
        columns = {
            "value": pa.array(self.values, pa.large_string()),
            "count": pa.array(self.values.values(), pa.int64()),
            "digest": pa.array([xxhash.xxh3_64_intdigest(value.encode()) for value in self.values], pa.uint64()),
        }
        self.packed.append(pa.table(columns))
        self.values = Counter()

    def merge(self, other: "ColumnCounts") -> None:
        self.num_rows += other.num_rows
        self.num_missing += other.num_missing
        self.packed += other.packed
        self.total += other.total
        self.num_endless += other.num_endless
        if other.minimum is not None:
            self._extend(other.minimum, other.maximum)

    def _extend(self, low: Any, high: Any) -> None:
        self.minimum = low if self.minimum is None else min(self.minimum, low)
        self.maximum = high if self.maximum is None else max(self.maximum, high)

    def profile(self, name: str, arrow_type: pa.DataType) -> ColumnProfile:
        present = self.num_rows - self.num_missing - self.num_endless
        is_number = pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type)
        return ColumnProfile(
            name=name,
            type=str(arrow_type),
            missing_rate=self.num_missing / self.num_rows if self.num_rows else 0.0,
            top_values=_most_common(self.packed),
            minimum=None if self.minimum is None else _limit_text(self.minimum, arrow_type),
            maximum=None if self.maximum is None else _limit_text(self.maximum, arrow_type),
            mean=self.total / present if is_number and present and math.isfinite(self.total) else None,
        )


def _most_common(packed: Sequence[pa.Table]) -> tuple[tuple[str, int], ...]:
    """Return the most common values; of equally common ones the first, as `Counter.most_common` does."""
    # Sorted by 64-bit digests: a hash table of millions of texts takes ten times their memory.
    table = pa.concat_tables(packed)
    digests = table["digest"].to_numpy()
    order = np.argsort(digests, kind="stable")
    begins = np.flatnonzero(np.concatenate([[True], digests[order[1:]] != digests[order[:-1]]])[: len(order)])
    totals, firsts = np.add.reduceat(table["count"].to_numpy()[order], begins), order[begins]
    top = np.lexsort([firsts, -totals])[:NUM_TOP_VALUES]
    return tuple(zip(table["value"].take(firsts[top]).to_pylist(), totals[top].tolist(), strict=True))


def is_profiled(field: pa.Field, format: Format) -> bool:
    """Return whether a column is profiled: scalars only, and not the JSON items of prompts."""
    return not pa.types.is_nested(field.type) and not (format == "prompts" and field.name == ITEM)


def _has_limits(arrow_type: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp, pa.types.is_date)
    return any(is_a(arrow_type) for is_a in kinds)


def _limit_text(value: Any, arrow_type: pa.DataType) -> str:
    if not (pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type)):
        return str(value)
    stored = pa.scalar(value, pa.int32() if pa.types.is_date32(arrow_type) else pa.int64()).cast(arrow_type)
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit == "ns":
        stored = stored.cast(pa.timestamp("us", arrow_type.tz), safe=False)
    try:
        return str(stored.as_py())
    except (ValueError, OverflowError):  # outside Python's range, or in an unknown time zone
        return f"{value} of {arrow_type}"


def added(one: Counts, other: Counts) -> Counts:
    """Add two histograms of different lengths."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


def length_profile(rows_of_length: npt.NDArray[np.int64]) -> LengthProfile:
    """Build the profile from the number of rows of each length."""
    lengths = np.flatnonzero(rows_of_length)
    if not len(lengths):
        return LengthProfile(mean=0, p50=0, p95=0, p99=0, max=0, histogram_edges=(0, 1), histogram_rows=(0,))
    counts = rows_of_length[lengths]
    cumulative = np.cumsum(counts)
    p50, p95, p99 = (int(lengths[np.searchsorted(cumulative, q * cumulative[-1])]) for q in (0.5, 0.95, 0.99))
    longest = int(lengths[-1])
    width = max(1, -(-(longest + 1) // 16))
    edges = tuple(range(0, longest + 1 + width, width))
    return LengthProfile(
        mean=float((lengths * counts).sum() / cumulative[-1]),
        p50=p50,
        p95=p95,
        p99=p99,
        max=longest,
        histogram_edges=edges,
        histogram_rows=tuple(int(rows_of_length[start:stop].sum()) for start, stop in pairwise(edges)),
    )


def merged_columns(parts: Iterable[dict[str, ColumnCounts]]) -> dict[str, ColumnCounts]:
    """Merge the column counts of all shards."""
    total: dict[str, ColumnCounts] = {}
    for part in parts:
        for name, counts in part.items():
            total.setdefault(name, ColumnCounts()).merge(counts)
    return total

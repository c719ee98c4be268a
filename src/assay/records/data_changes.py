"""What changed between two versions of the data, and by how much: columns, and what columns hide."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, NonNegativeInt

from assay.base.versioned import Versioned
from assay.records.record import Record

DataChangeKind = Literal[
    "columns",
    "missing",
    "empty",
    "duplicates",
    "unseen",
    "unit",
    "truncation",
    "share",
    "range",
    "distribution",
    "lengths",
    "template",
    "words",
    "tokens",
    "mask",
    "labels",
    "values",
]
"""`range`: numbers beyond those of before; a sentinel, say. `words`: what texts say, `template`: what stands
around it. `labels`: they follow less from the rest of their rows. `values`: of rows that both have."""


class DataFinding(Versioned):
    """A change of one column."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    what: str
    """The column; `duplicates` for whole rows."""
    kind: DataChangeKind
    before: float
    """Share of rows, or a median."""
    after: float
    effect: float
    """Difference of shares, ratio of units, or Kolmogorov-Smirnov distance."""
    low: float
    high: float
    p_value: float
    details: dict[str, Any] = Field(default_factory=dict)
    """Values, tokens and texts that changed."""
    consequences: tuple[str, ...] = ()
    """`column: kind`."""


class MovedSlice(Versioned):
    """A slice's change; `column` is empty for all rows."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    column: str
    value: str
    before: float
    after: float
    low: float
    high: float


class MovedMetric(Versioned):
    """A metric's change between two runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    metric: str
    overall: MovedSlice
    slices: tuple[MovedSlice, ...]
    """Significant ones."""
    num_slices: NonNegativeInt
    run_id: str
    """The run after; its recipe on `dataset` would prove the cause."""
    dataset: str
    """Dataset of the run before."""
    device_hours: float | None
    """To train it."""


class DataChanges(Record):
    """Changes between two datasets."""

    rows_before: NonNegativeInt
    rows_after: NonNegativeInt
    results: tuple[DataFinding, ...]
    """Causes first."""
    columns: dict[str, str]
    """Column to its inferred type."""
    sources: dict[str, str]
    moved: MovedMetric | None = None

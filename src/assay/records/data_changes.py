"""What changed between two versions of the data, and by how much: columns, and what columns hide."""

from typing import Literal

from pydantic import ConfigDict, NonNegativeInt

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
    """One change with its size."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    what: str
    """The column; `duplicates` where whole rows are meant."""
    kind: DataChangeKind
    """In which way it changed."""
    before: float
    """The figure before: a share of the rows (0 to 1); of a unit, a distribution and lengths the median."""
    after: float
    """Likewise, after."""
    effect: float
    """The difference of shares; of a unit the factor; of a distribution or lengths the largest distance of the
    cumulative shares (Kolmogorov-Smirnov); of `labels` the share that seems to have been changed."""
    low: float
    """The least that the effect may be (95%)."""
    high: float
    """The most that it may be."""
    p_value: float
    """The chance of a difference at least as large by chance; what is smaller than 1e-300 is 0."""
    says: str
    """The change in a sentence."""
    consequences: tuple[str, ...] = ()
    """Changes, as `column: kind`, that are gone or halved among rows that this one left alone."""


class MovedSlice(Versioned):
    """Rows with one value in one column, of which the metric became another; `column` is empty for all rows."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    column: str
    value: str
    before: float
    after: float
    low: float
    """The lower end of the 95% interval of after - before, over all slices that were asked together."""
    high: float


class MovedMetric(Versioned):
    """What a metric did between two runs on two versions of the data, and the run that would tell why."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    metric: str
    overall: MovedSlice
    slices: tuple[MovedSlice, ...]
    """Those that surely moved, the farthest first."""
    num_slices: NonNegativeInt
    """Slices that both runs have, of which these are some."""
    ablation: str
    """The run that would prove that the data did it."""
    device_hours: float | None
    """What that costs: what the run after held; None where that is not on record."""


class DataChanges(Record):
    """From one version of the data to another."""

    because: str
    """The outcome in a sentence."""
    rows_before: NonNegativeInt
    rows_after: NonNegativeInt
    findings: tuple[DataFinding, ...]
    """Causes before what has none, the surest first."""
    columns: dict[str, str]
    """Columns that both have -> what each was taken for."""
    sources: dict[str, str]
    """What was read, before and after -> SHA-256 of its rows, or a dataset's fingerprint."""
    moved: MovedMetric | None = None
    """What came of it; None where the two are no runs that were evaluated alike."""

"""What an evaluation found: metrics with their intervals, whole and by slice."""

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record


class Estimate(Record):
    """A number with its uncertainty."""

    kind: ClassVar[str] = "estimate"

    value: float
    low: float | None = None
    """Lower end of the interval; None where the method gives none."""
    high: float | None = None
    confidence: float = 0.95
    method: str = ""
    """How the interval was made: `DeLong`, `paired bootstrap, 2000 resamples`, ..."""


class Metric(Record):
    """What a number measures, and which way is better."""

    kind: ClassVar[str] = "metric"

    name: str
    """As in columns and curves: `auc`, `squared_error`."""
    unit: str
    """`share`, `AUC`, `nats per row`, ..."""
    higher_is_better: bool


class CalibrationBin(Record):
    """Rows whose predicted probability fell into one bin."""

    kind: ClassVar[str] = "calibration_bin"

    num_rows: PositiveInt
    mean_predicted: float
    observed_rate: float


class ClassifierMetrics(Record):
    """A binary classifier on a set of rows. AUC and AP are None where a class is absent."""

    kind: ClassVar[str] = "classifier_metrics"

    num_rows: NonNegativeInt
    num_positive: NonNegativeInt
    auc: Estimate | None
    average_precision: Estimate | None
    log_loss: Estimate
    expected_calibration_error: float
    """Over equal-count bins."""
    calibration: tuple[CalibrationBin, ...]


class SliceMetrics(Record):
    """The metrics on the rows where one metadata column has one value."""

    kind: ClassVar[str] = "slice_metrics"

    column: str
    value: str
    """`(missing)` for null; numbers by quartile, e.g. `12 to 40`."""
    metrics: ClassifierMetrics


class ClassifierEvaluation(Record):
    """One checkpoint on one split of one dataset."""

    kind: ClassVar[str] = "classifier_evaluation"

    run_id: str
    step: NonNegativeInt
    weights_digest: str
    dataset_fingerprint: str
    split: str
    overall: ClassifierMetrics
    slices: tuple[SliceMetrics, ...]
    predictions_sha256: str
    """Of the Parquet file with one line per row: row_id, label, probability, and the metadata columns."""


class AucComparison(Record):
    """A candidate beside its baseline on the same rows."""

    kind: ClassVar[str] = "auc_comparison"

    baseline_run_id: str
    candidate_run_id: str
    num_rows: PositiveInt
    baseline_auc: float
    candidate_auc: float
    difference: Estimate
    """Candidate minus baseline, paired on rows."""
    allowed_loss: float
    """The candidate passes if the interval's lower end is above minus this (0.01: one percentage point)."""
    verdict: str
    """`pass`, `fail`, or `undecided`."""
    weights_equal: bool
    """The two runs ended with the same weights, bit for bit."""

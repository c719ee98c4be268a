"""What an evaluation found: metrics with their intervals, whole and by slice; and two of them side by side.

An evaluation of every method names its metrics, the one that runs are compared by first. A binary classifier's
holds besides what only makes sense for probabilities of a class.
"""

from pathlib import Path
from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record, record_of_kind


class Estimate(Record):
    """A value with its interval."""

    value: float
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    method: str = ""


ROW_MEANS = {"nats_per_token": "loss per row", "token_accuracy": "token accuracy per row"}
"""Metrics that are a mean over tokens in each row, and then over rows, so that short rows weigh as much as long
ones. The mean over all tokens (in training, suites and the API) is another number and has another name."""


def metric_title(name: str) -> str:
    """What a metric of an evaluation is called for people: `squared error`."""
    return ROW_MEANS.get(name, name.replace("_", " "))


class Metric(Record):
    """A metric and its direction."""

    name: str
    unit: str
    """E.g. `nats per row`."""
    higher_is_better: bool

    @property
    def title(self) -> str:
        """For people: `AUC`, `squared error`."""
        return self.unit if self.unit.lower() == self.name else metric_title(self.name)


class Measured(Record):
    """A metric's value."""

    metric: Metric
    estimate: Estimate | None


ACCURACY = Metric(name="accuracy", unit="share", higher_is_better=True)
AUC = Metric(name="auc", unit="AUC", higher_is_better=True)
AVERAGE_PRECISION = Metric(name="average_precision", unit="share", higher_is_better=True)
LOG_LOSS = Metric(name="log_loss", unit="nats per row", higher_is_better=False)
CHOSEN_REWARD = Metric(name="chosen_reward", unit="rewards", higher_is_better=True)
REJECTED_REWARD = Metric(name="rejected_reward", unit="rewards", higher_is_better=False)
TRAINED_TOKENS = "trained_tokens"
"""A column beside the scores: by what a row counts in a mean over tokens."""


class CalibrationBin(Record):
    """A bin of predicted probability."""

    num_rows: PositiveInt
    mean_predicted: float
    observed_rate: float


class ClassifierMetrics(Record):
    """Binary metrics; AUC and AP are null without both classes."""

    num_rows: NonNegativeInt
    num_positive: NonNegativeInt
    auc: Estimate | None
    average_precision: Estimate | None
    log_loss: Estimate
    expected_calibration_error: float
    """Over equal-count bins."""
    calibration: tuple[CalibrationBin, ...]

    @property
    def measured(self) -> tuple[Measured, ...]:
        """By name, the one that runs are compared by first."""
        return (
            Measured(metric=AUC, estimate=self.auc),
            Measured(metric=AVERAGE_PRECISION, estimate=self.average_precision),
            Measured(metric=LOG_LOSS, estimate=self.log_loss),
        )


class ClassScore(Record):
    """Scores of one class."""

    name: str
    num_rows: NonNegativeInt
    predicted_as: tuple[int, ...]
    """By predicted class, in the order of `classes`."""
    precision: float | None
    recall: float | None
    f1: float


class NumberBin(Record):
    """A bin of predicted numbers."""

    num_rows: PositiveInt
    mean_predicted: float
    mean_label: float


class NumberFit(Record):
    """Predicted against true numbers."""

    label_mean: float
    label_deviation: float
    r_squared: float | None
    bias: float
    """Mean of prediction minus label."""
    bins: tuple[NumberBin, ...]
    """Lowest prediction first."""


class ScoreMetrics(Record):
    """Means over rows."""

    num_rows: NonNegativeInt
    measured: tuple[Measured, ...]
    """Primary metric first."""
    classes: tuple[ClassScore, ...] = ()
    """For multi-class labels."""
    fit: NumberFit | None = None
    """For numeric labels."""

    @property
    def macro_f1(self) -> float | None:
        """The mean of the classes' F1, each counting alike however many rows it has.

        A class that no row is of and that no row was taken for has none, and is left out, as scikit-learn does.
        """
        seen = [class_.f1 for class_ in self.classes if class_.precision is not None or class_.recall is not None]
        return sum(seen) / len(seen) if seen else None


class SliceMetrics(Record):
    """Metrics of the rows with one metadata value."""

    column: str
    value: str
    """`(missing)` for null; numbers by quartile."""
    metrics: ClassifierMetrics


class ScoreSlice(Record):
    """Scores of the rows with one metadata value."""

    column: str
    value: str
    metrics: ScoreMetrics


class Evaluation(Record):
    """The keys of every evaluation."""

    kind: ClassVar[str] = ""  # each method's has its own

    run_id: str
    step: NonNegativeInt
    weights_digest: str
    dataset_fingerprint: str
    split: str
    predictions_sha256: str
    overall: ClassifierMetrics | ScoreMetrics
    slices: tuple[SliceMetrics, ...] | tuple[ScoreSlice, ...]
    num_leaking: NonNegativeInt | None = None
    """Rows with tokens of a training row."""

    @property
    def headline(self) -> Measured:
        """The metric that runs are compared by."""
        return self.overall.measured[0]

    @property
    def loss(self) -> Measured | None:
        """The first metric of which less is better: what a scaling law is fitted to."""
        return next((metric for metric in self.overall.measured if not metric.metric.higher_is_better), None)


class ClassifierEvaluation(Evaluation):
    """An evaluation of a binary classifier."""

    overall: ClassifierMetrics
    slices: tuple[SliceMetrics, ...]


class ScoreEvaluation(Evaluation):
    """An evaluation of per-row scores, such as errors or rewards."""

    overall: ScoreMetrics
    slices: tuple[ScoreSlice, ...]


class Comparison(Record):
    """A comparison on the same rows."""

    kind: ClassVar[str] = ""  # likewise

    baseline_run_id: str
    candidate_run_id: str
    num_rows: PositiveInt
    difference: Estimate
    """Candidate minus baseline, paired."""
    allowed_loss: float
    """Margin in the metric's unit."""
    verdict: str
    """`pass`, `fail` or `undecided`."""
    weights_equal: bool
    """Bitwise."""


class AucComparison(Comparison):
    """A comparison of two binary classifiers."""

    baseline_auc: float
    candidate_auc: float

    @property
    def metric(self) -> Metric:
        """What is compared."""
        return AUC

    @property
    def baseline_value(self) -> float:
        """The baseline's AUC."""
        return self.baseline_auc

    @property
    def candidate_value(self) -> float:
        """The candidate's AUC."""
        return self.candidate_auc


class ScoreComparison(Comparison):
    """A comparison of two runs whose rows have scores of their own."""

    metric: Metric
    baseline_value: float
    candidate_value: float


AnyEvaluation = ClassifierEvaluation | ScoreEvaluation
AnyComparison = AucComparison | ScoreComparison


def evaluation_from_json(text: str | bytes, *, source: str | Path) -> AnyEvaluation:
    """Read an evaluation of any method."""
    classes: tuple[type[AnyEvaluation], ...] = (ClassifierEvaluation, ScoreEvaluation)
    return record_of_kind(classes, text, source=source)


def comparison_from_json(text: str | bytes, *, source: str | Path) -> AnyComparison:
    """Read a comparison of any method's runs."""
    classes: tuple[type[AnyComparison], ...] = (AucComparison, ScoreComparison)
    return record_of_kind(classes, text, source=source)

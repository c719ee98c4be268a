"""What an evaluation found: metrics with their intervals, whole and by slice; and two of them side by side.

An evaluation of every method names its metrics, the one that runs are compared by first. A binary classifier's
holds besides what only makes sense for probabilities of a class.
"""

from pathlib import Path
from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record, record_of_kind


class Estimate(Record):
    """A number with its uncertainty."""

    value: float
    low: float | None = None
    """Lower end of the interval; None where the method gives none."""
    high: float | None = None
    confidence: float = 0.95
    method: str = ""
    """How the interval was made: `DeLong`, `paired bootstrap, 2000 resamples`, ..."""


ROW_MEANS = {"nats_per_token": "loss per row", "token_accuracy": "token accuracy per row"}
"""Metrics that are a mean over tokens in each row, and then over rows, so that short rows weigh as much as long
ones. The mean over all tokens (in training, suites and the API) is another number and has another name."""


def metric_title(name: str) -> str:
    """What a metric of an evaluation is called for people: `squared error`."""
    return ROW_MEANS.get(name, name.replace("_", " "))


class Metric(Record):
    """What a number measures, and which way is better."""

    name: str
    """As in columns and curves: `auc`, `squared_error`."""
    unit: str
    """`share`, `AUC`, `nats per row`, ..."""
    higher_is_better: bool

    @property
    def title(self) -> str:
        """For people: `AUC`, `squared error`."""
        return self.unit if self.unit.lower() == self.name else metric_title(self.name)


class Measured(Record):
    """A metric's value on some rows."""

    metric: Metric
    estimate: Estimate | None
    """None where these rows cannot say it: an AUC of one class."""


ACCURACY = Metric(name="accuracy", unit="share", higher_is_better=True)
AUC = Metric(name="auc", unit="AUC", higher_is_better=True)
AVERAGE_PRECISION = Metric(name="average_precision", unit="share", higher_is_better=True)
LOG_LOSS = Metric(name="log_loss", unit="nats per row", higher_is_better=False)
CHOSEN_REWARD = Metric(name="chosen_reward", unit="rewards", higher_is_better=True)
REJECTED_REWARD = Metric(name="rejected_reward", unit="rewards", higher_is_better=False)
TRAINED_TOKENS = "trained_tokens"
"""A column beside the scores: by what a row counts in a mean over tokens."""


class CalibrationBin(Record):
    """Rows whose predicted probability fell into one bin."""

    num_rows: PositiveInt
    mean_predicted: float
    observed_rate: float


class ClassifierMetrics(Record):
    """A binary classifier on a set of rows. AUC and AP are None where a class is absent."""

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
    """One of several classes on a set of rows."""

    name: str
    num_rows: NonNegativeInt
    """Rows of this class."""
    predicted_as: tuple[int, ...]
    """How many of them were taken for each class, in the order of `ScoreMetrics.classes`."""
    precision: float | None
    """The share of the rows taken for this class that are of it; None where none was."""
    recall: float | None
    """The share of its rows that were taken for it; None where there are none."""
    f1: float
    """The harmonic mean of both; 0 where one is missing."""


class NumberBin(Record):
    """Rows whose predicted number fell into one bin."""

    num_rows: PositiveInt
    mean_predicted: float
    mean_label: float


class NumberFit(Record):
    """Predicted numbers beside the true ones."""

    label_mean: float
    label_deviation: float
    """Standard deviation of the labels: the root mean squared error of who always says their mean."""
    r_squared: float | None
    """1 - squared error / variance of the labels: 1 is perfect, 0 as good as their mean, less is worse. None
    where all labels are equal."""
    bias: float
    """Mean of prediction - label."""
    bins: tuple[NumberBin, ...]
    """Bins of about equal counts, by prediction, lowest first."""


class ScoreMetrics(Record):
    """The means of the rows' own scores on a set of rows."""

    num_rows: NonNegativeInt
    measured: tuple[Measured, ...]
    """By name, the one that runs are compared by first."""
    classes: tuple[ClassScore, ...] = ()
    """Where a row is one of several classes: each of them, on all rows."""
    fit: NumberFit | None = None
    """Where a number is predicted: how well, on all rows."""

    @property
    def macro_f1(self) -> float | None:
        """The mean of the classes' F1, each counting alike however many rows it has.

        A class that no row is of and that no row was taken for has none, and is left out, as scikit-learn does.
        """
        seen = [
            class_.f1 for class_ in self.classes if class_.precision is not None or class_.recall is not None
        ]
        return sum(seen) / len(seen) if seen else None


class SliceMetrics(Record):
    """A classifier's metrics on the rows where one metadata column has one value."""

    column: str
    value: str
    """`(missing)` for null; numbers by quartile, e.g. `12 to 40`."""
    metrics: ClassifierMetrics


class ScoreSlice(Record):
    """Mean scores on the rows where one metadata column has one value."""

    column: str
    value: str
    """As in `SliceMetrics`."""
    metrics: ScoreMetrics


class Evaluation(Record):
    """One checkpoint on one split of one dataset: what is said of every method's."""

    kind: ClassVar[str] = ""  # each method's has its own

    run_id: str
    step: NonNegativeInt
    weights_digest: str
    dataset_fingerprint: str
    split: str
    predictions_sha256: str
    """SHA-256 of the Parquet file with one line per row: row_id, the prediction, the metadata columns."""
    overall: ClassifierMetrics | ScoreMetrics
    slices: tuple[SliceMetrics, ...] | tuple[ScoreSlice, ...]
    num_leaking: NonNegativeInt | None = None
    """Rows of the split that have the tokens of a training row; None where nobody searched for them."""

    @property
    def headline(self) -> Measured:
        """The metric that runs are compared by."""
        return self.overall.measured[0]

    @property
    def loss(self) -> Measured | None:
        """The first metric of which less is better: what a scaling law is fitted to."""
        return next((each for each in self.overall.measured if not each.metric.higher_is_better), None)


class ClassifierEvaluation(Evaluation):
    """The evaluation of a binary classifier: ranking, log-loss, calibration."""

    overall: ClassifierMetrics
    slices: tuple[SliceMetrics, ...]


class ScoreEvaluation(Evaluation):
    """The evaluation of a method that scores each row by itself: an error, a reward, a log-likelihood."""

    overall: ScoreMetrics
    slices: tuple[ScoreSlice, ...]


class Comparison(Record):
    """A candidate beside its baseline on the same rows."""

    kind: ClassVar[str] = ""  # likewise

    baseline_run_id: str
    candidate_run_id: str
    num_rows: PositiveInt
    difference: Estimate
    """Candidate minus baseline, paired on rows."""
    allowed_loss: float
    """The candidate passes if even the worse end of the interval is a loss below this; in the metric's unit
    (of an AUC, 0.01 is one percentage point)."""
    verdict: str
    """`pass`, `fail`, or `undecided`."""
    weights_equal: bool
    """The two runs ended with the same weights, bit for bit."""


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

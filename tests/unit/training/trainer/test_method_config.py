import pytest

from assay.records.evaluation import ACCURACY, LOG_LOSS, Metric
from assay.training.trainer.method_config import (
    BinaryPredictions,
    ClassPredictions,
    MethodConfig,
    NumberPredictions,
    RowScores,
)

ERROR = Metric(name="error", unit="tokens", higher_is_better=False)
BIAS = Metric(name="bias", unit="tokens", higher_is_better=False)


class Plain(MethodConfig):
    """Says no more than it must."""

    type: str = "plain"

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def predictions(self) -> RowScores:
        return RowScores((ERROR, BIAS))

    def check_dataset(self, manifest) -> None: ...
    def num_parameters(self) -> None: ...


def test_runs_are_compared_by_the_first_metric_and_a_binary_one_by_its_auc() -> None:
    assert RowScores((ERROR, BIAS)).metric is ERROR
    auc = BinaryPredictions().metric
    assert (auc.name, auc.higher_is_better) == ("auc", True)
    number = NumberPredictions("days")
    assert (number.metric.name, number.metric.unit) == ("absolute_error", "days")
    assert [metric.higher_is_better for metric in number.metrics] == [False, False]
    assert NumberPredictions("").metric.unit == "units of the label"


def test_a_method_that_does_not_say_so_takes_no_packed_rows() -> None:
    assert not Plain().takes_packed_rows


def test_what_a_method_does_not_say_is_what_most_methods_are() -> None:
    plain = Plain()
    assert plain.coded is None and plain.completions_per_prompt is None and plain.takes_packed_rows is False
    assert plain.runs == {} and plain.size(100) is None and plain.sampling_numbers(3, 7) == 0
    assert list(plain.rollout_log_problems([])) == []
    assert plain.may_compile is False and plain.window_tokens is None
    scores = RowScores((ERROR, BIAS))
    assert scores.counted is None and scores.is_sampled is False


@pytest.mark.parametrize(
    ("predictions", "columns"),
    [
        (BinaryPredictions(), ("label", "probability")),
        (RowScores((ERROR, BIAS)), ("error", "bias")),
        (RowScores((ERROR, BIAS), counted="tokens"), ("error", "bias", "tokens")),
        (ClassPredictions(("a", "b")), ("predicted", "accuracy", "log_loss")),
        (NumberPredictions("days"), ("prediction", "absolute_error", "squared_error")),
    ],
)
def test_tables_of_predictions_have_the_columns_that_files_of_before_have(predictions, columns) -> None:
    assert predictions.columns == columns


@pytest.mark.parametrize(
    ("columns", "tokens"),
    [(("input_ids", "label"), 7), (("input_ids", "rejected_ids", "prompt_tokens"), 14), ((), 7)],
)
def test_a_row_is_learned_as_wide_as_all_of_its_sequences(columns: tuple[str, ...], tokens: int) -> None:
    class Reads(Plain):
        @property
        def columns(self) -> tuple[str, ...]:
            return columns

    assert Reads().training_sequences(3, 7) == (3, tokens)


def test_classes_are_compared_by_accuracy_and_numbers_have_squared_units_beside_their_own() -> None:
    classes = ClassPredictions(("a", "b"))
    assert classes.metric == ACCURACY and classes.metrics == (ACCURACY, LOG_LOSS)
    of_days, unnamed = NumberPredictions("days").metrics, NumberPredictions("").metrics
    assert [(day.name, day.unit) for day in of_days] == [
        ("absolute_error", "days"), ("squared_error", "days squared"),
    ]  # fmt: skip
    assert unnamed[1].unit == "units of the label squared"

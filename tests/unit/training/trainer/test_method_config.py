from assay.records.evaluation import Metric
from assay.training.trainer.method_config import BinaryPredictions, MethodConfig, NumberPredictions, RowScores

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
    assert [each.higher_is_better for each in number.metrics] == [False, False]
    assert NumberPredictions("").metric.unit == "units of the label"


def test_a_method_that_does_not_say_so_takes_no_packed_rows() -> None:
    assert not Plain().takes_packed_rows

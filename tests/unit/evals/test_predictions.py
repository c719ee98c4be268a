"""Whether every row got the same prediction, by each kind of prediction."""

import numpy as np
import pyarrow as pa
import pytest

from assay.evals.predictions import is_one_score
from assay.records.evaluation import ACCURACY
from assay.training.trainer.method_config import (
    BinaryPredictions,
    ClassPredictions,
    NumberPredictions,
    Predictions,
    RowScores,
)

FEW = np.array([0.4, 0.4, 0.4])
CLASSES = ClassPredictions(("a", "b"))


@pytest.mark.parametrize(
    ("predictions", "columns", "expected"),
    [
        (BinaryPredictions(), {"probability": FEW}, True),
        (BinaryPredictions(), {"probability": [0.4, 0.4, 0.400001]}, False),
        (CLASSES, {"predicted": [1, 1, 1]}, True),
        (CLASSES, {"predicted": [1, 1, 0]}, False),
        (NumberPredictions(""), {"prediction": [4e8, 4e8, 4e8 + 1], "absolute_error": FEW * 1e9}, True),
        (NumberPredictions(""), {"prediction": [0.4, 0.4, 0.401], "absolute_error": FEW}, False),
        (RowScores((ACCURACY,)), {"accuracy": FEW}, None),
    ],
)
def test_one_score_is_one_prediction_for_all_rows(
    predictions: Predictions, columns: dict[str, object], expected: bool | None
) -> None:
    assert is_one_score(pa.table(columns), predictions) is expected

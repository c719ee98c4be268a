"""Metrics of a job's run under the API's names, for events, checkpoints and the result file.

    loss, token_accuracy, accuracy, reward  of a step      -> train_loss, train_mean_token_accuracy, ...
    predictions on the held-out rows        of an evaluation -> valid_loss = full_valid_loss, ...

Evaluations always cover all held-out rows, so `valid_` and `full_valid_` are equal. A language model's loss is the mean
over all trained tokens, as in training.
"""

import io
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from assay.records.fine_tuning_job import MetricPoint
from assay.records.run import Run
from assay.statistics.classifier.metrics import log_loss
from assay.statistics.classifier.rows import scores_of
from assay.statistics.predictions import PREDICTIONS_FILE, evaluation_folder, read_predictions
from assay.training.recipe import recipe_of
from assay.training.trainer.method_config import BinaryPredictions, Predictions, RowScores
from assay.workflows.run import VALIDATION

Series = Mapping[str, Mapping[int, float]]
"""Metric -> step -> value."""
_OF_STEPS = {
    "loss": "train_loss",
    "token_accuracy": "train_mean_token_accuracy",
    "accuracy": "train_accuracy",
    "reward": "train_reward_mean",
}
_OF_EVALUATIONS = {
    "nats_per_token": "loss",
    "log_loss": "loss",
    "squared_error": "loss",
    "loss": "loss",
    "token_accuracy": "mean_token_accuracy",
    "accuracy": "accuracy",
    "reward": "reward_mean",
}
_COLUMNS = (
    "step", "train_loss", "train_accuracy", "train_mean_token_accuracy", "valid_loss", "valid_accuracy",
    "valid_mean_token_accuracy", "full_valid_loss", "full_valid_mean_token_accuracy",
)  # fmt: skip
"""Columns of every result file, for old and new clients; other metrics follow them."""


def is_shown(name: str) -> bool:
    """Return whether a step metric is reported; `evaluated` reports evaluation metrics under OpenAI's names."""
    of_evaluation = name.removeprefix("validation_")
    return (
        name in _OF_STEPS
        or name in ("learning_rate", "gradient_norm")
        or (of_evaluation != name and of_evaluation not in _OF_EVALUATIONS)
    )


def step_points(run: Run, series: Series, steps: Iterable[int], at_s: float) -> Iterator[MetricPoint]:
    """Yield the metrics of each step, with its evaluation if there is one."""
    for step in steps:
        values = {
            _OF_STEPS.get(name, name): values[step] for name, values in series.items() if step in values
        } | evaluated(run, step)
        if finite := {name: value for name, value in values.items() if math.isfinite(value)}:
            yield MetricPoint(step=step, at_s=at_s, values=finite)


def evaluated(run: Run, step: int) -> dict[str, float]:
    """Return the evaluation metrics of a step; empty without an evaluation."""
    path = evaluation_folder(Path(run.run_dir), step=step, split=VALIDATION) / PREDICTIONS_FILE
    if not path.is_file():
        return {}
    found = _means(path, recipe_of(run).method.predictions)
    named = {_OF_EVALUATIONS[name]: value for name, value in found.items() if name in _OF_EVALUATIONS}
    return {f"{of}_{name}": value for name, value in named.items() for of in ("valid", "full_valid")}


def result_table(run: Run, series: Series) -> str:
    """Return the result file as CSV, one line per step."""
    points = [*step_points(run, series, sorted(series.get("loss", {})), 0.0)]
    extra = sorted({name for point in points for name in point.values} - set(_COLUMNS))
    out = io.StringIO()
    out.write(",".join([*_COLUMNS, *extra]) + "\n")
    for point in points:
        row: dict[str, Any] = {"step": point.step, **point.values}
        for here in ("train", "valid"):  # under both names, because clients differ
            for name, other in (("accuracy", "mean_token_accuracy"), ("mean_token_accuracy", "accuracy")):
                row.setdefault(f"{here}_{name}", point.values.get(f"{here}_{other}"))
        out.write(",".join("" if row.get(name) is None else str(row[name]) for name in [*_COLUMNS, *extra]) + "\n")
    return out.getvalue()


def _means(path: Path, predictions: Predictions) -> dict[str, float]:
    """Return each metric's (weighted) mean over the rows."""
    if isinstance(predictions, BinaryPredictions):
        rows = scores_of(read_predictions(path), source=str(path))
        hits = (rows.probabilities >= 0.5) == rows.is_positive
        return {"log_loss": log_loss(rows).value, "accuracy": float(np.mean(hits))}
    table = read_predictions(path, {metric.name: pa.float64() for metric in predictions.metrics})
    counted = predictions.counted if isinstance(predictions, RowScores) else None
    weights = None if counted is None else np.asarray(table[counted], np.float64)
    if weights is not None and not weights.any():
        return {}
    return {
        metric.name: float(np.average(np.asarray(table[metric.name], np.float64), weights=weights))
        for metric in predictions.metrics
    }

"""Metrics of predicted classes and numbers: confusion matrix, precision, recall and F1; R^2 and bias."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.base.errors import DataError
from assay.base.shapes import Float64, Int64
from assay.records.evaluation import ClassScore, NumberBin, NumberFit
from assay.statistics.predictions import LABEL

NUM_BINS = 10


def class_scores(table: Any, names: Sequence[str]) -> tuple[ClassScore, ...]:
    """Return the scores of each class, from the columns `label` (a name) and `predicted` (an index into `names`)."""
    counts = confusion(table, names)
    true, predicted_counts, right = counts.sum(axis=1), counts.sum(axis=0), counts.diagonal()
    return tuple(
        ClassScore(
            name=name,
            num_rows=int(true[index]),
            predicted_as=tuple(counts[index].tolist()),
            precision=float(right[index] / predicted_counts[index]) if predicted_counts[index] else None,
            recall=float(right[index] / true[index]) if true[index] else None,
            f1=float(2 * right[index] / (true[index] + predicted_counts[index]))
            if true[index] + predicted_counts[index]
            else 0.0,
        )
        for index, name in enumerate(names)
    )


def confusion(table: Any, names: Sequence[str]) -> Int64[np.ndarray, "true predicted"]:
    """Count the rows of each class by predicted class."""
    class_indices = {name: index for index, name in enumerate(names)}
    labels = [str(int(label) if isinstance(label, bool) else label) for label in table[LABEL].to_pylist()]
    if unknown := next((label for label in labels if label not in class_indices), None):
        raise DataError(
            f"label {unknown!r} of a row is not among the classes {', '.join(names[:5])}. Evaluate the run again."
        )
    true = np.array([class_indices[label] for label in labels], np.int64)
    predicted = table["predicted"].to_numpy().astype(np.int64)
    counts = np.bincount(true * len(names) + predicted, minlength=len(names) ** 2)
    return counts.reshape(len(names), len(names)).astype(np.int64)


def number_fit(table: Any) -> NumberFit:
    """Compare the columns `label` and `prediction`."""
    labels, predictions = _numbers(table, LABEL), _numbers(table, "prediction")
    variance = float(labels.var())
    return NumberFit(
        label_mean=float(labels.mean()),
        label_deviation=variance**0.5,
        r_squared=1.0 - float(np.square(predictions - labels).mean()) / variance if variance > 0 else None,
        bias=float((predictions - labels).mean()),
        bins=_bins(predictions, labels),
    )


def _bins(predictions: Float64[np.ndarray, "row"], labels: Float64[np.ndarray, "row"]) -> tuple[NumberBin, ...]:
    order = np.argsort(predictions, kind="stable")
    return tuple(
        NumberBin(
            num_rows=rows.size, mean_predicted=float(predictions[rows].mean()), mean_label=float(labels[rows].mean())
        )
        for rows in np.array_split(order, NUM_BINS)
        if rows.size
    )


def _numbers(table: Any, name: str) -> Float64[np.ndarray, "row"]:
    return np.asarray(table[name].to_numpy(), np.float64)

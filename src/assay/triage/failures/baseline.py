"""Expected failures of a window, from an earlier window.

The baseline's rates by each factor are multiplied. Each rate is shrunk toward what the other factors predict,
with a weight of twenty attempts, so that rare values have no effect of their own.
"""

import numpy as np

from assay.base.shapes import Float64
from assay.triage.attempts.table import AttemptTable, Factor

WEIGHT = 20.0
ROUNDS = 3
MOST = 0.98
"""Maximal expected share of failures in a row."""


def expected_failures(window: AttemptTable, before: AttemptTable) -> Float64[np.ndarray, "row"]:
    """Return the expected failures of each row of the window. Both tables have the same factors and values."""
    overall = (before.failures.sum() + 0.5) / (before.size().sum() + 1.0)
    ours, expected_before = window.size() * overall, before.size() * overall
    for _ in range(ROUNDS):
        for now, then in zip(window.factors, before.factors, strict=True):
            ratios = _ratios(then, before.failures, expected_before, WEIGHT * overall)
            expected_before = np.minimum(
                expected_before * _of_rows(then, ratios, before.num_rows), MOST * before.attempts
            )
            ours = np.minimum(ours * _of_rows(now, ratios, window.num_rows), MOST * window.attempts)
    return np.asarray(ours)


def _ratios(
    factor: Factor, failures: Float64[np.ndarray, "row"], expected: Float64[np.ndarray, "row"], weight: float
) -> Float64[np.ndarray, "value"]:
    """Return observed over expected failures, by value."""
    seen, due = (
        np.bincount(factor.codes, of[factor.rows], minlength=len(factor.values)) for of in (failures, expected)
    )
    return np.asarray((seen + weight) / (due + weight))


def _of_rows(factor: Factor, ratios: Float64[np.ndarray, "value"], num_rows: int) -> Float64[np.ndarray, "row"]:
    """Return each row's ratio: the geometric mean of a cell's values; 1 if it is empty."""
    logs = np.bincount(factor.rows, np.log(ratios)[factor.codes], minlength=num_rows)
    counts = np.bincount(factor.rows, minlength=num_rows)
    return np.asarray(np.exp(logs / np.maximum(counts, 1)))

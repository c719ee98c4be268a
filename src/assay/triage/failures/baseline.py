"""What the attempts of a window were expected to fail, by those of an earlier one.

The baseline's rates by each factor alone, multiplied: each rate is drawn toward what the others expect, as
if by twenty more attempts, so that a value which was hardly seen expects nothing of its own."""

import numpy as np

from assay.base.shapes import Float64
from assay.triage.attempts.table import AttemptTable, Factor

WEIGHT = 20.0
ROUNDS = 3
MOST = 0.98
"""The largest share of a row's attempts that is expected to fail."""


def expected_failures(window: AttemptTable, before: AttemptTable) -> Float64[np.ndarray, "row"]:
    """The failures of each row of the window, as expected. Both have the same factors with the same values."""
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
    """Failures over expected ones, by value."""
    seen, due = (
        np.bincount(factor.codes, of[factor.rows], minlength=len(factor.values)) for of in (failures, expected)
    )
    return np.asarray((seen + weight) / (due + weight))


def _of_rows(factor: Factor, ratios: Float64[np.ndarray, "value"], num_rows: int) -> Float64[np.ndarray, "row"]:
    """Each row's ratio: of a cell with several values their geometric mean; of an empty one, 1."""
    logs = np.bincount(factor.rows, np.log(ratios)[factor.codes], minlength=num_rows)
    counts = np.bincount(factor.rows, minlength=num_rows)
    return np.asarray(np.exp(logs / np.maximum(counts, 1)))

"""Correlation of attempts within a unit, the resulting weights, and null tables.

Attempts of one recipe fail together: forty retries of a broken recipe are one piece of evidence. Failures of
a unit of n attempts are modelled as beta-binomial with correlation rho, by maximum likelihood; an attempt has
the weight 1 / (1 + (n - 1) rho). Null tables sample each unit's rate from the fitted beta distribution.
"""

import numpy as np
from scipy.special import betaln

from assay.base.shapes import Float32, Float64
from assay.triage.attempts.table import AttemptTable

CORRELATIONS = np.concatenate(([0.0], np.geomspace(1e-3, 0.95, 60)))
"""Grid of the maximum likelihood search."""


def fit_correlation(
    table: AttemptTable, expected: Float64[np.ndarray, "row"]
) -> tuple[float, Float64[np.ndarray, "row"]]:
    """Return the correlation within units, and the weight of each attempt of a row.

    Each unit's failures are compared with its own expectation.
    """
    _, index = np.unique(table.units, return_inverse=True)
    attempts = np.bincount(index, table.attempts)
    failures = np.bincount(index, table.failures)
    rates = np.clip(np.bincount(index, expected) / attempts, 1e-6, 1 - 1e-6)
    correlation = 0.0
    if (attempts > 1).any() and failures.sum() > 0:
        kinds, counts = np.unique(np.stack([attempts, failures, rates.round(4)]), axis=1, return_counts=True)
        correlation = _most_likely(kinds, counts.astype(np.float64))
    return correlation, (1.0 / (1.0 + (attempts - 1.0) * correlation))[index]


def _most_likely(kinds: Float64[np.ndarray, "3 kind"], counts: Float64[np.ndarray, "kind"]) -> float:
    """Return the most likely correlation, given distinct units by attempts, failures and expected rate with
    their counts."""
    attempts, failures, rates = kinds
    best, found = -np.inf, 0.0
    for correlation in CORRELATIONS:
        weights = counts / (1.0 + (attempts - 1.0) * correlation)
        scale = (weights @ failures) / (weights @ (attempts * rates))
        means = np.clip(rates * scale, 1e-6, 1 - 1e-6)
        if correlation == 0.0:
            terms = failures * np.log(means) + (attempts - failures) * np.log1p(-means)
        else:
            size = (1.0 - correlation) / correlation
            a, b = means * size, (1.0 - means) * size
            terms = betaln(failures + a, attempts - failures + b) - betaln(a, b)
        likelihood = float(counts @ terms)
        if likelihood > best + 1e-9:
            best, found = likelihood, float(correlation)
    return found


def null_failures(
    table: AttemptTable,
    expected: Float64[np.ndarray, "row"],
    correlation: float,
    *,
    num_tables: int,
    rng: np.random.Generator,
) -> Float32[np.ndarray, "row table"]:
    """Sample failures of each row in tables without a cause: expected rates, times random rates of units."""
    _, index = np.unique(table.units, return_inverse=True)
    rates = np.clip(expected / table.attempts, 0.0, 1.0)
    unit_rate = np.clip(np.bincount(index, expected) / np.bincount(index, table.attempts), 1e-9, 1 - 1e-9)
    is_single = bool((table.attempts == 1).all())
    size = (1.0 - correlation) / correlation if correlation > 0 else np.inf
    drawn = np.empty((table.num_rows, num_tables), np.float32)
    for number in range(num_tables):
        chance = rates
        if np.isfinite(size):
            unit_factor = rng.beta(unit_rate * size, (1.0 - unit_rate) * size) / unit_rate
            chance = np.minimum(rates * unit_factor[index], 1.0)
        if is_single:
            drawn[:, number] = rng.random(table.num_rows, np.float32) < chance
        else:
            drawn[:, number] = rng.binomial(table.attempts.astype(np.int64), chance)
    return drawn

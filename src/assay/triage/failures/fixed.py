"""Tests whether a fix worked, valid after any number of attempts.

The e-value after n attempts with f failures averages, over all rates q below r0, how much better q explains
them than r0. If the rate is still r0 or more, it reaches 20 with a probability of at most 5%, however often
one looks (Ville 1939). r0 is the lower 95% bound of the old rate, because its estimate would accept a lucky
period as a fix. The mirrored test asks whether the rate rose. Attempts of one unit fail together, so each
further attempt of a unit counts less: its factor is raised to a power below 1, which keeps the test valid.
"""

import math
from bisect import bisect_left

import numpy as np
from scipy.special import betainc, betaln

from assay.base.errors import ConfigError
from assay.base.shapes import Float64
from assay.records.fix_check import FixCheck
from assay.records.statement import Statement
from assay.statistics.failure_rate import rate_lower, rate_upper
from assay.triage.attempts.table import AttemptTable
from assay.triage.failures.unit_correlation import fit_correlation

DECIDES = 20.0
"""The e-value that decides: at most 5% false decisions."""
MAX_MORE = 1_000_000
"""Upper bound of the search for further attempts."""


def check_fix(table: AttemptTable, since_s: float) -> FixCheck:
    """Compare the attempts since a moment with those before."""
    if table.at_s is None:
        raise ConfigError("--since needs to know when attempts were made: give --at.")
    if (table.attempts != 1).any():
        raise ConfigError("'triage fixed' looks attempt by attempt: give one row for each, without --attempts.")
    table = table.of_rows(np.argsort(table.at_s, kind="stable"))
    assert table.at_s is not None
    before, after = table.where(table.at_s < since_s), table.where(table.at_s >= since_s)
    correlation = _correlation(before)
    low, high = _bounds(before, correlation)
    weights = _weights(after, correlation)
    fixed, worse = _e_values_after(after, weights, low, high)
    verdicts = {"fixed": fixed, "worse": worse}
    decided = [(first, name) for name, values in verdicts.items() if (first := _first(values)) is not None]
    first, verdict = min(decided, default=(None, "undecided"))
    more = 0 if verdict == "fixed" else _more_needed(after, weights, low)
    return FixCheck(
        verdict=verdict, because=_reason(verdict, before, after, more), decided_after=first,
        e_value=_last(fixed, first), worse_e_value=_last(worse, first), baseline_rate=_rate(before), baseline_low=low,
        baseline_high=high, baseline_attempts=before.num_rows, rate=_rate(after), attempts=after.num_rows,
        failures=int(after.failures.sum()), more_attempts=more if verdict != "worse" else None,
        unit_correlation=correlation, sources=dict(table.sources),
    )  # fmt: skip


def _correlation(before: AttemptTable) -> float:
    if before.num_rows == 0:
        return 0.0
    return fit_correlation(before, np.full(before.num_rows, before.failures.mean()))[0]


def _bounds(before: AttemptTable, correlation: float) -> tuple[float, float]:
    """Return lower and upper 95% bounds of the old rate, at the effective number of attempts."""
    if before.num_rows == 0:
        return 0.0, 1.0
    weights = _weights(before, correlation)
    failed, number = float(weights @ before.failures), float(weights.sum())
    return float(rate_lower(failed, number)), float(rate_upper(failed, number))


def _weights(table: AttemptTable, correlation: float) -> Float64[np.ndarray, "row"]:
    """Return the weight of each attempt given those of its unit before it: k together count k / (1 + (k - 1)
    rho)."""
    _, begins, counts = np.unique(table.units, return_index=True, return_counts=True)
    # Rows lie by unit; within a unit by time, as its attempts were made.
    index = np.arange(table.num_rows) - np.repeat(begins, counts)
    known = index / (1.0 + np.maximum(index - 1.0, 0.0) * correlation)
    return np.asarray((index + 1.0) / (1.0 + index * correlation) - known)


def _e_values_after(
    after: AttemptTable, weights: Float64[np.ndarray, "row"], low: float, high: float
) -> tuple[Float64[np.ndarray, "attempt"], Float64[np.ndarray, "attempt"]]:
    """Return after each attempt the evidence that the rate is below `low`, and that it is above `high`."""
    assert after.at_s is not None
    order = np.argsort(after.at_s, kind="stable")
    failed = np.cumsum((weights * after.failures)[order])
    passed = np.cumsum((weights * (1.0 - after.failures))[order])
    return e_values(failed, passed, low), e_values(passed, failed, 1.0 - high)


def e_values(
    failed: Float64[np.ndarray, "look"], passed: Float64[np.ndarray, "look"], least: float
) -> Float64[np.ndarray, "look"]:
    """Return the evidence that the rate is below `least`: the mean likelihood ratio over q uniform in (0,
    least)."""
    if least <= 0.0:
        return np.ones(len(failed))
    with np.errstate(divide="ignore", over="ignore"):
        mixture = betaln(failed + 1.0, passed + 1.0) + np.log(betainc(failed + 1.0, passed + 1.0, least))
        at_least = failed * math.log(least) + (passed * math.log1p(-least) if least < 1.0 else 0.0)
        return np.exp(np.minimum(mixture - math.log(least) - at_least, 700.0))


def _first(values: Float64[np.ndarray, "attempt"]) -> int | None:
    reached = np.flatnonzero(values >= DECIDES)
    return int(reached[0]) + 1 if len(reached) else None


def _last(values: Float64[np.ndarray, "attempt"], decided_after: int | None) -> float:
    """Return the e-value at the decision, or now; 1 without attempts."""
    if len(values) == 0:
        return 1.0
    return float(values[-1 if decided_after is None else decided_after - 1])


def _more_needed(after: AttemptTable, weights: Float64[np.ndarray, "row"], low: float) -> int | None:
    """Return how many further attempts of new units without a failure would decide."""
    failed, passed = float(weights @ after.failures), float(weights @ (1.0 - after.failures))
    if low <= 0.0:
        return None

    def decides(more: int) -> bool:
        return bool(e_values(np.array([failed]), np.array([passed + more]), low)[0] >= DECIDES)

    needed = bisect_left(range(MAX_MORE + 1), True, lo=1, key=decides)
    return needed if needed <= MAX_MORE else None


def _rate(table: AttemptTable) -> float | None:
    return float(table.failures.mean()) if table.num_rows else None


def _reason(verdict: str, before: AttemptTable, after: AttemptTable, more: int | None) -> Statement:
    if before.num_rows == 0:
        return Statement(code="nothing before")
    if before.failures.sum() == 0:
        return Statement(code="no failure before")
    if verdict != "undecided":
        return Statement(code=verdict)
    if more is None:
        return Statement(code="undecidable")
    return Statement(code="undecided" if after.num_rows else "no attempt since", values={"attempts": more})

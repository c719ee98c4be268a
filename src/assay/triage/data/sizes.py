"""Effect sizes with p-values: shares, cumulative shares, factors.

A finding needs both a minimal size and a p-value that is small despite the number of tests.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from assay.records.data_changes import DataChangeKind, DataFinding
from assay.statistics.interval import wilson_interval
from assay.statistics.robust import difference_interval

QUANTILE = 1.959963984540054
MAX_P_VALUE = 1e-5
"""Maximal p-value of a finding. With some hundred tests per comparison, this gives one false finding in a
thousand comparisons, and leaves a margin for rows that are less independent than assumed."""
MIN_SHARE_CHANGE = 0.005
"""Minimal change of a share of rows: half a percentage point."""
MIN_DISTANCE = 0.05
"""Minimal distance of cumulative shares."""


class Size(NamedTuple):
    """A change with its uncertainty."""

    before: float
    after: float
    effect: float
    low: float
    high: float
    p_value: float


def share_change(before: float, num_before: float, after: float, num_after: float) -> Size:
    """Compare two shares of independent rows: Newcombe's (1998) interval of the difference, and the two-sided
    p-value of the pooled z-test."""
    (low_b, high_b), (low_a, high_a) = (
        wilson_interval(rate, count, QUANTILE) for rate, count in ((before, num_before), (after, num_after))
    )
    effect = after - before
    pooled = (before * num_before + after * num_after) / (num_before + num_after)
    error = math.sqrt(max(pooled * (1 - pooled), 1e-300) * (1 / num_before + 1 / num_after))
    return Size(
        before, after, effect, *difference_interval((before, low_b, high_b), (after, low_a, high_a)),
        float(2 * stats.norm.sf(abs(effect) / error)) if effect else 1.0,
    )  # fmt: skip


def flag_change(old: NDArray[np.bool_], new: NDArray[np.bool_]) -> Size | None:
    """Compare two columns of flags; None if one has no rows."""
    if not len(old) or not len(new):
        return None
    return share_change(float(old.mean()), len(old), float(new.mean()), len(new))


def distance(old: NDArray[np.float64], new: NDArray[np.float64]) -> Size:
    """Return the Kolmogorov-Smirnov distance with the medians. The interval is that of the difference of the
    two shares at the point of the largest distance; the p-value is asymptotic."""
    found = stats.ks_2samp(old, new, method="asymp")
    location, effect = found.statistic_location, float(found.statistic)
    gap = share_change(float((old <= location).mean()), len(old), float((new <= location).mean()), len(new))
    low, high = sorted((abs(gap.low), abs(gap.high)))
    return Size(float(np.median(old)), float(np.median(new)), effect, min(low, effect), high, found.pvalue)


def factor(old: NDArray[np.float64], new: NDArray[np.float64]) -> Size | None:
    """Return the factor between two distributions that are otherwise equal, ignoring zeros.

    The quotients of the deciles must agree within a tenth; None if there is no factor of at least 1.5.
    """
    logs = [np.log(np.abs(values[values != 0])) for values in (old, new)]
    if min(map(len, logs)) < 20 or (old < 0).mean() > 0.5 > (new < 0).mean():
        return None
    ratios = np.subtract(*(np.quantile(log, np.arange(1, 10) / 10) for log in logs[::-1]))
    middle = float(np.median(ratios))
    error = math.sqrt(sum(float(log.var()) / len(log) for log in logs))
    if abs(middle) < math.log(1.5) or np.abs(ratios - middle).max() > max(0.1, 5 * error):
        return None
    raw = distance(*logs)
    if raw.effect < 2 * MIN_DISTANCE or distance(logs[0], logs[1] - middle).effect > raw.effect / 2:
        return None
    low, high = (math.exp(middle + way * QUANTILE * error) for way in (-1, 1))
    return Size(float(np.median(old)), float(np.median(new)), math.exp(middle), low, high, raw.p_value)


class Strata(NamedTuple):
    """The stratum of each row; stratum -1 marks changed rows, which are excluded from further comparisons."""

    old: NDArray[np.int64]
    new: NDArray[np.int64]


class Change(NamedTuple):
    """A finding, and the strata within which the other rows should be unchanged."""

    finding: DataFinding
    strata: Strata | None = None
    """None if it changed every row."""


def change(what: str, kind: DataChangeKind, size: Size, strata: Strata | None = None, **details: Any) -> Change:
    """Build a change with its size; `details` say what changed, for the words."""
    p_value = size.p_value if size.p_value >= 1e-300 else 0.0
    sizes: dict[str, Any] = {**size._asdict(), "p_value": p_value}
    return Change(DataFinding(what=what, kind=kind, details=details, **sizes), strata)


def without(old: NDArray[np.bool_], new: NDArray[np.bool_]) -> Strata:
    """Return strata that exclude the flagged rows."""
    return Strata(-old.astype(np.int64), -new.astype(np.int64))

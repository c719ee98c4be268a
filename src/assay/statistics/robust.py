"""Noise that outliers do not inflate, and differences of two independent estimates."""

import math

import numpy as np

from assay.base.shapes import Float64, Int64

MAD_SIGMAS = 1.4826
"""Sigma of a normal distribution divided by its median absolute deviation."""


def robust_sigma(values: Float64[np.ndarray, "value"]) -> float:
    """Return the standard deviation by the median absolute deviation; 0 if most values are equal."""
    return MAD_SIGMAS * float(np.median(np.abs(values - np.median(values))))


def sigma_of(values: Float64[np.ndarray, "value"]) -> float:
    """Return `robust_sigma`, or the plain standard deviation if most values are equal."""
    return robust_sigma(values) or float(values.std())


def group_medians(
    values: Float64[np.ndarray, "value"], codes: Int64[np.ndarray, "value"], number: int
) -> Float64[np.ndarray, "group"]:
    """Return the median of each of `number` groups, none of which is empty."""
    order = np.lexsort((values, codes))
    counts = np.bincount(codes, minlength=number)
    begins = np.cumsum(counts) - counts
    ordered = values[order]
    return np.asarray((ordered[begins + (counts - 1) // 2] + ordered[begins + counts // 2]) / 2.0)


def difference_interval(
    before: tuple[float, float, float], after: tuple[float, float, float], *, widened: float = 1.0
) -> tuple[float, float]:
    """Return the interval of `after` minus `before`, each a value with the ends of its own interval (MOVER: Newcombe
    1998, Zou & Donner 2008); `widened` multiplies its half-widths."""
    (was, was_low, was_high), (now, now_low, now_high) = before, after
    difference = now - was
    down, up = math.hypot(now - now_low, was_high - was), math.hypot(now_high - now, was - was_low)
    return difference - widened * down, difference + widened * up

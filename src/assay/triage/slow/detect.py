"""Detects lasting level changes in a series.

Values are clipped to four sigma around a running median of five, so that spikes are no changes. The cost of a
segmentation is its sum of squares plus a penalty of 4 ln n times the long-run variance per change; the
minimum is exact (PELT, Killick 2012). The long-run variance, sigma² (1 + r) / (1 - r), is estimated within
segments (MAD of the residuals, lag-1 autocorrelation r), so segmentation and variance are iterated, starting
from the noise of adjacent differences. A change is dropped unless a rank test or five sigma confirms it.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from assay.base.shapes import Float64
from assay.statistics.robust import MAD_SIGMAS

MIN_SEGMENT = 5
"""Minimal measurements of a segment."""
PENALTY = 4.0
RUNNING = 5
"""Window of the running median."""
CLIP_SIGMAS = 4.0
MAX_ROUNDS = 10
RANKS_P = 0.1
"""Maximal p-value of the rank test (Mann-Whitney), divided by the length of the series."""
SURE_SIGMAS = 5.0


class LevelNoise(NamedTuple):
    """Noise within segments."""

    sigma: float
    correlation: float
    """Lag-1 autocorrelation, 0 to 0.9."""

    def long_run_variance(self) -> float:
        """Return the variance of the mean of n measurements, times n."""
        return self.sigma**2 * (1.0 + self.correlation) / (1.0 - self.correlation)


class LevelChange(NamedTuple):
    """A change from one segment to the next."""

    begins: int
    """First measurement of the segment before."""
    first: int
    """First measurement after."""
    ends: int
    """End of the segment after, exclusive."""
    difference: float
    standard_error: float
    p_value: float
    """Probability that noise gives such a step anywhere in the series (normal, Bonferroni)."""


Levels = tuple[tuple[LevelChange, ...], LevelNoise]
"""The level changes of a series, and its noise."""


def find_levels(values: Float64[np.ndarray, "row"], *, least: float) -> Levels:
    """Return the changes of at least `least`, in the values' unit."""
    sigma = _difference_sigma(values)
    if len(values) < 2 * MIN_SEGMENT or np.ptp(values) == 0.0:
        return (), LevelNoise(sigma, 0.0)
    clipped = _clipped(values, sigma)
    noise = LevelNoise(sigma, 0.0)
    seen: list[list[int]] = []
    bounds = segments(clipped, _penalty(noise, len(values)))
    while bounds not in seen and len(seen) < MAX_ROUNDS:
        seen.append(bounds)
        noise = noise_within(clipped, bounds, floor=_floor(values))
        bounds = segments(clipped, _penalty(noise, len(values)))
    noise = noise_within(clipped, bounds, floor=_floor(values))
    return _pruned(clipped, bounds, noise, least)


def _difference_sigma(values: Float64[np.ndarray, "row"]) -> float:
    differences = np.diff(values)
    if len(differences) == 0:
        return 0.0
    sigma = MAD_SIGMAS * float(np.median(np.abs(differences))) / math.sqrt(2.0)
    # Where most neighbours are equal (a coarse clock), the median says nothing.
    return max(sigma or float(np.std(differences)) / math.sqrt(2.0), _floor(values))


def _floor(values: Float64[np.ndarray, "row"]) -> float:
    """Return a lower bound of the noise: the rounding of the values."""
    return 1e-9 * max(float(np.abs(values).max()), 1e-300)


def _clipped(values: Float64[np.ndarray, "row"], sigma: float) -> Float64[np.ndarray, "row"]:
    padded = np.pad(values, RUNNING // 2, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, RUNNING), axis=1)
    return np.asarray(np.clip(values, middle - CLIP_SIGMAS * sigma, middle + CLIP_SIGMAS * sigma))


def _penalty(noise: LevelNoise, number: int) -> float:
    return PENALTY * math.log(number) * noise.long_run_variance()


def segments(values: Float64[np.ndarray, "row"], penalty: float) -> list[int]:
    """Return the bounds of segments of at least `MIN_SEGMENT` measurements, including 0 and n, that minimize
    squares plus `penalty` each."""
    number = len(values)
    values = values - values.mean()
    sums = np.concatenate(([0.0], np.cumsum(values)))
    squares = np.concatenate(([0.0], np.cumsum(values**2)))
    best, came_from = np.full(number + 1, np.inf), np.zeros(number + 1, np.int64)
    best[0] = -penalty
    starts = np.zeros(0, np.int64)
    for end in range(MIN_SEGMENT, number + 1):
        if (newest := end - MIN_SEGMENT) == 0 or newest >= MIN_SEGMENT:
            starts = np.append(starts, newest)
        costs = best[starts] + squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        chosen = int(costs.argmin())
        best[end], came_from[end] = costs[chosen] + penalty, starts[chosen]
        # A start that is worse by the penalty now stays worse; one too young to be left out waits.
        starts = starts[(costs <= best[end]) | (starts > end - 2 * MIN_SEGMENT)]
    bounds = [number]
    while bounds[-1] > 0:
        bounds.append(int(came_from[bounds[-1]]))
    return bounds[::-1]


def noise_within(values: Float64[np.ndarray, "row"], bounds: list[int], *, floor: float) -> LevelNoise:
    """Return the noise of the residuals about the segments' medians, pooled over segments."""
    parts = [values[a:b] - np.median(values[a:b]) for a, b in itertools.pairwise(bounds)]
    residuals = np.concatenate(parts)
    # Each segment's level costs a degree of freedom.
    used = math.sqrt(len(values) / max(len(values) - len(parts), 1))
    mad = MAD_SIGMAS * float(np.median(np.abs(residuals)))
    sigma = max((mad or float(np.std(residuals))) * used, floor)
    pairs = sum(float(part[:-1] @ part[1:]) for part in parts)
    total = sum(float(part[:-1] @ part[:-1]) for part in parts)
    # A lag-1 estimate is too low by about (1 + 3 r) / n in each segment (Kendall 1954).
    raw = pairs / total if total > 0.0 else 0.0
    mean_length = len(values) / len(parts)
    return LevelNoise(sigma, min(max(raw + (1.0 + 3.0 * raw) / mean_length, 0.0), 0.9))


def _pruned(values: Float64[np.ndarray, "row"], bounds: list[int], noise: LevelNoise, least: float) -> Levels:
    """Remove the weakest change repeatedly until all are confirmed."""
    bounds = list(bounds)
    while len(bounds) > 2:
        changes = _changes(values, bounds, noise)
        weak = [
            change for change in changes if abs(change.difference) < least or not _is_confirmed(values, change, noise)
        ]
        if not weak:
            return tuple(changes), noise
        weakest = min(weak, key=lambda change: abs(change.difference) / change.standard_error)
        bounds.remove(weakest.first)
    return (), noise


def _changes(values: Float64[np.ndarray, "row"], bounds: list[int], noise: LevelNoise) -> list[LevelChange]:
    found = []
    for begins, index, ends in zip(bounds[:-2], bounds[1:-1], bounds[2:], strict=True):
        difference = float(values[index:ends].mean() - values[begins:index].mean())
        error = math.sqrt(noise.long_run_variance() * (1.0 / (index - begins) + 1.0 / (ends - index)))
        p_value = min(2.0 * float(ndtr(-abs(difference) / error)) * len(values), 1.0)
        found.append(LevelChange(begins, index, ends, difference, error, p_value))
    return found


def _is_confirmed(values: Float64[np.ndarray, "row"], change: LevelChange, noise: LevelNoise) -> bool:
    if abs(change.difference) >= SURE_SIGMAS * noise.sigma:
        return True
    from scipy.stats import mannwhitneyu  # here, as it takes a third of a second to import

    before, after = values[change.begins : change.first], values[change.first : change.ends]
    return bool(mannwhitneyu(before, after).pvalue <= RANKS_P / len(values))

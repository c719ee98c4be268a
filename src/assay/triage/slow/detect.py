"""Detects lasting level changes in a series.

Values are clipped to four sigma around a running median of five, so that one or two spikes are no change. The
segmentation minimizes the sum of squares, each over the noise of its neighbourhood, plus a penalty per change; the
minimum is exact (PELT, Killick 2012). The penalty is the squared Student quantile of the error rate that the caller
allows a change there, times (1 + r) / (1 - r) for the correlation r of neighbours. So a change where a factor changes
needs less evidence than one that a search over all time finds.

Noise is estimated within segments, so both are iterated, from the noise of neighbours' differences, which level changes
hardly affect: a coarse start would take changes for noise.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from assay.base.shapes import Float64

RUNNING = 5
"""Window of the running median."""
MIN_SEGMENT = 3
"""Minimal measurements of a segment: the majority of the running median's window."""
CLIP_SIGMAS = 4.0
NEIGHBOURHOOD = 41
"""Measurements that estimate the noise of the one in their middle."""
MAX_ROUNDS = 10
FALSE_CHANGES = 0.005
"""Probability that noise gives a change anywhere in the series."""
QUARTILE_SIGMAS = float(ndtri(0.875))
"""Upper quartile of absolute normal values."""
SURE_Z = float(ndtri(0.975))
"""Standard errors by which a change must be below the smallest relevant one to be dropped."""

Values = Float64[np.ndarray, "row"]


class LevelNoise(NamedTuple):
    """Noise within segments."""

    sigmas: Values
    """Standard deviation of each measurement."""
    correlation: float
    """Lag-1 autocorrelation, 0 to 0.9."""

    def weights(self) -> Values:
        """Return each measurement's information: the variance of a weighted mean is the inverse of their sum."""
        return np.asarray((1.0 - self.correlation) / (1.0 + self.correlation) / self.sigmas**2)


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


Levels = tuple[tuple[LevelChange, ...], LevelNoise]
"""The level changes of a series, and its noise."""


def find_levels(values: Values, *, least: float, errors: Values | None = None, num_fitted: float = 0.0) -> Levels:
    """Return the changes that may be as large as `least`, in the values' unit.

    `errors`: the allowed probability of a false change at each measurement; by default equal ones. `num_fitted`:
    parameters that the caller has fitted to the values.
    """
    number = len(values)
    if number < 2 * MIN_SEGMENT or np.ptp(values) == 0.0:
        return (), LevelNoise(np.zeros(number), 0.0)
    errors = np.full(number, FALSE_CHANGES / number) if errors is None else errors
    # Noise is at least that of rounding to the smallest difference of two values.
    floor, used = float(np.diff(np.unique(values)).min()) / math.sqrt(12.0), number / max(number - num_fitted, 1.0)
    noise = LevelNoise(np.maximum(_difference_sigmas(values) * math.sqrt(used), floor), 0.0)
    clipped = clipped_spikes(values, noise)
    seen: list[list[int]] = []
    bounds = segments(clipped, noise, errors)
    while bounds not in seen and len(seen) < MAX_ROUNDS:
        seen.append(bounds)
        noise = noise_within(clipped, bounds, floor=floor, used=used)
        bounds = segments(clipped, noise, errors)
    while True:
        changes = level_changes(clipped, bounds, noise)
        small = [change for change in changes if abs(change.difference) + SURE_Z * change.standard_error < least]
        if not small:
            return tuple(changes), noise
        bounds.remove(min(small, key=lambda change: abs(change.difference)).first)


def _difference_sigmas(values: Values) -> Values:
    """Return the noise of each measurement by the differences of its neighbours."""
    differences = np.abs(np.diff(values))
    # Not their median: two hosts that take turns by chance make half of the differences large.
    quartiles = np.quantile(_windows(differences, NEIGHBOURHOOD), 0.75, axis=1)
    # Where most neighbours are equal (a coarse clock), a quantile says nothing.
    sigmas = np.where(quartiles > 0.0, quartiles / QUARTILE_SIGMAS, float(np.sqrt(np.mean(differences**2))))
    return np.append(sigmas, sigmas[-1]) / math.sqrt(2.0)


def _windows(values: Values, width: int) -> Float64[np.ndarray, "row width"]:
    """Return the `width` values around each; at the ends, the first or last ones."""
    width = min(width, len(values))
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    return np.asarray(windows[np.clip(np.arange(len(values)) - width // 2, 0, len(windows) - 1)])


def clipped_spikes(values: Values, noise: LevelNoise) -> Values:
    """Return the values, those far from the running median at `CLIP_SIGMAS` from it."""
    padded = np.pad(values, RUNNING // 2, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, RUNNING), axis=1)
    return np.asarray(np.clip(values, middle - CLIP_SIGMAS * noise.sigmas, middle + CLIP_SIGMAS * noise.sigmas))


def segments(values: Values, noise: LevelNoise, errors: Values) -> list[int]:
    """Return the bounds of segments of at least `MIN_SEGMENT` measurements, including 0 and n, that minimize the
    weighted squares plus the penalty of each bound."""
    number, weights, centred = len(values), noise.weights(), values - values.mean()
    penalties = np.append(stdtrit(min(number, NEIGHBOURHOOD) - 2, np.minimum(errors, 1.0) / 2.0) ** 2, 0.0)
    penalties[0] = 0.0
    sums = np.stack([np.concatenate(([0.0], np.cumsum(weights * centred**power))) for power in (0, 1, 2)])
    best, came_from = np.full(number + 1, np.inf), np.zeros(number + 1, np.int64)
    best[0] = 0.0
    starts = np.zeros(0, np.int64)
    for end in range(MIN_SEGMENT, number + 1):
        if (newest := end - MIN_SEGMENT) == 0 or newest >= MIN_SEGMENT:
            starts = np.append(starts, newest)
        weight, total, squares = sums[:, end, None] - sums[:, starts]
        costs = best[starts] + penalties[starts] + squares - total**2 / weight
        chosen = int(costs.argmin())
        best[end], came_from[end] = costs[chosen], starts[chosen]
        # A start that is worse by the penalty now stays worse; one too young to be left out waits.
        starts = starts[(costs <= best[end] + penalties[end]) | (starts > end - 2 * MIN_SEGMENT)]
    bounds = [number]
    while bounds[-1] > 0:
        bounds.append(int(came_from[bounds[-1]]))
    return bounds[::-1]


def noise_within(values: Values, bounds: list[int], *, floor: float, used: float) -> LevelNoise:
    """Return the noise of the residuals about the segments' means."""
    parts = [values[a:b] - values[a:b].mean() for a, b in itertools.pairwise(bounds)]
    # Each segment's level costs a degree of freedom.
    is_free = np.ones(len(values))
    is_free[bounds[:-1]] = 0.0
    freedom = np.maximum(_windows(is_free, NEIGHBOURHOOD).sum(axis=1), 1.0)
    squares = _windows(np.concatenate(parts) ** 2, NEIGHBOURHOOD).sum(axis=1)
    total = sum(float(part[:-1] @ part[:-1]) for part in parts)
    # A lag-1 estimate is too low by about (1 + 3 r) / n in each segment (Kendall 1954).
    raw = sum(float(part[:-1] @ part[1:]) for part in parts) / total if total > 0.0 else 0.0
    correlation = raw + (1.0 + 3.0 * raw) * len(parts) / len(values)
    return LevelNoise(np.maximum(np.sqrt(used * squares / freedom), floor), min(max(correlation, 0.0), 0.9))


def level_changes(values: Values, bounds: list[int], noise: LevelNoise) -> list[LevelChange]:
    """Return the changes at the inner bounds."""
    weights, found = noise.weights(), []
    for begins, first, ends in zip(bounds[:-2], bounds[1:-1], bounds[2:], strict=True):
        sides = [slice(begins, first), slice(first, ends)]
        before, after = (float(np.average(values[side], weights=weights[side])) for side in sides)
        error = math.sqrt(sum(1.0 / float(weights[side].sum()) for side in sides))
        found.append(LevelChange(begins, first, ends, after - before, error))
    return found

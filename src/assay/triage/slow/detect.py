"""Detects lasting level changes in a series.

Values are clipped to four sigma around a running median of five, so that one or two spikes are no change. The
segmentation minimizes the sum of squares, each over the noise of its neighbourhood, plus a penalty per change; the
minimum is exact (PELT, Killick 2012). The penalty is the quantile of Fisher's F of the error rate that the caller
allows a change there, times (1 + r) / (1 - r) for the correlation r of neighbours. So a change where a factor changes
needs less evidence than one that a search over all time finds.

Measurements may be of several groups (GPU models in turns): each has levels of its own, and all change together, so
that a change of one group alone is seen.

Noise is estimated within segments, so both are iterated, from the noise of neighbours' differences, which level changes
hardly affect: a coarse start would take changes for noise.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc, fdtri, ndtri

from assay.base.shapes import Float64, Int64

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
DROPPED_Z = float(ndtri(0.975))
"""Standard errors by which a change must be below the smallest relevant one to be dropped."""
UNLIKE_P = 0.001
"""Groups change unlike each other if a chi-square test rejects equal changes."""

Values = Float64[np.ndarray, "row"]
Groups = Int64[np.ndarray, "row"]
"""The group of each measurement, from 0."""


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
    group: int | None = None
    """The group that changes most, if groups change unlike each other: difference and error are its own."""


class Levels(NamedTuple):
    """The level changes of a series."""

    changes: tuple[LevelChange, ...]
    noise: LevelNoise
    cost: float
    """-2 log likelihood plus the penalties."""


def find_levels(
    values: Values,
    *,
    least: float,
    errors: Values | None = None,
    num_fitted: float = 0.0,
    groups: Groups | None = None,
    is_larger: Callable[[LevelChange, LevelNoise], bool] = lambda change, noise: False,
) -> Levels:
    """Return the changes that may be as large as `least`, in the values' unit.

    `errors`: the allowed probability of a false change at each measurement; by default equal ones. `num_fitted`:
    parameters that the caller has fitted to the values. `is_larger` says whether a change that is small on average is
    not among some measurements.
    """
    number = len(values)
    if number < 2 * MIN_SEGMENT or np.ptp(values) == 0.0:
        return Levels((), LevelNoise(np.zeros(number), 0.0), 0.0)
    errors = np.full(number, FALSE_CHANGES / number) if errors is None else errors
    groups = np.zeros(number, np.int64) if groups is None else groups
    # Noise is at least that of rounding to the smallest difference of two values.
    floor, used = float(np.diff(np.unique(values)).min()) / math.sqrt(12.0), number / max(number - num_fitted, 1.0)
    noise = LevelNoise(np.maximum(_difference_sigmas(values, groups) * math.sqrt(used), floor), 0.0)
    clipped = clipped_spikes(values, noise, groups)
    seen: list[list[int]] = []
    bounds, cost = segments(clipped, noise, errors, groups)
    while bounds not in seen and len(seen) < MAX_ROUNDS:
        seen.append(bounds)
        noise = noise_within(clipped, bounds, groups, floor=floor, used=used)
        bounds, cost = segments(clipped, noise, errors, groups)
    cost += 2.0 * float(np.log(noise.sigmas).sum())
    while True:
        changes = level_changes(clipped, bounds, noise, groups)
        small = [change for change in changes if abs(change.difference) + DROPPED_Z * change.standard_error < least]
        small = [change for change in small if not is_larger(change, noise)]
        if not small:
            return Levels(tuple(changes), noise, cost)
        bounds.remove(min(small, key=lambda change: abs(change.difference)).first)


def _difference_sigmas(values: Values, groups: Groups) -> Values:
    """Return the noise of each measurement by the differences of its neighbours in its group."""
    found = np.empty(len(values))
    for group in range(int(groups.max()) + 1):
        rows = np.flatnonzero(groups == group)
        differences = np.abs(np.diff(values[rows]))
        # Not their median: two hosts that take turns by chance make half of the differences large.
        quartiles = np.quantile(_windows(differences, NEIGHBOURHOOD), 0.75, axis=1)
        # Where most neighbours are equal (a coarse clock), a quantile says nothing.
        sigmas = np.where(quartiles > 0.0, quartiles / QUARTILE_SIGMAS, float(np.sqrt(np.mean(differences**2))))
        found[rows] = np.append(sigmas, sigmas[-1]) / math.sqrt(2.0)
    return found


def _windows(values: Values, width: int) -> Float64[np.ndarray, "row width"]:
    """Return the `width` values around each; at the ends, the first or last ones."""
    width = min(width, len(values))
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    return np.asarray(windows[np.clip(np.arange(len(values)) - width // 2, 0, len(windows) - 1)])


def clipped_spikes(values: Values, noise: LevelNoise, groups: Groups) -> Values:
    """Return the values, those far from the running median of their group at `CLIP_SIGMAS` from it."""
    middle = np.empty(len(values))
    for group in range(int(groups.max()) + 1):
        rows = np.flatnonzero(groups == group)
        padded = np.pad(values[rows], RUNNING // 2, mode="edge")
        middle[rows] = np.median(np.lib.stride_tricks.sliding_window_view(padded, RUNNING), axis=1)
    return np.asarray(np.clip(values, middle - CLIP_SIGMAS * noise.sigmas, middle + CLIP_SIGMAS * noise.sigmas))


def segments(values: Values, noise: LevelNoise, errors: Values, groups: Groups) -> tuple[list[int], float]:
    """Return the bounds of segments, including 0 and n, that minimize the weighted squares about each group's level
    plus the penalty of each bound; and the minimum. A segment has `MIN_SEGMENT` measurements of each group in it."""
    number, weights, centred, kinds = len(values), noise.weights(), values - values.mean(), int(groups.max()) + 1
    quantiles = fdtri(kinds, min(number, NEIGHBOURHOOD) - 1 - kinds, 1.0 - np.minimum(errors, 1.0))
    penalties = np.append(kinds * quantiles, 0.0)
    penalties[0] = 0.0
    is_of_group = groups[:, None] == np.arange(kinds)
    summands = [np.ones(number), *(weights * centred**power for power in (0, 1, 2))]
    sums = np.pad(np.stack([np.cumsum(s[:, None] * is_of_group, axis=0) for s in summands]), ((0, 0), (1, 0), (0, 0)))
    best, came_from = np.full(number + 1, np.inf), np.zeros(number + 1, np.int64)
    best[0] = 0.0
    starts = np.zeros(0, np.int64)
    for end in range(MIN_SEGMENT, number + 1):
        if np.isfinite(best[newest := end - MIN_SEGMENT]):
            starts = np.append(starts, newest)
        counts, weight, total, squares = sums[:, end, None] - sums[:, starts]
        within = (squares - total**2 / np.maximum(weight, 1e-300)).sum(axis=1)
        is_long = ((counts == 0.0) | (counts >= MIN_SEGMENT)).all(axis=1)
        costs = np.where(is_long, best[starts] + penalties[starts] + within, np.inf)
        chosen = int(costs.argmin())
        best[end], came_from[end] = costs[chosen], starts[chosen]
        # A start that is worse by the penalty now stays worse; one too young to be left out waits.
        starts = starts[(costs <= best[end] + penalties[end]) | ~is_long | (starts > end - 2 * MIN_SEGMENT)]
    bounds = [number]
    while bounds[-1] > 0:
        bounds.append(int(came_from[bounds[-1]]))
    return bounds[::-1], float(best[number])


def noise_within(values: Values, bounds: list[int], groups: Groups, *, floor: float, used: float) -> LevelNoise:
    """Return the noise of the residuals about the means of the segments' groups."""
    segment = segment_of(bounds)
    _, first, cells = np.unique(segment * (groups.max() + 1) + groups, return_index=True, return_inverse=True)
    residuals = values - (np.bincount(cells, values) / np.bincount(cells))[cells]
    # Each level costs a degree of freedom.
    is_free = np.ones(len(values))
    is_free[first] = 0.0
    freedom = np.maximum(_windows(is_free, NEIGHBOURHOOD).sum(axis=1), 1.0)
    squares = _windows(residuals**2, NEIGHBOURHOOD).sum(axis=1)
    pairs = np.flatnonzero(segment[1:] == segment[:-1])
    total = float(residuals[pairs] @ residuals[pairs])
    # A lag-1 estimate is too low by about (1 + 3 r) / n in each segment (Kendall 1954).
    raw = float(residuals[pairs] @ residuals[pairs + 1]) / total if total > 0.0 else 0.0
    correlation = raw + (1.0 + 3.0 * raw) * len(first) / len(values)
    return LevelNoise(np.maximum(np.sqrt(used * squares / freedom), floor), min(max(correlation, 0.0), 0.9))


def segment_of(bounds: list[int]) -> Groups:
    """Return the segment of each measurement."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def level_changes(values: Values, bounds: list[int], noise: LevelNoise, groups: Groups) -> list[LevelChange]:
    """Return the changes at the inner bounds: the mean one of all groups, or that of the group that changes most, if
    groups change unlike each other."""
    weights, kinds, found = noise.weights(), int(groups.max()) + 1, []
    for begins, first, ends in zip(bounds[:-2], bounds[1:-1], bounds[2:], strict=True):
        sides = slice(begins, first), slice(first, ends)
        sums = np.stack([[np.bincount(groups[s], of[s], kinds) for of in (weights, weights * values)] for s in sides])
        present = np.flatnonzero((sums[:, 0] > 0.0).all(axis=0))
        (weight, total), (later_weight, later_total) = sums[..., present]
        differences = later_total / later_weight - total / weight
        information = 1.0 / (1.0 / weight + 1.0 / later_weight)
        if not len(present):
            found.append(LevelChange(begins, first, ends, 0.0, 0.0))
            continue
        shared, error, group = float(np.average(differences, weights=information)), information.sum() ** -0.5, None
        misfit = float(information @ (differences - shared) ** 2)
        if len(present) > 1 and chdtrc(len(present) - 1, misfit) < UNLIKE_P:
            most = int(np.argmax(information * differences**2))
            shared, error, group = float(differences[most]), information[most] ** -0.5, int(present[most])
        found.append(LevelChange(begins, first, ends, shared, float(error), group))
    return found

"""Decides which factors a level change can be assigned to, and which the records cannot tell apart.

A factor that alternates from run to run (hosts of a pool) has effects of its own, which are estimated within levels
and taken out before levels are searched. A factor is a suspect of a change if its values before and after differ more
than by chance, if they part the measurements as well as the change does. A single suspect is the cause. For several,
a regression over matched measurements, which have the other factors' values, estimates their effects; its rank says
which effects these measurements determine (this code elsewhere, other code here).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc, ndtri

from assay.base.shapes import Float64, Int64, Shaped
from assay.statistics.robust import group_medians, robust_sigma
from assay.triage.slow.detect import DROPPED_Z, FALSE_CHANGES, Groups, LevelChange, LevelNoise

NEAR = 10
"""Minimal measurements on each side, if there are as many, that decide whether a factor's values differ."""
CHANCE_P, NUM_SHUFFLED = 0.005, 2_000
"""Values differ if a permutation test rejects equal distributions."""
SURE_Z = float(ndtri(0.9995))
"""Standard errors of a significant effect."""
NARROW = 1.0 / 3.0
"""Maximal standard error of an effect, relative to the change."""
CONTRADICTED_P = 0.001
MIN_PER_SIDE = 3
"""Minimal measurements on each side of an effect."""
MEDIAN_VARIANCE = math.pi / 2.0
"""Variance of a median relative to that of a mean, in normal noise."""
ROUNDS = 5

Values = Float64[np.ndarray, "row"]
Cells = Shaped[np.ndarray, "row"]
"""A factor's value at each measurement; empty if unknown."""
Factors = Mapping[str, Cells]


class SuspectFactor(NamedTuple):
    """A factor that may have made a change."""

    name: str
    before: str
    after: str
    """The value that became rarer most, and the one that became more frequent; empty if unknown."""
    is_after: Int64[np.ndarray, "row"]
    """For each measurement: 0 with a value from before, 1 from after, -1 otherwise."""


def _boundaries(cells: Cells) -> Int64[np.ndarray, "boundary"]:
    return np.flatnonzero(cells[1:] != cells[:-1]) + 1


def allowed_errors(factors: Factors, number: int) -> Values:
    """Return the allowed probability of a false change at each measurement: as much for all together as for those at
    which a factor changes, equally by factor."""
    errors = np.full(number, FALSE_CHANGES / max(number, 1))
    for cells in factors.values():
        rows = _boundaries(cells)
        errors[rows] = np.maximum(errors[rows], FALSE_CHANGES / (len(factors) * max(len(rows), 1)))
    return errors


def alternating_effects(values: Values, factors: Sequence[Cells], levels: Groups) -> tuple[Values, float]:
    """Return the effect of alternating factors on each measurement, within levels, and the number of fitted
    parameters. Effects of a value are medians, shrunken by their noise relative to the spread of all values."""
    codes = [np.unique(cells, return_inverse=True)[1] for cells in factors]
    effects, fitted = np.zeros((len(codes), len(values))), 0.0
    for _ in range(ROUNDS if codes else 0):
        rest = values - effects.sum(axis=0)
        level, fitted = group_medians(rest, levels, int(levels.max()) + 1)[levels], 0.0
        for index, code in enumerate(codes):
            rest = values - level - effects.sum(axis=0) + effects[index]
            counts = np.bincount(code)
            medians = group_medians(rest, code, len(counts))
            freedom = len(values) / (len(values) - len(counts))
            noise = MEDIAN_VARIANCE * robust_sigma(rest - medians[code]) ** 2 * freedom / counts
            between = max(float(np.average(medians**2 - noise, weights=counts)), 0.0)
            shrunken = between / np.maximum(between + noise, 1e-300)
            effects[index] = (shrunken * medians)[code]
            fitted += float(shrunken.sum())
    return np.asarray(effects.sum(axis=0)), fitted


def is_alternating(cells: Cells) -> bool:
    """Return whether values recur, change at least half as often as in random order, and none is earlier than others
    (Kruskal-Wallis)."""
    _, codes, counts = np.unique(cells, return_inverse=True, return_counts=True)
    number = len(cells)
    if not 1 < len(counts) <= number / MIN_PER_SIDE:
        return False
    by_chance = (number - 1) * (1.0 - float(counts @ counts) / number**2)
    deviations = np.bincount(codes, np.arange(number)) / counts - (number - 1) / 2.0
    statistic = 12.0 / (number * (number + 1.0)) * float(counts @ deviations**2)
    return len(_boundaries(cells)) >= by_chance / 2.0 and bool(chdtrc(len(counts) - 1, statistic) > CONTRADICTED_P)


def moved_factors(factors: Factors, change: LevelChange) -> list[SuspectFactor]:
    """Return the factors whose values before and after a change differ more than by chance."""
    begins, ends = min(change.begins, max(change.first - NEAR, 0)), max(change.ends, change.first + NEAR)
    found = []
    for name, cells in factors.items():
        values, codes = np.unique(cells[begins:ends], return_inverse=True)
        sides = np.split(codes, [change.first - begins])
        counts = np.stack([np.bincount(side, minlength=len(values)) for side in sides])
        shares = counts / counts.sum(axis=1, keepdims=True)
        was, now = (shares[0] - shares[1]).argmax(), (shares[1] - shares[0]).argmax()
        if was != now and _is_parted(counts):
            later = values[shares[1] > shares[0]]
            is_after = np.where(np.isin(cells, later), 1, np.where(np.isin(cells, values), 0, -1))
            found.append(SuspectFactor(name, str(values[was]), str(values[now]), is_after))
    return found


def _is_parted(counts: Int64[np.ndarray, "2 value"]) -> bool:
    """Return whether the values of two sides overlap less than in nearly all permutations."""
    sizes, total = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
    if len(total) == 2 and (counts > 0).sum() == 2:
        return True  # perhaps too few measurements for the test, and as different as can be
    shuffled = np.random.default_rng(0).multivariate_hypergeometric(total, sizes[0, 0], NUM_SHUFFLED)
    first = np.concatenate([counts[:1], shuffled])
    overlaps = np.minimum(first / sizes[0], (total - first) / sizes[1]).sum(axis=1)
    return bool((overlaps <= overlaps[0] + 1e-9).mean() <= CHANCE_P)


def differs_by_value(
    values: Values, suspects: Sequence[SuspectFactor], change: LevelChange, noise: LevelNoise, *, least: float
) -> bool:
    """Return whether measurements with the old and the new value of a factor, if these are mixed in time, may differ by
    `least`."""
    rows = np.arange(change.begins, change.ends)
    for suspect in suspects:
        codes = suspect.is_after[rows]
        known = rows[codes >= 0]
        counts = np.bincount(suspect.is_after[known], noise.weights()[known], 2)
        if (codes == (rows >= change.first)).all() or counts.min() == 0.0:
            continue
        difference = float(np.diff(group_medians(values[known], suspect.is_after[known], 2))[0])
        if abs(difference) + DROPPED_Z * math.sqrt(MEDIAN_VARIANCE * float((1.0 / counts).sum())) >= least:
            return True
    return False


def possible_suspects(
    values: Values, suspects: Sequence[SuspectFactor], change: LevelChange, noise: LevelNoise
) -> list[SuspectFactor]:
    """Return the suspects whose values part the measurements about as well as the change does; none if a straight line
    describes these better (a drift).

    The likelihood of a change elsewhere relative to the one at a factor's own boundary is a martingale, so it exceeds
    2 / `CHANCE_P` on either side with at most that probability (Ville 1939).
    """
    rows = np.arange(change.begins, change.ends)
    scales = np.sqrt(noise.weights()[rows])

    def misfit(*columns: Shaped[np.ndarray, "row"]) -> float:
        design, target = np.stack([np.ones(len(rows)), *columns], axis=1) * scales[:, None], values[rows] * scales
        return float(np.square(target - design @ np.linalg.lstsq(design, target, rcond=None)[0]).sum())

    of_time, of_line = misfit(rows >= change.first), misfit(rows)
    of_suspects = [misfit(suspect.is_after[rows] == 1, suspect.is_after[rows] < 0) for suspect in suspects]
    if of_line < min([of_time, *of_suspects]):
        return []
    most = of_time + 2.0 * math.log(2.0 / CHANCE_P)
    return [suspect for suspect, of_suspect in zip(suspects, of_suspects, strict=True) if of_suspect <= most]


def crossed_effects(
    values: Values,
    factors: Factors,
    suspects: Sequence[SuspectFactor],
    change: LevelChange,
    noise: LevelNoise,
    other_changes: Sequence[int],
) -> dict[str, float]:
    """Return the significant effects of suspects, one for those that never vary apart; empty if the records do not
    determine all, or contradict that they add up. `other_changes`: where the level changes for other reasons."""
    rows = _matched(factors, suspects, change)
    groups: dict[bytes, list[SuspectFactor]] = {}
    for suspect in suspects:
        groups.setdefault(suspect.is_after[rows].tobytes(), []).append(suspect)
    codes = np.stack([group[0].is_after[rows] for group in groups.values()], axis=1)
    if len(groups) < 2 or np.minimum(codes.sum(axis=0), (1 - codes).sum(axis=0)).min() < MIN_PER_SIDE:
        return {}
    later = [rows >= first for first in other_changes]
    design, of_row = np.unique(np.column_stack([np.ones(len(rows)), codes, *later]), axis=0, return_inverse=True)
    medians = group_medians(values[rows], of_row.reshape(-1), len(design))
    residuals = (values[rows] - medians[of_row.reshape(-1)]) / noise.sigmas[rows]
    freedom, columns = len(rows) - len(design), range(1, len(groups) + 1)
    # The factors that moved there are part of the levels' noise, but not of the residuals'.
    scale = robust_sigma(residuals) ** 2 * len(rows) / freedom if freedom >= len(design) else 1.0
    weights = np.bincount(of_row.reshape(-1), noise.weights()[rows]) / MEDIAN_VARIANCE / max(scale, 1e-6)
    gram = design.T @ (weights[:, None] * design)
    inverse = np.linalg.pinv(gram, hermitian=True, rcond=1e-9)
    effects = inverse @ (design.T @ (weights * medians))
    errors, misfit = np.sqrt(np.diag(inverse)), float(weights @ (medians - design @ effects) ** 2)
    is_determined = np.allclose((inverse @ gram)[columns], np.eye(len(gram))[columns], atol=1e-6)
    freedom = len(design) - int(np.linalg.matrix_rank(gram, hermitian=True, rtol=1e-9))
    is_contradicted = freedom > 0 and chdtrc(freedom, misfit) < CONTRADICTED_P
    if not is_determined or is_contradicted or errors[columns].max() > NARROW * abs(change.difference):
        return {}
    names = ["+".join(suspect.name for suspect in group) for group in groups.values()]
    found = zip(names, effects[1:], errors[1:], strict=False)
    return {name: float(effect) for name, effect, error in found if abs(effect) >= SURE_Z * error}


def _matched(factors: Factors, suspects: Sequence[SuspectFactor], change: LevelChange) -> Int64[np.ndarray, "kept"]:
    """Return measurements with values from before or after of all suspects, and values that all other factors have
    near the change."""
    mask = np.logical_and.reduce([suspect.is_after >= 0 for suspect in suspects])
    for name in factors.keys() - {suspect.name for suspect in suspects}:
        mask &= np.isin(factors[name], factors[name][change.begins : change.ends])
    return np.flatnonzero(mask)


def separating_runs(change: LevelChange, noise: LevelNoise) -> int:
    """Return how many runs with one suspect's new value alone would separate suspects that changed together."""
    variance = 1.0 / float(np.median(noise.weights()))
    return max(math.ceil(variance * (2.0 * SURE_Z / change.difference) ** 2), MIN_PER_SIDE)

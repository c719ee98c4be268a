"""Failure rate ratio of a region, adjusted for the other factors and for time.

It is Mantel & Haenszel's ratio over strata, with Greenland & Robins' (1985) variance, or the variance between
units if that is larger. Time is always a stratum, because a broken commit fails everything of its hour. A
factor that determines who is in the region (a rack's own hosts) leaves nothing to compare and is no stratum;
nor is a factor that leaves too little.

Strata that leave little say little, so a region is held against each rival (another factor, or time) in two ways: its
ratio within the rival, and how much more closely failures follow the region than the rival (marginal likelihood of a
rate for each value). One of the two must favour the region.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import betaln, gammaln, ndtri

from assay.base.shapes import Bool, Float64, Int64
from assay.records.failure_causes import AdjustedRatio
from assay.triage.attempts.table import AttemptTable, Factor
from assay.triage.failures.regions import renumbered

Z = 1.959964
MIN_REMAINING = 0.15
"""Strata must keep this share of the information about a region."""
SLOTS = 12
"""A time slot is the longest of `SLOT_LENGTHS_S` that divides the table's time into at least this many."""
TIME = "time"
MIN_SLOTS, MIN_SLOT_ATTEMPTS = 4, 4.0
"""What a partition of the attempts by time has at least."""
MIN_EVIDENCE = 3.0
"""Log likelihood by which failures must follow a region more closely than a rival (20 to 1)."""
SPREADS = np.geomspace(0.5, 500.0, 12)
"""Sizes, in attempts, of the beta distribution of rates: from cells that differ much to equal ones."""
MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0
SLOT_LENGTHS_S = (
    *(MINUTE_S * n for n in (1, 2, 5, 10, 20, 30)),
    *(HOUR_S * n for n in (1, 2, 4, 8, 12)),
    *(DAY_S * n for n in (1, 2, 4, 7, 14, 28)),
)


def slot_length_s(at_s: Float64[np.ndarray, "row"]) -> float:
    """Return the length of a time stratum."""
    span = float(np.nanmax(at_s) - np.nanmin(at_s))
    return max((length_s for length_s in SLOT_LENGTHS_S if length_s <= span / SLOTS), default=SLOT_LENGTHS_S[0])


def adjustments(
    table: AttemptTable, inside: Bool[np.ndarray, "row"], named: tuple[int, ...]
) -> tuple[AdjustedRatio, ...]:
    """Return the region's ratio: unadjusted, adjusted for other factors, and also for time, if these exist."""
    everything = np.zeros(table.num_rows, np.int64)
    whole = _information(table, inside, everything)
    slots = _slots(table)
    others = [factor for index, factor in enumerate(table.factors) if index not in named and np.ptp(factor.cells) > 0]
    strata, timed, within = everything, slots, tuple[str, ...]()
    steps = [(within, strata)]
    for factor in _most_explaining_first(table, inside, slots, others, least=MIN_REMAINING * whole):
        finer = _joined(timed, factor.cells)
        if _information(table, inside, finer) >= MIN_REMAINING * whole:
            strata, timed, within = _joined(strata, factor.cells), finer, (*within, factor.name)
    if within:
        steps.append((within, strata))
    if np.ptp(slots) > 0:
        steps.append(((*within, TIME), timed))
    found = [_ratio(table, inside, codes, names) for names, codes in steps]
    return tuple(ratio for ratio in found if ratio is not None)


def _slots(table: AttemptTable, length_s: float | None = None) -> Int64[np.ndarray, "row"]:
    """Return the time slot of each attempt; all equal without times. Attempts without a time have their own slot."""
    if table.at_s is None:
        return np.zeros(table.num_rows, np.int64)
    slots = (table.at_s - np.nanmin(table.at_s)) // (length_s or slot_length_s(table.at_s))
    return np.asarray(np.nan_to_num(slots, nan=-1.0), np.int64) + 1


def _most_explaining_first(
    table: AttemptTable,
    inside: Bool[np.ndarray, "row"],
    slots: Int64[np.ndarray, "row"],
    factors: list[Factor],
    *,
    least: float,
) -> list[Factor]:
    """Return the factors that leave enough to compare, the strongest confounder first."""
    found = list[tuple[float, Factor]]()
    for factor in factors:
        strata = _joined(slots, factor.cells)
        if _information(table, inside, strata) >= least:
            ratio = _ratio(table, inside, strata, ())
            found.append((math.inf if ratio is None else ratio.ratio, factor))
    return [factor for _, factor in sorted(found, key=lambda entry: entry[0])]


def _joined(one: Int64[np.ndarray, "row"], other: Int64[np.ndarray, "row"]) -> Int64[np.ndarray, "row"]:
    """Return codes that are equal where both inputs are equal."""
    width = int(other.max()) + 1
    return renumbered(one * width + other, (int(one.max()) + 1) * width)[1]


def _information(table: AttemptTable, inside: Bool[np.ndarray, "row"], strata: Int64[np.ndarray, "row"]) -> float:
    """Return the information that strata leave: the harmonic sum of both sides."""
    size = table.size()
    ours, other_size = (np.bincount(strata, size * side) for side in (inside, ~inside))
    return float((ours * other_size / np.maximum(ours + other_size, 1e-12)).sum())


def _ratio(
    table: AttemptTable, inside: Bool[np.ndarray, "row"], strata: Int64[np.ndarray, "row"], within: tuple[str, ...]
) -> AdjustedRatio | None:
    """Return the ratio; None if no stratum has failures to compare."""
    size, failed = table.size(), table.failures
    n1, n0, a, c = (np.bincount(strata, of * side) for of in (size, failed) for side in (inside, ~inside))
    n = np.maximum(n1 + n0, 1e-12)
    is_valid = (n1 > 0) & (n0 > 0)
    above, below = (a * n0 / n)[is_valid].sum(), (c * n1 / n)[is_valid].sum()
    if above + below == 0:
        return None
    # Half a failure on either side, weighed as one of the smallest table, keeps a ratio of none a number.
    half = 0.5 * float((n1 * n0 / n**2)[is_valid].mean()) if min(above, below) == 0 else 0.0
    ratio = float((above + half) / (below + half))
    # Of exposures, counts are Poisson: two failures do not exclude one another.
    joint = a * c * n if table.exposure is None else 0.0
    variance = max(float(((n1 * n0 * (a + c) - joint) / n**2)[is_valid].sum()), half) / (
        (above + half) * (below + half)
    )
    if table.has_units:
        influence = np.where(inside, (n0 / n)[strata], -ratio * (n1 / n)[strata]) * is_valid[strata]
        means = np.where(inside, (a / np.maximum(n1, 1e-12))[strata], (c / np.maximum(n0, 1e-12))[strata])
        of_units = np.bincount(table.units - table.units.min(), influence * (failed - means * size))
        variance = max(variance, float(np.square(of_units).sum()) / (above + half) ** 2)
    width = math.exp(Z * math.sqrt(variance))
    return AdjustedRatio(within=within, ratio=ratio, low=ratio / width, high=ratio * width)


class Rival(NamedTuple):
    """What may be at fault instead of a region: a factor, or time."""

    within: tuple[str, ...]
    ratio: AdjustedRatio | None
    """The region's ratio within it; None if nothing can be compared."""


def rival_of(
    table: AttemptTable,
    inside: Bool[np.ndarray, "row"],
    named: tuple[int, ...],
    weights: Float64[np.ndarray, "row"],
    *,
    level: float,
) -> Rival | None:
    """Return what may be at fault instead of a region; None if nothing may.

    Failures follow a rival about as closely as the region, and within it the region's ratio may be 1, by an interval
    of `level`.
    """
    evidence = _evidence(table, inside.astype(np.int64), weights)
    wider = -float(ndtri(level / 2)) / Z
    for within, strata in _partitions(table, named):
        if evidence - _evidence(table, strata, weights) >= MIN_EVIDENCE:
            continue
        ratio = _ratio(table, inside, strata, within)
        if ratio is None and TIME not in within:
            continue  # a factor that determines who is in the region: the scan chose between them
        if ratio is None or math.log(ratio.ratio) <= wider * math.log(ratio.ratio / ratio.low):
            return Rival(within, ratio)
    return None


def _partitions(
    table: AttemptTable, named: tuple[int, ...]
) -> Iterator[tuple[tuple[str, ...], Int64[np.ndarray, "row"]]]:
    """Yield the attempts by time, in slots of several lengths, by each other factor, and by both."""
    others = [factor for index, factor in enumerate(table.factors) if index not in named and np.ptp(factor.cells) > 0]
    if table.at_s is not None:
        for length_s in SLOT_LENGTHS_S:
            slots = _slots(table, length_s)
            occupied = len(np.unique(slots))
            if MIN_SLOTS <= occupied <= table.attempts.sum() / MIN_SLOT_ATTEMPTS:
                yield (TIME,), slots
    slots = _slots(table)
    for factor in others:
        yield (factor.name,), factor.cells
        if np.ptp(slots) > 0:
            yield (factor.name, TIME), _joined(slots, factor.cells)


def _evidence(table: AttemptTable, cells: Int64[np.ndarray, "row"], weights: Float64[np.ndarray, "row"]) -> float:
    """Return the log marginal likelihood of a rate for each cell, for the likeliest spread of rates over cells."""
    failed, size = (np.bincount(cells, of * weights) for of in (table.failures, table.size()))
    failed, size = failed[size > 0], size[size > 0]
    a = SPREADS[:, None] * failed.sum() / size.sum()
    if table.exposure is not None:  # gamma-Poisson, with the exposure of an attempt as the unit
        size = size * table.attempts.sum() / table.exposure.sum()
        b = SPREADS[:, None]
        a = b * failed.sum() / size.sum()
        terms = gammaln(failed + a) - gammaln(a) + a * np.log(b) - (failed + a) * np.log(size + b)
    else:
        b = SPREADS[:, None] - a
        terms = betaln(failed + a, size - failed + b) - betaln(a, b)
    return float(terms.sum(axis=1).max())

"""Finds whether durations differ by location (stage, worker) or by work (step, micro-batch).

The logarithm of a duration is modelled as the level of its kind, plus an effect for each location factor and
each work factor, plus noise. Tukey's median polish estimates the effects robustly. A factor counts if an
effect is significant and large enough. Durations must be a rank's own work, because in a collective all ranks
wait for the slowest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import norm

from assay.base.config import first_repeated
from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Float64, Int64
from assay.records.skew import Skew, SkewEffect
from assay.statistics.robust import robust_sigma
from assay.triage.attempts.columns import Columns

ROUNDS = 10
MIN_RATIO = math.log(1.05)
"""Smaller effects are ignored."""
MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
"""Standard error of a median relative to a mean's, in normal noise."""
SURE = 0.001
MAX_EFFECTS = 20

Logs = Float64[np.ndarray, "row"]
Codes = Int64[np.ndarray, "row"]


class Durations(NamedTuple):
    """Measured durations, row by row."""

    seconds: Float64[np.ndarray, "row"]
    location: Mapping[str, Sequence[str]]
    work: Mapping[str, Sequence[str]]
    kinds: Sequence[str]
    sources: Mapping[str, str]


def durations_of(
    columns: Columns, *, value: str, location: Sequence[str], work: Sequence[str], kind: str | None
) -> Durations:
    """Read the durations from columns of text; rows without a duration are left out."""
    if (twice := first_repeated((value, *location, *work, *([kind] if kind else [])))) is not None:
        raise ConfigError(f"'{twice}' is there twice: a column is the value, the kind, a location or a work.")
    seconds = columns.numbers(value, "--value")
    valid = np.flatnonzero(np.isfinite(seconds))
    if len(valid) == 0:
        raise DataError(f"{columns.name}: '{value}' (--value) holds no duration.")
    columns = replace(columns, table=columns.table.take(valid))
    return Durations(
        seconds[valid],
        {name: columns.column(name, "--location") for name in location},
        {name: columns.column(name, "--work") for name in work},
        columns.column(kind, "--kind") if kind else [""] * len(valid),
        columns.sources,
    )


class _Factor(NamedTuple):
    """One factor within one kind."""

    side: Literal["location", "work"]
    name: str
    values: list[str]
    codes: Codes
    effects: Float64[np.ndarray, "value"]


def split_skew(durations: Durations) -> Skew:
    """Attribute the differences to location and work."""
    for row in np.flatnonzero(~(durations.seconds > 0))[:1]:
        raise DataError(f"--value, row {row + 1}: a duration is above 0, and this is {durations.seconds[row]:g}.")
    logs = np.log(durations.seconds)
    found, spreads, noises = (
        list[SkewEffect](),
        {"location": list[float](), "work": list[float]()},
        list[float](),
    )
    kinds = np.array(durations.kinds)
    for kind in dict.fromkeys(durations.kinds):
        rows = np.flatnonzero(kinds == kind)
        factors, residuals = _polished(logs[rows], _factors(durations, rows))
        noise = robust_sigma(residuals)
        looked_at = sum(len(factor.values) for factor in factors)
        for factor in factors:
            effects = _outlying_effects(kind, factor, noise, looked_at)
            found.extend(effects)
            spreads[factor.side].append(_excess_sd(factor, noise) * math.sqrt(len(rows)) if effects else 0.0)
        noises.append(noise * math.sqrt(len(rows)))
    number = max(len(logs), 1)
    location, work = (math.hypot(*spreads[side]) / math.sqrt(number) for side in ("location", "work"))
    verdict: Literal["location", "work", "even"] = "even" if not found else "location" if location >= work else "work"
    found.sort(key=lambda effect: -abs(math.log(effect.ratio)))
    return Skew(
        verdict=verdict,
        location_sd=location,
        work_sd=work,
        noise=math.hypot(*noises) / math.sqrt(number),
        effects=tuple(found[:MAX_EFFECTS]),
        measurements=len(logs),
        sources=dict(durations.sources),
    )


def _factors(durations: Durations, rows: Int64[np.ndarray, "kept"]) -> list[_Factor]:
    found = []
    sides: tuple[tuple[Literal["location", "work"], Mapping[str, Sequence[str]]], ...] = (
        ("location", durations.location),
        ("work", durations.work),
    )
    for side, columns in sides:
        for name, cells in columns.items():
            values, codes = np.unique(np.array([cells[row] for row in rows]), return_inverse=True)
            found.append(_Factor(side, name, values.tolist(), codes.reshape(-1), np.zeros(len(values))))
    return found


def _polished(logs: Logs, factors: list[_Factor]) -> tuple[list[_Factor], Logs]:
    """Return the factors with effects of median 0, and the residuals (Tukey 1977, median polish)."""
    residuals = logs - np.median(logs)
    for _ in range(ROUNDS):
        for factor in factors:
            medians = _medians(residuals, factor.codes, len(factor.values))
            centre = float(np.median(medians))
            factor.effects[:] += medians - centre
            residuals = residuals - medians[factor.codes]
    return factors, residuals


def _medians(values: Logs, codes: Codes, number: int) -> Float64[np.ndarray, "value"]:
    order = np.lexsort((values, codes))
    counts = np.bincount(codes, minlength=number)
    begins = np.cumsum(counts) - counts
    ordered = values[order]
    return np.asarray((ordered[begins + (counts - 1) // 2] + ordered[begins + counts // 2]) / 2.0)


def _excess_sd(factor: _Factor, noise: float) -> float:
    """Return the standard deviation of the effects over measurements, beyond the noise."""
    counts = np.bincount(factor.codes, minlength=len(factor.values))
    weights = counts / counts.sum()
    centred = factor.effects - weights @ factor.effects
    by_noise = float(weights @ ((MEDIAN_ERROR * noise) ** 2 / counts))
    return math.sqrt(max(float(weights @ centred**2) - by_noise, 0.0))


def _outlying_effects(kind: str, factor: _Factor, noise: float, looked_at: int) -> list[SkewEffect]:
    counts = np.bincount(factor.codes, minlength=len(factor.values))
    quantile = float(norm.isf(SURE / (2.0 * looked_at)))
    found = []
    for index, value in enumerate(factor.values):
        effect, margin = (
            float(factor.effects[index]),
            quantile * MEDIAN_ERROR * noise / math.sqrt(counts[index]),
        )
        # Where a median rests on few, noise has to be its own witness: two measurements tell nothing.
        if abs(effect) <= max(margin, MIN_RATIO) or counts[index] < 3:
            continue
        low, high = (math.exp(effect + sign * margin) for sign in (-1, 1))
        found.append(
            SkewEffect(
                side=factor.side,
                operation=kind,
                factors={factor.name: value},
                ratio=math.exp(effect),
                low=low,
                high=high,
                measurements=int(counts[index]),
            )
        )
    return found

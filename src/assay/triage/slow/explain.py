"""Attributes a level change to a factor, if the records can separate factors.

A factor changed if its values near the change are mostly different before and after. If only one factor
changed, it is the cause. For several, a regression over all measurements with the values before or after
estimates each factor's effect; crossed runs (this code elsewhere, other code here) separate them. The effects
count only if they are precise and together explain every combination.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc, ndtri

from assay.base.errors import ConfigError
from assay.base.shapes import Float64, Int64
from assay.records.slow_changes import SlowChange, SlowChanges
from assay.triage.slow.detect import LevelChange, LevelNoise, find_levels
from assay.triage.slow.series import MeasuredSeries

NEAR = 10
"""Number of measurements on each side that decide whether a factor changed."""
MAX_SHARED = 0.5
"""Maximal overlap of the values before and after a changed factor."""
MOSTLY = 0.8
"""Minimal share of a side's dominant value."""
MAX_CHANCE_P, NUM_SHUFFLED = 0.002, 2_000
"""A factor with many values (hosts of a pool) always overlaps little in twenty measurements. It changed if a
permutation test rejects equal distributions."""
NARROW = 1.0 / 3.0
"""Maximal standard error of an effect, relative to the change."""
SURE_Z = 2.576
"""Standard errors that an effect should reach with further runs (99%)."""
CONTRADICTED_P = 0.001
MIN_PER_SIDE = 3
"""Minimal measurements on each side of an effect."""


class ChangedFactor(NamedTuple):
    """A factor that changed together with the level."""

    name: str
    before: str
    after: str
    is_after: Int64[np.ndarray, "row"]
    """For each measurement: 0 with a value from before, 1 from after, -1 otherwise."""


class FactorEffect(NamedTuple):
    """The effect of factors that always vary together."""

    factors: tuple[str, ...]
    difference: float
    standard_error: float


def changed_factors(factors: Mapping[str, Sequence[str]], change: LevelChange) -> list[ChangedFactor]:
    """Return the factors whose values near the change are mostly different."""
    found = []
    for name, cells in factors.items():
        before = cells[max(change.begins, change.first - NEAR) : change.first]
        after = cells[change.first : min(change.ends, change.first + NEAR)]
        if not _is_other(before, after):
            continue
        shares, later = _shares(before), _shares(after)
        side = {value: int(later.get(value, 0.0) > shares.get(value, 0.0)) for value in {**shares, **later}}
        is_after = np.array([side.get(cell, -1) for cell in cells], np.int64)
        was, now = max(shares, key=shares.__getitem__), max(later, key=later.__getitem__)
        found.append(ChangedFactor(name, was, now, is_after))
    return found


def _shares(cells: Sequence[str]) -> dict[str, float]:
    return {value: count / len(cells) for value, count in Counter(cells).items()}


def _is_other(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether the values of two sides are mostly different, beyond chance."""
    shares, later = _shares(before), _shares(after)
    shared = sum(min(share, later.get(value, 0.0)) for value, share in shares.items())
    if shared >= MAX_SHARED:
        return False
    mostly = MOSTLY if min(len(before), len(after)) >= NEAR else 1.0
    is_dominant = min(max(shares.values()), max(later.values())) >= mostly
    return is_dominant or _is_parted(before, after, shared)


def _is_parted(before: Sequence[str], after: Sequence[str], shared: float) -> bool:
    """Return whether the overlap is smaller than in nearly all permutations of the cells."""
    _, codes = np.unique(np.asarray([*before, *after]), return_inverse=True)
    shuffled = np.random.default_rng(0).permuted(np.tile(codes, (NUM_SHUFFLED, 1)), axis=1)
    is_value = shuffled[:, :, None] == np.arange(codes.max() + 1)
    on_left, on_right = is_value[:, : len(before)].mean(axis=1), is_value[:, len(before) :].mean(axis=1)
    as_parted = int((np.minimum(on_left, on_right).sum(axis=1) <= shared + 1e-9).sum())
    return (1 + as_parted) / (1 + NUM_SHUFFLED) <= MAX_CHANCE_P


def crossed_effects(
    values: Float64[np.ndarray, "row"],
    factors: Mapping[str, Sequence[str]],
    changed: Sequence[ChangedFactor],
    change: LevelChange,
    noise: LevelNoise,
) -> list[FactorEffect] | None:
    """Return the effect of each group of factors, or None if the records do not separate them."""
    rows = _comparable(factors, changed, change)
    groups = _groups(changed, rows)
    if len(groups) < 2:
        return None
    codes = np.stack([group[0].is_after[rows] for group in groups], axis=1)
    if (np.minimum(codes.sum(axis=0), (1 - codes).sum(axis=0)) < MIN_PER_SIDE).any():
        return None
    design = np.column_stack([np.ones(len(rows)), codes])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    fit, *_ = np.linalg.lstsq(design, values[rows], rcond=None)
    errors = np.sqrt(noise.long_run_variance() * np.diag(np.linalg.inv(design.T @ design)))
    is_narrow = (errors[1:] <= NARROW * abs(change.difference)).all()
    if not is_narrow or _is_contradicted(values[rows] - design @ fit, codes, noise):
        return None
    names = [tuple(factor.name for factor in group) for group in groups]
    return [FactorEffect(name, float(fit[k]), float(errors[k])) for k, name in enumerate(names, 1)]


def _comparable(
    factors: Mapping[str, Sequence[str]], changed: Sequence[ChangedFactor], change: LevelChange
) -> Int64[np.ndarray, "kept"]:
    """Return measurements with values from before or after of all changed factors, and present values of all
    others."""
    mask = np.logical_and.reduce([factor.is_after >= 0 for factor in changed])
    for name in factors.keys() - {factor.name for factor in changed}:
        present = set(factors[name][change.begins : change.ends])
        mask &= np.fromiter((cell in present for cell in factors[name]), bool, len(mask))
    return np.flatnonzero(mask)


def _groups(changed: Sequence[ChangedFactor], rows: Int64[np.ndarray, "kept"]) -> list[list[ChangedFactor]]:
    """Return groups of factors that never vary separately in these measurements."""
    groups: dict[bytes, list[ChangedFactor]] = {}
    for factor in changed:
        groups.setdefault(factor.is_after[rows].tobytes(), []).append(factor)
    return list(groups.values())


def _is_contradicted(
    residuals: Float64[np.ndarray, "kept"], codes: Int64[np.ndarray, "kept group"], noise: LevelNoise
) -> bool:
    """Return whether some combination contradicts additive effects (lack of fit, chi-square)."""
    cells, of_row = np.unique(codes, axis=0, return_inverse=True)
    of_row = of_row.reshape(-1)
    counts = np.bincount(of_row)
    freedom = len(cells) - codes.shape[1] - 1
    if freedom < 1:
        return False
    means = np.bincount(of_row, residuals) / counts
    return bool(chdtrc(freedom, (counts * means**2).sum() / noise.long_run_variance()) < CONTRADICTED_P)


def separating_runs(change: LevelChange, noise: LevelNoise) -> int:
    """Return how many runs with one changed factor alone would separate factors that changed together."""
    number = math.ceil(noise.long_run_variance() * (2.0 * SURE_Z / change.difference) ** 2)
    return max(number, MIN_PER_SIDE)


INTERVAL_Z = float(ndtri(0.975))
SURE_EFFECT_Z = float(ndtri(0.995))
"""Standard errors of a significant effect."""


def explain_changes(series: MeasuredSeries, *, least: float) -> SlowChanges:
    """Return all lasting changes of at least the share `least` of the level."""
    if not 0.0 < least < 1.0:
        raise ConfigError(f"--effect {least:g}: expected a share of the level between 0 and 1, e.g. 0.005.")
    values = series.values
    is_positive = len(values) > 0 and bool((values > 0).all())
    scaled = np.log(values) if is_positive else values
    smallest = math.log1p(least) if is_positive else least * _level(values)
    found, noise = find_levels(scaled, least=smallest)
    changes = tuple(_change(series, scaled, is_positive, change, noise) for change in found)
    return SlowChanges(
        value=series.name,
        measurements=len(values),
        noise=noise.sigma,
        correlation=noise.correlation,
        changes=changes,
        sources=dict(series.sources),
    )


def _level(values: Float64[np.ndarray, "row"]) -> float:
    return float(np.median(np.abs(values))) if len(values) else 0.0


def _change(
    series: MeasuredSeries,
    scaled: Float64[np.ndarray, "row"],
    is_positive: bool,
    change: LevelChange,
    noise: LevelNoise,
) -> SlowChange:
    changed = changed_factors(series.factors, change)
    effects = _effects(scaled, series, changed, change, noise)
    verdict = "unexplained" if not changed else "assigned" if effects else "unidentifiable"
    margin = INTERVAL_Z * change.standard_error

    def natural(number: float) -> float:
        return math.exp(number) if is_positive else number

    before = float(np.mean(scaled[change.begins : change.first]))
    return SlowChange(
        index=change.first,
        at=series.at[change.first],
        before=natural(before),
        after=natural(before + change.difference),
        ratio=math.exp(change.difference) if is_positive else None,
        low=math.exp(change.difference - margin) if is_positive else None,
        high=math.exp(change.difference + margin) if is_positive else None,
        p_value=change.p_value,
        phase=_increased_phase(series, change),
        verdict=verdict,
        changed={factor.name: (factor.before, factor.after) for factor in changed},
        assigned={"+".join(effect.factors): natural(effect.difference) for effect in effects},
        runs_needed=separating_runs(change, noise) if verdict == "unidentifiable" and len(changed) > 1 else None,
    )


def _effects(
    scaled: Float64[np.ndarray, "row"],
    series: MeasuredSeries,
    changed: Sequence[ChangedFactor],
    change: LevelChange,
    noise: LevelNoise,
) -> list[FactorEffect]:
    """Return the effects that explain a change; empty if unknown."""
    if not changed:
        return []
    if len(changed) == 1:
        alone = changed[0]
        if not alone.before or not alone.after:
            return []
        return [FactorEffect((alone.name,), change.difference, change.standard_error)]
    if any(not factor.before or not factor.after for factor in changed):
        return []
    found = crossed_effects(scaled, series.factors, changed, change, noise) or []
    return [effect for effect in found if abs(effect.difference) >= SURE_EFFECT_Z * effect.standard_error]


def _increased_phase(series: MeasuredSeries, change: LevelChange) -> str | None:
    """Return the phase whose median moved furthest in the direction of the change."""
    moved = {}
    for name, seconds in series.phases.items():
        before, after = seconds[change.begins : change.first], seconds[change.first : change.ends]
        if np.isfinite(before).any() and np.isfinite(after).any():
            moved[name] = float(np.nanmedian(after) - np.nanmedian(before)) * math.copysign(1, change.difference)
    most = max(moved, key=moved.__getitem__, default=None)
    return most if most is not None and moved[most] > 0.0 else None

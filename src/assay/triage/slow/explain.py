"""Explains the changes of a series: the phase that increased and the factor that caused it."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from assay.base.errors import ConfigError
from assay.base.shapes import Float64
from assay.records.slow_changes import SlowChange, SlowChanges
from assay.triage.slow.attribute import (
    ChangedFactor,
    FactorEffect,
    changed_factors,
    crossed_effects,
    separating_runs,
)
from assay.triage.slow.detect import MIN_SEGMENT, LevelChange, LevelNoise, find_levels
from assay.triage.slow.series import MeasuredSeries

INTERVAL_Z = float(ndtri(0.975))
SURE_EFFECT_Z = float(ndtri(0.995))
"""Standard errors of a significant effect."""


def explain_changes(series: MeasuredSeries, *, least: float) -> SlowChanges:
    """Return all lasting changes of at least the share `least` of the level."""
    if not 0.0 < least < 1.0:
        raise ConfigError(f"--least {least:g}: expected a share of the level between 0 and 1, e.g. 0.005.")
    values = series.values
    is_positive = len(values) > 0 and bool((values > 0).all())
    scaled = np.log(values) if is_positive else values
    smallest = math.log1p(least) if is_positive else least * _level(values)
    levels = find_levels(scaled, least=smallest)
    changes = tuple(_change(series, scaled, is_positive, change, levels.noise) for change in levels.changes)
    return SlowChanges(
        value=series.name,
        measurements=len(values),
        noise=levels.noise.sigma,
        correlation=levels.noise.correlation,
        changes=changes,
        because=_reason(len(values), changes),
        sources=dict(series.sources),
    )


def _level(values: Float64[np.ndarray, "row"]) -> float:
    return float(np.median(np.abs(values))) if len(values) else 0.0


def _reason(number: int, changes: Sequence[SlowChange]) -> str:
    if number < 2 * MIN_SEGMENT:
        return f"{number} measurements tell nothing: a change needs {MIN_SEGMENT} on either side of it."
    if not changes:
        return "no lasting change is greater than the noise."
    return f"{len(changes)} lasting change{'s' if len(changes) > 1 else ''} of level, spikes aside."


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
        because=_why(verdict, changed),
        changed={factor.name: (factor.before, factor.after) for factor in changed},
        assigned={"+".join(effect.factors): natural(effect.difference) for effect in effects},
        next=_next(verdict, changed, effects, change, noise),
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


def _why(verdict: str, changed: Sequence[ChangedFactor]) -> str:
    names = ", ".join(factor.name for factor in changed)
    if verdict == "unexplained":
        return "no factor on record changed there."
    if verdict == "assigned":
        return f"{names} changed alone." if len(changed) == 1 else "runs that cross tell the factors apart."
    if any(not factor.before or not factor.after for factor in changed):
        return f"{names}: what it was is not on record on one side of the change."
    return f"{names} changed together, and too few runs have one without the other."


def _next(
    verdict: str,
    changed: Sequence[ChangedFactor],
    effects: Sequence[FactorEffect],
    change: LevelChange,
    noise: LevelNoise,
) -> str:
    if verdict == "unexplained":
        return "look at what is not on record: --factors names further columns."
    if verdict == "assigned":
        name = "+".join(max(effects, key=lambda effect: abs(effect.difference)).factors)
        return f"compare runs that differ in {name} alone, to confirm it before it is undone."
    if len(changed) == 1:
        return f"record {changed[0].name} in every run."
    run, number = separating_runs(changed, change, noise)
    return f"{number} runs of {run}."

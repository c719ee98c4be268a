"""Explains the level changes of a series: how large they are, which factors made them, and which phase grew."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from assay.base.errors import ConfigError
from assay.records.slow_changes import SlowChange, SlowChanges
from assay.triage.slow import detect, factors
from assay.triage.slow.detect import LevelChange, LevelNoise, Levels, Values
from assay.triage.slow.factors import Factors, SuspectFactor
from assay.triage.slow.series import MeasuredSeries

ROUNDS = 3
"""Estimates of the alternating factors' effects, and of the levels without them."""


class _History(NamedTuple):
    """Values with their level changes."""

    values: Values
    """Logarithms, if all values are positive."""
    factors: Factors
    changes: Sequence[LevelChange]
    noise: LevelNoise

    def without_alternating(self, moved: Sequence[SuspectFactor]) -> Values:
        """Return the values without the effects of factors that alternate and are not among `moved`."""
        names = self.factors.keys() - {suspect.name for suspect in moved}
        bounds = _bounds(self.changes, len(self.values))
        effects, _ = factors.alternating_effects(self.values, [self.factors[name] for name in names], bounds)
        return np.asarray(self.values - effects)


class _Measured(NamedTuple):
    """A change with the effects of the factors that moved there, and those of them that may have made it."""

    values: Values
    change: LevelChange
    suspects: list[SuspectFactor]


def explain_changes(series: MeasuredSeries, *, least: float) -> SlowChanges:
    """Return all lasting changes that may be as large as the share `least` of the level."""
    if not 0.0 < least < 1.0:
        raise ConfigError(f"--effect {least:g}: expected a share of the level between 0 and 1, e.g. 0.005.")
    values = series.values
    is_positive = len(values) > 0 and bool((values > 0).all())
    scaled = np.log(values) if is_positive else values
    level = float(np.median(np.abs(values))) if len(values) else 0.0
    cells = {name: np.array(column, dtype=str) for name, column in series.factors.items()}
    changes, noise = _levels(scaled, cells, math.log1p(least) if is_positive else least * level)
    history = _History(scaled, cells, changes, noise)
    measured = [_measured(history, change) for change in changes]
    return SlowChanges(
        value=series.name,
        measurements=len(values),
        noise=float(np.median(noise.sigmas)) if len(values) else 0.0,
        correlation=noise.correlation,
        changes=tuple(_record(series, is_positive, history, item, measured) for item in measured),
        sources=dict(series.sources),
    )


def _bounds(changes: Sequence[LevelChange], number: int) -> list[int]:
    return [0, *(change.first for change in changes), number]


def _levels(values: Values, cells: Factors, least: float) -> Levels:
    """Return the level changes, without the effects of alternating factors."""
    errors = factors.allowed_errors(cells, len(values))
    levels = detect.find_levels(values, least=least, errors=errors)
    for _ in range(ROUNDS):
        bounds = _bounds(levels[0], len(values))
        effects, fitted = factors.alternating_effects(values, [*cells.values()], bounds)
        levels = detect.find_levels(values - effects, least=least, errors=errors, num_fitted=fitted)
    return levels


def _measured(history: _History, found: LevelChange) -> _Measured:
    moved, noise = factors.moved_factors(history.factors, found), history.noise
    values, even = history.without_alternating(moved), history.without_alternating([])
    steady = values - (even - detect.clipped_spikes(even, noise))
    (change,) = detect.level_changes(steady, [found.begins, found.first, found.ends], noise)
    suspects = [s for s in moved if not factors.is_exonerated(values, history.factors[s.name], change, noise)]
    return _Measured(values, change, suspects)


def _effects(history: _History, item: _Measured, all_measured: Sequence[_Measured]) -> dict[str, float]:
    """Return the effects that explain a change; empty if unknown."""
    values, change, suspects = item
    if not suspects or not all(suspect.before and suspect.after for suspect in suspects):
        return {}
    if len(suspects) == 1:
        return {suspects[0].name: change.difference}
    names = {suspect.name for suspect in suspects}
    # Where one of them is a suspect as well, the level differs for a reason that the regression knows.
    others = [other.change.first for other in all_measured if not names & {suspect.name for suspect in other.suspects}]
    return factors.crossed_effects(values, history.factors, suspects, change, history.noise, others)


def _record(
    series: MeasuredSeries, is_positive: bool, history: _History, item: _Measured, all_measured: Sequence[_Measured]
) -> SlowChange:
    values, change, suspects = item
    effects = _effects(history, item, all_measured)
    verdict = "unexplained" if not suspects else "assigned" if effects else "unidentifiable"
    before, margin = float(np.mean(values[change.begins : change.first])), detect.SURE_Z * change.standard_error
    natural = math.exp if is_positive else float
    ratios = [change.difference + sign * margin for sign in (-1, 0, 1)]
    low, ratio, high = map(math.exp, ratios) if is_positive else (None, None, None)
    runs = factors.separating_runs(change, history.noise) if not effects and len(suspects) > 1 else None
    hours = None if runs is None or series.device_hours is None else runs * float(np.nanmedian(series.device_hours))
    return SlowChange(
        index=change.first,
        at=series.at[change.first],
        before=natural(before),
        after=natural(before + change.difference),
        ratio=ratio,
        low=low,
        high=high,
        p_value=min(2.0 * float(ndtr(-abs(change.difference) / change.standard_error)) * len(values), 1.0),
        phase=_increased_phase(series, change),
        verdict=verdict,
        changed={suspect.name: (suspect.before, suspect.after) for suspect in suspects},
        assigned={name: natural(effect) for name, effect in effects.items()},
        runs_needed=runs,
        device_hours_needed=hours,
    )


def _increased_phase(series: MeasuredSeries, change: LevelChange) -> str | None:
    """Return the phase whose median moved furthest in the direction of the change."""
    moved = {}
    for name, seconds in series.phases.items():
        before, after = seconds[change.begins : change.first], seconds[change.first : change.ends]
        if np.isfinite(before).any() and np.isfinite(after).any():
            moved[name] = float(np.nanmedian(after) - np.nanmedian(before)) * math.copysign(1, change.difference)
    most = max(moved, key=moved.__getitem__, default=None)
    return most if most is not None and moved[most] > 0.0 else None

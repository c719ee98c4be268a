"""Explains the level changes of a series: how large they are, which factors made them, and which phase grew."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from assay.base.errors import ConfigError
from assay.base.shapes import Int64
from assay.records.slow_changes import SlowChange, SlowChanges
from assay.triage.slow import detect, factors
from assay.triage.slow.detect import Groups, LevelChange, LevelNoise, Levels, Values
from assay.triage.slow.factors import Cells, Factors, SuspectFactor
from assay.triage.slow.series import MeasuredSeries

ROUNDS = 3
"""Estimates of the alternating factors' effects, and of the levels without them."""
MAX_GROUPS = 4
"""Values of a factor that may have levels of their own."""


class _History(NamedTuple):
    """Values with their levels."""

    values: Values
    """Logarithms, if all values are positive."""
    factors: Factors
    groups: Groups
    levels: Levels

    def without_alternating(self, moved: Sequence[SuspectFactor]) -> Values:
        """Return the values without the effects of factors that alternate and are not among `moved`."""
        names = self.factors.keys() - {suspect.name for suspect in moved}
        alternating = [self.factors[name] for name in names if factors.is_alternating(self.factors[name])]
        return np.asarray(self.values - _alternating_effects(self.values, alternating, self.groups, self.levels)[0])


class _Measured(NamedTuple):
    """A change with the effects of the factors that moved there, and those of them that may have made it."""

    found: LevelChange
    rows: Int64[np.ndarray, "row"]
    """The measurements that it concerns; all that follows is of these."""
    values: Values
    factors: Factors
    noise: LevelNoise
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
    history = _history(scaled, cells, math.log1p(least) if is_positive else least * level)
    measured, noise = [_measured(history, change) for change in history.levels.changes], history.levels.noise
    return SlowChanges(
        value=series.name, measurements=len(values), noise=float(np.median(noise.sigmas)) if len(values) else 0.0,
        correlation=noise.correlation,
        changes=tuple(_record(series, is_positive, item, measured) for item in measured), sources=dict(series.sources),
    )  # fmt: skip


def _history(values: Values, cells: Factors, least: float) -> _History:
    """Return the levels, without the effects of alternating factors: those of all measurements alike, or those of each
    value of a factor that alternates, whichever describes the history better."""
    alternating = [column for column in cells.values() if factors.is_alternating(column)]
    errors, everything = factors.allowed_errors(cells, len(values)), np.zeros(len(values), np.int64)
    best, of_best = _levels(values, cells, alternating, everything, errors, least), everything
    codes = [np.unique(column, return_inverse=True)[1] for column in alternating]
    tried = [code for code in codes if code.max() < MAX_GROUPS and np.bincount(code).min() >= 2 * detect.MIN_SEGMENT]
    for groups in tried:
        found = _levels(values, cells, alternating, groups, errors / len(tried), least)
        if found.changes and found.cost < best.cost:
            best, of_best = found, groups
    return _History(values, cells, of_best, best)


def _levels(
    values: Values, cells: Factors, alternating: Sequence[Cells], groups: Groups, errors: Values, least: float
) -> Levels:
    levels = detect.find_levels(values, least=least, errors=errors, groups=groups)
    for _ in range(ROUNDS if alternating else 1):
        effects, fitted = _alternating_effects(values, alternating, groups, levels)
        even = values - effects

        def is_larger(change: LevelChange, noise: LevelNoise, even: Values = even) -> bool:
            return factors.differs_by_value(even, factors.moved_factors(cells, change), change, noise, least=least)

        levels = detect.find_levels(
            even, least=least, errors=errors, num_fitted=fitted, groups=groups, is_larger=is_larger
        )
    return levels


def _alternating_effects(
    values: Values, alternating: Sequence[Cells], groups: Groups, levels: Levels
) -> tuple[Values, float]:
    """Return `alternating_effects` within the levels of each group."""
    bounds = [0, *(change.first for change in levels.changes), len(values)]
    codes = detect.segment_of(bounds) * (groups.max(initial=0) + 1) + groups
    return factors.alternating_effects(values, alternating, np.unique(codes, return_inverse=True)[1])


def _measured(history: _History, found: LevelChange) -> _Measured:
    noise, groups = history.levels.noise, history.groups
    rows = np.flatnonzero(groups == found.group) if found.group is not None else np.arange(len(groups))
    begins, first, ends = np.searchsorted(rows, found[:3]).tolist()
    cells = {name: column[rows] for name, column in history.factors.items()}
    moved = factors.moved_factors(cells, found._replace(begins=begins, first=first, ends=ends))
    values, even = history.without_alternating(moved), history.without_alternating([])
    steady = values - (even - detect.clipped_spikes(even, noise, groups))
    own = LevelNoise(noise.sigmas[rows], noise.correlation)
    (change,) = detect.level_changes(steady[rows], [begins, first, ends], own, np.zeros_like(rows))
    suspects = factors.possible_suspects(steady[rows], moved, change, own)
    return _Measured(found, rows, values[rows], cells, own, change, suspects)


def _effects(item: _Measured, all_measured: Sequence[_Measured]) -> dict[str, float]:
    """Return the effects that explain a change; empty if unknown."""
    suspects = item.suspects
    if not suspects or not all(suspect.before and suspect.after for suspect in suspects):
        return {}
    if len(suspects) == 1:
        return {suspects[0].name: item.change.difference}
    names = {suspect.name for suspect in suspects}
    # Where one of them is a suspect as well, the level differs for a reason that the regression knows.
    others = [other.found.first for other in all_measured if not names & {suspect.name for suspect in other.suspects}]
    others = np.searchsorted(item.rows, others).tolist()
    return factors.crossed_effects(item.values, item.factors, suspects, item.change, item.noise, others)


def _record(
    series: MeasuredSeries, is_positive: bool, item: _Measured, all_measured: Sequence[_Measured]
) -> SlowChange:
    values, change, suspects = item.values, item.change, item.suspects
    effects = _effects(item, all_measured)
    verdict = "unexplained" if not suspects else "assigned" if effects else "unidentifiable"
    before, margin = float(np.mean(values[change.begins : change.first])), detect.DROPPED_Z * change.standard_error
    natural = math.exp if is_positive else float
    ratios = [change.difference + sign * margin for sign in (-1, 0, 1)]
    low, ratio, high = map(math.exp, ratios) if is_positive else (None, None, None)
    runs = factors.separating_runs(change, item.noise) if not effects and len(suspects) > 1 else None
    hours = None if runs is None or series.device_hours is None else runs * float(np.nanmedian(series.device_hours))
    return SlowChange(
        index=item.found.first, at=series.at[item.found.first], before=natural(before),
        after=natural(before + change.difference), ratio=ratio, low=low, high=high,
        p_value=min(2.0 * float(ndtr(-abs(change.difference) / change.standard_error)) * len(values), 1.0),
        phase=_increased_phase(series, item), verdict=verdict,
        changed={suspect.name: (suspect.before, suspect.after) for suspect in suspects},
        assigned={name: natural(effect) for name, effect in effects.items()}, runs_needed=runs,
        device_hours_needed=hours,
    )  # fmt: skip


def _increased_phase(series: MeasuredSeries, item: _Measured) -> str | None:
    """Return the phase whose median moved furthest in the direction of the change."""
    change, moved = item.change, dict[str, float]()
    for name, column in series.phases.items():
        seconds = column[item.rows]
        before, after = seconds[change.begins : change.first], seconds[change.first : change.ends]
        if np.isfinite(before).any() and np.isfinite(after).any():
            moved[name] = float(np.nanmedian(after) - np.nanmedian(before)) * math.copysign(1, change.difference)
    most = max(moved, key=moved.__getitem__, default=None)
    return most if most is not None and moved[most] > 0.0 else None

"""Finds whether durations differ by location (stage, worker) or by work (step, micro-batch).

The logarithms of a kind's durations are split by median polish (Tukey) into a table over locations and one over work.
A region of a table is a combination of values of some columns. Causes are found one by one: the region that explains
most of its table and whose cells differ alike, so that a combination is not taken for all of a column. A region of
locations is then measured piece by piece of work, against the same piece elsewhere, so that uneven work is no location,
and against other pieces only if no other location has them. Likewise for regions of work.

Work may also differ piece by piece at some locations (each worker has its own sequences). Then durations of a piece
agree over the other location columns or over kinds: a component of variance, which is work as well.

Durations must be a rank's own work, because in a collective all ranks wait for the slowest.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import fdtrc, stdtrit

from assay.base.config import first_repeated
from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Bool, Float64, Int64
from assay.records.skew import Skew, SkewEffect
from assay.statistics.robust import group_medians, robust_sigma, sigma_of
from assay.triage.attempts.columns import Columns

ROUNDS = 10
MIN_RATIO = math.log(1.05)
"""Smaller effects are ignored."""
ALIKE = 0.75
"""Minimal share of a region's cells that differ alike."""
MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
"""Standard error of a median relative to a mean's, in normal noise."""
MAD_EFFICIENCY = 0.37
"""Share of the degrees of freedom that a median absolute deviation keeps."""
SURE = 0.001
MIN_UNITS = 3
"""Two measurements tell nothing of their noise."""
MAX_EFFECTS, MAX_REJECTED = 10, 5
"""For one kind and side: causes, and regions that are none although they explain more than others."""
CLIP_SIGMAS = 4.0

Logs = Float64[np.ndarray, "row"]
Codes = Int64[np.ndarray, "row"]
CellCodes = Int64[np.ndarray, "cell"]
Side = Literal["location", "work"]


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
        seconds[valid], {name: columns.column(name, "--location") for name in location},
        {name: columns.column(name, "--work") for name in work},
        columns.column(kind, "--kind") if kind else [""] * len(valid), columns.sources,
    )  # fmt: skip


class _Regions(NamedTuple):
    """The combinations of some columns' values."""

    names: tuple[str, ...]
    values: list[list[str]]
    codes: CellCodes
    """Index of each cell's region."""
    is_open: Bool[np.ndarray, "region"]
    """Whether a region is none of fewer columns, nor the whole table, nor known."""


class _Effect(NamedTuple):
    """A region that differs from the others."""

    side: Side
    factors: dict[str, str]
    is_inside: Bool[np.ndarray, "row"]
    effect: float
    margin: float

    def record(self, kind: str) -> SkewEffect:
        low, ratio, high = (math.exp(self.effect + sign * self.margin) for sign in (-1, 0, 1))
        return SkewEffect(
            side=self.side, operation=kind, factors=self.factors, ratio=ratio, low=low, high=high,
            measurements=int(self.is_inside.sum()),
        )  # fmt: skip


def split_skew(durations: Durations) -> Skew:
    """Attribute the differences to location and work."""
    for row in np.flatnonzero(~(durations.seconds > 0))[:1]:
        raise DataError(f"--value, row {row + 1}: a duration is above 0, and this is {durations.seconds[row]:g}.")
    logs, kinds = np.log(durations.seconds), np.array(durations.kinds, dtype=str)
    residuals, found = np.zeros(len(logs)), list[SkewEffect]()
    by_side: dict[Side, Logs] = {"location": np.zeros(len(logs)), "work": np.zeros(len(logs))}
    for kind in dict.fromkeys(durations.kinds):
        rows = np.flatnonzero(kinds == kind)
        effects, residuals[rows] = _split(logs[rows], durations, rows)
        for item in effects:
            by_side[item.side][rows] += item.effect * item.is_inside
        found += [item.record(kind) for item in effects]
    component, uneven = _uneven_pieces(durations, residuals)
    found = sorted([*found, *uneven], key=lambda effect: -abs(math.log(effect.ratio)))
    sides = {effect.side for effect in found}
    return Skew(
        verdict="both" if len(sides) == 2 else next(iter(sides), "even"), location_sd=float(by_side["location"].std()),
        work_sd=math.hypot(float(by_side["work"].std()), component),
        noise=math.sqrt(max(robust_sigma(residuals) ** 2 - component**2, 0.0)), effects=tuple(found),
        measurements=len(logs), sources=dict(durations.sources),
    )  # fmt: skip


def _split(logs: Logs, durations: Durations, rows: Int64[np.ndarray, "kept"]) -> tuple[list[_Effect], Logs]:
    """Return the effects within one kind, and the residuals."""
    tables = {side: _table(getattr(durations, side), rows) for side in ("location", "work")}
    residuals = logs - np.median(logs)
    effects = {side: np.zeros(int(codes.max()) + 1) for side, (codes, _) in tables.items()}
    for _ in range(ROUNDS):
        for side, (codes, _) in tables.items():
            medians = group_medians(residuals, codes, len(effects[side]))
            medians -= np.median(medians)
            effects[side] += medians
            residuals = residuals - medians[codes]
    freedom = max(len(rows) - sum(map(len, effects.values())) + 1, 1)
    noise = (sigma_of(residuals) * math.sqrt(len(rows) / freedom), freedom)
    found, rest = list[_Effect](), logs
    sides: tuple[tuple[Side, Side], ...] = (("location", "work"), ("work", "location"))
    for side, other in sides:
        for item in _causes(side, rest, *tables[side], effects[side], tables[other][0], noise):
            found.append(item)
            rest = rest - item.effect * item.is_inside
    return found, residuals


def _table(columns: Mapping[str, Sequence[str]], rows: Int64[np.ndarray, "kept"]) -> tuple[Codes, list[_Regions]]:
    """Return the cell of each row, which is a combination of all columns' values, and the regions of these cells."""
    cells = np.stack([np.array(column, dtype=str)[rows] for column in columns.values()], axis=1)
    cells, codes = np.unique(cells, axis=0, return_inverse=True)
    found = list[_Regions]()
    for names in _subsets(columns):
        chosen = [list(columns).index(name) for name in names]
        values, first, region, sizes = np.unique(
            cells[:, chosen], axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        is_open = sizes < len(cells)
        for other in found:
            if set(other.names) < set(names):  # each region lies in one of the other's, that of its first cell
                is_open &= sizes < np.bincount(other.codes)[other.codes[first]]
        found.append(_Regions(names, values.tolist(), region.reshape(-1), is_open))
    return codes.reshape(-1), found


def _subsets(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return all combinations of names, the shortest first."""
    present = tuple(names)
    return [chosen for size in range(len(present)) for chosen in itertools.combinations(present, size + 1)]


def _causes(
    side: Side,
    logs: Logs,
    cells: Codes,
    table: Sequence[_Regions],
    effects: Float64[np.ndarray, "cell"],
    units: Codes,
    noise: tuple[float, int],
) -> list[_Effect]:
    """Return the regions of one side that differ, the one that explains most first."""
    number, found, num_rejected = sum(len(regions.values) for regions in table), list[_Effect](), 0
    while len(found) < MAX_EFFECTS and num_rejected < MAX_REJECTED:
        scores = [_explained(effects, regions) for regions in table]
        best = int(np.argmax([score.max() for score in scores]))
        regions, index = table[best], int(scores[best].argmax())
        if scores[best][index] == 0.0:
            break
        regions.is_open[index] = False
        is_cell = regions.codes == index
        is_inside = is_cell[cells]
        effect, error, freedom = _difference(logs, is_inside, units, *noise)
        margin = _quantile(number, freedom) * error
        if abs(effect) <= max(margin, MIN_RATIO):
            num_rejected += 1
            continue
        factors = dict(zip(regions.names, regions.values[index], strict=True))
        found.append(_Effect(side, factors, is_inside, effect, margin))
        logs, effects = logs - effect * is_inside, effects - effect * is_cell
    return found


def _explained(effects: Float64[np.ndarray, "cell"], regions: _Regions) -> Float64[np.ndarray, "region"]:
    """Return the sum of squares that each region explains, 0 if not most of its cells differ alike. Of two regions that
    are each other's rest, the slower one explains a little more."""
    codes, number = regions.codes, len(regions.values)
    sizes, base = np.bincount(codes, minlength=number), np.full(number, np.median(effects))
    for index in np.flatnonzero((4 * sizes > len(effects)) & (sizes < len(effects))):
        base[index] = np.median(effects[codes != index])
    difference = group_medians(effects, codes, number) - base
    is_alike = (effects - base[codes]) * np.sign(difference)[codes] > np.abs(difference)[codes] / 2.0
    explained = sizes * (1.0 - sizes / len(effects)) * difference**2 * (1.0 + 1e-6 * (difference > 0.0))
    return np.asarray(explained * regions.is_open * (np.bincount(codes, is_alike) >= ALIKE * sizes))


def _quantile(number: int, freedom: float) -> float:
    """Return the standard errors of a significant effect among `number` (Student)."""
    return -float(stdtrit(freedom, SURE / (2.0 * number)))


def _difference(
    logs: Logs, is_inside: Bool[np.ndarray, "row"], units: Codes, noise: float, freedom: float
) -> tuple[float, float, float]:
    """Return the median difference of a region to the same units elsewhere, or to other units if most of these are
    nowhere else; its standard error, which is infinite with too few units, and the error's degrees of freedom."""
    medians = []
    for mask in (is_inside, ~is_inside):
        present, codes = np.unique(units[mask], return_inverse=True)
        medians.append(dict(zip(present.tolist(), group_medians(logs[mask], codes, len(present)), strict=True)))
    inside, outside = medians
    paired = [inside[unit] - outside[unit] for unit in inside.keys() & outside.keys()]
    samples = [paired] if 2 * len(paired) >= len(inside) else [[*inside.values()], [*outside.values()]]
    if min(map(len, samples)) < MIN_UNITS:
        return 0.0, math.inf, 1.0
    # A few units may agree by chance: the noise of all of the kind counts, too.
    errors = [MEDIAN_ERROR * max(robust_sigma(np.array(s)), noise) / math.sqrt(len(s)) for s in samples]
    effect = float(np.median(samples[0]) - sum(map(np.median, samples[1:])))
    return effect, math.hypot(*errors), MAD_EFFICIENCY * max(freedom, min(map(len, samples)) - 1)


def _uneven_pieces(durations: Durations, residuals: Logs) -> tuple[float, list[SkewEffect]]:
    """Return the standard deviation of the pieces of work that only some location columns' values have, beyond that
    within a piece (one-way analysis of variance), and the most uneven ones; none if it is not significant."""
    sigma, best, found = robust_sigma(residuals), 0.0, list[SkewEffect]()
    clipped = np.clip(residuals, -CLIP_SIGMAS * sigma, CLIP_SIGMAS * sigma)
    for names in _subsets(durations.location):
        columns = {**{name: durations.location[name] for name in names}, **durations.work}
        cells = np.stack([np.array(column, dtype=str) for column in columns.values()], axis=1)
        values, codes, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
        codes, freedom = codes.reshape(-1), len(clipped) - len(values)
        if freedom < MIN_UNITS or len(values) < 2:
            continue
        means = np.bincount(codes, clipped) / counts
        within = float(np.sum((clipped - means[codes]) ** 2)) / freedom
        between = float(counts @ (means - clipped.mean()) ** 2) / (len(values) - 1)
        size = (len(clipped) - float(counts @ counts) / len(clipped)) / (len(values) - 1)
        component = math.sqrt(max(between - within, 0.0) / size)
        is_sure = fdtrc(len(values) - 1, freedom, between / max(within, 1e-300)) < SURE
        if is_sure and component > max(MIN_RATIO, best / ALIKE):
            margins, best, found = _quantile(len(values), freedom) * np.sqrt(within / counts), component, []
            for cell in np.argsort(-np.abs(means), kind="stable")[:MAX_EFFECTS].tolist():
                if abs(means[cell]) > max(margins[cell], MIN_RATIO):
                    factors = dict(zip(columns, values[cell].tolist(), strict=True))
                    piece = _Effect("work", factors, codes == cell, float(means[cell]), float(margins[cell]))
                    found.append(piece.record(""))
    return best, found

"""Plots of a training run: metrics over steps, and device time by phase."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from assay.base.units import count_text, duration_text
from assay.records.phase import Phase
from assay.reporting.charts.svg import (
    Axis,
    PlotArea,
    Scale,
    domain,
    log_domain,
    plot_area,
    spans,
    svg_root,
    tag,
    text,
    title,
)
from assay.reporting.views.runs.run import RunView
from assay.reporting.views.runs.series import Series

MAX_BARS = 13
"""With more attempts than this, only the whole run is drawn."""

SPARSE = 12
"""A line of this many points or fewer has a dot at each."""
MAX_BUCKETS = 120
"""Points of a line; more do not fit its pixels."""

PHASES: tuple[Phase, ...] = (
    "compute",
    "generation",
    "reward",
    "communication",
    "synchronisation",
    "data",
    "checkpoint",
    "evaluation",
    "startup",
    "meeting",
    "lost",
    "late",
    "stalled",
    "idle",
)
"""In drawing order: useful work first, waste last."""


PhaseTotal = tuple[str, Mapping[Phase, float]]
"""Label, and device seconds by phase."""


class Bucketed(NamedTuple):
    """A series reduced to mean, minimum and maximum over equal ranges of steps."""

    steps: list[float]
    means: list[float]
    lows: list[float]
    highs: list[float]


def number_text(value: float) -> str:
    """Format a tick: `12.0 k`, `1,500`, `0.25`."""
    if value and abs(value) < 1:
        return f"{value:.3g}"
    if abs(value) >= 10_000:
        return count_text(value).replace(".0 ", " ")
    return f"{value:,.6g}"


def percent_number(share: float) -> str:
    """Format a share: `0.25` -> `25%`."""
    return f"{100 * share:.3g}%"


def bucketed(
    steps: Sequence[float],
    values: Sequence[float],
    lows: Sequence[float] = (),
    highs: Sequence[float] = (),
    *,
    buckets: int = MAX_BUCKETS,
) -> Bucketed:
    """Reduce a series to `buckets` points, ignoring values that are not finite. `lows` and `highs` keep the
    extremes; if given, they are those of the points that each value stands for."""
    x, y = np.asarray(steps, float), np.asarray(values, float)
    low, high = np.asarray(lows or values, float), np.asarray(highs or values, float)
    x, y, low, high = (numbers[np.isfinite(y)] for numbers in (x, y, low, high))
    if not x.size:
        return Bucketed([], [], [], [])
    width = max((x.max() - x.min()) / buckets, 1e-12)
    index = np.minimum(((x - x.min()) / width).astype(int), buckets - 1)
    order = np.argsort(index, kind="stable")
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))
    counts = np.diff(np.append(starts, x.size))
    return Bucketed(
        (np.add.reduceat(x[order], starts) / counts).tolist(),
        (np.add.reduceat(y[order], starts) / counts).tolist(),
        np.minimum.reduceat(low[order], starts).tolist(),
        np.maximum.reduceat(high[order], starts).tolist(),
    )


@dataclass(frozen=True)
class LineChart:
    """Metrics over steps: mean lines in bands from minimum to maximum, or over the intervals of the values; rolled-back
    points as dots."""

    series: Sequence[Series]
    label: str
    """For screen readers."""
    y_label: str
    zero_based: bool = False
    dots: bool = False
    limits: tuple[float, float] = (-math.inf, math.inf)
    """The axis does not go beyond these values, such as 0 and 1 for shares."""
    log_ratio: float = 100.0
    """Curves that span this factor are drawn on a log axis."""
    has_baseline: bool = False
    """The first line is a baseline that the others may cover: it is drawn broad and pale."""
    number: str = ".4f"
    """Format of the values at both ends of the curve on a terminal."""
    has_probes: bool = True
    """Shows the values at a step on hover."""
    ends: int = 1
    """Points behind each of these two values; one if the curve has fewer than twice as many."""
    x_label: str = "step"

    def svg(self, width: int) -> str:
        """Return the plot."""
        series = self.series
        drawn = [(*item.committed_points(), *item.committed_ranges()) for item in series]
        thinned = [bucketed(*entry, buckets=MAX_BUCKETS if width > 400 else 60) for entry in drawn]
        steps = [step for item in series for step in item.steps]
        first, last = min(steps, default=0.0), max(steps, default=1.0)
        x_axis = Axis(self.x_label, (first, max(last, first + 1)), number_text)
        area = plot_area(width, 280 if width > 400 else 250, x_axis, self._y_axis(thinned))
        # Bands below lines, whichever series they belong to.
        bands = [
            area.band(line.steps, _inside(line.lows, area), _inside(line.highs, area), f"band s{index}")
            for index, line in enumerate(thinned, 1)
        ]
        lost = [_lost_points(item, area) for item in series]
        lines = [
            _line(line, area, self.colour(index), dots=self.dots or len(line.steps) <= SPARSE)
            for index, line in enumerate(thinned)
        ]
        probes = _probes(thinned, [item.name for item in series], area) if width > 400 and self.has_probes else ""
        return area.svg_root(*bands, *lost, *lines, probes, label=self.label)

    def colour(self, index: int) -> str:
        """Return the class of a line."""
        return f"s{index + 1}{under(index, len(self.series)) if self.has_baseline else ''}"

    def end_texts(self, series: Series) -> tuple[str, str, int] | None:
        """Return the mean of the first and of the last points, and how many these are; None for fewer than two."""
        values = [value for value in series.committed_points()[1] if math.isfinite(value)]
        size = self.ends if len(values) >= 2 * self.ends else 1
        if len(values) < 2:
            return None
        first, last = (format(sum(part) / size, self.number) for part in (values[:size], values[-size:]))
        return first, last, size

    def _y_axis(self, thinned: Sequence[Bucketed]) -> Axis:
        extremes = [value for bucket in thinned for value in (*bucket.lows, *bucket.highs)]
        if spans(extremes, self.log_ratio) and not self.zero_based and self.limits[1] == math.inf:
            return Axis(f"{self.y_label}, logarithmic", log_domain(extremes), number_text, is_log=True)
        low, high = domain(_without_outliers(extremes), floor=0.0 if self.zero_based else None)
        return Axis(self.y_label, (max(low, self.limits[0]), min(high, self.limits[1])), number_text)


@dataclass(frozen=True)
class StackedBars:
    """Device time by phase: a bar for the whole run and for each attempt."""

    bars: Sequence[PhaseTotal]
    label: str
    """For screen readers."""

    def svg(self, width: int) -> str:
        """Return the bars."""
        bars = self.bars if len(self.bars) <= MAX_BARS else self.bars[:1]
        longest = max((sum(seconds.values()) for _, seconds in bars), default=0.0) or 1.0
        left = 78.0
        scale = Scale(0.0, longest, left, width - 74)
        drawn = [_phase_bar(name, seconds, scale, y=8 + 34 * index) for index, (name, seconds) in enumerate(bars)]
        return svg_root(*drawn, width=width, height=8 + 34 * len(bars), label=self.label)


def under(index: int, count: int) -> str:
    """Return the class of the first of several lines: broad and pale, so that an equal line does not hide
    it."""
    return " under" if index == 0 and count > 1 else ""


def phase_totals(run: RunView) -> list[PhaseTotal]:
    """Return the device seconds by phase of the whole run, then of each attempt if there are several."""
    parts = [(f"attempt {attempt.attempt}", attempt.device_seconds) for attempt in run.attempts]
    held = [(name, seconds) for name, seconds in parts if any(seconds.values())]
    return [("whole run", run.device_seconds), *(held if len(held) > 1 else [])]


def _without_outliers(values: list[float]) -> list[float]:
    """Return the values without extreme spikes, which would flatten the curve."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 20:
        return finite
    low, high = (float(edge) for edge in np.quantile(finite, [0.02, 0.98]))
    margin = 0.75 * (high - low) + 1e-12
    return [value for value in finite if low - margin <= value <= high + margin] or finite


def _inside(values: Sequence[float], area: PlotArea) -> list[float]:
    """Clip values to the plot's range."""
    return [min(max(value, area.y.low), area.y.high) for value in values]


def _line(thinned: Bucketed, area: PlotArea, colour: str, *, dots: bool) -> str:
    means = _inside(thinned.means, area)
    line = area.line(thinned.steps, means, f"line {colour}")
    if not dots and len(means) > 1:
        return line
    points = zip(thinned.steps, means, thinned.means, strict=True)
    return line + "".join(
        area.dot(step, drawn, colour, r=4, tooltip=f"step {step:,.0f}: {value:.4f}") for step, drawn, value in points
    )


def _probes(thinned: Sequence[Bucketed], names: Sequence[str], area: PlotArea) -> str:
    """Return invisible columns that show their values on hover, so that no script is needed."""
    longest = max(thinned, key=lambda line: len(line.steps))
    if not longest.steps:
        return ""
    at = area.x.many(longest.steps)
    edges = [at[0], *((left + right) / 2 for left, right in pairwise(at)), at[-1]]
    top, bottom = area.y.end, area.y.start
    probes = []
    for step, x, (left, right) in zip(longest.steps, at, pairwise(edges), strict=True):
        values = [
            f"{name} {float(np.interp(step, line.steps, line.means)):,.4g}"
            for name, line in zip(names, thinned, strict=True)
            if line.steps
        ]
        parts = (
            tag("rect", x=left, y=top, width=max(right - left, 1.0), height=bottom - top),
            tag("line", x1=x, x2=x, y1=top, y2=bottom),
            text(", ".join([f"step {step:,.0f}", *values]), area.x.end, top - 10, text_anchor="end"),
        )
        probes.append(tag("g", *parts, class_="probe"))
    return "".join(probes)


def _lost_points(series: Series, area: PlotArea) -> str:
    points = zip(series.steps, series.values, series.is_lost or (), strict=False)
    lost = [(step, value) for step, value, is_lost in points if is_lost and math.isfinite(value)]
    chosen = lost[:: max(1, len(lost) // 80)]
    ys = area.y.many(_inside([value for _, value in chosen], area))
    return "".join(
        tag("circle", cx=area.x(step), cy=y, r=1.8, class_="lost-point")
        for (step, _), y in zip(chosen, ys, strict=True)
    )


def _phase_bar(name: str, seconds: Mapping[Phase, float], scale: Scale, *, y: float) -> str:
    parts = [text(name, 0, y + 16, class_="tick")]
    done, total = 0.0, sum(seconds.values())
    for phase in PHASES:
        length = seconds.get(phase, 0.0)
        if not length:
            continue
        x = scale(done)
        share = f"{phase}: {duration_text(length)}, {100 * length / total:.1f}%"
        # A hair of space between neighbours tells them apart without relying on colour.
        drawn = max(scale(done + length) - x - 1.0, 0.6)
        parts.append(tag("rect", title(share), x=x, y=y, width=drawn, height=22, class_=f"phase {phase}"))
        done += length
    parts.append(text(duration_text(total), scale(done) + 6, y + 16, class_="tick"))
    return "".join(parts)

"""The plots of a training run: a metric over steps, and where the device time went."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from assay.base.units import count_text, duration_text
from assay.records.phase import Phase
from assay.reporting.figures.svg import Plane, Scale, band, domain, drawing, path, plane, tag, text, title
from assay.reporting.views.curves import Series
from assay.reporting.views.run import RunView

MAX_BARS = 13
"""More attempts than this are left to the table; the whole run is drawn."""

MAX_BUCKETS = 120
"""Points of a drawn line; more do not fit into its pixels."""

PHASES: tuple[Phase, ...] = (
    "compute",
    "communication",
    "data",
    "checkpoint",
    "evaluation",
    "startup",
    "lost",
    "stalled",
    "idle",
)
"""In the order in which they are drawn: useful work first, waste last."""


PhaseTotal = tuple[str, Mapping[Phase, float]]
"""Whose, and its device seconds by phase."""


class Bucketed(NamedTuple):
    """A series thinned to its mean, minimum and maximum in equal ranges of steps."""

    steps: list[float]
    means: list[float]
    lows: list[float]
    highs: list[float]


def number_text(value: float) -> str:
    """A tick's number: `12.0 k`, `1,500`, `0.25`."""
    if value and abs(value) < 1:
        return f"{value:.3g}"
    if abs(value) >= 10_000:
        return count_text(value).replace(".0 ", " ")
    return f"{value:,.6g}"


def bucketed(steps: Sequence[float], values: Sequence[float], *, buckets: int = MAX_BUCKETS) -> Bucketed:
    """Thin a series; the extremes of a range survive as its lows and highs. Not-finite values are left out."""
    x, y = np.asarray(steps, float), np.asarray(values, float)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
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
        np.minimum.reduceat(y[order], starts).tolist(),
        np.maximum.reduceat(y[order], starts).tolist(),
    )


def series_chart(
    series: Sequence[Series],
    *,
    width: int,
    y_label: str,
    label: str,
    zero_based: bool = False,
    dots: bool = False,
) -> str:
    """Metrics over steps, one line each: the mean, in a band from minimum to maximum; lost points as dots."""
    height = 280 if width > 400 else 250
    drawn = [each.kept() for each in series]
    thinned = [bucketed(*each, buckets=MAX_BUCKETS if width > 400 else 60) for each in drawn]
    extremes = [value for each in thinned for value in (*each.lows, *each.highs)]
    steps = [step for each in series for step in each.steps]
    area = plane(
        width=width,
        height=height,
        x_range=(min(steps, default=0.0), max(max(steps, default=1.0), min(steps, default=0.0) + 1)),
        y_range=domain(_without_outliers(extremes), floor=0.0 if zero_based else None),
        y_format=number_text,
    )
    # Bands below lines, whichever series they belong to.
    bands = [_band(each, area, index) for index, each in enumerate(thinned)]
    lines = [
        _line(each, area, f"s{index + 1}{' under' if index == 0 and len(series) > 1 else ''}", dots=dots)
        for index, each in enumerate(thinned)
    ]
    lost = [_lost_points(each, area) for each in series]
    frame = area.axes(x_label="step", y_label=y_label, x_format=number_text, y_format=number_text)
    probes = _probes(thinned, [each.name for each in series], area) if width > 400 else ""
    return drawing(frame, *bands, *lost, *lines, probes, width=width, height=height, label=label)


def phase_bars(totals: Sequence[PhaseTotal], *, width: int, label: str) -> str:
    """One bar per attempt, as long as its device time, cut by phase; the whole run as the first bar."""
    if len(totals) > MAX_BARS:
        totals = totals[:1]
    longest = max((sum(seconds.values()) for _, seconds in totals), default=0.0) or 1.0
    left = 78.0
    scale = Scale(0.0, longest, left, width - 74)
    bars = [_phase_bar(name, seconds, scale, y=8 + 34 * index) for index, (name, seconds) in enumerate(totals)]
    return drawing(*bars, width=width, height=8 + 34 * len(totals), label=label)


def phase_totals(run: RunView) -> list[PhaseTotal]:
    """Device seconds by phase: of the whole run, then of each attempt where there are several.

    `beside` is what was spent outside of attempts, on evaluating commits.
    """
    parts = [("beside", run.device_seconds_beside)]
    parts += [(f"attempt {each.attempt}", each.device_seconds) for each in run.attempts]
    held = [(name, seconds) for name, seconds in parts if any(seconds.values())]
    return [("whole run", run.device_seconds), *(held if len(held) > 1 else [])]


def _without_outliers(values: list[float]) -> list[float]:
    """The values without spikes far above the rest: one slow or wild step must not flatten the curve."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 20:
        return finite
    low, high = (float(edge) for edge in np.quantile(finite, [0.02, 0.98]))
    reach = 0.75 * (high - low) + 1e-12
    return [value for value in finite if low - reach <= value <= high + reach] or finite


def _band(thinned: Bucketed, area: Plane, index: int) -> str:
    top, bottom = area.y.end, area.y.start
    lows = [min(max(area.y(value), top), bottom) for value in thinned.lows]
    highs = [min(max(area.y(value), top), bottom) for value in thinned.highs]
    return band(area.x.many(thinned.steps), lows, highs, class_=f"band s{index + 1}")


def _line(thinned: Bucketed, area: Plane, colour: str, *, dots: bool) -> str:
    xs = area.x.many(thinned.steps)
    ys = [min(max(area.y(value), area.y.end), area.y.start) for value in thinned.means]
    line = path(xs, ys, class_=f"line {colour}")
    if not dots and len(xs) > 1:
        return line
    marks = [
        tag(
            "circle",
            title(f"step {step:,.0f}: {value:.4f}"),
            cx=x,
            cy=y,
            r=4,
            class_=f"dot {colour}",
        )
        for x, y, step, value in zip(xs, ys, thinned.steps, thinned.means, strict=True)
    ]
    return line + "".join(marks)


def _probes(thinned: Sequence[Bucketed], names: Sequence[str], area: Plane) -> str:
    """Invisible columns that, under the pointer, show a rule and the values: a readout without a script."""
    longest = max(thinned, key=lambda each: len(each.steps))
    if not longest.steps:
        return ""
    at = area.x.many(longest.steps)
    edges = [at[0], *((left + right) / 2 for left, right in pairwise(at)), at[-1]]
    return "".join(
        _probe(step, area.x(step), edges[index], edges[index + 1], thinned, names, area)
        for index, step in enumerate(longest.steps)
    )


def _probe(
    step: float,
    x: float,
    left: float,
    right: float,
    thinned: Sequence[Bucketed],
    names: Sequence[str],
    area: Plane,
) -> str:
    values = [
        f"{name} {float(np.interp(step, each.steps, each.means)):,.4g}"
        for name, each in zip(names, thinned, strict=True)
        if each.steps
    ]
    top, bottom = area.y.end, area.y.start
    return tag(
        "g",
        tag("rect", x=left, y=top, width=max(right - left, 1.0), height=bottom - top),
        tag("line", x1=x, x2=x, y1=top, y2=bottom),
        text(", ".join([f"step {step:,.0f}", *values]), area.x.end, top - 10, text_anchor="end"),
        class_="probe",
    )


def _lost_points(series: Series, area: Plane) -> str:
    lost = [
        (step, value)
        for step, value, is_lost in zip(series.steps, series.values, series.is_lost or (), strict=False)
        if is_lost and math.isfinite(value)
    ]
    chosen = lost[:: max(1, len(lost) // 80)]
    return "".join(
        tag(
            "circle",
            cx=area.x(step),
            cy=min(max(area.y(value), area.y.end), area.y.start),
            r=1.8,
            class_="lost-point",
        )
        for step, value in chosen
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

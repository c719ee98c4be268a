"""The plots of a training run: its life over time, a metric over steps, and where the device time went."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from assay.base.units import count_text, duration_text
from assay.records.commit import Commit
from assay.records.run import Attempt, PhaseSeconds
from assay.reporting.pages import Series
from assay.reporting.svg import Plane, Scale, band, domain, drawing, path, plane, tag, text

MAX_BUCKETS = 120
"""Points of a drawn line; more do not fit into its pixels."""

PHASES = (
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
    height = 300 if width > 500 else 250
    drawn = [_kept(each) for each in series]
    thinned = [bucketed(*each, buckets=MAX_BUCKETS if width > 500 else 60) for each in drawn]
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
    lines = [_line(each, area, index, dots=dots) for index, each in enumerate(thinned)]
    lost = [_lost_points(each, area) for each in series]
    frame = area.axes(x_label="step", y_label=y_label, x_format=number_text, y_format=number_text)
    return drawing(frame, *bands, *lost, *lines, width=width, height=height, label=label)


def life_chart(
    attempts: Sequence[Attempt],
    commits: Sequence[Commit],
    reached_steps: dict[int, int],
    *,
    width: int,
    label: str,
) -> str:
    """Steps over time: a line per attempt through its commits; where work was lost, the fall back is drawn."""
    height = 320 if width > 500 else 280
    began_s = attempts[0].started_s
    ended_s = max(
        [each.ended_s or each.started_s for each in attempts] + [each.committed_s for each in commits]
    )
    unit_s, unit = _time_unit(ended_s - began_s)
    top = max([*reached_steps.values(), *(each.step for each in commits), 1])
    area = plane(
        width=width,
        height=height,
        x_range=(0.0, max((ended_s - began_s) / unit_s, 1e-3)),
        y_range=(0.0, top * 1.12),
        y_format=number_text,
    )
    lives = [
        _one_life(
            each, [one for one in commits if one.attempt == each.attempt], reached_steps, area, began_s, unit_s
        )
        for each in attempts
    ]
    frame = area.axes(
        x_label=f"{unit} since the run began", y_label="step", x_format=number_text, y_format=number_text
    )
    return drawing(frame, *lives, width=width, height=height, label=label)


def phase_bars(phases: Sequence[PhaseSeconds], *, width: int, label: str) -> str:
    """One bar per attempt, as long as its device time, cut by phase; the whole run as the first bar."""
    totals = phase_totals(phases)
    longest = max((sum(seconds.values()) for _, seconds in totals), default=0.0) or 1.0
    left = 78.0
    scale = Scale(0.0, longest, left, width - 74)
    bars = [_phase_bar(name, seconds, scale, y=8 + 34 * index) for index, (name, seconds) in enumerate(totals)]
    return drawing(*bars, width=width, height=8 + 34 * len(totals), label=label)


def phase_totals(phases: Sequence[PhaseSeconds]) -> list[tuple[str, dict[str, float]]]:
    """Device seconds by phase: of the whole run, then of each attempt where there are several."""

    def summed(parts: Sequence[PhaseSeconds]) -> dict[str, float]:
        return {name: sum(part.seconds.get(name, 0.0) for part in parts) for name in PHASES}  # type: ignore[call-overload]

    ordered = sorted(phases, key=lambda each: (each.attempt, each.rank))
    by_attempt = [
        (f"attempt {attempt}", summed(list(group)))
        for attempt, group in groupby(ordered, key=lambda each: each.attempt)
    ]
    return [("whole run", summed(ordered)), *(by_attempt if len(by_attempt) > 1 else [])]


def _kept(series: Series) -> tuple[list[float], list[float]]:
    is_lost = series.is_lost or [False] * len(series.steps)
    kept = [
        (step, value)
        for step, value, lost in zip(series.steps, series.values, is_lost, strict=True)
        if not lost
    ]
    return [step for step, _ in kept], [value for _, value in kept]


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


def _line(thinned: Bucketed, area: Plane, index: int, *, dots: bool) -> str:
    xs = area.x.many(thinned.steps)
    ys = [min(max(area.y(value), area.y.end), area.y.start) for value in thinned.means]
    line = path(xs, ys, class_=f"line s{index + 1}")
    if not dots and len(xs) > 1:
        return line
    marks = [
        tag(
            "circle",
            tag("title", f"step {step:,.0f}: {value:.4f}"),
            cx=x,
            cy=y,
            r=4,
            class_=f"dot s{index + 1}",
        )
        for x, y, step, value in zip(xs, ys, thinned.steps, thinned.means, strict=True)
    ]
    return line + "".join(marks)


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


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def _one_life(
    attempt: Attempt,
    commits: Sequence[Commit],
    reached_steps: dict[int, int],
    area: Plane,
    began_s: float,
    unit_s: float,
) -> str:
    def at(seconds: float) -> float:
        return area.x((seconds - began_s) / unit_s)

    points = [(at(attempt.started_s), area.y(attempt.start_step))]
    points += [(at(commit.committed_s), area.y(commit.step)) for commit in commits]
    last_commit_step = commits[-1].step if commits else attempt.start_step
    reached = max(reached_steps.get(attempt.attempt, last_commit_step), last_commit_step)
    parts = [path(*zip(*points, strict=True), class_="line s1")]
    if attempt.ended_s is not None:
        end = (at(attempt.ended_s), area.y(reached))
        class_ = "line lost" if reached > last_commit_step else "line s1 faint"
        parts.append(path(*zip(points[-1], end, strict=True), class_=class_))
        if reached > last_commit_step:
            parts.append(_fall(end, points[-1][1], reached - last_commit_step))
        parts.append(_ending(attempt, *end))
    marks = [
        tag("circle", tag("title", f"commit of step {commit.step}"), cx=x, cy=y, r=3.2, class_="dot s1")
        for (x, y), commit in zip(points[1:], commits, strict=True)
    ]
    start = at(attempt.started_s)
    ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
    name = text(ranks, start + 5, area.y.end - 2, class_="tick")
    rule = tag("line", x1=start, x2=start, y1=area.y.end - 10, y2=area.y.start, class_="began")
    return "".join([rule, name, *parts, *marks])


def _fall(end: tuple[float, float], to_y: float, num_steps: int) -> str:
    x, y = end
    title = tag("title", f"{num_steps} steps after the last commit were lost and made again")
    return tag("line", title, x1=x, x2=x, y1=y, y2=to_y, class_="fall")


def _ending(attempt: Attempt, x: float, y: float) -> str:
    title = tag("title", f"attempt {attempt.attempt} {attempt.outcome}: {attempt.reason or 'done'}")
    if attempt.outcome == "succeeded":
        return tag("circle", title, cx=x, cy=y, r=5.5, class_="end good")
    if attempt.outcome in ("running", "preempted"):
        return tag("rect", title, x=x - 4.5, y=y - 4.5, width=9, height=9, class_="end calm")
    cross = f"M{x - 5:.1f} {y - 5:.1f}L{x + 5:.1f} {y + 5:.1f}M{x - 5:.1f} {y + 5:.1f}L{x + 5:.1f} {y - 5:.1f}"
    return tag("path", title, d=cross, class_="end bad")


def _phase_bar(name: str, seconds: dict[str, float], scale: Scale, *, y: float) -> str:
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
        title = tag("title", share)
        parts.append(tag("rect", title, x=x, y=y, width=drawn, height=22, class_=f"phase {phase}"))
        done += length
    parts.append(text(duration_text(total), scale(done) + 6, y + 16, class_="tick"))
    return "".join(parts)

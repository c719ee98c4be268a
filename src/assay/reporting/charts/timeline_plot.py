"""A run's timeline: steps over time by attempt, with commits, failures and rolled-back work."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from assay.base.units import number_of
from assay.reporting.charts.plots import number_text
from assay.reporting.charts.svg import Axis, PlotArea, dot, path, plot_area, tag, text, title
from assay.reporting.views.runs.run import AttemptView, CommitView

Point = tuple[float, float]


class Timeline(NamedTuple):
    """A plot area over time and steps."""

    area: PlotArea
    began_s: float
    unit_s: float

    def point(self, at_s: float, step: int) -> Point:
        """Return the pixel of a time (seconds since the epoch) and a step."""
        return self.area.x((at_s - self.began_s) / self.unit_s), self.area.y(step)


def timeline_plot(attempts: Sequence[AttemptView], commits: Sequence[CommitView], *, width: int, label: str) -> str:
    """Plot steps over time, a line for each attempt through its commits; lost work falls back in red."""
    start_s = attempts[0].started
    ends = [attempt.ended or attempt.started for attempt in attempts] + [commit.committed for commit in commits]
    unit_s, unit = _time_unit(max(ends) - start_s)
    top = max([*(attempt.reached_step for attempt in attempts), *(commit.step for commit in commits), 1])
    duration = max((max(ends) - start_s) / unit_s, 1e-3)
    area = plot_area(
        width,
        300 if width > 400 else 280,
        Axis(f"{unit} since the run began", (0.0, duration), number_text),
        Axis("step", (0.0, top * 1.12), number_text),
    )
    timeline = Timeline(area, start_s, unit_s)
    lines = [
        _one_attempt(attempt, [commit for commit in commits if commit.attempt == attempt.attempt], timeline)
        for attempt in attempts
    ]
    return area.svg_root(_attempt_starts(attempts, timeline), *lines, label=label)


def _one_attempt(attempt: AttemptView, commits: Sequence[CommitView], timeline: Timeline) -> str:
    points = [timeline.point(attempt.started, attempt.start_step)]
    points += [timeline.point(commit.committed, commit.step) for commit in commits]
    committed_step = commits[-1].step if commits else attempt.start_step
    reached = max(attempt.reached_step, committed_step)
    marks = [
        dot(x, y, "s1", r=3.2, tooltip=f"commit of step {commit.step:,}")
        for (x, y), commit in zip(points[1:], commits, strict=True)
    ]
    xs, ys = zip(*points, strict=True)
    line = path(xs, ys, class_="line s1")
    if attempt.ended is None:
        return line + "".join(marks)
    end = timeline.point(attempt.ended, reached)
    return (
        line + _uncommitted_segment(points[-1], end, reached - committed_step) + _ending(attempt, *end) + "".join(marks)
    )


def _uncommitted_segment(from_: Point, end: Point, num_lost: int) -> str:
    """Return the line from the last commit to the end of the attempt, and the fall if its steps were lost."""
    xs, ys = zip(from_, end, strict=True)
    if not num_lost:
        return path(xs, ys, class_="line s1 faint")
    tooltip = title(f"{number_of(num_lost, 'step')} after the last commit were lost, and made again")
    fall = tag("line", tooltip, x1=end[0], x2=end[0], y1=end[1], y2=from_[1], class_="fall")
    return path(xs, ys, class_="line lost") + fall


def _attempt_starts(attempts: Sequence[AttemptView], timeline: Timeline) -> str:
    """Return a vertical line at each attempt's start, labelled with its ranks if there is space."""
    top, bottom = timeline.area.y.end, timeline.area.y.start
    parts, free_from = [], -math.inf
    for attempt in attempts:
        x, _ = timeline.point(attempt.started, 0)
        parts.append(tag("line", x1=x, x2=x, y1=top - 10, y2=bottom, class_="began"))
        if x >= free_from:
            ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
            parts.append(text(ranks, x + 5, top - 2, class_="tick"))
            free_from = x + 54
    return "".join(parts)


def _ending(attempt: AttemptView, x: float, y: float) -> str:
    tooltip = title(f"attempt {attempt.attempt} {attempt.outcome}: {attempt.reason or 'done'}")
    if attempt.outcome == "succeeded":
        return tag("circle", tooltip, cx=x, cy=y, r=5.5, class_="end good")
    if attempt.outcome in ("running", "preempted"):
        return tag("rect", tooltip, x=x - 4.5, y=y - 4.5, width=9, height=9, class_="end calm")
    cross = f"M{x - 5:.1f} {y - 5:.1f}l10 10m-10 0l10 -10"
    return tag("path", tooltip, d=cross, class_="end bad")


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")

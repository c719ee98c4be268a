"""A plan as a Gantt chart, and its device profile."""

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import NamedTuple

from assay.base.units import number_of
from assay.planning.explain import critical_chain
from assay.planning.program.plan import Plan, Planned
from assay.planning.program.program import Program
from assay.reporting.charts.plots import number_text
from assay.reporting.charts.svg import FONT_WIDTH, PlotArea, Scale, dot, path, svg_root, tag, text, ticks, title
from assay.reporting.document import FULL, NARROW

ROW, LINE = 19, 14
HEAD = 26
DAY_H, WEEK_H = 24, 168
LONGEST_LINE, LONGEST_LINE_NARROW = 46, 54
"""Longest line of a title beside a bar, and above it on phones; longer titles take several lines."""

Ends = Mapping[str, tuple[float, float]]
"""Activity or gate -> (P50, P80) of its end, in hours."""


class Actuals(NamedTuple):
    """What has happened by now, in hours of the program."""

    now_h: float
    spans: Mapping[str, tuple[float, float]]
    """Start and end of each activity and gate that has started; what continues ends now."""
    verdicts: Mapping[str, str]
    """Gate -> its last verdict."""


def gantt(
    program: Program, plan: Plan, *, width: int = FULL, ends: Ends | None = None, actuals: Actuals | None = None
) -> str:
    """Plot activities by stage over the weeks, with a line from the P50 to the P80 of each end. The critical chain is
    outlined. `actuals` are drawn as narrow bars over the plan, with the verdicts and a line at now."""
    chain, nodes = {step.name for step in critical_chain(program, plan)}, program.nodes()
    is_narrow = width <= NARROW
    x = _time_scale(program, plan, width, ends, actuals)
    bookings = _shown_bookings(program, x)
    rows, top = [], HEAD + LINE * len(bookings)
    y = float(top)
    for stage in program.stages:
        items = [item for item in plan.items if nodes[item.name].stage == stage]
        if items:
            rows.append(text(program.stages[stage].title, 2, y + 13, class_="group"))
            y += ROW
        for item in items:
            lines = textwrap.wrap(nodes[item.name].title, LONGEST_LINE_NARROW if is_narrow else LONGEST_LINE)
            height = max(ROW, LINE * len(lines) + 5)
            for number, line in enumerate(lines):
                at, anchor = (2.0, "start") if is_narrow else (x.start - 6, "end")
                rows.append(text(line, at, y + LINE * (number + 1), class_="tick strong", text_anchor=anchor))
            if is_narrow:
                y += height - 4
                height = ROW
            rows.append(_row(program, item, x, y + (height - ROW) / 2, is_critical=item.name in chain))
            if ends is not None and item.name in ends:
                rows.append(_end_range(program, ends[item.name], x, y + height / 2))
            if actuals is not None:
                rows.append(_actual(program, actuals, item, x, y + height / 2))
            y += height
    frame = _weeks(x, y) + _bookings(program, x, y) + _deadline(program, x, y)
    if actuals is not None and actuals.now_h >= 0:
        rows.append(_now(program, actuals.now_h, x, y))
    label = f"Schedule of {program.title}: decision on day {plan.decision_day()}"
    return svg_root(frame, *rows, width=width, height=y + 22, label=label)


def _time_scale(program: Program, plan: Plan, width: int, ends: Ends | None, actuals: Actuals | None = None) -> Scale:
    """Return the time axis, which all drawings of one plan share."""
    names = 30.0
    if width > NARROW:
        titles = (node.title for node in program.nodes().values())
        names = 8 + FONT_WIDTH * max(len(line) for title in titles for line in textwrap.wrap(title, LONGEST_LINE))
    last = max([program.calendar.hour_of(program.decision.by), *(item.end_h for item in plan.items)])
    last = max([last, *(math.ceil(late) for _, late in (ends or {}).values())])
    if actuals is not None:
        last = max([last, math.ceil(actuals.now_h), *(math.ceil(end) for _, end in actuals.spans.values())])
    return Scale(0, WEEK_H * -(-last // WEEK_H), names + 6, width - 10)


def _weeks(x: Scale, bottom: float) -> str:
    parts = []
    for hour in range(int(x.low), int(x.high), WEEK_H):
        parts.append(tag("line", x1=x(hour), x2=x(hour), y1=HEAD - 6, y2=bottom, class_="grid"))
        week = hour // WEEK_H + 1
        name = f"week {week}" if x(WEEK_H) - x(0) > 44 else str(week)
        parts.append(text(name, x(hour) + 4, HEAD - 10, class_="tick"))
        weekend = hour + 5 * DAY_H
        parts.append(_bar(x, weekend, hour + WEEK_H, HEAD - 6, bottom - HEAD + 6, class_="away"))
    return "".join(parts)


def _shown_bookings(program: Program, x: Scale) -> list[tuple[str, int, int]]:
    """Return the label, start and end of each booking within the axis."""
    found = []
    for name, booking in program.capacity.bookings.items():
        since, until = (program.calendar.hour_of(moment) for moment in (booking.since, booking.until))
        begin, end = max(since, int(x.low)), min(until, int(x.high))
        if begin < end:
            found.append((f"{booking.title or name}: {booking.share:.0%} of the devices", begin, end))
    return found


def _bookings(program: Program, x: Scale, bottom: float) -> str:
    parts = []
    for number, (label, begin, end) in enumerate(_shown_bookings(program, x)):
        parts.append(_bar(x, begin, end, HEAD - 6, bottom - HEAD + 6, title(label), class_="booked"))
        fits = x(begin) + 4 + FONT_WIDTH * len(label) < x.end
        at, anchor = (x(begin) + 4, "start") if fits else (x.end, "end")
        parts.append(text(label, at, HEAD + LINE * number + 9, class_="tick", text_anchor=anchor))
    return "".join(parts)


def _deadline(program: Program, x: Scale, bottom: float) -> str:
    at = x(program.calendar.hour_of(program.decision.by))
    label = f"due {program.calendar.day_text(program.calendar.hour_of(program.decision.by))}"
    return tag("line", x1=at, x2=at, y1=HEAD - 6, y2=bottom, class_="limit") + text(
        label, min(at, x.end), bottom + 16, class_="tick strong", text_anchor="end"
    )


def _end_range(program: Program, quantiles: tuple[float, float], x: Scale, y: float) -> str:
    """Return a line from the P50 of an end to its P80, with a dot at the P50."""
    middle, late = quantiles
    middle_text, late_text = (program.calendar.day_text(hour) for hour in quantiles)
    tooltip = f"ends by {middle_text} in half of the simulations, by {late_text} in 80%"
    line = tag("line", title(tooltip), x1=x(middle), x2=x(late), y1=y, y2=y, class_="line end-range")
    cap = tag("line", x1=x(late), x2=x(late), y1=y - 4, y2=y + 4, class_="line end-range")
    return line + cap + dot(x(middle), y, "end-range", r=3, tooltip=tooltip)


def _actual(program: Program, actuals: Actuals, item: Planned, x: Scale, y: float) -> str:
    """Return the actual bar of an activity, with the verdict of a gate."""
    if item.name not in actuals.spans:
        return ""
    start_h, end_h = actuals.spans[item.name]
    dates = (program.calendar.day_text(hour, begins=begins) for hour, begins in ((start_h, True), (end_h, False)))
    verdict = actuals.verdicts.get(item.name, "")
    tooltip = title(f"{program.nodes()[item.name].title}: {' to '.join(dates)}{f'; {verdict}' * bool(verdict)}")
    bar = tag(
        "rect", tooltip, x=x(start_h), y=y - 2, width=max(2.0, x(end_h) - x(start_h)), height=4, class_="bar actual"
    )
    at, anchor = (x(end_h) + 5, "start") if x(end_h) + 60 < x.end else (x(start_h) - 5, "end")
    return bar + (text(verdict, at, y + 4, class_="tick strong", text_anchor=anchor) if verdict else "")


def _now(program: Program, now_h: float, x: Scale, bottom: float) -> str:
    label = f"now: {program.calendar.day_text(now_h, begins=True)}"
    line = tag("line", title(label), x1=x(now_h), x2=x(now_h), y1=HEAD - 6, y2=bottom, class_="now-line")
    return line + text("now", x(now_h), bottom + 16, class_="tick strong", text_anchor="middle")


def _row(program: Program, item: Planned, x: Scale, y: float, *, is_critical: bool) -> str:
    node = program.nodes()[item.name]
    dates = (program.calendar.date_of(hour).strftime("%d %b %H:%M") for hour in (item.start_h, item.end_h))
    holds = ", ".join(f"{fte:g} {program.title_of(name)}" for name, fte in item.people.items())
    if item.runs:
        runs, devices = number_of(len(item.runs), "run"), number_of(item.runs[0].devices, "device")
        holds = f"{runs} of {devices}, {item.device_hours():,} device-hours"
    tooltip = title(f"{node.title}: {' to '.join(dates)}; {holds}")
    kind = "gate" if node.is_gate else "runs" if item.runs else "work"
    class_ = f"bar {kind} critical" if is_critical else f"bar {kind}"
    spans = _joined([hold for run in item.runs for hold in run.holds]) or [(item.start_h, item.end_h)]
    return "".join(_bar(x, begin, end, y + 3, ROW - 6, tooltip, class_=class_) for begin, end in spans)


def _joined(holds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(holds):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _bar(x: Scale, begin: int, end: int, y: float, height: float, *children: str, class_: str) -> str:
    pixels = max(2.0, x(end) - x(begin))
    return tag("rect", *children, x=x(begin), y=y, width=pixels, height=height, class_=class_)


def capacity_profile(program: Program, plan: Plan, *, width: int = FULL, ends: Ends | None = None) -> str:
    """Plot the devices held in every hour, and those that are free of bookings, on the time axis of the Gantt chart."""
    x, height = _time_scale(program, plan, width, ends), 220
    free = program.capacity.free_devices(program.calendar)[: int(x.high)]
    y = Scale(0.0, program.capacity.devices * 1.05, height - 14.0, HEAD + 8.0)
    frame = [_weeks(x, y.start), text("devices", 2, HEAD - 10, class_="axis")]
    for value in ticks(y.low, y.high, 4, least=1.0):
        frame.append(tag("line", x1=x.start, x2=x.end, y1=y(value), y2=y(value), class_="grid"))
        frame.append(text(number_text(value), x.start - 6, y(value) + 4, class_="tick", text_anchor="end"))
    area = PlotArea(width, height, x, y, "".join(frame))
    blocks = [
        tag(
            "rect",
            title(f"{devices} devices, {program.calendar.date_of(begin):%d %b %H:%M} for {end - begin} h"),
            x=x(begin),
            y=y(devices),
            width=x(end) - x(begin),
            height=y(0) - y(devices),
            class_="bar runs",
        )
        for begin, end, devices in _levels(_held(plan, int(x.high)))
        if devices
    ]
    steps = [(x(hour), y(devices)) for b, e, devices in _levels(free) for hour in (b, e)]
    share = ""
    if (rule := program.capacity.fair_use) is not None:
        tooltip = title("above this a job's hours are limited")
        share = area.hline(rule.share * program.capacity.devices, "guide", tooltip)
    label = f"Devices held by {program.title}, at most {plan.peak_devices}, and those that are free"
    return area.svg_root(*blocks, share, path(*zip(*steps, strict=True), class_="limit"), label=label)


def _held(plan: Plan, hours: int) -> list[int]:
    changes = [0] * (hours + 1)
    for item in plan.items:
        for run in item.runs:
            for begin, end in run.holds:
                changes[min(begin, hours)] += run.devices
                changes[min(end, hours)] -= run.devices
    return list(accumulate(changes[:-1]))


def _levels(values: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (from, until, value) of runs of equal values."""
    reductions = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1]), len(values)]
    for begin, end in pairwise(reductions):
        yield begin, end, values[begin]


def stand_alone(svg: str) -> str:
    """Return a drawing as a file of its own, with the stylesheet embedded."""
    head, close, body = svg.partition(">")
    box = re.search(r'viewBox="0 0 (\S+) (\S+)"', head)
    assert box is not None, head
    width, height = box.groups()
    paper = tag("rect", width=float(width), height=float(height), class_="paper")
    return f'{head} width="{width}" height="{height}"{close}<style>{_stylesheet()}</style>{paper}{body}\n'


@cache
def _stylesheet() -> str:
    css = (files("assay.reporting") / "templates" / "page.css").read_text(encoding="utf-8")
    return css + ".paper { fill: var(--card); }"

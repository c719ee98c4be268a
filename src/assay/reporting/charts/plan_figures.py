"""A plan as a Gantt chart, and its device profile."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import accumulate, pairwise

from assay.base.units import number_of
from assay.planning.explain import critical_chain
from assay.planning.program.plan import Plan, Planned
from assay.planning.program.program import Program
from assay.reporting.charts.plots import number_text
from assay.reporting.charts.svg import FONT_WIDTH, Axis, Scale, path, plot_area, svg_root, tag, text, title
from assay.reporting.document import FULL, NARROW

ROW = 19
HEAD = 26
DAY_H, WEEK_H = 24, 168
LONGEST_NAME, LONGEST_NAME_NARROW = 46, 54
"""Maximum title length beside a bar, and above it on phones; the tooltip has the full title."""


def gantt(program: Program, plan: Plan, *, width: int = FULL) -> str:
    """Plot activities by stage over the weeks. The critical chain is outlined."""
    chain, nodes = {step.name for step in critical_chain(program, plan)}, program.nodes()
    is_narrow = width <= NARROW
    shown = [_short(nodes[item.name].title, LONGEST_NAME) for item in plan.items]
    names = 0.0 if is_narrow else 8 + FONT_WIDTH * max(map(len, shown))
    last = max([program.calendar.hour_of(program.decision.by), *(item.end_h for item in plan.items)])
    x = Scale(0, WEEK_H * -(-last // WEEK_H), names + 6, width - 10)
    rows, y = [], float(HEAD)
    for stage in program.stages:
        items = [item for item in plan.items if nodes[item.name].stage == stage]
        if items:
            rows.append(text(program.stages[stage].title, 2, y + 13, class_="group"))
            y += ROW
        for item in items:
            name = _short(nodes[item.name].title, LONGEST_NAME_NARROW if is_narrow else LONGEST_NAME)
            if is_narrow:
                rows.append(text(name, 2, y + 13, class_="tick strong"))
                y += ROW - 4
            else:
                rows.append(text(name, x.start - 6, y + 14, class_="tick strong", text_anchor="end"))
            rows.append(_row(program, item, x, y, is_critical=item.name in chain))
            y += ROW
    frame = _weeks(x, y) + _bookings(program, x, y) + _deadline(program, x, y)
    label = f"Schedule of {program.title}: decision on day {plan.decision_day()}"
    return svg_root(frame, *rows, width=width, height=y + 8, label=label)


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


def _bookings(program: Program, x: Scale, bottom: float) -> str:
    parts = []
    for name, booking in program.capacity.bookings.items():
        since, until = (program.calendar.hour_of(moment) for moment in (booking.since, booking.until))
        tooltip = title(f"{booking.title or name}: {booking.share:.0%} of the cluster")
        begin, end = max(since, int(x.low)), min(until, int(x.high))
        if begin < end:
            parts.append(_bar(x, begin, end, HEAD - 6, bottom - HEAD + 6, tooltip, class_="booked"))
    return "".join(parts)


def _deadline(program: Program, x: Scale, bottom: float) -> str:
    at = x(program.calendar.hour_of(program.decision.by))
    tooltip = title(f"decide by the {program.calendar.deadline_text(program.decision.by)}")
    return tag("line", tooltip, x1=at, x2=at, y1=HEAD - 6, y2=bottom, class_="limit")


def _short(name: str, longest: int) -> str:
    """Shorten at a word boundary."""
    if len(name) <= longest:
        return name
    return name[: longest - 1].rpartition(" ")[0].rstrip(",;:") + "…"


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


def capacity_profile(program: Program, plan: Plan, *, width: int = FULL) -> str:
    """Plot the devices held in every hour, and those that are free of bookings."""
    free = program.capacity.free_devices(program.calendar)
    last = min(len(free), WEEK_H * -(-max(item.end_h for item in plan.items) // WEEK_H))
    area = plot_area(
        width,
        240,
        Axis("week", (1.0, 1.0 + last / WEEK_H), lambda week: f"{week:g}", least=1.0),
        Axis("devices", (0.0, program.capacity.devices * 1.05), number_text),
    )

    def at(hour: int) -> float:
        return area.x(1.0 + hour / WEEK_H)

    blocks = [
        tag(
            "rect",
            title(f"{devices} devices, {program.calendar.date_of(begin):%d %b %H:%M} for {end - begin} h"),
            x=at(begin),
            y=area.y(devices),
            width=at(end) - at(begin),
            height=area.y(0) - area.y(devices),
            class_="bar runs",
        )
        for begin, end, devices in _levels(_held(plan, last))
        if devices
    ]
    steps = [(at(hour), area.y(devices)) for b, e, devices in _levels(free[:last]) for hour in (b, e)]
    share = ""
    if (rule := program.capacity.fair_use) is not None:
        tooltip = title("above this a job's hours are limited")
        share = area.hline(rule.share * program.capacity.devices, "guide", tooltip)
    label = f"Devices held by {program.title}, at most {plan.peak_devices}, beside what is free"
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

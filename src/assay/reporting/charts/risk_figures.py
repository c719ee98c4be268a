"""Figures of a program's risk: distributions of date and cost, their drivers, and the budget over time."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from assay.base.units import percent_text, sampled_percent_text
from assay.planning.program.calendar import Calendar
from assay.planning.simulation.drivers import Driver
from assay.planning.simulation.network import Array
from assay.reporting.charts.plots import number_text, percent_number
from assay.reporting.charts.svg import FONT_WIDTH, Axis, Scale, plot_area, svg_root, tag, text, title
from assay.reporting.document import Figure, Table, figure, legend_of

ROW = 30


class Distribution(NamedTuple):
    """Simulated values of one quantity."""

    name: str
    values: Array


def probability_figure(
    distributions: Sequence[Distribution],
    *,
    title: str,
    caption: str,
    limit: float,
    limit_text: str,
    x_label: str,
    target: float,
    value_text: Callable[[float], str] = lambda value: f"{value:,.0f}",
) -> Figure:
    """Plot the cumulative distribution of each quantity, with the limit and the target."""
    shares = (0.1, 0.25, 0.5, 0.75, 0.9)
    rows = [
        (
            distribution.name,
            *(value_text(float(value)) for value in np.quantile(distribution.values, shares)),
            sampled_percent_text(float((distribution.values <= limit).mean()), len(distribution.values)),
        )
        for distribution in distributions
    ]
    return figure(
        lambda width: _probability_plot(distributions, width, limit, x_label, title, target),
        title=title,
        caption=caption,
        legend=legend_of(distribution.name for distribution in distributions),
        table=Table(("", *(f"P{100 * share:.0f}" for share in shares), f"P(at most {limit_text})"), rows),
        size="half",
    )


def _probability_plot(
    distributions: Sequence[Distribution], width: int, limit: float, x_label: str, label: str, target: float
) -> str:
    grid = np.linspace(0.002, 0.998, 160)
    lines = [np.quantile(distribution.values, grid) for distribution in distributions]
    low = min(float(line[0]) for line in lines)
    high = max(limit, *(float(line[-1]) for line in lines))
    area = plot_area(
        width,
        280,
        Axis(x_label, (low, high + 0.04 * (high - low)), number_text),
        Axis("share of simulations", (0.0, 1.0), percent_number),
    )
    drawn = [area.line(line, grid, f"line s{index}") for index, line in enumerate(lines, 1)]
    target_line = area.hline(target, "guide", title(f"target: {percent_text(target)}"))
    return area.svg_root(area.vline(limit, "limit"), target_line, *drawn, label=label)


def tornado_figure(drivers: Sequence[Driver], *, now: float, num_samples: int, shown: int = 12) -> Figure:
    """Plot P(on time) at the favourable and the unfavourable end of each driver."""
    drawn = [driver for driver in drivers if abs(driver.high.p_on_time - driver.low.p_on_time) >= 0.005][:shown]
    return figure(
        lambda width: _tornado_plot(drawn, now=now, width=width),
        title="What the date depends on",
        caption="Each bar varies one driver from its favourable to its unfavourable end; the line is the plan as it "
        "stands. "
        f"{num_samples:,} simulations at each end.",
        legend=[("s3", "better than stated"), ("s2", "worse than stated")],
        table=Table.of(
            drivers,
            ("driver", lambda driver: driver.title),
            ("favourable end", lambda driver: driver.low_text),
            ("P(on time)", lambda driver: sampled_percent_text(driver.low.p_on_time, num_samples)),
            ("P(over budget)", lambda driver: sampled_percent_text(driver.low.p_over_budget, num_samples)),
            ("unfavourable end", lambda driver: driver.high_text),
            ("P(on time)", lambda driver: sampled_percent_text(driver.high.p_on_time, num_samples)),
            ("P(over budget)", lambda driver: sampled_percent_text(driver.high.p_over_budget, num_samples)),
        ),
    )


def _tornado_plot(drivers: Sequence[Driver], *, now: float, width: int) -> str:
    ends = [end for driver in drivers for end in (driver.low.p_on_time, driver.high.p_on_time)]
    left = 8 + FONT_WIDTH * max((len(driver.title) for driver in drivers), default=0) if width > 500 else 8.0
    scale = Scale(max(0.0, min([now, *ends]) - 0.04), min(1.0, max([now, *ends]) + 0.04), left, width - 60)
    lift = 0 if width > 500 else 16
    rows = []
    for index, driver in enumerate(drivers):
        y = 10 + (ROW + lift) * index
        name = text(driver.title, 0 if lift else left - 10, y + 14, class_="tick strong")
        if not lift:
            name = text(driver.title, left - 10, y + 15, class_="tick strong", text_anchor="end")
        rows.append(name + _driver_bar(driver, scale, now, y + lift))
    bottom = 10 + (ROW + lift) * len(drivers)
    rule = tag("line", x1=scale(now), x2=scale(now), y1=4, y2=bottom, class_="rule")
    foot = text(f"P(on time), now {percent_text(now)}", scale(now), bottom + 18, class_="axis", text_anchor="middle")
    return svg_root(*rows, rule, foot, width=width, height=bottom + 26, label="Drivers of the date")


def _driver_bar(driver: Driver, scale: Scale, now: float, y: float) -> str:
    parts = []
    for end, words in ((driver.low, driver.low_text), (driver.high, driver.high_text)):
        at, middle = scale(end.p_on_time), scale(now)
        side = "gain-side" if end.p_on_time >= now else "loss-side"
        tooltip = title(f"{driver.title}, {words}: on time {percent_text(end.p_on_time)}")
        length = max(1.0, abs(at - middle))
        parts.append(tag("rect", tooltip, x=min(at, middle), y=y + 3, width=length, height=15, class_=side))
    far = max(scale(driver.low.p_on_time), scale(driver.high.p_on_time), scale(now))
    range_ = abs(driver.high.p_on_time - driver.low.p_on_time)
    return "".join(parts) + text(f"{100 * range_:.0f} pt", far + 6, y + 15, class_="tick")


class BudgetSeries(NamedTuple):
    """Device-hours left, by day."""

    planned: Sequence[float]
    """Planned, after each day from day 0."""
    actual: Sequence[tuple[float, float]]
    """(day, left) until today."""
    ahead: Sequence[float]
    """Forecast days, from today on."""
    low: Sequence[float]
    """10% quantile on each forecast day."""
    middle: Sequence[float]
    high: Sequence[float]
    budget: float
    calendar: Calendar


def budget_figure(budget_series: BudgetSeries, *, caption: str) -> Figure:
    """Plot the planned, actual and forecast remaining budget; the table has weeks and today."""
    done, today = dict(budget_series.actual), budget_series.ahead[0]
    ahead = {day: index for index, day in enumerate(budget_series.ahead)}

    def row(day: float) -> tuple[str, ...]:
        is_planned = day == int(day) and 0 <= day < len(budget_series.planned)
        planned = f"{budget_series.planned[int(day)]:,.0f}" if is_planned else "—"
        is_known, at = day in done, ahead.get(day)
        forecast = "—"
        if at is not None and day > today:
            forecast = f"{budget_series.middle[at]:,.0f} [{budget_series.low[at]:,.0f}, {budget_series.high[at]:,.0f}]"
        return (_burn_day(budget_series, day), planned, f"{done[day]:,.0f}" if is_known else "—", forecast)

    return figure(
        lambda width: _budget_plot(budget_series, width=width),
        title="Burn-down",
        caption=caption,
        legend=[("s1", "left until today"), ("s2", "left as planned"), ("s3", "forecast, 80% of simulations")],
        table=Table(
            ("", "planned", "actual", "forecast: median [P10, P90]"),
            [row(day) for day in sorted({*range(0, len(budget_series.planned), 7), today})],
        ),
    )


def _burn_day(budget_series: BudgetSeries, day: float) -> str:
    """Return the label of a day's end, or of today."""
    if day == budget_series.ahead[0]:
        return f"today, {budget_series.calendar.day_text(24 * day, begins=True)}"
    return f"end of {budget_series.calendar.day_text(24 * day)}" if day else "at the start"


def _budget_plot(budget_series: BudgetSeries, *, width: int) -> str:
    left = [value for _, value in budget_series.actual]
    lowest = min(0.0, *budget_series.low, *left, *budget_series.planned)
    area = plot_area(
        width,
        300,
        Axis("end of day", (0.0, len(budget_series.planned) - 1.0), number_text),
        Axis("device-hours left", (lowest, budget_series.budget * 1.04), number_text),
    )
    return area.svg_root(
        area.band(budget_series.ahead, budget_series.low, budget_series.high, "band s3"),
        area.line(budget_series.ahead, budget_series.middle, "line s3"),
        area.line(range(len(budget_series.planned)), budget_series.planned, "line s2 faint"),
        area.line([day for day, _ in budget_series.actual], left, "line s1"),
        area.vline(budget_series.ahead[0], "began"),
        area.hline(0, "limit"),
        label="Budget burn-down",
    )

"""The figures of the triage page: failure rate over time, failure causes, step times, durations."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from assay.base.shapes import Float64
from assay.base.units import duration_text, number_of, percent_text
from assay.records.evaluation import Estimate
from assay.records.failure_causes import FailureCause, FailureDiagnosis, RuledOut
from assay.records.slow_changes import SlowChanges
from assay.reporting.charts.evidence_plots import ForestRow, forest_plot
from assay.reporting.charts.plots import number_text, percent_number
from assay.reporting.charts.svg import FONT_WIDTH, Axis, Scale, domain, plot_area, svg_root, tag, text, title
from assay.reporting.document import Figure, Table, figure
from assay.reporting.views.triage_statements import because_text, factors_text, next_text
from assay.statistics.interval import normal_quantile, wilson_interval

TIME_UNITS = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("seconds", 1.0))
MOST_SLOTS = 24
LARGE_DOT, SMALL_DOT, MANY_DOTS = 3.0, 2.0, 300
"""Radius of a measurement's dot, and from how many on it is small."""
BAR, GAP = 20, 10


def rates_figure(
    at_s: Float64[np.ndarray, "row"],
    failures: Float64[np.ndarray, "row"],
    attempts: Float64[np.ndarray, "row"],
) -> Figure:
    """Return the share of failed attempts over time, with Wilson's interval for independent attempts."""
    span_s = float(at_s.max() - at_s.min())
    unit, unit_s = next((item for item in TIME_UNITS if span_s >= 2 * item[1]), TIME_UNITS[-1])
    slots = list(_slots((at_s - at_s.min()) / unit_s, failures, attempts))

    def draw(width: int) -> str:
        moments, rates, lows, highs, _ = zip(*slots, strict=True)
        top = max(*highs, 0.02)
        area = plot_area(
            width,
            240,
            Axis(f"{unit} since the first attempt", (0.0, max(moments[-1], 1e-3) * 1.02), number_text),
            Axis("attempts that failed", (0.0, min(1.0, 1.05 * top)), percent_number),
        )
        markers = [area.dot(at, rate, "s1", r=LARGE_DOT, tooltip=percent_text(rate)) for at, rate, *_ in slots]
        return area.svg_root(
            area.band(moments, lows, highs, "band s1"),
            area.line(moments, rates, "line s1"),
            *markers,
            label="Share of attempts that failed over time",
        )

    return figure(
        draw,
        title="Failures over time",
        caption=(
            "Share of attempts that failed, by start time. The band is the 95% interval of independent "
            "attempts; attempts of one recipe fail together, so it is too narrow."
        ),
        table=Table.of(
            slots,
            (unit, lambda slot: f"{slot[0]:.1f}"),
            ("attempts", lambda slot: f"{slot[4]:,.0f}"),
            ("failed", lambda slot: percent_text(slot[1])),
            ("95%", lambda slot: f"{percent_text(slot[2])} to {percent_text(slot[3])}"),
        ),
    )


def _slots(
    moments: Float64[np.ndarray, "row"],
    failures: Float64[np.ndarray, "row"],
    attempts: Float64[np.ndarray, "row"],
) -> Iterator[tuple[float, float, float, float, float]]:
    """Yield moment, rate, low, high and attempts of each time slot with attempts."""
    number = int(np.clip(len(moments) // 20, 1, MOST_SLOTS))
    width = max(float(moments.max()), 1e-6) / number
    slots = np.minimum((moments / width).astype(int), number - 1)
    for slot in range(number):
        count, failed = float(attempts[slots == slot].sum()), float(failures[slots == slot].sum())
        if count:
            low, high = wilson_interval(failed / count, count, normal_quantile())
            yield (slot + 0.5) * width, failed / count, low, high, count


def scan_figure(diagnosis: FailureDiagnosis, because: str) -> Figure:
    """Return the failure rates of suspected and ruled-out regions."""
    rows = [_cause_row(cause) for cause in diagnosis.causes] + [_ruled_out_row(item) for item in diagnosis.ruled_out]
    return figure(
        lambda width: forest_plot(
            rows,
            width=width,
            label="Failure rate of each region that stood out",
            reference=diagnosis.rate,
            x_label="failures per attempt",
        ),
        title="Common factors of failed attempts",
        caption=f"{because} The vertical line is the overall rate. Red: confirmed; others: ruled out.",
    )


def _cause_row(cause: FailureCause) -> ForestRow:
    estimate = Estimate(value=cause.rate, low=cause.rate_low, high=cause.rate_high)
    return ForestRow(factors_text(cause.factors), estimate, f"{cause.attempts:,}", cause.is_confirmed)


def _ruled_out_row(region: RuledOut) -> ForestRow:
    return ForestRow(factors_text(region.factors), Estimate(value=region.rate), f"{region.attempts:,}")


def speed_figure(values: Float64[np.ndarray, "row"], found: SlowChanges) -> Figure:
    """Return each measurement, and the levels between changes."""
    segment_ends = [0, *(change.index for change in found.changes), len(values)]
    clipped = np.clip(values, *np.quantile(values, [0.01, 0.99]))

    def draw(width: int) -> str:
        area = plot_area(
            width,
            260,
            Axis("measurement, in the order of time", (0.0, float(len(values))), number_text, least=1.0),
            Axis(found.value.replace("_s", ", seconds"), domain(clipped.tolist()), number_text),
        )
        radius = LARGE_DOT if len(values) <= MANY_DOTS else SMALL_DOT
        markers = [area.dot(index, value, "s1", r=radius) for index, value in enumerate(clipped)]
        levels = [
            area.line([begin, end], [float(np.median(values[begin:end]))] * 2, "line s2")
            for begin, end in pairwise(segment_ends)
            if end > begin
        ]
        rules = [area.vline(change.index, "limit") for change in found.changes]
        return area.svg_root(*markers, *rules, *levels, label=f"{found.value} over measurements with its changes")

    return figure(
        draw,
        title="What steps take",
        caption=f"{because_text(found)} Lines are medians between changes; the extreme 2% are drawn at the edge.",
        table=Table.of(
            found.changes,
            ("since", lambda change: change.at),
            ("before", lambda change: f"{change.before:.4g}"),
            ("after", lambda change: f"{change.after:.4g}"),
            ("because", because_text),
            ("next", next_text),
        ),
    )


def seconds_figure(bars: Sequence[tuple[str, float]], *, name: str, caption: str) -> Figure:
    """Return named durations as bars, in the order given."""
    whole = sum(seconds for _, seconds in bars) or 1.0

    def draw(width: int) -> str:
        left = 10 + FONT_WIDTH * max((len(label) for label, _ in bars), default=0)
        scale = Scale(0.0, max((seconds for _, seconds in bars), default=0.0) or 1.0, left, width - 120.0)
        rows = []
        for index, (label, seconds) in enumerate(bars):
            y, end = 4 + (BAR + GAP) * index, scale(seconds)
            tooltip = f"{duration_text(seconds)}, {percent_text(seconds / whole)}"
            rows.append(text(label, left - 8, y + 15, class_="tick", text_anchor="end"))
            rows.append(
                tag(
                    "rect",
                    title(tooltip),
                    x=left,
                    y=y,
                    width=max(end - left, 0.6),
                    height=BAR,
                    class_="phase data",
                )
            )
            rows.append(text(tooltip, end + 6, y + 15, class_="tick"))
        height = 8 + (BAR + GAP) * len(bars)
        return svg_root(*rows, width=width, height=height, label=f"{name}: {number_of(len(bars), 'part')}")

    return figure(draw, title=name, caption=caption)

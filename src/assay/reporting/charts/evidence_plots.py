"""Plots of model quality: ROC, score distributions, calibration, and forest plots."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from assay.base.units import number_of
from assay.records.evaluation import CalibrationBin, Estimate
from assay.reporting.charts.plots import percent_number, under
from assay.reporting.charts.svg import Axis, PlotArea, Scale, domain, dot, plot_area, svg_root, tag, text, ticks

if TYPE_CHECKING:  # they bring pyarrow along
    from assay.statistics.classifier.curves import RocCurve, ScoreHistogram

SQUARE = 320
ROW_HEIGHT = 24
HIDDEN = "hidden"
"""Note of a row that only counts values that are not drawn."""


class ForestRow(NamedTuple):
    """A row of a forest plot: an estimate, or a heading if `estimate` and `note` are empty."""

    name: str
    estimate: Estimate | None
    note: str
    """Shown at the right, such as the number of rows."""
    is_notable: bool = False
    """Drawn in the warning colour because the interval is on the bad side of the reference."""


def forest_rows(entries: Iterable[tuple[str, ForestRow]], *, shown: int = 8) -> list[ForestRow]:
    """Return rows under a heading per column: the first `shown` values with an estimate and all notable ones.
    Values that are left out, or have too few rows for an estimate, are counted."""
    rows: list[ForestRow] = []
    for column, group in groupby(entries, key=lambda entry: entry[0]):
        values = [row for _, row in group]
        ranked = [value for value in values if value.estimate is not None]
        chosen = [row_value for index, row_value in enumerate(ranked) if index < shown or row_value.is_notable]
        rows += [ForestRow(column, None, ""), *chosen]
        if num_unranked := len(values) - len(ranked):
            rows.append(ForestRow(f"{num_unranked} with too few rows to rank", None, HIDDEN))
        if num_hidden := len(ranked) - len(chosen):
            rows.append(ForestRow(f"{num_hidden} more, in the table", None, HIDDEN))
    return rows


def unique_short_names(names: Iterable[str], longest: int) -> dict[str, str]:
    """Return names shortened to `longest` characters that stay distinct. Run ids differ at the end."""
    whole = set(names)
    for tail in (0, *range(6, longest - 1)):
        end = longest - 1 - tail
        shown = {name: name if len(name) <= longest else f"{name[:end]}…{name[len(name) - tail :]}" for name in whole}
        if len(set(shown.values())) == len(whole):
            return shown
    return {name: name for name in whole}


def is_worse(estimate: Estimate | None, than: float, *, higher_is_better: bool) -> bool:
    """Return whether the whole interval is on the bad side of a value."""
    if estimate is None:
        return False
    if higher_is_better:
        return estimate.high is not None and estimate.high < than
    return estimate.low is not None and estimate.low > than


def share_text(value: float) -> str:
    """`0.25`, `1`."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def roc_plot(curves: Sequence["RocCurve"], *, label: str) -> str:
    """Plot true positive rate over false positive rate; the dashed line is chance."""
    area = _square("share of negatives flagged", Axis("share of positives found", (0, 1), share_text))
    lines = [area.line(*curve, f"line s{index + 1}{under(index, len(curves))}") for index, curve in enumerate(curves)]
    return area.svg_root(area.line([0, 1], [0, 1], "guide"), *lines, label=label)


def calibration_plot(bins: Sequence[Sequence[CalibrationBin]], *, label: str) -> str:
    """Plot observed share of positives over predicted probability; the dashed line is perfect calibration."""
    area = _square("predicted probability", Axis("observed share of positives", (0, 1), share_text))
    marks = [
        _calibration_line(curve_bins, area, f"s{index + 1}{under(index, len(bins))}")
        for index, curve_bins in enumerate(bins)
    ]
    return area.svg_root(area.line([0, 1], [0, 1], "guide"), *marks, label=label)


def score_plot(histogram: "ScoreHistogram", *, label: str) -> str:
    """Plot the distribution of predicted probabilities of each class."""
    negative = histogram.negative_rows / max(histogram.negative_rows.sum(), 1)
    positive = histogram.positive_rows / max(histogram.positive_rows.sum(), 1)
    top = max(float(negative.max()), float(positive.max()), 1e-6)
    area = _square("predicted probability", Axis("share of the class's rows", (0, top * 1.1), percent_number))
    edges = histogram.edges.tolist()
    outlines = [
        _outline(edges, shares.tolist(), area, class_)
        for shares, class_ in ((negative, "negatives"), (positive, "positives"))
    ]
    return area.svg_root(*outlines, label=label)


def _square(x_name: str, y: Axis) -> PlotArea:
    """Return a square plot area over shares."""
    return plot_area(SQUARE, SQUARE - 30, Axis(x_name, (0, 1), share_text), y)


def forest_plot(
    rows: Sequence[ForestRow],
    *,
    width: int,
    label: str,
    reference: float | None,
    limit: float | None = None,
    x_label: str,
) -> str:
    """Plot estimates with their intervals. `reference` is a thin line, `limit` a dashed one."""
    lines = [row for row in rows if row.note not in ("", HIDDEN) or row.estimate is not None]
    shown = unique_short_names([row.name for row in lines], 36 if width > 500 else 17)
    rows = [row._replace(name=shown[row.name]) if row in lines else row for row in rows]
    estimates = [row.estimate for row in rows if row.estimate]
    interval_points = [end for estimate in estimates for end in (estimate.low, estimate.value, estimate.high)]
    ends = [end for end in (*interval_points, reference, limit) if end is not None]
    left, right = (250.0, width - 110.0) if width > 500 else (128.0, width - 14.0)
    height = ROW_HEIGHT * len(rows) + 62
    scale = Scale(*domain(ends), left, right)
    bottom = height - 42.0
    marks = [_forest_row(row, scale, y=24 + ROW_HEIGHT * index, width=width) for index, row in enumerate(rows)]
    rules = [_rule(scale(reference), bottom, "rule")] if reference is not None else []
    rules += [_rule(scale(limit), bottom, "limit")] if limit is not None else []
    axis = _forest_axis(scale, bottom, x_label, signed=limit is not None)
    return svg_root(axis, *rules, *marks, width=width, height=height, label=label)


def _calibration_line(bins: Sequence[CalibrationBin], area: PlotArea, colour: str) -> str:
    points = [(bin_.mean_predicted, bin_.observed_rate, bin_.num_rows) for bin_ in bins]
    line = area.line([x for x, _, _ in points], [y for _, y, _ in points], f"line {colour}")
    return line + "".join(
        area.dot(x, y, colour, r=4, tooltip=f"{number_of(rows, 'row')}: predicted {x:.3f}, observed {y:.3f}")
        for x, y, rows in points
    )


def _outline(edges: Sequence[float], shares: Sequence[float], area: PlotArea, class_: str) -> str:
    corners = [(edges[0], 0.0)]
    for (left, right), share in zip(pairwise(edges), shares, strict=True):
        corners += [(left, share), (right, share)]
    corners.append((edges[-1], 0.0))
    points = " ".join(f"{area.x(x):.1f},{area.y(y):.1f}" for x, y in corners)
    return tag("polygon", points=points, class_=f"outline {class_}")


def _forest_row(row: ForestRow, scale: Scale, *, y: float, width: int) -> str:
    if row.estimate is None and not row.note:
        return text(row.name, 0, y + 4, class_="group")
    if row.note == HIDDEN:
        return text(row.name, 10, y + 4, class_="tick quiet")
    parts = [text(row.name, 10, y + 4, class_="tick strong")]
    if width > 500:
        parts.append(text(row.note, width, y + 4, class_="tick", text_anchor="end"))
    if row.estimate is None:
        parts.append(text("too few rows to rank", scale.start + 6, y + 4, class_="tick quiet"))
        return "".join(parts)
    low, value, high = row.estimate.low, row.estimate.value, row.estimate.high
    colour = "warn" if row.is_notable else "s1"
    if low is not None and high is not None:
        parts.append(tag("line", x1=scale(low), x2=scale(high), y1=y, y2=y, class_=f"whisker {colour}"))
    interval = f" [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ", no interval"
    parts.append(dot(scale(value), y, colour, r=4.2, tooltip=f"{value:.4f}{interval}"))
    return "".join(parts)


def _forest_axis(scale: Scale, bottom: float, x_label: str, *, signed: bool) -> str:
    marks = ticks(scale.low, scale.high, max(2, int((scale.end - scale.start) / 80)))
    numbers = [_plain_zero(format(at, "+.3f" if signed else ".3g")) for at in marks]
    return "".join(
        [
            *(tag("line", x1=scale(at), x2=scale(at), y1=10, y2=bottom, class_="grid") for at in marks),
            *(
                text(number, scale(at), bottom + 18, class_="tick", text_anchor="middle")
                for number, at in zip(numbers, marks, strict=True)
            ),
            tag("line", x1=scale.start, x2=scale.end, y1=bottom, y2=bottom, class_="base"),
            text(x_label, scale.end, bottom + 36, class_="axis", text_anchor="end"),
        ]
    )


def _plain_zero(number: str) -> str:
    return "0" if not number.strip("+-0.") else number


def _rule(x: float, bottom: float, class_: str) -> str:
    return tag("line", x1=x, x2=x, y1=8, y2=bottom, class_=class_)

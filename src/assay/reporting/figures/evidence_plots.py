"""The plots of a model's quality: ROC, scores by class, calibration, slices, and a difference with its rule."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from assay.base.units import count_text
from assay.evaluation.evidence.classifier.curves import RocCurve, ScoreHistogram
from assay.records.evaluation import CalibrationBin, Estimate
from assay.reporting.figures.svg import Plane, Scale, domain, drawing, path, plane, tag, text, ticks, title

SQUARE = 320
ROW_HEIGHT = 24
HIDDEN = "hidden"
"""Note of a line that stands for values which are not drawn."""


class ForestRow(NamedTuple):
    """One line of a forest plot: an estimate, or a heading where `estimate` and `note` are empty."""

    name: str
    estimate: Estimate | None
    note: str
    """Beside the line: how many rows stand behind it."""
    is_notable: bool = False
    """Drawn in the colour of warning: its interval excludes the reference on the bad side."""


class ForestEntry(NamedTuple):
    """A line and the column under whose heading it stands."""

    column: str
    row: ForestRow


def forest_rows(entries: Sequence[ForestEntry], *, shown: int = 8) -> list[ForestRow]:
    """Lines under a heading per column: its first `shown` values with an estimate, and the notable ones.

    The rest are counted: values without an estimate (too few rows, or one class) are for the table.
    """
    rows: list[ForestRow] = []
    for column, group in groupby(entries, key=lambda entry: entry.column):
        values = [each.row for each in group]
        ranked = [each for each in values if each.estimate is not None]
        chosen = [each for index, each in enumerate(ranked) if index < shown or each.is_notable]
        rows += [ForestRow(column, None, ""), *chosen]
        if num_unranked := len(values) - len(ranked):
            rows.append(ForestRow(f"{num_unranked} with too few rows to rank", None, HIDDEN))
        if num_hidden := len(ranked) - len(chosen):
            rows.append(ForestRow(f"{num_hidden} more, in the table", None, HIDDEN))
    return rows


def share_text(value: float) -> str:
    """`0.25`, `1`."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def roc_chart(curves: Sequence[RocCurve], *, label: str) -> str:
    """True positive rate over false positive rate; the dashed line is a coin's."""
    area = plane(width=SQUARE, height=SQUARE - 30, x_range=(0, 1), y_range=(0, 1), y_format=share_text)
    lines = [
        path(
            area.x.many(curve.false_positive_rate.tolist()),
            area.y.many(curve.true_positive_rate.tolist()),
            class_=f"line s{index + 1}{_under(index, len(curves))}",
        )
        for index, curve in enumerate(curves)
    ]
    frame = area.axes(
        x_label="share of negatives flagged",
        y_label="share of positives found",
        x_format=share_text,
        y_format=share_text,
    )
    coin = path(area.x.many([0, 1]), area.y.many([0, 1]), class_="guide")
    return drawing(frame, coin, *lines, width=SQUARE, height=SQUARE - 30, label=label)


def calibration_chart(bins: Sequence[Sequence[CalibrationBin]], *, label: str) -> str:
    """Observed share of positives over predicted probability, one dot per bin; the dashed line is perfect."""
    area = plane(width=SQUARE, height=SQUARE - 30, x_range=(0, 1), y_range=(0, 1), y_format=share_text)
    marks = [
        _calibration_line(each, area, class_=f"s{index + 1}{_under(index, len(bins))}")
        for index, each in enumerate(bins)
        if each
    ]
    frame = area.axes(
        x_label="predicted probability",
        y_label="observed share of positives",
        x_format=share_text,
        y_format=share_text,
    )
    perfect = path(area.x.many([0, 1]), area.y.many([0, 1]), class_="guide")
    return drawing(frame, perfect, *marks, width=SQUARE, height=SQUARE - 30, label=label)


def score_chart(histogram: ScoreHistogram, *, label: str) -> str:
    """Each class's share of rows by predicted probability: two outlines, the less they overlap the better."""
    negative = histogram.negative_rows / max(histogram.negative_rows.sum(), 1)
    positive = histogram.positive_rows / max(histogram.positive_rows.sum(), 1)
    top = max(float(negative.max()), float(positive.max()), 1e-6)
    area = plane(
        width=SQUARE, height=SQUARE - 30, x_range=(0, 1), y_range=(0, top * 1.1), y_format=_percent_text
    )
    frame = area.axes(
        x_label="predicted probability",
        y_label="share of the class's rows",
        x_format=share_text,
        y_format=_percent_text,
    )
    edges = histogram.edges.tolist()
    outlines = [
        _outline(edges, shares.tolist(), area, class_)
        for shares, class_ in ((negative, "negatives"), (positive, "positives"))
    ]
    return drawing(frame, *outlines, width=SQUARE, height=SQUARE - 30, label=label)


def forest_chart(
    rows: Sequence[ForestRow],
    *,
    width: int,
    label: str,
    reference: float | None,
    limit: float | None = None,
    x_label: str,
) -> str:
    """Estimates with their intervals, one a line. `reference` is a thin rule, `limit` a dashed one."""
    ends = [
        end
        for row in rows
        if row.estimate
        for end in (row.estimate.low, row.estimate.value, row.estimate.high)
        if end is not None
    ]
    ends += [end for end in (reference, limit) if end is not None]
    left, right = (250.0, width - 110.0) if width > 500 else (128.0, width - 14.0)
    height = ROW_HEIGHT * len(rows) + 62
    low, high = domain(ends)
    scale = Scale(low, high, left, right)
    bottom = height - 42.0
    marks = [_forest_row(row, scale, y=24 + ROW_HEIGHT * index, width=width) for index, row in enumerate(rows)]
    rules = [_rule(scale(reference), bottom, "rule")] if reference is not None else []
    rules += [_rule(scale(limit), bottom, "limit")] if limit is not None else []
    return drawing(
        _forest_axis(scale, bottom, x_label, signed=limit is not None),
        *rules,
        *marks,
        width=width,
        height=height,
        label=label,
    )


def _calibration_line(bins: Sequence[CalibrationBin], area: Plane, *, class_: str) -> str:
    xs = area.x.many([each.mean_predicted for each in bins])
    ys = area.y.many([each.observed_rate for each in bins])
    dots = [
        tag(
            "circle",
            title(
                f"{count_text(each.num_rows)} rows: predicted {each.mean_predicted:.3f}, "
                f"observed {each.observed_rate:.3f}",
            ),
            cx=x,
            cy=y,
            r=4,
            class_=f"dot {class_}",
        )
        for x, y, each in zip(xs, ys, bins, strict=True)
    ]
    return path(xs, ys, class_=f"line {class_}") + "".join(dots)


def _under(index: int, count: int) -> str:
    """The first of several lines is drawn broad and pale, so that an equal one does not hide it."""
    return " under" if index == 0 and count > 1 else ""


def _outline(edges: Sequence[float], shares: Sequence[float], area: Plane, class_: str) -> str:
    corners = [(edges[0], 0.0)]
    for index, share in enumerate(shares):
        corners += [(edges[index], share), (edges[index + 1], share)]
    corners.append((edges[-1], 0.0))
    points = " ".join(f"{area.x(x):.1f},{area.y(y):.1f}" for x, y in corners)
    return tag("polygon", points=points, class_=f"outline {class_}")


def _forest_row(row: ForestRow, scale: Scale, *, y: float, width: int) -> str:
    if row.estimate is None and not row.note:
        return text(row.name, 0, y + 4, class_="group")
    if row.note == HIDDEN:
        return text(row.name, 10, y + 4, class_="tick quiet")
    longest = 36 if width > 500 else 17
    name = row.name if len(row.name) <= longest else row.name[: longest - 1] + "…"
    parts = [text(name, 10, y + 4, class_="tick strong")]
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
    parts.append(
        tag("circle", title(f"{value:.4f}{interval}"), cx=scale(value), cy=y, r=4.2, class_=f"dot {colour}")
    )
    return "".join(parts)


def _forest_axis(scale: Scale, bottom: float, x_label: str, *, signed: bool) -> str:
    marks = ticks(scale.low, scale.high, max(2, int((scale.end - scale.start) / 80)))
    spelled = "+.3f" if signed else ".3g"
    return "".join(
        [
            *(tag("line", x1=scale(at), x2=scale(at), y1=10, y2=bottom, class_="grid") for at in marks),
            *(
                text(
                    _plain_zero(format(at, spelled)),
                    scale(at),
                    bottom + 18,
                    class_="tick",
                    text_anchor="middle",
                )
                for at in marks
            ),
            tag("line", x1=scale.start, x2=scale.end, y1=bottom, y2=bottom, class_="base"),
            text(x_label, scale.end, bottom + 36, class_="axis", text_anchor="end"),
        ]
    )


def _plain_zero(number: str) -> str:
    return "0" if not number.strip("+-0.") else number


def _rule(x: float, bottom: float, class_: str) -> str:
    return tag("line", x1=x, x2=x, y1=8, y2=bottom, class_=class_)


def _percent_text(share: float) -> str:
    return f"{100 * share:.3g}%"

"""The plots of a scaling law: loss over scale with its band, and how the back-test's predictions came out."""

import math
from collections.abc import Sequence

import numpy as np

from assay.base.units import power_text
from assay.evaluation.evidence.scaling.backtest import BackTest, band_scale
from assay.evaluation.evidence.scaling.study import ScalingStudy
from assay.reporting.figures.svg import Plane, band, domain, drawing, path, plane, tag, text, title

CURVE_POINTS = 60
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def exponent_text(exponent: float) -> str:
    """`21` -> `10²¹`; between whole powers, `2.0·10²¹`."""
    whole = math.floor(exponent + 1e-9)
    if abs(exponent - whole) < 1e-9:
        return "10" + str(whole).translate(_SUPERSCRIPTS)
    return f"{10 ** (exponent - whole):.2g}·10" + str(whole).translate(_SUPERSCRIPTS)


def times_text(exponent: float) -> str:
    """`2` -> `100x`: a factor from its decimal logarithm."""
    return f"{power_text(10**exponent)}x"


def loss_chart(study: ScalingStudy, *, width: int, label: str) -> str:
    """Every run, the law (with two variables: at its best split of compute), the band, and the targets."""
    form, points = study.fit.form, study.fit.points
    scale = points.variables[form.scale]
    reach = 0.0 if study.tested is None else study.tested.longest_reach
    # No further than a decade past the last target: the reach may be hundreds of times the data.
    wanted = [each.prediction.target[form.scale] for each in study.asked if each.prediction is not None]
    furthest = min(scale.max() * math.exp(reach), 10 * max([scale.max(), *wanted]))
    xs = np.geomspace(scale.min(), furthest, CURVE_POINTS)
    curve = study.compute_optimal(xs) if len(form.variables) > 1 else {form.scale: xs}
    ends = [end for each in study.asked if each.prediction for end in _ends(each.prediction.loss)]
    middle = np.exp(study.fit.log_loss(curve))
    area = plane(
        width=width,
        height=340 if width > 400 else 280,
        x_range=(float(np.log10(xs[0])) - 0.1, float(np.log10(xs[-1])) + 0.1),
        y_range=domain([*points.loss.tolist(), *middle.tolist(), *ends]),
        y_format=_loss_text,
    )
    frame = area.axes(
        x_label=_axis_name(form.scale), y_label="loss", x_format=exponent_text, y_format=_loss_text
    )
    log_xs = np.log10(xs).tolist()
    shade = ""
    if study.tested is not None:
        _, lows, highs = study.band(curve)
        shade = band(
            area.x.many(log_xs), area.y.many(lows.tolist()), area.y.many(highs.tolist()), class_="band s1"
        )
    line = path(area.x.many(log_xs), area.y.many(middle.tolist()), class_="line s1")
    dots = _run_dots(study, area)
    height = 340 if width > 400 else 280
    marks = _target_marks(study, area)
    return drawing(frame, shade, dots, line, marks, width=width, height=height, label=label)


def back_test_chart(tested: BackTest, confidence: float, *, width: int, label: str) -> str:
    """Each prediction's error over its band's half-width, by how far beyond the data it was."""
    multiplier = tested.multiplier(confidence)
    reaches = np.concatenate([origin.reaches for origin in tested.origins]) / math.log(10)
    shares = np.concatenate(
        [origin.errors / (multiplier * band_scale(origin.claimed, origin.reaches)) for origin in tested.origins]
    )
    height = 300 if width > 400 else 260
    area = plane(
        width=width,
        height=height,
        x_range=(0.0, float(reaches.max()) * 1.03),
        y_range=domain([-1.25, 1.25, *shares.tolist()]),
        y_format=_share_text,
    )
    frame = area.axes(
        x_label="scale over the largest that was fitted",
        y_label="error / half-width of the band",
        x_format=times_text,
        y_format=_share_text,
    )
    edges = [
        tag("line", x1=area.x.start, x2=area.x.end, y1=area.y(edge), y2=area.y(edge), class_="limit")
        for edge in (-1.0, 1.0)
    ]
    dots = [
        tag("circle", cx=area.x(reach), cy=area.y(share), r=3, class_=f"dot s{1 if abs(share) <= 1 else 2}")
        for reach, share in zip(reaches.tolist(), shares.tolist(), strict=True)
    ]
    return drawing(frame, *edges, *dots, width=width, height=height, label=label)


def _run_dots(study: ScalingStudy, area: Plane) -> str:
    points = study.fit.points
    scale = points.variables[study.fit.form.scale]
    return "".join(
        tag(
            "circle",
            title(f"{power_text(at)}: {loss:.4f}"),
            cx=area.x(math.log10(at)),
            cy=area.y(loss),
            r=2.6,
            class_="dot s3",
        )
        for at, loss in zip(scale.tolist(), points.loss.tolist(), strict=True)
    )


def _target_marks(study: ScalingStudy, area: Plane) -> str:
    marks = []
    for each in study.asked:
        if each.prediction is None:
            continue
        loss = each.prediction.loss
        x = area.x(math.log10(each.prediction.target[study.fit.form.scale]))
        low, high = (area.y(end) for end in _ends(loss))
        marks.append(tag("line", x1=x, x2=x, y1=low, y2=high, class_="whisker warn"))
        marks.append(
            tag("circle", title(f"{loss.value:.4f}"), cx=x, cy=area.y(loss.value), r=4.4, class_="dot s2")
        )
        marks.append(text(f"{loss.value:.3f}", x - 8, area.y(loss.value) - 8, class_="tick", text_anchor="end"))
    return "".join(marks)


def _ends(loss: object) -> Sequence[float]:
    low, high = getattr(loss, "low", None), getattr(loss, "high", None)
    assert low is not None and high is not None, "a prediction has a band"
    return (float(low), float(high))


def _axis_name(scale: str) -> str:
    return {"compute": "compute, FLOP", "tokens": "tokens", "parameters": "parameters"}[scale]


def _loss_text(value: float) -> str:
    return f"{value:.3g}"


def _share_text(value: float) -> str:
    return f"{value:+.1f}" if value else "0"

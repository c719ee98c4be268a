"""Plots of a scaling law: loss over scale with its band, and back-test errors."""

import math
from collections.abc import Iterator

import numpy as np

from assay.base.units import power_text
from assay.records.evaluation import Estimate
from assay.reporting.charts.svg import Axis, PlotArea, domain, dot, plot_area, tag, text
from assay.statistics.scaling.backtest import BackTest, band_scale
from assay.statistics.scaling.study import ScalingStudy

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


def loss_plot(scaling: ScalingStudy, *, width: int, label: str) -> str:
    """Plot every run, the law (with two variables: at the compute-optimal split), its band, and the targets."""
    form, points = scaling.fit.form, scaling.fit.points
    scale = points.variables[form.scale]
    max_horizon = 0.0 if scaling.back_test is None else scaling.back_test.max_horizon
    # No further than a decade past the last target: the reach may be hundreds of times the data.
    target_scales = [
        target.prediction.target[form.scale] for target in scaling.targets if target.prediction is not None
    ]
    max_scale = min(scale.max() * math.exp(max_horizon), 10 * max([scale.max(), *target_scales]))
    xs = np.geomspace(scale.min(), max_scale, CURVE_POINTS)
    fit_points = scaling.compute_optimal(xs) if len(form.variables) > 1 else {form.scale: xs}
    ends = [end for target in scaling.targets if target.prediction for end in _ends(target.prediction.loss)]
    middle = np.exp(scaling.fit.log_loss(fit_points))
    log_xs = np.log10(xs)
    area = plot_area(
        width,
        340 if width > 400 else 280,
        Axis(_axis_name(form.scale), (float(log_xs[0]) - 0.1, float(log_xs[-1]) + 0.1), exponent_text),
        Axis("loss", domain([*points.loss.tolist(), *middle.tolist(), *ends]), _loss_text),
    )
    shade = ""
    if scaling.back_test is not None:
        lows, highs = scaling.band(fit_points)
        shade = area.band(log_xs.tolist(), lows, highs, "band s1")
    markers = [
        area.dot(math.log10(at), loss, "s3", r=2.6, tooltip=f"{power_text(at)}: {loss:.4f}")
        for at, loss in zip(scale.tolist(), points.loss.tolist(), strict=True)
    ]
    line = area.line(log_xs, middle, "line s1")
    return area.svg_root(shade, *markers, line, *_target_marks(scaling, area), label=label)


def back_test_plot(back_test: BackTest, confidence: float, *, width: int, label: str) -> str:
    """Plot each prediction's error over its band's half-width, by extrapolation factor."""
    multiplier = back_test.multiplier(confidence)
    horizon = np.concatenate([origin.horizon for origin in back_test.origins]) / math.log(10)
    shares = np.concatenate(
        [origin.errors / (multiplier * band_scale(origin.claimed, origin.horizon)) for origin in back_test.origins]
    )
    farthest, sizes = float(horizon.max()) * 1.03, [-1.25, 1.25, *shares.tolist()]
    area = plot_area(
        width,
        300 if width > 400 else 260,
        Axis("scale over the largest that was fitted", (0.0, farthest), times_text),
        Axis("error / half-width of the band", domain(sizes), _share_text),
    )
    markers = [
        area.dot(horizon, share, "s1" if abs(share) <= 1 else "s2", r=3)
        for horizon, share in zip(horizon.tolist(), shares.tolist(), strict=True)
    ]
    return area.svg_root(area.hline(-1.0, "limit"), area.hline(1.0, "limit"), *markers, label=label)


def _target_marks(scaling: ScalingStudy, area: PlotArea) -> Iterator[str]:
    for target in scaling.targets:
        if target.prediction is None:
            continue
        loss = target.prediction.loss
        at = math.log10(target.prediction.target[scaling.fit.form.scale])
        x, y = area.x(at), area.y(loss.value)
        low, high = area.y.many(_ends(loss))
        yield tag("line", x1=x, x2=x, y1=low, y2=high, class_="whisker warn")
        yield dot(x, y, "s2", r=4.4, tooltip=f"{loss.value:.4f}")
        yield text(f"{loss.value:.3f}", x - 8, y - 8, class_="tick", text_anchor="end")


def _ends(loss: Estimate) -> tuple[float, float]:
    assert loss.low is not None and loss.high is not None, "a prediction has a band"
    return loss.low, loss.high


def _axis_name(scale: str) -> str:
    return {"compute": "compute, FLOP", "tokens": "tokens", "parameters": "parameters"}[scale]


def _loss_text(value: float) -> str:
    return f"{value:.3g}"


def _share_text(value: float) -> str:
    return f"{value:+.1f}" if value else "0"

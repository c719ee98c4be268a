"""SVG elements, scales, ticks and a plot area between two axes. Colours are CSS classes, so one stylesheet
serves light, dark and print."""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

from assay.base.visible import written_out

FONT_WIDTH = 6.2
"""Mean width of a character in pixels at the plots' font size."""


def tag(name: str, /, *children: str, **attributes: str | float | None) -> str:
    """Return an element. `class_` becomes `class`, `a_b` becomes `a-b`, None is left out. Children are markup,
    not text."""
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{attribute_text}>{''.join(children)}</{name}>" if children else f"<{name}{attribute_text}/>"


def text(content: str, x: float, y: float, **attributes: str | float | None) -> str:
    """Return a line of text; `content` is escaped."""
    return tag("text", escape(written_out(content)), x=x, y=y, **attributes)


def title(content: str) -> str:
    """Return a tooltip for the enclosing element; `content` is escaped."""
    return tag("title", escape(written_out(content)))


def path(xs: Sequence[float], ys: Sequence[float], **attributes: str | float | None) -> str:
    """Return an open line through the points; empty without points."""
    points = " ".join(_points(xs, ys))
    return tag("polyline", points=points, fill="none", **attributes) if points else ""


def dot(x: float, y: float, class_: str, *, r: float, tooltip: str = "") -> str:
    """Return a point with an optional tooltip."""
    return tag("circle", *([title(tooltip)] if tooltip else []), cx=x, cy=y, r=r, class_=f"dot {class_}")


def svg_root(*children: str, width: float, height: float, label: str) -> str:
    """Return the root element, which scales to its container; `label` is for screen readers."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        role="img",
        aria_label=escape(written_out(label)),
        xmlns="http://www.w3.org/2000/svg",
    )


class Scale(NamedTuple):
    """A linear or logarithmic map from values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def many(self, values: Iterable[float]) -> list[float]:
        """Return the pixels of several values."""
        return [self(value) for value in values]


def ticks(low: float, high: float, target: int, *, least: float = 0.0) -> list[float]:
    """Return about `target` round numbers (1, 2 or 5 times a power of ten apart, at least `least`) in [low,
    high]."""
    raw = max((high - low) / max(target, 1), least)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 2 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def decades(low: float, high: float, target: int) -> list[float]:
    """Return about `target` powers of ten in [low, high], with their multiples by 2 and 5 if there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, round((last - first) / max(target, 1)))
    factors = (1, 2, 5) if last - first < target / 2 else (1,)
    found = [factor * 10.0**power for power in range(first, last + 1, step) for factor in factors]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def spans(values: Sequence[float], ratio: float) -> bool:
    """Return whether a log axis fits: all values are positive, and the largest is `ratio` times the smallest."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and 1e-200 < ratio * min(finite) <= max(finite) < 1e200


def log_domain(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of the finite, positive values with a margin."""
    finite = [value for value in values if math.isfinite(value)]
    return min(finite) / 1.3, max(finite) * 1.3


def domain(values: Sequence[float], *, floor: float | None = None) -> tuple[float, float]:
    """Return the range of the finite values with a margin; it begins at `floor` if given."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if floor is not None:
        low = floor
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-290):  # equal but for rounding
        return low - (0.0 if floor is not None else 0.5), low + 1.0
    air = 0.06 * (high - low)
    return low if floor is not None else low - air, high + air


class Axis(NamedTuple):
    """One axis of a plot."""

    name: str
    range: tuple[float, float]
    number: Callable[[float], str]
    """Formats a value on the axis."""
    least: float = 0.0
    """Smallest distance of ticks: 1 for counts."""
    is_log: bool = False

    def ticks(self, target: int) -> list[float]:
        """Return about `target` round values."""
        return decades(*self.range, target) if self.is_log else ticks(*self.range, target, least=self.least)


class PlotArea(NamedTuple):
    """A rectangle between two axes. Its methods take values, not pixels."""

    width: float
    height: float
    x: Scale
    y: Scale
    frame: str
    """Grid lines, numbers and names of the axes."""

    def line(self, xs: Iterable[float], ys: Iterable[float], class_: str) -> str:
        """Return an open line through the points."""
        return path(self.x.many(xs), self.y.many(ys), class_=class_)

    def band(self, xs: Sequence[float], lows: Iterable[float], highs: Iterable[float], class_: str) -> str:
        """Return the area between two lines; empty without points."""
        upper, lower = (_points(self.x.many(xs), self.y.many(ys)) for ys in (highs, lows))
        return tag("polygon", points=" ".join(upper + lower[::-1]), class_=class_) if upper else ""

    def dot(self, x: float, y: float, class_: str, *, r: float, tooltip: str = "") -> str:
        """Return a point with an optional tooltip."""
        return dot(self.x(x), self.y(y), class_, r=r, tooltip=tooltip)

    def vline(self, x: float, class_: str) -> str:
        """Return a vertical line over the full height."""
        return tag("line", x1=self.x(x), x2=self.x(x), y1=self.y.end, y2=self.y.start, class_=class_)

    def hline(self, y: float, class_: str, *children: str) -> str:
        """Return a horizontal line over the full width."""
        at = self.y(y)
        return tag("line", *children, x1=self.x.start, x2=self.x.end, y1=at, y2=at, class_=class_)

    def svg_root(self, *children: str, label: str) -> str:
        """Return the complete SVG; `label` is for screen readers."""
        return svg_root(self.frame, *children, width=self.width, height=self.height, label=label)


def plot_area(width: float, height: float, x: Axis, y: Axis) -> PlotArea:
    """Return a plot area with margins for its axis labels."""
    widest = max((len(y.number(value)) for value in y.ticks(5)), default=1)
    across = Scale(*x.range, 14 + widest * FONT_WIDTH, width - 14)
    up = Scale(*y.range, height - 42, 26, y.is_log)
    left, right, top, bottom = across.start, across.end, up.end, up.start
    rows = [
        tag("line", x1=left, x2=right, y1=up(value), y2=up(value), class_="grid")
        + text(y.number(value), left - 8, up(value) + 4, class_="tick", text_anchor="end")
        for value in y.ticks(max(2, int((bottom - top) / 40)))
    ]
    columns = [
        tag("line", x1=across(value), x2=across(value), y1=bottom, y2=bottom + 4, class_="base")
        + text(x.number(value), across(value), bottom + 18, class_="tick", text_anchor="middle")
        for value in x.ticks(max(2, int((right - left) / (40 if x.least else 90))))
    ]
    names = [
        tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="base"),
        text(x.name, right, bottom + 36, class_="axis", text_anchor="end"),
        text(y.name, 2, top - 10, class_="axis"),
    ]
    return PlotArea(width, height, across, up, "".join([*rows, *columns, *names]))


def _points(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    return [f"{_number(x)},{_number(y)}" for x, y in zip(xs, ys, strict=True)]


def _value(value: str | float | None) -> str:
    return value if isinstance(value, str) else _number(float(value or 0))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

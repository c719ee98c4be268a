"""The little drawing that our plots need: elements, scales, ticks, and a plane with axes.

Colours are classes, not values, so that one stylesheet serves light, dark and print.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

FONT_WIDTH = 6.2
"""Mean advance of a character at the plots' font size, in pixels: for space beside an axis."""


def tag(name: str, /, *children: str, **attributes: str | float | None) -> str:
    """An element; `class_` is `class`, `a_b` is `a-b`, None is left out. Children are markup, not text."""
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{spelled}>{''.join(children)}</{name}>" if children else f"<{name}{spelled}/>"


def text(content: str, x: float, y: float, **attributes: str | float | None) -> str:
    """A line of text; `content` is escaped."""
    return tag("text", escape(content), x=x, y=y, **attributes)


def title(content: str) -> str:
    """What the pointer shows over the element that holds it; `content` is escaped."""
    return tag("title", escape(content))


def path(xs: Sequence[float], ys: Sequence[float], **attributes: str | float | None) -> str:
    """An open line through the points; fewer than one point draws nothing."""
    if not len(xs):
        return ""
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in zip(xs, ys, strict=True))
    return tag("polyline", points=points, fill="none", **attributes)


def band(xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], *, class_: str) -> str:
    """The area between two lines."""
    if not len(xs):
        return ""
    there = [f"{_number(x)},{_number(y)}" for x, y in zip(xs, highs, strict=True)]
    back = [f"{_number(x)},{_number(y)}" for x, y in zip(xs, lows, strict=True)]
    return tag("polygon", points=" ".join(there + back[::-1]), class_=class_)


def drawing(*children: str, width: float, height: float, label: str) -> str:
    """The root element: scales to its container; `label` is what a screen reader says."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        role="img",
        aria_label=escape(label, quote=True),
        xmlns="http://www.w3.org/2000/svg",
    )


class Scale(NamedTuple):
    """A linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel at which `value` lies."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def many(self, values: Sequence[float]) -> list[float]:
        """The pixels of several values."""
        return [self(value) for value in values]


def ticks(low: float, high: float, target: int) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) inside [low, high], about `target` of them."""
    raw = (high - low) / max(target, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 2 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def domain(values: Sequence[float], *, floor: float | None = None) -> tuple[float, float]:
    """The range of the finite values with a little air; `floor` is where it must begin, if given."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if floor is not None:
        low = floor
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-290):  # equal but for rounding
        return low - (0.0 if floor is not None else 0.5), low + 1.0
    air = 0.06 * (high - low)
    return low if floor is not None else low - air, high + air


class Plane(NamedTuple):
    """A rectangle with a scale on each axis."""

    x: Scale
    y: Scale

    def axes(
        self,
        *,
        x_label: str,
        y_label: str,
        x_format: Callable[[float], str],
        y_format: Callable[[float], str],
    ) -> str:
        """Horizontal grid lines with their numbers, the base line, the numbers below it, and both names."""
        left, right, top, bottom = self.x.start, self.x.end, self.y.end, self.y.start
        x_ticks = ticks(self.x.low, self.x.high, max(2, int((right - left) / 90)))
        y_ticks = ticks(self.y.low, self.y.high, max(2, int((bottom - top) / 40)))
        rows = [
            tag("line", x1=left, x2=right, y1=self.y(value), y2=self.y(value), class_="grid")
            + text(y_format(value), left - 8, self.y(value) + 4, class_="tick", text_anchor="end")
            for value in y_ticks
        ]
        columns = [
            tag("line", x1=self.x(value), x2=self.x(value), y1=bottom, y2=bottom + 4, class_="base")
            + text(x_format(value), self.x(value), bottom + 18, class_="tick", text_anchor="middle")
            for value in x_ticks
        ]
        names = [
            tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="base"),
            text(x_label, right, bottom + 36, class_="axis", text_anchor="end"),
            text(y_label, 2, top - 10, class_="axis"),
        ]
        return "".join([*rows, *columns, *names])


def plane(
    *,
    width: float,
    height: float,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    y_format: Callable[[float], str],
) -> Plane:
    """A plane with room for its numbers."""
    widest = max(len(y_format(value)) for value in ticks(*y_range, 5))
    left = 14 + widest * FONT_WIDTH
    return Plane(Scale(*x_range, left, width - 14), Scale(*y_range, height - 42, 26))


def _value(value: str | float | None) -> str:
    return value if isinstance(value, str) else _number(float(value or 0))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

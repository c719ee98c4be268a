"""The two drawings of `evidence.py`: SVG files that stand alone, light and dark."""

from collections.abc import Mapping, Sequence

from assay.reporting.figures.svg import Plane, drawing, path, plane, tag, text

WIDTH, HEIGHT = 640, 340
COLOURS = {"scale": "s1", "narrow": "s2", "stop": "s3"}
STYLE = """
svg { background: #fff; } text { font: 12px system-ui, sans-serif; fill: #24292f; }
.tick, .axis { fill: #57606a; } .name { font-weight: 600; } .line { stroke-width: 2.2; }
.grid { stroke: #e4e7eb; } .base { stroke: #8b949e; } .guide { stroke: #8b949e; stroke-dasharray: 4 4; }
.line.s1 { stroke: #1a7f5a; } .line.s2 { stroke: #b7791f; } .line.s3 { stroke: #b42318; }
.name.s1 { fill: #1a7f5a; } .name.s2 { fill: #b7791f; } .name.s3 { fill: #b42318; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171a; } text { fill: #e6e8ea; } .tick, .axis { fill: #9aa4ad; }
  .grid { stroke: #2a2f35; }
  .line.s1 { stroke: #4cc29a; } .line.s2 { stroke: #e0a850; } .line.s3 { stroke: #f0796c; }
  .name.s1 { fill: #4cc29a; } .name.s2 { fill: #e0a850; } .name.s3 { fill: #f0796c; }
}
"""


def outcomes_chart(
    gains: Sequence[float],
    shares: Mapping[str, Sequence[float]],
    *,
    stated: Sequence[float],
    least_effect: float,
) -> str:
    """Share of campaigns by how they ended, over the true gain in points; dashed: the stated power."""
    area = _plane(0.0, max(gains))
    lines = [
        path(area.x.many(gains), area.y.many(values), class_=f"line {COLOURS[word]}")
        for word, values in shares.items()
    ]
    lines.append(path(area.x.many(gains), area.y.many(stated), class_="guide"))
    names = [
        text("stop", area.x(0.3), area.y(0.88), class_="name s3"),
        text("scale", area.x(4.6), area.y(0.97), class_="name s1"),
        text("narrow", area.x(2.0), area.y(0.03), class_="name s2"),
        text("stated power (a lower bound)", area.x(3.5), area.y(0.3), class_="tick"),
    ]
    worth = tag(
        "line", x1=area.x(least_effect), x2=area.x(least_effect), y1=area.y.start, y2=area.y.end, class_="guide"
    )
    label = text("worth scaling", area.x(least_effect) + 5, area.y(0.95), class_="tick")
    return _standing(area, [worth, label, *lines, *names], x_label="true gain, points", what="Outcomes by gain")


def looks_chart(looks: Sequence[int], *, naive: Sequence[float], ours: Sequence[float]) -> str:
    """Share of effectless campaigns that have claimed a gain, over the checkpoints looked at."""
    area = _plane(1.0, float(max(looks)))
    places = area.x.many([float(look) for look in looks])
    body = [
        path(places, area.y.many(naive), class_="line s3"),
        path(places, area.y.many(ours), class_="line s1"),
        text("one seed, best benchmark, items' error", places[3], area.y(naive[-1] + 0.05), class_="name s3"),
        text("the rule", places[3], area.y(0.05), class_="name s1"),
    ]
    return _standing(area, body, x_label="checkpoints looked at", what="False claims by number of looks")


def _plane(low: float, high: float) -> Plane:
    return plane(width=WIDTH, height=HEIGHT, x_range=(low, high), y_range=(0.0, 1.0), y_format=_percent)


def _standing(area: Plane, body: Sequence[str], *, x_label: str, what: str) -> str:
    frame = area.axes(
        x_label=x_label, y_label="share of campaigns", x_format=lambda x: f"{x:g}", y_format=_percent
    )
    return drawing(f"<style>{STYLE}</style>", frame, *body, width=WIDTH, height=HEIGHT, label=what)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"

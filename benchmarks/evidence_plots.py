"""The two drawings of `evidence.py`: SVG files that stand alone, light and dark."""

from collections.abc import Mapping, Sequence

from assay.reporting.charts.svg import Axis, PlotArea, plot_area, text

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
    area = _chart("true gain, points", 0.0, max(gains))
    lines = [area.line(gains, values, f"line {COLOURS[word]}") for word, values in shares.items()]
    lines.append(area.line(gains, stated, "guide"))
    names = [
        text("stop", area.x(0.3), area.y(0.88), class_="name s3"),
        text("scale", area.x(4.6), area.y(0.97), class_="name s1"),
        text("narrow", area.x(2.0), area.y(0.03), class_="name s2"),
        text("stated power (a lower bound)", area.x(3.5), area.y(0.3), class_="tick"),
    ]
    label = text("worth scaling", area.x(least_effect) + 5, area.y(0.95), class_="tick")
    body = [area.vline(least_effect, "guide"), label, *lines, *names]
    return area.svg_root(f"<style>{STYLE}</style>", *body, label="Outcomes by gain")


def looks_chart(looks: Sequence[int], *, naive: Sequence[float], ours: Sequence[float]) -> str:
    """Share of effectless campaigns that have claimed a gain, over the checkpoints looked at."""
    area = _chart("checkpoints looked at", 1.0, float(max(looks)))
    at = area.x(looks[3])
    body = [
        area.line(looks, naive, "line s3"),
        area.line(looks, ours, "line s1"),
        text("one seed, best benchmark, items' error", at, area.y(naive[-1] + 0.05), class_="name s3"),
        text("the rule", at, area.y(0.05), class_="name s1"),
    ]
    return area.svg_root(f"<style>{STYLE}</style>", *body, label="False claims by number of looks")


def _chart(x_name: str, low: float, high: float) -> PlotArea:
    across = Axis(x_name, (low, high), lambda x: f"{x:g}")
    return plot_area(WIDTH, HEIGHT, across, Axis("share of campaigns", (0.0, 1.0), _percent))


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"

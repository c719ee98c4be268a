"""A page: a document with an address, filters, actions, and the topics whose changes it shows by itself."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Literal, NamedTuple
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup, escape

from assay.base.errors import AssayError
from assay.base.visible import written_out
from assay.reporting.charts.plots import LineChart
from assay.reporting.document import Chart, CurveLine, Document, Figure
from assay.reporting.documents.render import contents_of, page_templates, stylesheet

AREAS = (
    ("Now", "/"),
    ("Programs", "/programs"),
    ("Runs", "/runs"),
    ("Benchmarks", "/benchmarks"),
    ("Decisions", "/decisions"),
    ("Coverage", "/coverage"),
    ("Jobs", "/jobs"),
    ("Cost", "/cost"),
)
"""The navigation: title and address."""

_UTC_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)Z")
_UTC_MINUTE = re.compile(r"^(\d{4}-\d\d-\d\d) (\d\d:\d\d)$")

STATIC_TYPES = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}


class PageError(AssayError):
    """A request that cannot be answered; shown as a page with its status code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Filter(NamedTuple):
    """A field of the form under a page's title; its value stands in the page's address."""

    name: str
    label: str
    value: str = ""
    choices: Sequence[tuple[str, str]] = ()
    """Value and label; empty for a field to type in."""
    kind: Literal["text", "password", "number", "date", "hidden"] = "text"


class Action(NamedTuple):
    """A button that changes something; shown only to readers who may."""

    label: str
    address: str
    values: Mapping[str, str] = {}
    """Hidden fields of the form."""
    explanation: str = ""
    fields: Sequence[Filter] = ()
    """Fields that the reader fills in."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is shown at an address.

    Times in it may be relative: a page with ages listens to the topic `minute`.
    """

    document: Document
    area: str
    """Title in `AREAS`; empty for none."""
    topics: tuple[str, ...] = ()
    """Topics of `Watch`: after a change, the page fetches itself again."""
    filters: Sequence[Filter] = ()
    actions: Sequence[Action] = ()
    login: Action | None = None
    """The form with which a reader logs in."""
    has_curves: bool = False
    """Whether figures have a `source` from which a script draws them live."""
    refresh_s: float = 2.0
    """Least time between two fetches of the page by itself."""
    status: int = 200
    retry_s: float | None = None
    """The browser loads the page again after this time, also without scripts."""


def path_to(*parts: str) -> str:
    """Return the path of a page, such as `/runs/RUN`; names that users wrote are percent-encoded."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def static_file(name: str) -> tuple[bytes, str] | None:
    """Return content and media type of a script or stylesheet; None if there is none of this name."""
    suffix = f".{name.rpartition('.')[2]}"
    if name == "page.css":
        return stylesheet().encode(), STATIC_TYPES[suffix]
    folder = files("assay.dashboard").joinpath("static")
    vendored = folder.joinpath("vendor")
    known = {entry.name: entry for entry in (*folder.iterdir(), *vendored.iterdir()) if entry.is_file()}
    if name not in known or suffix not in STATIC_TYPES:
        return None
    return known[name].read_bytes(), STATIC_TYPES[suffix]


@cache
def static_address(name: str) -> str:
    """Return the address of a static file; it changes with the content, so browsers may keep the file."""
    found = static_file(name)
    assert found is not None, name
    return f"/static/{name}?{sha256(found[0]).hexdigest()[:12]}"


def render_page(page: Page, *, address: str, stream: str, reader_name: str, token: str) -> str:
    """Return the HTML of a page. `stream`: address of its events, or empty. `token`: for its actions; without one,
    actions are left out."""
    return (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            document=page.document,
            contents=contents_of(page.document.sections),
            areas=AREAS,
            address=address,
            stream=stream,
            reader_name=reader_name,
            token=token,
            static=static_address,
        )
    )


@cache
def _templates() -> Environment:
    shared = page_templates()
    assert shared.loader is not None
    templates = shared.overlay(loader=ChoiceLoader([PackageLoader("assay.dashboard"), shared.loader]))
    templates.globals = {**shared.globals, "is_live": True}
    ours = {"chart_of": chart_of, "with_times": with_times, "live_figure": live_figure, "downloads": downloads}
    templates.filters = {**shared.filters, **ours}
    return templates


def chart_of(figure: Figure) -> Chart:
    """Return the chart of a figure; a script shows the values of curves, so their drawing needs no text for it."""
    chart = figure.chart
    return replace(chart, has_probes=False) if figure.lines and isinstance(chart, LineChart) else chart


def with_times(text: str, heading: str = "") -> str:
    """Return a text with elements around UTC times, in which a script shows them in the reader's zone, too. Under a
    heading with '(UTC)', times to the minute are such."""
    pattern = _UTC_MINUTE if heading.endswith("(UTC)") and _UTC_MINUTE.search(text) else _UTC_TIME
    if isinstance(text, Markup) or not pattern.search(text):
        return text
    escaped = str(escape(written_out(text)))
    return Markup(pattern.sub(r'<time datetime="\1T\2Z">\g<0></time>', escaped))


def live_figure(figure: Figure) -> str:
    """Return what the script that draws a curve figure needs, as JSON."""
    chart = figure.chart
    assert isinstance(chart, LineChart)
    lines = [
        {
            "label": line.label,
            "address": _curve_address(line, line.metric),
            "divisor": _curve_address(line, line.divisor) if line.divisor else None,
            "scale": line.scale,
        }
        for line in figure.lines
    ]
    facts = {
        "title": figure.title,
        "unit": chart.y_label,
        "isZeroBased": chart.zero_based,
        "hasDots": chart.dots,
        "logRatio": chart.log_ratio if math.isfinite(chart.log_ratio) and not chart.zero_based else None,
        "limits": [limit if math.isfinite(limit) else None for limit in chart.limits],
        "lines": lines,
    }
    return json.dumps(facts)


def downloads(figure: Figure) -> list[tuple[str, str]]:
    """Return the metrics of a curve figure with the addresses of their points as CSV."""
    pairs = {
        (metric, _curve_address(line, metric, ".csv"))
        for line in figure.lines
        for metric in (line.metric, line.divisor)
        if metric
    }
    return sorted(pairs)


def _curve_address(line: CurveLine, metric: str, suffix: str = "") -> str:
    return f"{path_to('runs', line.run_id)}/curve{suffix}?name={quote(metric, safe='')}"

"""The points of a metric's curve, for the script that draws it and as CSV, and the list of a run's metrics."""

import json
from collections import OrderedDict
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError
from assay.reporting.charts.run_figures import curve_line, series_figure
from assay.reporting.document import Block, Cell, Document, Figure, Paragraph, Section, TitledTable, name, number
from assay.reporting.values import shortened
from assay.reporting.views.runs.curve_window import (
    MAX_COLUMNS,
    CurveCursor,
    CurveWindow,
    curve_bytes,
    metric_names,
    window_curve,
)
from assay.reporting.views.runs.series import metric_curve
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import MetricSummary, metric_summaries
from assay.store.metrics.fold import fold_run, segment_sizes

PER_PAGE = 100
MAX_ENCODED = 200
MAX_METRICS = 64
"""Metrics of one request."""
TABLE_COLUMNS = 10
"""Numbers that `curve_bytes` gives for each column of a window."""
SHOWN_CHARACTERS = 200
"""Characters of a metric's name in the list."""
MAX_SHOWN = 8
"""Metrics that are drawn above the list."""


def curve_of_run(dashboard: Dashboard, visit: Visit) -> Response:
    """Return the columns of a window of each metric `name` (`curve_bytes`), one after the other.

    The header `assay-curves` holds for each, as JSON: the number of columns, the steps of a column, the number of
    points of the metric, the cursor with which the next request gets only what is new (`since`), and from which step
    on the columns replace those of the request's cursor (null: all).
    """
    with dashboard.ledger(visit.path["run_id"]) as ledger:
        sizes = segment_sizes(Path(ledger.run(visit.path["run_id"]).run_dir))
    key = (str(dashboard.home.folder), visit.address, sizes or "")
    encoded = _encoded.get(key) if sizes else None
    if encoded is None:
        encoded = _encode(_windows(dashboard, visit, columns=1_000))
        _encoded[key] = encoded
        while len(_encoded) > MAX_ENCODED:
            _encoded.popitem(last=False)
    return Response(encoded.content, media_type="application/octet-stream", headers=encoded.headers)


class _Encoded(NamedTuple):
    content: bytes
    headers: dict[str, str]


_encoded: OrderedDict[tuple[str, str, str], _Encoded] = OrderedDict()
"""By home, address and sizes of the run's segments: several readers of a run ask for the same news."""


def _encode(windows: list[CurveWindow]) -> _Encoded:
    parts = [curve_bytes(window) for window in windows]
    facts = [
        {
            "columns": len(part) // (8 * TABLE_COLUMNS),
            "step_width": window.step_width,
            "points": window.num_points,
            "cursor": window.cursor.to_text(),
            "replaces_from": window.replaces_from,
        }
        for window, part in zip(windows, parts, strict=True)
    ]
    etags = "".join(window.etag for window in windows)
    headers = {"etag": f'"{sha256(etags.encode()).hexdigest()[:24]}"', "assay-curves": json.dumps(facts)}
    return _Encoded(b"".join(parts), headers)


def curve_csv(dashboard: Dashboard, visit: Visit) -> Response:
    """Return a window as CSV; a window of at most `MAX_COLUMNS` steps has each step."""
    window = _windows(dashboard, visit, columns=MAX_COLUMNS)[0]
    lines = ["rolled_back,first_step,steps,minimum,maximum,last,points,nan,positive_infinity,negative_infinity"]
    for is_lost, columns in enumerate((window.committed, window.lost)):
        rows = zip(*(numbers.tolist() for numbers in columns), strict=True)
        lines += [f"{is_lost},{step:.0f},{window.step_width},{','.join(map(repr, rest))}" for step, *rest in rows]
    disposition = f"attachment; filename*=UTF-8''{quote(visit.query['name'][:80], safe='')}.csv"
    text = "\n".join([*lines, ""])
    return Response(text, media_type="text/csv; charset=utf-8", headers={"content-disposition": disposition})


def metrics_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the names of a run's metrics that begin with `prefix`, and the figures of those in `show`."""
    run_id, prefix = visit.path["run_id"], visit.query.get("prefix", "")
    page, shown = visit.page_number(), list(filter(None, visit.query.getlist("show")))
    if len(shown) > MAX_SHOWN:
        raise PageError(400, f"show={shown[MAX_SHOWN]}: expected at most {MAX_SHOWN} metrics to draw.")
    with dashboard.ledger(run_id) as ledger:
        fold_run(ledger, ledger.run(run_id))
        found = metric_names(ledger, run_id, prefix=prefix, offset=(page - 1) * PER_PAGE, limit=PER_PAGE)
        summaries = metric_summaries(ledger, run_id, found.names)
        figures = [_figure(ledger, run_id, metric) for metric in shown]
    here = f"/runs/{quote(run_id, safe='')}/metrics?prefix={quote(prefix, safe='')}"
    blocks: list[Block] = [*figures, _names_table(summaries, f"{here}&page={page}")] if summaries else [*figures]
    if page * PER_PAGE < found.num_names:
        blocks.append(Paragraph(Cell(f"Page {page + 1}", link=f"{here}&page={page + 1}")))
    begins = f" that begin with '{prefix}'" if prefix else ""
    return Page(
        document=Document(
            title=f"Metrics of {run_id}",
            kind="metrics",
            subtitle=f"{number_of(found.num_names, 'metric')} of rank 0{begins}",
            sections=[Section("", blocks or [Paragraph("No metric matches.")])],
            footer=f"The same as JSON: assay runs show {run_id} --json",
            links=[(f"/runs/{quote(run_id, safe='')}", run_id)],
        ),
        area="Runs",
        topics=(f"run:{run_id}",),
        filters=[Filter("prefix", "Name begins with", prefix)],
        has_curves=bool(figures),
    )


def _names_table(summaries: list[MetricSummary], here: str) -> TitledTable:
    def link_of(item: MetricSummary) -> Cell:
        return Cell(shortened(item.name, SHOWN_CHARACTERS), link=f"{here}&show={quote(item.name, safe='')}")

    return TitledTable.of(
        "",
        "",
        summaries,
        (name("metric"), link_of),
        (number("points"), lambda item: f"{item.num_points:,}"),
        (number("last step"), lambda item: f"{item.last_step:,}"),
        (number("last"), lambda item: _value_text(item.last_value)),
        (number("minimum"), lambda item: _value_text(item.minimum)),
        (number("maximum"), lambda item: _value_text(item.maximum)),
    )


def _value_text(value: float | None) -> str:
    return "—" if value is None else f"{value:.6g}"


def _figure(ledger: Ledger, run_id: str, metric: str) -> Figure:
    summaries = metric_summaries(ledger, run_id, [metric])
    if not summaries:
        raise PageError(400, f"show={metric}: expected a metric of run {run_id}.")
    series = metric_curve(ledger, run_id, metric, summaries[0].num_points)
    return series_figure(
        [series], title=metric, caption="", y_label="value", lines=[curve_line(series, metric, run_id)]
    )


def _windows(dashboard: Dashboard, visit: Visit, *, columns: int) -> list[CurveWindow]:
    run_id, metrics, cursors = visit.path["run_id"], visit.query.getlist("name"), visit.query.getlist("since")
    if not all(metrics) or not 1 <= len(metrics) <= MAX_METRICS:
        raise PageError(400, f"name={metrics[0] if metrics else ''}: expected 1 to {MAX_METRICS} names of metrics.")
    if cursors and len(cursors) != len(metrics):
        raise PageError(400, f"since={cursors[0]}: expected a cursor, or none, for each name.")
    with dashboard.ledger(run_id) as ledger:
        fold_run(ledger, ledger.run(run_id))
        try:
            return [
                window_curve(
                    ledger,
                    run_id,
                    metric,
                    first_step=visit.number("first"),
                    last_step=visit.number("last"),
                    columns=visit.number("columns", least=1) or columns,
                    since=CurveCursor.from_text(cursor) if cursor else None,
                )
                for metric, cursor in zip_longest(metrics, cursors)
            ]
        except ConfigError as error:
            raise PageError(400, str(error)) from error

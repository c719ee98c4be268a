"""The points of a metric's curve, for the script that draws it and as CSV, and the list of a run's metrics."""

from urllib.parse import quote

from starlette.responses import Response

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError
from assay.reporting.charts.run_figures import curve_line, series_figure
from assay.reporting.document import Block, Cell, Document, Figure, Paragraph, Section, TitledTable, name, number
from assay.reporting.views.curve_window import (
    MAX_COLUMNS,
    Cursor,
    CurveWindow,
    curve_bytes,
    metric_names,
    window_curve,
)
from assay.reporting.views.series import metric_curve
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import MetricSummary, metric_summaries
from assay.store.metrics.fold import fold_run

PER_PAGE = 100
MAX_SHOWN = 8
"""Metrics that are drawn above the list."""


def curve_of_run(dashboard: Dashboard, visit: Visit) -> Response:
    """Return the columns of a window (`curve_bytes`). Headers hold the width of a column in steps, the number of
    points, the cursor for the next request, and from which step on the columns replace those of the request's
    cursor."""
    window = _window(dashboard, visit, columns=1_000)
    headers = {
        "etag": f'"{window.etag}"',
        "assay-cursor": window.cursor.to_text(),
        "assay-step-width": str(window.step_width),
        "assay-points": str(window.num_points),
    }
    if window.replaces_from is not None:
        headers["assay-replaces-from"] = str(window.replaces_from)
    return Response(curve_bytes(window), media_type="application/octet-stream", headers=headers)


def curve_csv(dashboard: Dashboard, visit: Visit) -> Response:
    """Return a window as CSV; a window of at most `MAX_COLUMNS` steps has each step."""
    window = _window(dashboard, visit, columns=MAX_COLUMNS)
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
    page, shown = visit.page_number(), visit.query.getlist("show")
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
            links=[(f"/runs/{quote(run_id, safe='')}", run_id)],
        ),
        area="Runs",
        topics=(f"run:{run_id}",),
        filters=[Filter("prefix", "Name begins with", prefix)],
        has_curves=bool(figures),
    )


def _names_table(summaries: list[MetricSummary], here: str) -> TitledTable:
    return TitledTable.of(
        "",
        "",
        summaries,
        (name("metric"), lambda item: Cell(item.name, link=f"{here}&show={quote(item.name, safe='')}")),
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


def _window(dashboard: Dashboard, visit: Visit, *, columns: int) -> CurveWindow:
    run_id, metric = visit.path["run_id"], visit.query.get("name", "")
    if not metric:
        raise PageError(400, "name=: expected the name of a metric.")
    since = visit.query.get("since", "")
    with dashboard.ledger(run_id) as ledger:
        fold_run(ledger, ledger.run(run_id))
        try:
            return window_curve(
                ledger,
                run_id,
                metric,
                first_step=_number(visit, "first"),
                last_step=_number(visit, "last"),
                columns=_number(visit, "columns", columns) or 0,
                since=Cursor.from_text(since) if since else None,
            )
        except ConfigError as error:
            raise PageError(400, str(error)) from error


def _number(visit: Visit, key: str, default: int | None = None) -> int | None:
    text = visit.query.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise PageError(400, f"{key}={text}: expected a whole number.")
    return int(text)

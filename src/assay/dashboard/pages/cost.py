"""Where device-hours and money went, by project, program, person or day."""

import csv
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import get_args

from starlette.responses import Response

from assay.base.errors import ConfigError
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError, path_to
from assay.reporting.documents.cost import cost_document
from assay.reporting.views.cost import CostLine, CostReport, Grouping, cost_report, owners_in, utc_day


def cost_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the costs of the window in the address."""
    report = _report(dashboard, visit)
    document = cost_document(report, address=lambda run_id: path_to("runs", run_id))
    yesterday = datetime.fromtimestamp(dashboard.clock.now_s(), UTC).date() - timedelta(days=1)
    links = [
        (f"/cost?by=day&from={yesterday}", "since yesterday, by day"),
        (visit.with_query().replace("/cost", "/cost.csv", 1), "this table as CSV"),
    ]
    return Page(
        document=replace(document, links=links),
        area="Cost",
        topics=("runs",),
        filters=[
            Filter("by", "By", report.by, [(by, by) for by in get_args(Grouping)]),
            Filter("from", "From (UTC day)", visit.query.get("from", ""), kind="date"),
            Filter("to", "To (UTC day, included)", visit.query.get("to", ""), kind="date"),
        ],
    )


def cost_csv(dashboard: Dashboard, visit: Visit) -> Response:
    """Return the same lines and their sum as CSV."""
    report = _report(dashboard, visit)
    text = StringIO()
    writer = csv.DictWriter(text, list(CostLine.model_fields))
    writer.writeheader()
    for line in (*report.lines, report.total):
        # A spreadsheet would execute a name that begins with one of these signs.
        name = f"'{line.name}" if line.name.startswith(("=", "+", "-", "@", "\t", "\r")) else line.name
        writer.writerow({**line.model_dump(), "name": name})
    headers = {"content-disposition": f"attachment; filename=cost-by-{report.by}.csv"}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


def _report(dashboard: Dashboard, visit: Visit) -> CostReport:
    by: Grouping = visit.choice("by", get_args(Grouping), "project")
    try:
        since, until = (utc_day(key, visit.query.get(key)) for key in ("from", "to"))
    except ConfigError as error:
        raise PageError(400, str(error)) from error
    if since is not None and until is not None and until < since:
        raise PageError(400, f"to={until}: expected a day that is not before from={since}.")
    with dashboard.ledger() as ledger:
        owners = owners_in(dashboard.home, ledger, dashboard.api.charged, by=by)
        return cost_report(ledger, dashboard.settings(), owners, by=by, since=since, until=until)

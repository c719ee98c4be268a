"""The page of one run: its document, with live curves."""

from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Page
from assay.reporting.documents.run import run_document
from assay.reporting.views.run_page import run_page


def run_page_of(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the page of a run."""
    run_id = visit.path["run_id"]
    with dashboard.ledger(run_id) as ledger:
        page = run_page(ledger, run_id, dashboard.home.settings())
    return Page(
        document=run_document(page, now_s=dashboard.clock.now_s()),
        area="Runs",
        topics=(f"run:{run_id}",),
    )

"""The first page: what runs, what ended badly, and what needs a person."""

from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Page
from assay.reporting.documents.overview import live_document
from assay.reporting.views.run_page import live_runs


def now_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return what happens in the home now."""
    now_s = dashboard.clock.now_s()
    with dashboard.ledger() as ledger:
        runs = live_runs(ledger, now_s=now_s)
    return Page(document=live_document(runs, now_s=now_s), area="Now", topics=("runs", "minute"))

"""The page of one run: its document, with live curves."""

import re
from dataclasses import replace
from urllib.parse import quote

from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Page, PageError, path_to
from assay.dashboard.pages.run_notes import note_actions
from assay.reporting.documents.runs.run import run_document
from assay.reporting.views.runs.run_page import run_page

REFRESH_S = 10.0
"""Curves follow each change at once; the other facts of a run cost more and change less."""


def run_page_of(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the page of a run."""
    run_id, zoom = visit.path["run_id"], visit.query.get("zoom", "")
    if zoom and not re.fullmatch(r"[a-z0-9-]*:\d{1,15}-\d{1,15}", zoom):
        raise PageError(400, f"zoom={zoom}: expected FIGURE:FIRST-LAST, such as training-loss:100-200.")
    with dashboard.ledger(run_id) as ledger:
        page = run_page(ledger, run_id, dashboard.settings())
    document = run_document(page, now_s=dashboard.clock.now_s(), address=_address)
    here = path_to("runs", run_id)
    links = [(f"{here}/metrics", f"all {page.view.num_metrics:,} metrics")]
    links.append((f"/compare?run={quote(run_id, safe='')}", "all seeds of this recipe"))
    links.append((f"{here}/checkpoints", "checkpoints and their scores"))
    if page.view.samples:
        links.append((f"{here}/rollouts", "rollouts, step by step"))
    return Page(
        document=replace(document, links=[*document.links, *links]),
        area="Runs",
        topics=(f"run:{run_id}",),
        has_curves=bool(page.curves),
        refresh_s=REFRESH_S,
        actions=note_actions(run_id),
    )


def _address(kind: str, name: str) -> str:
    return path_to({"run": "runs", "campaign": "decisions", "benchmark": "benchmarks"}[kind], name)

"""Writes the page of a ladder from its records."""

from assay.records.ladder import BASE_STEP
from assay.reporting.documents.ladder import ladder_document
from assay.reporting.documents.markdown import markdown
from assay.reporting.documents.render import render_document
from assay.reporting.views.evidence import LadderView, ladder_view
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.train import device_seconds_of
from assay.workflows.ladder.folder import OpenLadder

PAGE = "ladder.html"
"""File name in the ladder's folder."""


def write_page(ladder: OpenLadder, ledger: Ledger, *, stopped_by: str | None) -> LadderView:
    """Write `ladder.html` and `ladder.md` into the ladder's folder; return what they show."""
    assert ladder.record is not None, "the ladder is declared"
    steps = ladder.steps()
    found = {step.step: ladder.decision(step.step) for step in steps if step.step != BASE_STEP}
    view = ladder_view(
        ladder.record,
        steps,
        {name: decision for name, decision in found.items() if decision is not None},
        known_good=str(ladder.known_good().path),
        stopped_by=stopped_by,
        device_s=sum(device_seconds_of(run_id, ledger) for of in ladder.run_ids().values() for run_id in of),
    )
    document = ladder_document(view)
    ladder.store.put(PAGE, render_document(document).encode())
    ladder.store.put("ladder.md", markdown(document).encode())
    return view

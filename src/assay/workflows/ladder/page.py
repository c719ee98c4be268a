"""Writes the page of a ladder from its records."""

from assay.records.ladder import TOGETHER_STEP
from assay.reporting.documents.ladder import ladder_document
from assay.reporting.documents.markdown import markdown
from assay.reporting.documents.render import render_document
from assay.reporting.views.evidence import LadderView, rung_reliability
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.train import device_seconds_of
from assay.workflows.ladder.folder import OpenLadder

PAGE = "ladder.html"
"""File name in the ladder's folder."""


def write_page(ladder: OpenLadder, ledger: Ledger, *, stopped_by: str | None) -> LadderView:
    """Write `ladder.html` and `ladder.md` into the ladder's folder; return what they show."""
    assert ladder.record is not None, "the ladder is declared"
    steps = ladder.steps()
    decisions = {step.step: ladder.decision(step.step) for step in steps}
    is_stopped, is_done = steps[-1:] and steps[-1].action == "stop", ladder.step(TOGETHER_STEP) is not None
    view = LadderView(
        ladder=ladder.config.name,
        question=ladder.config.question,
        declared=ladder.record.created_s,
        base_run=ladder.record.base_run,
        status="stopped" if is_stopped else "done" if is_done else "open",
        stopped_by=stopped_by,
        known_good=str(ladder.known_good().path),
        changes={change.name: change.patch for change in ladder.config.changes},
        steps=tuple(steps),
        decisions={step: decision for step, decision in decisions.items() if decision is not None},
        reliability=tuple(rung_reliability(steps)),
        device_s=sum(device_seconds_of(run_id, ledger) for run_id in ladder.run_ids()),
    )
    document = ladder_document(view)
    ladder.store.put(PAGE, render_document(document).encode())
    ladder.store.put("ladder.md", markdown(document).encode())
    return view

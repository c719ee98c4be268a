"""Where an offered plan and its documents lie.

plans/NAME/
  offer.json, plan.json         records: what was offered, and the schedule (for 'assay plan export')
  plan-summary.pdf              the plan on one page
  execution-plan.html, .md      ... and so on: each document twice
  weekly-status.notes.json      the notes that a status, or a review, was made with
  weekly-status.history.jsonl   the forecast of each status, for the changes since the one before
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from assay.base.errors import ConfigError
from assay.planning.program.offer import Offer
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress
from assay.planning.simulation.offer_report import OfferReport
from assay.reporting.document import Document
from assay.reporting.documents.markdown import markdown
from assay.reporting.documents.one_page_pdf import one_page_pdf
from assay.reporting.documents.plan.plan_documents import execution_plan, raci, risk_register, stage_gates
from assay.reporting.documents.plan.plan_summary import plan_summary
from assay.reporting.documents.render import render_document, write_file
from assay.reporting.views.forecast import ProgramEstimateView
from assay.store.followed import OFFER_FILE
from assay.store.settings import HourPrice

PLAN_FILE = "plan.json"
HISTORY_FILE = "weekly-status.history.jsonl"


def write_offer(report: OfferReport, folder: Path, price: HourPrice | None = None) -> list[Path]:
    """Write the records and all documents; return the paths of the sheet and the pages."""
    write_file(folder / OFFER_FILE, report.offered.offer.to_json())
    write_file(folder / PLAN_FILE, report.offered.offer.plan.to_json())
    summary = plan_summary(report, price)
    sheet = folder / f"{summary.name}.pdf"
    write_file(sheet, one_page_pdf(summary))
    documents = (execution_plan(report, price), stage_gates(report), raci(report), risk_register(report, price))
    return [sheet, *write_documents(documents, folder)]


def write_documents(documents: Iterable[Document], folder: Path) -> list[Path]:
    """Write each document as NAME.html and NAME.md; return the paths of the pages."""
    pages = []
    for document in documents:
        page = folder / f"{document.name}.html"
        write_file(page, render_document(document))
        write_file(page.with_suffix(".md"), markdown(document))
        pages.append(page)
    return pages


def write_with_notes(document: Document, folder: Path, notes: Progress | None) -> Path:
    """Write the status or review of a running program, and the notes that it was made with. Raises
    `ConfigError` if no notes are given but the existing page was made with some: overwriting it would show
    finished work as not started."""
    page, notes_path = folder / f"{document.name}.html", folder / f"{document.name}.notes.json"
    if notes is not None:
        write_file(notes_path, notes.to_json())
    elif notes_path.is_file():
        earlier = Progress.from_json(notes_path.read_bytes(), source=notes_path)
        raise ConfigError(
            f"{page} was not overwritten: it was made with notes of {earlier.now}, and no notes were given. Add "
            "--notes FILE; a file with only 'now' is enough if there is nothing to note."
        )
    write_documents([document], folder)
    return page


def earlier_status(folder: Path, program: Program, now: str) -> ProgramEstimateView | None:
    """Return the newest forecast of a status before `now`, or None."""
    hour_of = program.calendar.hour_of
    before = [view for view in _history(folder) if hour_of(view.now) < hour_of(now)]
    return max(before, key=lambda view: hour_of(view.now), default=None)


def keep_status(folder: Path, view: ProgramEstimateView) -> None:
    """Add the forecast to the history; it replaces one of the same moment."""
    others = [other for other in _history(folder) if other.now != view.now]
    write_file(folder / HISTORY_FILE, "".join(f"{entry.to_json()}\n" for entry in (*others, view)))


def _history(folder: Path) -> list[ProgramEstimateView]:
    path = folder / HISTORY_FILE
    if not path.is_file():
        return []
    try:
        return [ProgramEstimateView.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValidationError as error:
        raise ConfigError(
            f"{path}: not a history of this version of assay. Delete it; the next status begins it again."
        ) from error


def read_offer(folder: Path) -> Offer:
    """Read the offer from its folder."""
    path = folder / OFFER_FILE
    if folder.is_file():
        raise ConfigError(
            f"{folder}: expected the folder that 'assay plan offer PROGRAM' wrote (plans/NAME unless "
            "--out was given), not a file."
        )
    if not path.is_file():
        raise ConfigError(f"{path}: no such file. 'assay plan offer PROGRAM --out {folder}' writes it.")
    return Offer.from_json(path.read_bytes(), source=path)

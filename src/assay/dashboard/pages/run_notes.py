"""Tags and notes of runs, which logged-in writers change."""

from collections.abc import Callable

from starlette.responses import RedirectResponse

from assay.base.errors import ConfigError
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Action, Filter, PageError, path_to
from assay.records.run import Run, RunNotes
from assay.store.run_notes import note, tag

MAX_CHARACTERS = 10_000


def note_actions(run_id: str = "") -> list[Action]:
    """Return the forms; without a run's id, the reader types it in."""
    values = {"run": run_id} if run_id else {}
    fields = [] if run_id else [Filter("run", "Run id")]
    return [
        Action("Tag", "/runs/tag", values, "'word-' removes a tag", [*fields, Filter("tags", "Tags")]),
        Action("Add note", "/runs/note", values, "", [*fields, Filter("text", "Note")]),
    ]


def tag_run(dashboard: Dashboard, visit: Visit) -> RedirectResponse:
    """Add tags to a run; those that end with '-' are removed."""
    words = visit.form.get("tags", "").split()
    added, removed = (
        [word for word in words if not word.endswith("-")],
        [word[:-1] for word in words if word[-1] == "-"],
    )
    return _changed(dashboard, visit, lambda run: tag(run, add=added, remove=removed))


def note_run(dashboard: Dashboard, visit: Visit) -> RedirectResponse:
    """Add a note to a run, signed with the writer's key."""
    text = visit.form.get("text", "")[:MAX_CHARACTERS]
    return _changed(dashboard, visit, lambda run: note(run, text, by=visit.reader.key_id))


def _changed(dashboard: Dashboard, visit: Visit, change: Callable[[Run], RunNotes]) -> RedirectResponse:
    run_id = visit.form.get("run", "")
    with dashboard.ledger(run_id) as ledger:
        try:
            ledger.record_run_notes(change(dashboard.home.run(run_id)))
        except ConfigError as error:
            raise PageError(400, str(error)) from error
    return RedirectResponse(path_to("runs", run_id), 303)

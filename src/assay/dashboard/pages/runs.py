"""The list of runs: search, filters and order stand in the address."""

from typing import get_args

from assay.base.config import parse_override
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError
from assay.records.run import RunStatus
from assay.reporting.document import Document, Paragraph, Section, TitledTable
from assay.reporting.documents.run_list import runs_table
from assay.reporting.views.run_list import Selection, Sorting, run_lines

PER_PAGE = 100


def runs_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the selected runs."""
    selection, number = _selection(visit), _page_number(visit)
    with dashboard.ledger() as ledger:
        lines = run_lines(ledger, selection)
    shown = lines[(number - 1) * PER_PAGE : number * PER_PAGE]
    now_s = dashboard.clock.now_s()
    table = runs_table(shown, now_s=now_s, address=lambda line: f"/runs/{line.run_id}")
    blocks = [TitledTable("", "", table)] if shown else [Paragraph(_nothing(dashboard, selection))]
    return Page(
        document=Document(
            title="Runs",
            kind="runs",
            subtitle=f"{number_of(len(lines), 'run')} in {dashboard.home.folder}",
            sections=[Section("", blocks)],
            footer="The same as JSON: assay runs list --json",
        ),
        area="Runs",
        topics=("runs", "minute"),
        filters=_filters(selection, visit.query.get("where", "")),
    )


def _selection(visit: Visit) -> Selection:
    """Return the filters of an address. Raises `PageError` that names a wrong one."""
    asked = visit.query
    status, sort, where = asked.get("status", ""), asked.get("sort") or "age", asked.get("where", "")
    if status and status not in get_args(RunStatus):
        raise PageError(400, f"status={status}: expected one of {', '.join(get_args(RunStatus))}.")
    if sort not in get_args(Sorting):
        raise PageError(400, f"sort={sort}: expected one of {', '.join(get_args(Sorting))}.")
    try:
        conditions = dict(map(parse_override, where.split()))
    except ConfigError as error:
        raise PageError(400, f"where={where}: {error}") from error
    return Selection(
        status=(status,) if status else (),
        tags=tuple(asked.get("tags", "").split()),
        text=asked.get("search", ""),
        where=conditions,
        sort=sort,  # type: ignore[arg-type]
    )


def _page_number(visit: Visit) -> int:
    number = visit.query.get("page", "1")
    if not number.isdecimal() or int(number) < 1:
        raise PageError(400, f"page={number}: expected a number from 1.")
    return int(number)


def _filters(selection: Selection, where: str) -> list[Filter]:
    statuses = [("", "any"), *((status, status) for status in get_args(RunStatus))]
    return [
        Filter("search", "Id, recipe or note", selection.text),
        Filter("status", "Status", selection.status[0] if selection.status else "", statuses),
        Filter("tags", "Tags", " ".join(selection.tags)),
        Filter("where", "Recipe: key=value", where),
        Filter("sort", "Order by", selection.sort, [(sort, sort) for sort in get_args(Sorting)]),
    ]


def _nothing(dashboard: Dashboard, selection: Selection) -> str:
    if selection != Selection():
        return "No run matches."
    return f"No runs in {dashboard.home.folder} yet. Start one with 'assay train RECIPE', or try 'assay demo'."

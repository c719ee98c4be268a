"""The list of runs: search, filters, order, groups, columns and the pinned baseline stand in the address."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args
from urllib.parse import urlencode

from assay.base.config import changed_leaves, dotted_leaves, parse_override
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError, path_to
from assay.dashboard.pages.run_notes import note_actions
from assay.records.run import RunStatus
from assay.reporting.document import NO_TABLE, Document, Paragraph, Section, Table, Text, TitledTable
from assay.reporting.documents.runs.run_groups import groups_table
from assay.reporting.documents.runs.run_list import RUN_COLUMNS, runs_table
from assay.reporting.values import STATUS_WORDS, value_text
from assay.reporting.views.runs.run_groups import NOT_COMPARED, RunGroup, run_groups
from assay.reporting.views.runs.run_list import (
    RunLine,
    Selection,
    Sorting,
    current_summaries,
    lines_of,
    selected_runs,
)
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import RunSummary

SHOWN_CHANGES = 3
"""Recipe keys of a run that are listed against the baseline."""


def runs_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the selected runs, or their groups by recipe."""
    selection, group = selection_of(visit), visit.choice("group", ["recipe"])
    with dashboard.ledger() as ledger:
        summaries = current_summaries(ledger)
        chosen = selected_runs(ledger, selection, summaries)
        shown, links = visit.rows_of_page(len(chosen))
        num_rows, of = len(chosen), "run"
        if not chosen:
            table = NO_TABLE
        elif group:
            groups = run_groups(ledger, runs=[summary.run.run_id for summary in chosen], summaries=summaries)
            num_rows, of = len(groups), "recipe"
            shown, links = visit.rows_of_page(num_rows)
            table = _groups_table(groups, shown, visit)
        else:
            table = _runs_table(ledger, chosen, shown, visit, now_s=dashboard.clock.now_s())
    blocks = [TitledTable("", "", table)] if num_rows else [Paragraph(_nothing(dashboard, selection))]
    return Page(
        document=Document(
            title="Runs",
            kind="runs",
            subtitle=f"{number_of(num_rows, of)} in {dashboard.home.folder}",
            sections=[Section("", blocks)],
            footer=f"The same as JSON: assay runs {'groups' if group else 'list'} --json",
            links=[*links, *_related(visit, [groups[index].key for index in shown] if group and chosen else [])],
        ),
        area="Runs",
        topics=("runs", "minute"),
        filters=_filters(selection, visit),
        actions=note_actions() if chosen else [],
    )


def selection_of(visit: Visit) -> Selection:
    """Return the filters of an address. Raises `PageError` that names a wrong one."""
    parameters = visit.query
    status, sort = visit.choice("status", get_args(RunStatus)), visit.choice("sort", get_args(Sorting), "age")
    where = parameters.get("where", "")
    try:
        conditions = dict(map(parse_override, where.split()))
    except ConfigError as error:
        raise PageError(400, f"where={where}: {error}") from error
    return Selection(
        status=(status,) if status else (),
        tags=tuple(parameters.get("tags", "").split()),
        text=parameters.get("search", ""),
        where=conditions,
        sort=sort,
    )


def _runs_table(ledger: Ledger, chosen: Sequence[RunSummary], shown: range, visit: Visit, *, now_s: float) -> Table:
    """Return the rows of a page, a pinned baseline first, with the columns that the reader chose."""
    baseline_id = visit.query.get("baseline", "")
    pinned = [summary for summary in chosen if summary.run.run_id == baseline_id]
    if baseline_id and not pinned:
        raise PageError(400, f"baseline={baseline_id}: expected the id of a run in this list.")
    rows = [*pinned, *(chosen[index] for index in shown if chosen[index].run.run_id != baseline_id)]
    lines = lines_of(ledger, rows)
    recipes = {summary.run.run_id: dict(dotted_leaves(summary.run.recipe)) for summary in rows}
    columns = [name.strip() for name in visit.query.get("columns", "").split(",") if name.strip()]
    others: dict[str, Callable[[RunLine], Text]] = {}
    for name in columns:
        if name not in RUN_COLUMNS:
            if rows and not any(name in leaves for leaves in recipes.values()):
                known = f"{', '.join(RUN_COLUMNS)}, or a key of the recipe"
                raise PageError(400, f"columns={name}: expected some of {known}, with commas.")
            others[name] = _recipe_column(recipes, name)
    if pinned:
        others["against the baseline"] = lambda line: _against(line, lines[0], recipes)
    return runs_table(lines, now_s=now_s, address=_address, columns=columns, others=others)


def _recipe_column(recipes: Mapping[str, Mapping[str, Any]], key: str) -> Callable[[RunLine], Text]:
    return lambda line: value_text(recipes[line.run_id].get(key))


def _address(line: RunLine) -> str:
    return path_to("runs", line.run_id)


def _against(line: RunLine, baseline: RunLine, recipes: Mapping[str, Mapping[str, Any]]) -> str:
    if line is baseline:
        return "the baseline"
    found = changed_leaves(recipes[baseline.run_id], recipes[line.run_id])
    changes = [(key, value) for key, (_, value) in found.items() if key not in NOT_COMPARED]
    parts = [f"{key}={value_text(value)}" for key, value in changes[:SHOWN_CHANGES]]
    parts += [f"{len(changes) - SHOWN_CHANGES} more"] if len(changes) > SHOWN_CHANGES else []
    if line.value is not None and baseline.value is not None and line.metric == baseline.metric:
        parts.insert(0, f"{line.value - baseline.value:+.4f}")
    return ", ".join(parts) or "the same recipe"


def _groups_table(groups: Sequence[RunGroup], shown: range, visit: Visit) -> Table:
    baseline = visit.query.get("baseline", "")
    pinned = next((group for group in groups if baseline in (group.key, *group.runs)), None)
    if baseline and pinned is None:
        raise PageError(400, f"baseline={baseline}: expected the id of a run in this list.")
    rows = [groups[index] for index in shown if groups[index] is not pinned]
    rows = rows if pinned is None else [pinned, *rows]
    return groups_table(rows, baseline=pinned.key if pinned else "", address=group_address)


def group_address(group: RunGroup) -> str:
    """Return the address of a group's comparison."""
    return f"/compare?group={group.key}"


def _related(visit: Visit, keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return links to the same runs by recipe, and to the comparison of selected runs or of the groups of `keys`."""
    by_recipe = [] if keys else [(visit.with_query(group="recipe", page=1), "by recipe, over seeds")]
    filters = {name: visit.query[name] for name in ("status", "tags", "where", "search") if visit.query.get(name)}
    query = list(filters.items()) or [("group", key) for key in keys]
    compared = [(f"/compare?{urlencode(query)}", f"compare these {'recipes' if keys else 'runs'}")] if query else []
    return [*by_recipe, *compared]


def _filters(selection: Selection, visit: Visit) -> list[Filter]:
    statuses = [("", "any"), *((status, STATUS_WORDS.get(status, status)) for status in get_args(RunStatus))]
    parameters = visit.query
    return [
        Filter("search", "Id, recipe or note", selection.text),
        Filter("status", "Status", selection.status[0] if selection.status else "", statuses),
        Filter("tags", "Tags", " ".join(selection.tags)),
        Filter("where", "Recipe: key=value", parameters.get("where", "")),
        Filter("sort", "Order by", selection.sort, [(sort, sort) for sort in get_args(Sorting)]),
        Filter("group", "Rows", parameters.get("group", ""), [("", "runs"), ("recipe", "recipes, over seeds")]),
        Filter("columns", "Columns, with commas", parameters.get("columns", "")),
        Filter("baseline", "Baseline: run id", parameters.get("baseline", "")),
    ]


def _nothing(dashboard: Dashboard, selection: Selection) -> str:
    if selection != Selection():
        return "No run matches."
    return f"No runs in {dashboard.home.folder} yet. Start one with 'assay train RECIPE', or try 'assay demo'."

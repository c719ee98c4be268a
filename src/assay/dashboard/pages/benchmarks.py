"""Checkpoints x benchmarks: all scores, one benchmark over time, the items of a result, and one item."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError, path_to
from assay.records.benchmark import BenchmarkResult
from assay.reporting.document import Commands, Document, Paragraph, Section
from assay.reporting.documents.benchmark_items import item_document, result_document
from assay.reporting.documents.benchmarks import benchmark_document, matrix_document
from assay.reporting.views.benchmark_history import MatrixColumn, MatrixRow, benchmark_matrix, runs_of_campaign
from assay.reporting.views.benchmark_items import WHICH, item_fields, newest_result, result_items
from assay.store.ledger.ledger import Ledger

CHECKPOINTS = 25
"""Rows of a page of all checkpoints."""


def benchmarks_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return all checkpoints on all benchmarks."""
    with dashboard.ledger() as ledger:
        filters, is_selected = _selection(ledger, visit)
        matrix, run_address = benchmark_matrix(ledger, is_selected=is_selected), _run_address(ledger)
    if not matrix.rows:
        return _empty_page(filters)
    shown, links = visit.rows_of_page(len(matrix.rows), CHECKPOINTS)
    is_only = len({item.column.benchmark for item in matrix.columns}) == len(matrix.columns)
    document = matrix_document(
        matrix,
        shown=shown,
        column_address=lambda column: _column_address(column, visit),
        address=lambda row, column: _result_address(row, column, is_only=is_only),
        run_address=run_address,
        links=links,
        campaign=visit.query.get("campaign", ""),
    )
    return Page(document=document, area="Benchmarks", topics=("runs",), filters=filters)


def benchmark_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return one benchmark over all checkpoints."""
    benchmark = visit.path["benchmark"]
    with dashboard.ledger() as ledger:
        filters, is_selected = _selection(ledger, visit)
        matrix = benchmark_matrix(ledger, benchmark=benchmark, is_selected=is_selected)
        run_address = _run_address(ledger)
    version, is_incomplete = visit.query.get("version", ""), visit.query.get("incomplete", "")
    found = [
        item
        for item in matrix.columns
        if item.column.version_sha256.startswith(version) and bool(is_incomplete) == item.column.is_incomplete
    ]
    if not found:
        raise PageError(404, f"no results of benchmark '{benchmark}' are selected.")
    item = max(found, key=lambda item: len(item.values))
    shown, links = visit.rows_of_page(len(item.values))
    others = [
        (_column_address(other.column, visit), f"version {other.column.version_sha256[:8]}")
        for other in matrix.columns
        if other is not item
    ]
    document = benchmark_document(
        matrix,
        item,
        shown=shown,
        address=lambda row, column: _result_address(row, column, is_only=len(matrix.columns) == 1),
        run_address=run_address,
        links=[*links, *others, ("/benchmarks", "all benchmarks")],
        campaign=visit.query.get("campaign", ""),
    )
    return Page(document=document, area="Benchmarks", topics=("runs",), filters=filters)


def result_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the items of one result, or one of them."""
    named = visit.path["run_id"], visit.path["benchmark"], visit.number("step") or 0
    with dashboard.ledger() as ledger:
        result = newest_result(ledger, *named, version=visit.query.get("version", ""))
        suites = list(_suites(ledger, result.run_id))
        of_run = [(address, f"run {result.run_id}")] if (address := _run_address(ledger)(result.run_id)) else []
    which = visit.choice("show", WHICH, "all")
    items = result_items(dashboard.home.run_dir(result.run_id), result, which)
    if item_id := visit.query.get("item", ""):
        item = next((item for item in items if item.item_id == item_id), None)
        if item is None:
            raise PageError(404, f"the result has no item '{item_id}'.")
        links = [(visit.with_query(item=""), "all items")]
        document = item_document(result, item, item_fields(suites, result, item_id), links=links)
        return Page(document=document, area="Benchmarks")
    shown, links = visit.rows_of_page(len(items))
    document = result_document(
        result,
        items[shown.start : shown.stop],
        num_items=len(items),
        address=lambda item: visit.with_query(item=item.item_id, page=1),
        evaluate=_command(result, suites),
        links=[*links, *of_run, (path_to("benchmarks", result.benchmark), f"{result.benchmark} on all checkpoints")],
    )
    filters = [Filter("show", "Items", which, [(name, name) for name in WHICH])]
    return Page(document=document, area="Benchmarks", filters=filters)


def _suites(ledger: Ledger, run_id: str) -> Iterator[Path]:
    """Yield the suites that may have scored a run: its recipe's, then those of campaigns."""
    if ledger.has_run(run_id) and (evaluation := ledger.run(run_id).recipe.get("evaluation")):
        yield Path(evaluation["suite"])
    for campaign in ledger.campaigns():
        yield from (Path(campaign.base_dir) / path for path in campaign.suites)


def _command(result: BenchmarkResult, suites: list[Path]) -> str:
    suite = suites[0] if suites else "SUITE.yaml"
    return f"assay eval work {result.run_id} --suite {suite}"


FILTERS = ("run", "candidate", "campaign")


def _selection(ledger: Ledger, visit: Visit) -> tuple[list[Filter], Callable[[MatrixRow], bool]]:
    """Return the filters of checkpoints, and which checkpoints they select."""
    run, candidate, campaign = (visit.query.get(name, "") for name in FILTERS)
    names = [item.name for item in ledger.campaigns()]
    is_member = runs_of_campaign(ledger, visit.choice("campaign", names))
    filters = [
        Filter("run", "Run id", run),
        Filter("candidate", "Recipe name", candidate),
        Filter("campaign", "Campaign", campaign, [("", "any"), *zip(names, names, strict=True)]),
    ]
    is_whole_id = ledger.has_run(run)
    return (
        filters,
        lambda row: (
            (row.run_id == run if is_whole_id else run in row.run_id)
            and candidate in ("", row.candidate)
            and is_member(row.run_id)
        ),
    )


def _column_address(column: MatrixColumn, visit: Visit) -> str:
    fixed = {key: value for key, value in visit.query.items() if key in FILTERS and value}
    own = {"version": column.version_sha256[:12], **({"incomplete": "1"} if column.is_incomplete else {})}
    return f"{path_to('benchmarks', column.benchmark)}?{urlencode({**fixed, **own})}"


def _run_address(ledger: Ledger) -> Callable[[str], str]:
    """Return the function that gives the page of a run; empty for a model that no run of this home trained."""
    known = set(ledger.run_ids())
    return lambda run_id: path_to("runs", run_id) if run_id in known else ""


def _result_address(row: MatrixRow, column: MatrixColumn, *, is_only: bool) -> str:
    address = path_to("benchmarks", column.benchmark, row.run_id, str(row.step))
    return address if is_only else f"{address}?version={column.version_sha256[:12]}"


def _empty_page(filters: list[Filter]) -> Page:
    is_filtered = any(field.value for field in filters)
    commands = Commands(
        [
            ("evaluate the commits of a run", "assay eval work RUN --suite SUITE.yaml"),
            ("evaluate a model folder or an endpoint", "assay eval run MODEL --suite SUITE.yaml"),
            ("import scores of other tools", "assay eval import FILES"),
        ]
    )
    text = "No checkpoint matches." if is_filtered else "No benchmark results yet."
    blocks = [Paragraph(text), *([] if is_filtered else [commands])]
    document = Document(title="Benchmarks", kind="benchmarks", sections=[Section("", blocks)])
    return Page(document=document, area="Benchmarks", topics=("runs",), filters=filters)

"""Any number of runs compared: their recipes over all seeds."""

from assay.base.errors import ConfigError
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError, path_to
from assay.dashboard.pages.runs import group_address, selection_of
from assay.reporting.document import Commands, Document, Paragraph, Section
from assay.reporting.documents.runs.run_groups import compare_document
from assay.reporting.views.runs.run_groups import group_curves, run_groups
from assay.reporting.views.runs.run_list import Selection, current_summaries, selected_runs

METRICS = ("loss", "reward", "validation_loss", "validation_auc", "gradient_norm", "kl", "length", "tokens")
"""Metrics that the page suggests; any other may stand in the address."""


def compare_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the recipes of the runs and groups in the address, or of the runs that a filter selects."""
    # A form sends its empty fields, too.
    runs, keys = (list(filter(None, visit.query.getlist(name))) for name in ("run", "group"))
    metric, baseline = visit.query.get("metric") or "loss", visit.query.get("baseline", "")
    selection = selection_of(visit)
    with dashboard.ledger() as ledger:
        summaries = current_summaries(ledger)
        if not runs and not keys:
            if selection == Selection():
                return _empty_page()
            members = [summary.run.run_id for summary in selected_runs(ledger, selection, summaries)]
            if not members:
                return _empty_page("No run matches.")
        else:
            members = runs
        try:
            groups = run_groups(ledger, runs=members, keys=keys, summaries=summaries)
        except ConfigError as error:
            raise PageError(404, str(error)) from error
        pinned = next((group.key for group in groups if baseline in (group.key, *group.runs)), "")
        if baseline and not pinned:
            raise PageError(400, f"baseline={baseline}: expected a run or a group of this comparison.")
        curves = group_curves(ledger, groups, metric, highlighted=runs)
    shown = members[:3] + (["..."] if len(members) > 3 else [])
    document = compare_document(
        groups,
        curves,
        metric=metric,
        baseline=pinned,
        selected=runs,
        address=group_address,
        run_address=lambda run_id: path_to("runs", run_id),
        run_filter=" ".join([*shown, *(f"--group {key}" for key in keys)]),
    )
    return Page(document=document, area="Runs", topics=("runs",), filters=_filters(visit, metric, baseline))


def _filters(visit: Visit, metric: str, baseline: str) -> list[Filter]:
    remaining = [
        Filter(name, "", value, kind="hidden")
        for name, value in visit.query.multi_items()
        if name not in ("metric", "baseline", "page") and value
    ]
    metrics = [(name, name) for name in dict.fromkeys([metric, *METRICS])]
    return [
        *remaining,
        Filter("metric", "Metric", metric, metrics),
        Filter("baseline", "Baseline: run or group", baseline),
        Filter("run", "Add a run"),
    ]


def _empty_page(text: str = "Name the runs to compare in the address, or group them on the page Runs.") -> Page:
    commands = Commands(
        [
            ("two runs and all seeds of their recipes", "/compare?run=A&run=B"),
            ("all runs of a learning rate", "/compare?where=method.optimizer.learning_rate=1e-4"),
        ]
    )
    sections = [Section("", [Paragraph(text), commands])]
    return Page(document=Document(title="Compare", kind="comparison", sections=sections), area="Runs")

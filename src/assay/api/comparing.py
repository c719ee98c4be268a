"""Several runs side by side."""

from collections.abc import Sequence

from assay.api.report import Report
from assay.api.training import Run
from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import current_home, ledger_with_runs
from assay.cli.wording import worded
from assay.records.triage_overview import TriageOverview
from assay.reporting.views.comparison import ComparisonView


@worded
def compare(
    baseline: str | Run, *candidates: str | Run, allowed_loss: float | None = None
) -> Report[tuple[ComparisonView, ...]]:
    """Compare candidates with a baseline on the same validation rows, with intervals; record the comparisons.

    `allowed_loss`: the largest loss of the metric, in its unit, that the interval of a passing candidate may include.
    """
    from assay.reporting.documents.comparison import comparison_document
    from assay.reporting.views.comparison import comparison_page

    if not candidates:
        raise ConfigError("compare needs a candidate: assay.compare(BASELINE, CANDIDATE, ...).")
    home, run_ids = current_home(), _ids([baseline, *candidates])
    with ledger_with_runs(home, *run_ids) as ledger:
        page = comparison_page(ledger, run_ids[0], run_ids[1:], allowed_loss=allowed_loss)
    return Report(tuple(candidate.compared for candidate in page.candidates), comparison_document(page))


@worded
def overview(*selected: str | Run) -> Report[TriageOverview]:
    """Return what `assay triage` shows.

    `selected`: a few runs or their ids, to see what happened to each; without any, what costs most of all on record.
    """
    from assay.reporting.documents.triage import fleet_document
    from assay.reporting.views.runs.run import run_view
    from assay.triage.overview import triage_ledger

    run_ids = _ids(selected)
    with ledger_with_runs(current_home(), *run_ids) as ledger:
        fleet = triage_ledger(ledger, run_ids)
        shown = [run_view(ledger, run_id) for run_id in fleet.overview.run_ids]
    return Report(fleet.overview, fleet_document(fleet, shown, created_s=SystemClock().now_s()))


def _ids(selected: Sequence[str | Run]) -> list[str]:
    home = current_home()
    return [one.id if isinstance(one, Run) else home.meant_run(one) for one in selected]

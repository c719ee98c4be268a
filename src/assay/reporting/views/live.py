"""Runs in progress, and those that failed or were abandoned recently."""

from collections.abc import Sequence

from assay.records.run import Attempt
from assay.reporting.views.run_page import RunPage, run_page
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import run_summaries

RECENT_S = 24 * 3600.0
"""Failed and stopped runs are listed for this long."""
AT_WORK = ("running", "unknown")


def live_runs(ledger: Ledger, *, now_s: float) -> list[RunPage]:
    """Return runs in progress, then runs that ended badly within a day, each newest first."""
    recent = [
        summary.run.run_id
        for summary in run_summaries(ledger)
        if summary.status in AT_WORK or (summary.status != "succeeded" and _is_recent(summary.attempts, now_s))
    ]
    pages = [run_page(ledger, run_id, is_brief=True) for run_id in recent]  # which are up to date, and may differ
    unfinished = [page for page in pages if page.view.status != "succeeded"]
    return sorted(unfinished, key=lambda page: page.view.status not in AT_WORK)


def _is_recent(attempts: Sequence[Attempt], now_s: float) -> bool:
    return max((attempt.ended_s or attempt.started_s for attempt in attempts), default=0.0) > now_s - RECENT_S

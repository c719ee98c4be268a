"""Runs in progress, and those that failed or were abandoned recently."""

from collections.abc import Sequence
from typing import NamedTuple

from assay.records.run import Attempt
from assay.reporting.views.run import RunView, run_view
from assay.reporting.views.series import RunSeries, run_series
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import run_summaries

RECENT_S = 24 * 3600.0
"""Failed and stopped runs are listed for this long."""
AT_WORK = ("running", "unknown")


class LiveRun(NamedTuple):
    """A run and its metrics so far."""

    view: RunView
    series: RunSeries

    @property
    def is_at_work(self) -> bool:
        """Whether the run is in progress, or may be."""
        return self.view.status in AT_WORK

    @property
    def has_ended_badly(self) -> bool:
        """Whether the run failed or its supervisor died."""
        return self.view.status in ("failed", "gone")

    @property
    def left_s(self) -> float | None:
        """Return the remaining seconds at the speed so far; None if that is not known."""
        view = self.view
        if not self.is_at_work or view.speed is None:
            return None
        reached = max((attempt.reached_step for attempt in view.attempts), default=0)
        return max(0, view.total_steps - reached) / view.speed.steps_per_s


def live_runs(ledger: Ledger, *, now_s: float) -> list[LiveRun]:
    """Return runs in progress, then runs that ended badly within a day, each newest first."""
    recent = [
        summary.run.run_id
        for summary in run_summaries(ledger)
        if summary.status in AT_WORK or (summary.status != "succeeded" and _is_recent(summary.attempts, now_s))
    ]
    views = [run_view(ledger, run_id) for run_id in recent]  # which are up to date, and may say otherwise
    unfinished = sorted(
        (view for view in views if view.status != "succeeded"), key=lambda view: view.status not in AT_WORK
    )
    return [LiveRun(view, run_series(ledger, view.run_id)) for view in unfinished]


def _is_recent(attempts: Sequence[Attempt], now_s: float) -> bool:
    return max((attempt.ended_s or attempt.started_s for attempt in attempts), default=0.0) > now_s - RECENT_S

"""The tools of `assay mcp`: each returns what a command prints with `--json` (docs/json.md), and writes nothing.
An agent chooses a tool by its docstring."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.records.record import Record
from assay.reporting.views.view import View
from assay.serving.sessions.sessions import SessionRepository
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.visible_runs import VisibleRuns
from assay.store.objects import open_store

visible: ContextVar[VisibleRuns | None] = ContextVar("the runs that the client may see; None: all", default=None)
SESSION_PREFIX = "session-"
Facts = dict[str, Any]


class HomeTools:
    """The tools over one home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def all(self) -> list[Callable[..., Any]]:
        """Return the tools."""
        return [
            self.list_runs, self.show_run, self.compare_runs, self.audit_run, self.triage_overview, self.list_campaigns,
            self.show_decisions, self.plan_status,
        ]  # fmt: skip

    def list_runs(
        self, status: list[str] | None = None, tags: list[str] | None = None, search: str = "", limit: int = 50
    ) -> Facts:
        """List training runs, the newest first: id, status, step, last value, cost. `status`: running, gone, unknown,
        succeeded, failed or preempted; `search`: part of an id, a recipe's name or a note."""
        from assay.reporting.views.runs.run_list import Selection, run_lines

        selection = Selection(status=(*(status or ()),), tags=(*(tags or ()),), text=search, limit=limit)
        with self._ledger() as ledger:
            return {"runs": [_tree(line) for line in run_lines(ledger, selection)]}

    def show_run(self, run_id: str) -> Facts:
        """Show what a run or a session of the Tinker API did, cost and measured: status, attempts, commits, warnings,
        scores, speed. `run_id` may be the beginning of an id."""
        from assay.reporting.views.runs.run import run_view

        with self._ledger() as ledger:
            return _tree(run_view(ledger, run_id, self._home.settings()))

    def compare_runs(self, baseline: str, candidate: str) -> Facts:
        """Compare two runs: what differs in recipe, data, code and environment, and the difference of their evaluations
        on the same rows with its interval (null, with the reason, if they were not evaluated alike)."""
        from assay.reporting.views.comparison import comparison_view, why_not_evaluated
        from assay.reporting.views.runs.run import run_view
        from assay.reporting.views.runs.run_diff import run_diff

        with self._ledger() as ledger:
            sides = run_view(ledger, baseline), run_view(ledger, candidate)
            ids = sides[0].run_id, sides[1].run_id
            facts: Facts = {"diff": _tree(run_diff(ledger, *ids, self._home.settings())), "comparison": None}
        evaluations = [side.evaluation for side in sides if side.evaluation is not None]
        for side in sides:
            if side.evaluation is None:
                return {**facts, "reason": f"run {side.run_id} has not been evaluated: {why_not_evaluated(side)}"}
        from assay.statistics.evaluate import compare_evaluations

        folders = [self._home.run_dir(run_id) for run_id in ids]
        found, _ = compare_evaluations(
            *evaluations, baseline_dir=folders[0], candidate_dir=folders[1], allowed_loss=None
        )  # fmt: skip
        return {**facts, "comparison": _tree(comparison_view(found, *sides, page=""))}

    def audit_run(self, run_id: str, deep: bool = False) -> Facts:
        """Prove from receipts that a run trained each row exactly once, or list the rows for which it did not; for a
        session of the Tinker API, each request. `deep`: read the weights of every commit, not only of the last."""
        from assay.store.commit_log import CommitLog
        from assay.training.audit import audit_run
        from assay.workers.sessions.audit import audit_session

        with self._ledger() as ledger:
            run_id = ledger.run(run_id).run_id
        if run_id.startswith(SESSION_PREFIX):
            api = open_store(str(self._home.api))
            return _tree(audit_session(SessionRepository(api, SystemClock()), run_id))
        run = self._home.run(run_id)
        log = CommitLog(open_store(run.store_url))
        return _tree(audit_run(run, log, check_shards=True, weights="all" if deep else "last"))

    def triage_overview(self, run_ids: list[str] | None = None) -> Facts:
        """Show what happened to a few runs, or of all runs what to look at first: failures, slow and late starts,
        changed data, by device-hours lost."""
        from assay.triage.overview import triage_ledger

        with self._ledger() as ledger:
            return _tree(triage_ledger(ledger, [ledger.run(run_id).run_id for run_id in run_ids or ()]).overview)

    def list_campaigns(self) -> Facts:
        """List campaigns (a baseline and candidates over several seeds) with their newest decisions."""
        from assay.reporting.views.evidence import campaign_lines

        with self._ledger() as ledger:
            return {"campaigns": [_tree(line) for line in campaign_lines(ledger)]}

    def show_decisions(self, campaign: str) -> Facts:
        """Show the memo of a campaign: each candidate's decision (scale, narrow, stop, or go on), with gates and
        evidence."""
        from assay.workflows.campaign.folder import find_campaign
        from assay.workflows.campaign.memo import read_memo

        memo = read_memo(find_campaign(self._home, campaign))
        return {"decisions": [_tree(decision) for decision in memo.decisions]}

    def plan_status(self, program: str = "") -> Facts:
        """Show status and forecast of a program's plan: delays, costs, alarms, gates, the end with its probability.
        Without a name: the names of all programs."""
        from assay.reporting.views.forecast import forecast_view
        from assay.store.followed import followed_programs
        from assay.workflows.program_status import read_program_status

        known = {found.name: found for found in followed_programs(self._home)}
        if not program:
            return {"programs": [*known]}
        if (found := known.get(program)) is None:
            names = ", ".join(known) or "none; 'assay plan offer' makes one known"
            raise ConfigError(f"there is no program {program}. Known: {names}.")
        status = read_program_status(
            self._home, found.file, found.folder, notes=found.notes, hour_s=found.hour_s, start_s=found.start_s,
            clock=SystemClock(),
        )  # fmt: skip
        return _tree(forecast_view(status.forecast, self._home.settings().planned_price()))

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        """Open the ledger as the client sees it."""
        file = self._home.ledger_file()
        if file is not None and not file.exists():
            raise ConfigError(f"there are no runs in {self._home.folder} yet. Check $ASSAY_HOME.")
        with self._home.open_ledger(shown=visible.get()) as ledger:
            yield ledger


def _tree(fact: View | Record) -> Facts:
    tree: Facts = json.loads(fact.to_json())
    return tree

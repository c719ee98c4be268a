"""Checkpoints of a run: which have scores, which wait for an evaluation, and a form that asks for one."""

from urllib.parse import quote

from starlette.responses import RedirectResponse

from assay.base.errors import ConfigError
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Action, Filter, Page, PageError, path_to
from assay.evals.queue import is_done, is_requested, request
from assay.records.commit import Commit
from assay.reporting.document import Cell, Commands, Document, Paragraph, Section, Text, TitledTable, name, number
from assay.reporting.values import minute_text
from assay.store.ledger.summary import intact_commits
from assay.workflows.evaluation.queue import Queue, due_commits, queue_of

MAX_SHOWN = 100
NOT_REQUESTED = "not requested"


def checkpoints_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the intact commits of a run, newest first, with the number of their benchmark results."""
    run_id = visit.path["run_id"]
    with dashboard.ledger(run_id) as ledger:
        run = ledger.run(run_id)
        commits = intact_commits(ledger.log_entries(run_id))[::-1][:MAX_SHOWN]
        results = ledger.benchmark_results(run_id)
    queue, why_not = _queue(dashboard, run_id)
    states = {commit.step: "" for commit in commits} if queue is None else _states(queue, commits)
    counts = {commit.step: sum(result.step == commit.step for result in results) for commit in commits}
    scores = f"/benchmarks?run={quote(run_id, safe='')}" if results else ""
    table = TitledTable.of(
        "",
        "",
        commits,
        (number("step"), lambda commit: f"{commit.step:,}"),
        (name("committed (UTC)"), lambda commit: minute_text(commit.committed_s)),
        (name("weights"), lambda commit: commit.weights_digest[:12]),
        (number("benchmark results"), lambda commit: Cell(f"{counts[commit.step]:,}", link=scores)),
        (name("evaluation"), lambda commit: states[commit.step] or "—"),
    )
    suite = queue.config.suite if queue is not None else "SUITE.yaml"
    commands = Commands(
        [
            *([("evaluate what is due and requested", f"assay eval work {run_id}")] if queue else []),
            ("evaluate all commits on a suite", f"assay eval work {run_id} --suite SUITE.yaml"),
            ("import scores of other tools", f"assay eval import FILES --run-id {run_id} --step STEP"),
        ]
    )
    blocks = [table] if commits else [Paragraph("No checkpoint yet.")]
    more = [Paragraph(f"The recipe's suite: {suite}." if queue else f"{why_not[:1].upper()}{why_not[1:]}"), commands]
    sections = [Section("", blocks), Section("Add scores at any time", more)]
    waiting = [str(step) for step, state in states.items() if queue is not None and state == NOT_REQUESTED]
    here = path_to("runs", run.run_id)
    return Page(
        document=Document(
            title=f"Checkpoints of {run_id}",
            kind="checkpoints",
            sections=sections,
            footer=f"The same as JSON: assay runs show {run_id} --json"
            + (f"; assay eval history {run_id} --json" if results else ""),
            links=[(here, f"run {run_id}"), *([(scores, "its scores")] if scores else [])],
        ),
        area="Runs",
        topics=(f"run:{run_id}",),
        actions=[_action(here, waiting)] if waiting else [],
    )


def request_evaluation(dashboard: Dashboard, visit: Visit) -> RedirectResponse:
    """Ask the workers of a run to evaluate a checkpoint on the suite of its recipe."""
    run_id, step = visit.path["run_id"], visit.form.get("step", "")
    with dashboard.ledger(run_id):
        queue, why_not = _queue(dashboard, run_id)
    if queue is None:
        raise PageError(400, why_not)
    commit = next((commit for commit in queue.log.commits() if str(commit.step) == step), None)
    if commit is None:
        raise PageError(400, f"step={step}: expected the step of a checkpoint whose weights are kept.")
    request(queue.store, commit.step, commit.weights_digest, queue.suite_sha256)
    return RedirectResponse(path_to("runs", run_id, "checkpoints"), 303)


def _action(here: str, steps: list[str]) -> Action:
    choices = [(step, step) for step in steps]
    explanation = "The next worker of this run ('assay eval work') evaluates it on the recipe's suite."
    return Action("Evaluate", f"{here}/evaluate", {}, explanation, [Filter("step", "Step", steps[0], choices)])


def _queue(dashboard: Dashboard, run_id: str) -> tuple[Queue | None, str]:
    """Return the evaluation queue of a run; if it has none, why."""
    try:
        return queue_of(dashboard.home.run(run_id)), ""
    except (ConfigError, OSError) as error:
        return None, str(error)


def _states(queue: Queue, commits: list[Commit]) -> dict[int, Text]:
    due = {commit.step for commit in due_commits(queue)}
    committed_steps = {commit.step for commit in queue.log.commits()}
    return {
        commit.step: _state(queue, commit, is_due=commit.step in due, is_committed=commit.step in committed_steps)
        for commit in commits
    }


def _state(queue: Queue, commit: Commit, *, is_due: bool, is_committed: bool) -> Text:
    key = commit.step, commit.weights_digest, queue.suite_sha256
    if is_done(queue.store, *key):
        return Cell("done", "good")
    if not is_committed:
        return "weights deleted"
    if is_requested(queue.store, *key):
        return Cell("requested", "open")
    return Cell("due", "open") if is_due else NOT_REQUESTED

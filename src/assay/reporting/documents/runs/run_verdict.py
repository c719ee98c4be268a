"""The verdict, the key figures and the next commands of a run, in words."""

from collections.abc import Sequence

from assay.base.names import shell_line
from assay.base.units import count_text, duration_text, number_of, percent_text
from assay.records.evaluation import metric_title
from assay.records.failure import FROM_OUTSIDE
from assay.records.run import slower_command
from assay.reporting.document import Cell, Fact, Mark, Text, Verdict, worst
from assay.reporting.values import STATUS_WORDS, device_hours_text, interval_text, world_sizes_text
from assay.reporting.views.runs.run import RunView

VALIDATION = "validation_"
MIN_RESUMABLE_STEP = 20
"""Commits before this step are not proposed after a non-finite loss: a learning rate that is far too high shows
only later."""
_RESUME_CONDITIONS: dict[str, str] = {
    "disk_full": "the disk has free space",
    "out_of_memory": "ranks have more memory or the recipe needs less",
    "store_unreachable": "the store is reachable",
    "supervisor_gone": "",
    "not_gone_after_sigterm": "",
}
"""Failure kind to the condition under which resuming can succeed; for other kinds the cause must be fixed."""

_UNFINISHED_TEXTS = {
    "running": ("running", "The run is running."),
    "gone": (
        "supervisor gone",
        "Nothing trains: the supervisor, the process that starts the run's ranks and restarts them, died without a "
        "word (killed, out of memory, or its machine stopped). Resume the run to continue it.",
    ),
    "unknown": (
        "cannot tell",
        "The run may still be in progress on another host, but shows no sign of life.",
    ),
}


def rows_mark(run: RunView) -> Mark:
    """Return whether the audit proved that each row was used once."""
    if not run.shows_rows():
        return Mark("rows", "open", "not observed")
    if run.audit is None:
        return Mark("rows", "open", "not audited")
    word = {"pass": "proved", "fail": "audit failed"}.get(run.audit.verdict, "not all checked")
    if (step := run.audited_until()) is not None:
        word += f" up to step {step:,}"
    return Mark("rows", {"pass": "good", "fail": "bad"}.get(run.audit.verdict, "open"), word)  # type: ignore[arg-type]


def model_mark(run: RunView) -> Mark:
    """Return whether warnings apply to the model."""
    if run.warnings:
        return Mark("model", "bad", ", ".join(warning.rule for warning in run.warnings))
    if run.evaluation is None:
        return Mark("model", "open", "not evaluated")
    return Mark("model", "good", "no warning")


def run_verdict(run: RunView) -> Verdict:
    """Return the verdict on a run from its status, audit and warnings."""
    if run.is_session():
        return _session_verdict(run)
    if (copied_from := run.copied_from()) is not None:
        outcome = copied_from.tool_status or "its status is not recorded"
        sentence = (
            f"The run was imported from {copied_from.tool} ({outcome}). It has metrics and parameters, but no recipe, "
            "commits or receipts: nothing of it can be resumed, replayed or audited here."
        )
        return Verdict("open", "imported", sentence, ())
    marks = (rows_mark(run), model_mark(run))
    audit = run.audit
    if run.status == "failed":
        reason = run.attempts[-1].reason if run.attempts else "no attempt began"
        return Verdict(
            "bad",
            run.status_text(),
            f"The run failed: {(reason or 'no reason was recorded').rstrip('.')}.{_state(run)}",
            marks,
        )
    if audit is not None and audit.verdict == "fail":
        problems = [*audit.problems, *(f"not learned: {row}" for row in audit.missing)]
        problems += [f"learned more than once: {row}" for row in audit.repeated]
        of_step = "" if (step := run.audited_until()) is None else f" of step {step:,}"
        sentence = f"The audit{of_step} failed, so the result cannot be trusted: {problems[0]}."
        return Verdict("bad", "audit failed", sentence, marks)
    warned = "".join(f" Warning: {warning.text}" for warning in run.warnings)
    if run.status == "succeeded":
        unseen = "" if run.shows_rows() else " Which rows it learned from was not observed."
        is_proved = audit is not None and audit.verdict == "pass"
        began = _rows_text(run) if is_proved else "The run finished."
        sentence = f"{began}{_interruptions_text(run)}{_result_text(run)}{unseen}{warned}"
        return Verdict(worst(mark.tone for mark in marks), "finished", sentence, marks)
    word, sentence = _UNFINISHED_TEXTS.get(run.status, ("stopped", "The run is stopped."))
    if run.imported is not None and run.status == "gone":
        word, sentence = "process gone", "Its process died. If its script starts again, that is its next attempt."
    return Verdict("bad" if run.warnings else "open", word, f"{sentence}{_state(run)}{warned}")


def _session_verdict(run: RunView) -> Verdict:
    word = {"succeeded": "finished", "failed": "ended with an error"}.get(run.status, "open")
    sentence = f"The session is {word}, after {number_of(run.reached_step(), 'step')}.{_interruptions_text(run)}"
    warned = "".join(f" Warning: {warning.text}" for warning in run.warnings)
    is_bad = run.status == "failed" or bool(run.warnings)
    return Verdict("bad" if is_bad else "open", word, f"{sentence}{warned}")


def incident_lines(run: RunView) -> list[Text]:
    """Return what happened besides the ends of attempts, and what a session waits for."""
    lines: list[Text] = [
        Cell(f"attempt {incident.attempt}, {incident.incident.replace('_', ' ')}: {incident.text}", "open")
        for incident in run.incidents
    ]
    models = () if run.session is None else run.session.models
    return [*lines, *(Cell(f"{item.model} waits. {item.waiting_for}", "open") for item in models if item.waiting_for)]


def run_tiles(run: RunView) -> list[Fact]:
    """Return tiles for quality, rows, cost and attempts."""
    if run.copied_from() is not None:
        num_points = sum(metric.num_points for metric in run.metrics.values())
        is_whole = len(run.metrics) == run.num_metrics
        return [
            Fact("last step", f"{run.step:,}", f"status: {STATUS_WORDS.get(run.status) or run.status}"),
            Fact("metrics", f"{run.num_metrics:,}", number_of(num_points, "point") if is_whole else ""),
        ]
    device_s = run.held_s()
    useful = run.goodput
    commit = run.last_commit()
    nothing = "nothing committed" if run.imported is None else "nothing recorded"
    return [
        _quality(run),
        _rows_tile(run),
        Fact(
            "device time of training",
            device_hours_text(device_s) if device_s else "—",
            (f"goodput {percent_text(useful)}" if useful is not None else "no phases recorded")
            + (f"; evaluation apart: {device_hours_text(run.evaluation_s())}" if run.evaluation_s() else ""),
        ),
        Fact("attempts", str(len(run.attempts)), _world_sizes(run.world_sizes)),
        Fact(
            "last commit" if run.imported is None else "last checkpoint",
            f"step {commit.step:,}" if commit else "—",
            f"weights {commit.weights_digest[:12]}" if commit else nothing,
        ),
    ]


def _quality(run: RunView) -> Fact:
    """Return the headline of the last evaluation, or the last value that was measured during training."""
    if (evaluation := run.evaluation) is not None:
        headline = evaluation.headline
        title = f"{headline.metric.title} on {evaluation.split}"
        rows = number_of(evaluation.overall.num_rows, "row")
        if (estimate := headline.estimate) is None:
            return Fact(title, "—", f"all {rows} are of one class")
        interval = interval_text(estimate).strip()
        method = f"95%: {interval}, {estimate.method}, {rows}" if interval else rows
        return Fact(title, f"{estimate.value:.4f}", method)
    for name, summary in run.metrics.items():
        if name.startswith(VALIDATION) and summary.last is not None:
            title = metric_title(name.removeprefix(VALIDATION))
            return Fact(title, f"{summary.last:.4f}", f"at step {summary.last_step:,}; not evaluated at the end yet")
    return Fact("quality", "—", "not evaluated yet")


def _rows_tile(run: RunView) -> Fact:
    if not run.shows_rows():
        rows = sum(commit.rows_trained for commit in run.commits)
        note = f"{count_text(rows)} counted up to its last checkpoint" if rows else "no loader of assay"
        return Fact("rows", "not observed", note)
    return Fact("rows learned", count_text(run.audit.rows_trained) if run.audit else "—", _audit_text(run))


def _audit_text(run: RunView) -> str:
    audit, step = run.audit, run.audited_until()
    if audit is None:
        return "not audited"
    until = "" if step is None else f" up to step {step:,}"
    return f"of {count_text(audit.rows_expected)}{until}; audit: {audit.verdict}"


def next_commands(run: RunView) -> list[tuple[str, str]]:
    """Return what to do next, with the command for it."""
    if run.is_session():
        return [
            ("check that each datum was learned once", f"assay runs audit {run.run_id}"),
            ("show what happened", f"assay triage {run.run_id}"),
            ("write its model", f"assay runs export {run.run_id}"),
        ]
    if run.imported is not None and run.imported.is_recorded():
        return _recorded_commands(run)
    if run.imported is not None:
        again = shell_line("assay", "runs", "import", run.imported.source, "--from", run.imported.tool)
        return [("add what is new", again), ("compare with another run", f"assay runs diff {run.run_id} OTHER")]
    commands = []
    kind = run.failure_kind
    if run.status in ("failed", "preempted", "gone"):
        commands.append(_resume_command(run))
    if run.status == "failed" and kind in ("refused", "config_error"):  # the cause may be in the recipe
        step = commit.step if (commit := run.last_commit()) else 0
        commands.append(("or change its recipe", f"assay train --from {run.run_id}@{step} KEY=VALUE"))
    if any(warning.rule == "diverged" for warning in run.warnings):
        step = max((attempt.reached_step for attempt in run.attempts), default=0) + int(kind == "loss_not_finite")
        commands.append(("find out why", f"assay runs replay {run.run_id} --step {max(step, 1)} --explain"))
    spikes = [step for warning in run.warnings if warning.rule == "spikes" for step in warning.steps]
    if spikes:
        commands.append(
            ("find the rows behind the spike", f"assay runs replay {run.run_id} --step {spikes[0]} --bisect")
        )
    if run.audit is not None and run.audit.verdict == "fail":
        commands.append(("name all problems", run.audit.command()))
    if run.audit is None and run.status == "succeeded":
        commands.append(("prove its rows", f"assay runs audit {run.run_id}"))
    if run.status == "succeeded" and not run.warnings:
        commands.append(("compare with another run", f"assay decide compare {run.run_id} OTHER"))
    return commands or [("show its progress", f"assay runs show {run.run_id}")]


def _recorded_commands(run: RunView) -> list[tuple[str, str]]:
    """Return what to do next with a run that another tool trains."""
    commands = [("compare with another run", f"assay runs diff {run.run_id} OTHER")]
    if run.last_commit() is not None:
        commands.insert(0, ("check its checkpoints", f"assay runs audit {run.run_id} --deep"))
        commands.append(("evaluate them by a suite", f"assay eval work {run.run_id} --suite FILE"))
    if run.status in ("failed", "gone", "preempted"):
        commands.insert(0, ("find out why it ended", f"assay triage {run.run_id}"))
    return commands


def _resume_command(run: RunView) -> tuple[str, str]:
    """Return how to continue a run that ended early, without repeating the failure."""
    kind, ranks = run.failure_kind, run.attempts[-1].world_size if run.attempts else 1
    resume = f"assay train --resume {run.run_id}{f' --workers {ranks}' if ranks > 1 else ''}"
    if kind == "loss_not_finite":
        sound = [
            commit.step
            for commit in run.commits
            if commit.step >= MIN_RESUMABLE_STEP and not (commit.flags or commit.is_quarantined or commit.is_retired)
        ]
        step = max(sound, default=0)
        whence = f"from the commit of step {step:,}" if step else "from the beginning"
        return f"train {whence} at a lower learning rate", slower_command(run.run_id, run.recipe, step=step)
    if kind == "fenced":
        return "show the attempt that replaced it", f"assay runs show {run.run_id}"
    is_from_outside = kind is None or kind in FROM_OUTSIDE or kind in _RESUME_CONDITIONS
    if not is_from_outside and run.last_commit() is None:
        change = f"assay train --from {run.run_id}@0 KEY=VALUE"
        return "nothing is committed: change the recipe and begin again", change
    condition = "" if kind is None or kind in FROM_OUTSIDE else _RESUME_CONDITIONS.get(kind, "the cause is fixed")
    whence = "go on from the last commit" if run.last_commit() else "begin again (nothing is committed)"
    return f"{whence}{', once ' if condition else ''}{condition}", resume


def _world_sizes(sizes: Sequence[int]) -> str:
    if not sizes:
        return "on no rank yet"
    return f"on {world_sizes_text(sizes)} ranks" if {*sizes} != {1} else "on 1 rank"


def _rows_text(run: RunView) -> str:
    audit = run.audit
    assert audit is not None
    skipped = audit.rows_quarantined
    rest = f"; {number_of(skipped, 'row')} of damaged row groups set aside" if skipped else ""
    rows = count_text(audit.rows_trained)
    if audit.forked_from:
        behind = f"behind {audit.forked_from}, whose own audit covers the earlier rows"
        return f"Each of {rows} rows was learned exactly once {behind}{rest}."
    if audit.epochs == 1:
        return f"Each of {rows} rows was learned exactly once{rest}."
    due = f"In {audit.epochs} epochs, {rows} rows were due up to the last step"
    return f"{due}, and each was learned exactly once{rest}."


def _interruptions_text(run: RunView) -> str:
    cut_short = [attempt for attempt in run.attempts[:-1] if attempt.outcome != "succeeded"]
    if not cut_short:
        return ""
    lost = sum(item.lost_steps for item in cut_short)
    were = "was" if lost == 1 else "were"
    again = f"; {number_of(lost, 'step')} {were} made again" if lost else "; no step was lost"
    ends = [item for item in cut_short if item.reason]
    reason = f" ({ends[0].reason})" if ends else ""
    times = "once" if len(cut_short) == 1 else f"{len(cut_short)} times"
    whence = "from its last commit" if run.imported is None else f"at step {run.attempts[-1].start_step:,}"
    return f" It was interrupted {times}{reason} and went on {whence}{again}."


def _result_text(run: RunView) -> str:
    if run.evaluation is None or run.evaluation.headline.estimate is None:
        return ""
    metric, estimate = run.evaluation.headline.metric, run.evaluation.headline.estimate
    rows = f"{run.evaluation.overall.num_rows:,} held-out rows"
    return f" On {rows} its {metric.title} is {estimate.value:.4f}{interval_text(estimate)}."


def _state(run: RunView) -> str:
    commit = run.last_commit()
    if commit is None:
        return " It has no commit yet." if run.imported is None else " No checkpoint of it was recorded yet."
    after = duration_text(max(commit.committed - run.attempts[0].started, 0.0)) if run.attempts else "—"
    what = "commit" if run.imported is None else "recorded checkpoint"
    return f" Its last {what} is of step {commit.step:,}, after {after}."

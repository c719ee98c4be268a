"""One run on a terminal: progress, cost, metrics and attempts."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from assay.base.clock import SystemClock, utc_text
from assay.base.units import bytes_text, count_text, duration_text, number_of, tenths_text
from assay.records.evaluation import AnyEvaluation, metric_title
from assay.records.launch import Launch
from assay.reporting.terminal.drawing import PHASE_STYLES, phase_bar, sparkline
from assay.reporting.terminal.formatting import STATUS_STYLES, STATUS_WORDS, device_hours_text, world_sizes_text
from assay.reporting.terminal.terminal import (
    TONE_STYLES,
    VERDICT_STYLES,
    number,
    status_text,
    stdout,
    table_of,
)
from assay.reporting.views.run import AttemptView, CommitView, RunView
from assay.reporting.views.series import VALIDATION_CURVE, RunSeries
from assay.reporting.views.verdict import model_mark, next_commands, run_verdict
from assay.store.settings import Money

SILENT_AFTER_S = 60.0
"""A running run without a sign of life for this long gets a hint."""

MAX_ATTEMPTS = 12
MAX_EVENTS = 8


def print_run(run: RunView, curves: RunSeries) -> None:
    """Print facts, metrics, attempts and events of a run."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, value in (*_facts(run), *_curves(curves), *_speed(run)):
        facts.add_row(name, value)
    stands = status_text(run.status)
    colour = TONE_STYLES[run_verdict(run).tone] if run.status == "succeeded" else stands.style
    title = Text.assemble(
        (run.run_id, "bold"),
        "  ",
        ((STATUS_WORDS.get(run.status) or run.status_text()).upper(), f"bold {colour}"),
    )
    title.append("".join(f"  #{tag}" for tag in run.tags), style="cyan")
    stdout().print(Group(title, "", facts, *_attempts(run), *_events(run)))


def _facts(run: RunView) -> Iterator[tuple[str, RenderableType]]:
    yield "recipe", f"{run.name or ''} {run.recipe_sha256[:12]}…, begun {utc_text(run.created)}"
    if run.parent is not None:
        changes = [f"{key} {was} → {now}" for key, (was, now) in run.parent.changes.items()]
        yield "forked from", f"{run.parent}" + (f", with {', '.join(changes)}" if changes else "")
    yield "dataset", f"{run.dataset_fingerprint[:12]}…"
    total = f" of {run.total_steps:,}"
    ranks = "1 rank" if set(run.world_sizes) == {1} else f"{world_sizes_text(run.world_sizes) or 'no'} ranks"
    yield "step", f"{run.step:,}{total} on {ranks}"
    if kinds := dict.fromkeys(attempt.processor for attempt in run.attempts):
        yield "processor", ", then ".join(kinds)
    if run.launches:
        yield "started", _started_text(run.launches[-1])
    if hint := _silence(run):
        yield "", Text(hint, style="yellow")
    if run.status == "failed" or any(warning.rule == "spikes" for warning in run.warnings):
        yield "next", "\n".join(f"{what}: '{command}'" for what, command in next_commands(run))
    for note in run.notes:
        yield "note", f"{note.text} ({note.by}, {utc_text(note.at_s)})"
    if run.weights_digest:
        yield "weights", f"{run.weights_digest[:24]}…"
    if run.commits:
        yield "commits", _commits_text(run.commits)
    if flagged := _flags_text(run.commits):
        yield "flagged", Text(flagged, style="yellow")
    title = run.evaluation.headline.metric.title if run.evaluation else "evaluation"
    looks = ((name, summary.last) for name, summary in run.metrics.items() if name.startswith(VALIDATION_CURVE))
    on_the_way = [
        f"{metric_title(name.removeprefix(VALIDATION_CURVE))} {last:.4f}" for name, last in looks if last is not None
    ]
    if run.evaluation is None and on_the_way:
        yield title, f"not at its end yet: {on_the_way[0]} on the way"
    else:
        yield title, _headline_text(run.evaluation)
    if run.evaluation is not None and run.evaluation.num_leaking is None:
        yield (
            "leaks",
            "nobody looked for validation rows that were trained on: 'assay data split --check-leaks'",
        )
    if run.prompts is not None:
        yield "prompts", str(run.prompts)
    yield "rows", _audit_text(run)
    mark = model_mark(run)
    yield (
        "model",
        Text("\n".join([mark.word, *(warning.text for warning in run.warnings)]), style=TONE_STYLES[mark.tone]),
    )
    if run.held_s():
        yield "device time", _cost(run)
    if run.evaluation_s():
        yield (
            "evaluation",
            f"{device_hours_text(run.evaluation_s())} to evaluate commits, apart from training"
            + (f", {Money(run.evaluation_cost, run.currency)}" if run.evaluation_cost and run.currency else ""),
        )


def _started_text(launch: Launch) -> str:
    where = "Slurm job" if launch.launcher == "slurm" else "process"
    return f"{where} {launch.job}, by {launch.started_by} on {launch.host}, {utc_text(launch.started_s)}"


def _silence(run: RunView) -> str:
    """Return a hint for a run that shows no sign of life."""
    silent_s = 0.0 if run.last_seen is None else SystemClock().now_s() - run.last_seen
    silence = f"silent for {duration_text(silent_s)}" if run.last_seen else "never heard of"
    size = run.attempts[-1].world_size if run.attempts else 1
    workers = f" --workers {size}" if size > 1 else ""
    resume = f"'assay train --resume {run.run_id}{workers}' goes on"
    where = run.launches[-1].where() if run.launches else "nobody wrote down where"
    match run.status:
        case "gone":
            return f"its supervisor ({where}) is gone: {resume}"
        case "unknown":
            return f"cannot tell from here whether it still runs ({where}), {silence}. If it does not: {resume}"
        case "running" if silent_s >= SILENT_AFTER_S:
            return f"{silence}: it starts, commits, evaluates or hangs"
        case _:
            return ""


def _commits_text(commits: Sequence[CommitView]) -> str:
    intact = [commit for commit in commits if not commit.is_quarantined]
    text = f"{len(intact)}"
    if intact:
        text += f", the last of step {intact[-1].step:,} ({bytes_text(intact[-1].num_bytes)})"
    retained = [f"{commit.step:,}" for commit in intact if not commit.is_retired]
    if len(retained) < len(intact):
        text += f"; kept are those of {'step' if len(retained) == 1 else 'steps'} {', '.join(retained)}"
    damaged = len(commits) - len(intact)
    return f"{text}; {damaged} more found damaged and quarantined" if damaged else text


def _flags_text(commits: Sequence[CommitView]) -> str:
    """Return the warnings at commits, by rule with their steps."""
    steps: dict[str, list[str]] = {}
    for commit in commits:
        for flag in commit.flags:
            steps.setdefault(flag.rule, []).append(f"{commit.step:,}")
    lines = [f"{rule}: commit{'s' * (len(at) > 1)} of step {', '.join(at)}" for rule, at in steps.items()]
    if lines and any(not commit.is_evaluated for commit in commits):
        lines.append(
            "other commits: judged by their training, and where validation rows were asked by whether all got "
            "one score; what they predict, 'assay eval predict RUN@STEP' shows"
        )
    return "\n".join(lines)


def _headline_text(evaluation: AnyEvaluation | None) -> str:
    if evaluation is None:
        return "not evaluated yet"
    found, rows = (
        evaluation.headline.estimate,
        f"{number_of(evaluation.overall.num_rows, 'row')} of '{evaluation.split}'",
    )
    if found is None:
        return f"none: the {rows} are all of one class"
    interval = "" if found.low is None else f" [{found.low:.4f}, {found.high:.4f}]"
    method = "" if found.low is None else f" ({found.method})"
    return f"{found.value:.4f}{interval} on {rows}{method}"


def _audit_text(run: RunView) -> RenderableType:
    audit = run.audit
    if audit is None:
        return f"not audited yet: 'assay runs audit {run.run_id}'"
    step = run.audited_until()
    problems = len(audit.missing) + len(audit.repeated) + len(audit.problems)
    return Text.assemble(
        (audit.verdict, VERDICT_STYLES[audit.verdict]),
        f": {audit.rows_trained:,} of {audit.rows_expected:,} rows learned once",
        f", {audit.rows_quarantined:,} quarantined" if audit.rows_quarantined else "",
        f" up to step {step:,}; what came then is not audited" if step is not None else "",
        f"; {number_of(problems, 'problem')} ('{audit.command()}' names them)" if problems else "",
    )


def _cost(run: RunView) -> RenderableType:
    legend = Text()
    for phase, style in PHASE_STYLES.items():
        if (seconds := run.device_seconds[phase]) > 0:
            legend.append("■ ", style=style).append(f"{phase} {tenths_text(seconds / run.held_s())}   ")
    words = f"{device_hours_text(run.held_s())} over all ranks"
    words += f", {Money(run.cost, run.currency)}" if run.cost is not None and run.currency else ""
    words += f"; {number_of(run.lost_steps, 'step')} lost with what died" if run.lost_steps else ""
    return Group(words, phase_bar(run.device_seconds), legend)


def _curves(curves: RunSeries) -> Iterator[tuple[str, RenderableType]]:
    for series in (curves.loss, curves.validation):
        values = series.committed_points()[1] if series else []
        if series and len(values) > 1:
            line = sparkline(values)
            yield _curve_title(series.name), f"{values[0]:.4f} {line} {values[-1]:.4f}"


def _curve_title(name: str) -> str:
    metric = name.removeprefix(VALIDATION_CURVE)
    return metric_title(name) if metric == name else f"validation {metric_title(metric)}"


def _speed(run: RunView) -> Iterator[tuple[str, RenderableType]]:
    if run.speed is not None:
        tokens = "" if run.speed.tokens_per_s is None else f"{count_text(run.speed.tokens_per_s)} tokens/s, "
        yield "speed", f"{tokens}{run.speed.steps_per_s:.3g} steps/s"


def _attempts(run: RunView) -> Iterator[RenderableType]:
    if not run.attempts:
        return

    def steps(attempt: AttemptView) -> str:
        end = "…" if attempt.end_step is None else f"{attempt.end_step:,}"
        return f"{attempt.start_step:,} to {end}"

    def end(attempt: AttemptView) -> Text:
        # Nobody was left to write down how it ended.
        is_gone = attempt.outcome == "running" and run.status == "gone"
        outcome = "gone" if is_gone else attempt.outcome
        return Text(outcome, style=STATUS_STYLES.get(outcome, "red"))

    table = table_of(
        run.attempts[-MAX_ATTEMPTS:],
        (number("attempt"), lambda attempt: str(attempt.attempt)),
        (number("ranks"), lambda attempt: str(attempt.world_size)),
        (number("steps"), steps),
        (number("lasted"), lambda attempt: "" if attempt.held_s is None else duration_text(attempt.held_s)),
        ("end", end),
        ("why", lambda attempt: Text(attempt.reason)),
    )
    yield from ("", table)
    if len(run.attempts) > MAX_ATTEMPTS:
        yield f"and {len(run.attempts) - MAX_ATTEMPTS} earlier attempts (--json lists all)"


def _events(run: RunView) -> Iterator[RenderableType]:
    for incident in run.incidents[-MAX_EVENTS:]:
        yield Text(
            f"attempt {incident.attempt}, {incident.incident.replace('_', ' ')}: {incident.text}", style="yellow"
        )
    for event in run.events[-MAX_EVENTS:]:
        yield Text(f"attempt {event.attempt}, rank {event.rank}: {event.text}", style="dim")

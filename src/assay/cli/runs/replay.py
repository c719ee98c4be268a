"""`assay runs replay`: replay a step of a past run and compare it with the record."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import RUN_OR_SESSION, current_home, current_sessions, is_session, json_option, print_view
from assay.reporting.values import one_line

if TYPE_CHECKING:
    from assay.records.replay import OperatorWatchReport, OuterReplayReport, ReplayReport, RowSearch

MAX_ROWS = 20
_AS_WRITTEN = (
    "trainer.compile: operators inside compiled layers cannot be observed, so the layers ran uncompiled, with "
    "other bits than in the run: nothing is compared from this step on"
)


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN_OR_SESSION)
@click.option("--step", type=int, help="Step to replay (the first is 1).")
@click.option(
    "--outer",
    metavar="N",
    help="Outer step to replay instead, or 'all': every cluster's part, from the record where the clusters met.",
)
@click.option("--restore", is_flag=True, help="With --outer: put changes that are damaged where clusters meet again.")
@click.option("--through", type=int, help="Continue to this step, e.g. one whose weights are on record.")
@click.option("--lane", type=int, help="Also compute this lane of the step separately.")
@click.option("--attempt", type=int, help="Attempt to compare with; by default the one that committed the step.")
@click.option("--watch", is_flag=True, help="Find the first operator that produces a NaN or an infinity.")
@click.option(
    "--audit-ops",
    is_flag=True,
    help="Find the first operator that differs from its float64 reference by more than rounding explains.",
)
@click.option("--bisect", is_flag=True, help="Find the rows that make the step bad.")
@click.option("--explain", is_flag=True, help="Decide whether arithmetic, data or optimization caused it.")
@click.option("--keep", is_flag=True, help="Save everything that the step needs as a capsule, safe from retention.")
@json_option
def replay(
    run_id: str,
    step: int | None,
    outer: str | None,
    restore: bool,
    through: int | None,
    lane: int | None,
    attempt: int | None,
    watch: bool,
    audit_ops: bool,
    bisect: bool,
    explain: bool,
    keep: bool,
    as_json: bool,
) -> None:
    """Replay a step of RUN on one process from the nearest commit, and compare every bit with the record.

    Works for runs of any world size, and for steps that failed. Exit code 1 if a number differs or an operator
    is wrong.

    RUN may be a session of the Tinker API, or SESSION:train:NUMBER if it has several models. Its steps are the
    'optim_step' requests; every result since the newest stored state is compared.

    --outer N trains what each cluster trained for outer step N again, from the log where the clusters met.
    """
    others = {"through": through, "attempt": attempt, "lane": lane, "bisect": bisect, "explain": explain, "keep": keep}
    _check_options(run_id, step, outer, {**others, "watch": watch, "audit-ops": audit_ops}, restore=restore)
    if outer is not None:
        _replay_outer(run_id, outer, restores=restore, as_json=as_json)
    assert step is not None
    if is_session(run_id):
        _replay_session(run_id, step, through, watch=watch, audit_ops=audit_ops, as_json=as_json)
    from assay.store.metrics.recorded import recorded_steps
    from assay.training.recipe import recipe_of
    from assay.training.replay.request import ReplayRequest
    from assay.workflows.run import load_run

    recipe = recipe_of(run := load_run(current_home(), run_id))
    request = ReplayRequest(
        step=step,
        through_step=through,
        attempt=attempt,
        lane=lane,
        mode="watch" if watch else "audit-ops" if audit_ops else None,
        search_rows=bisect or explain,
    )
    recorded = partial(recorded_steps, Path(run.run_dir), attempt=attempt)
    request.check(run, recipe.trainer, num_lanes=recipe.loader.lanes, last_step=run.num_steps)
    if attempt is not None:
        request.check_attempt(recorded())

    from assay.elastic.capsules import save_capsule
    from assay.elastic.processor import other_processor
    from assay.store.commit_log import CommitLog
    from assay.store.objects import open_store
    from assay.triage.explain import explain as explanation
    from assay.workflows.replay import replay as replay_step

    log = CommitLog(open_store(run.store_url))
    if (message := other_processor(run, step, attempt=attempt)) is not None:
        click.secho(message, err=True, fg="yellow")
    report = replay_step(run, log, request, progress=_progress)
    if explain:
        found = explanation(report, recorded(), learning_rate=recipe.trainer.optimizer.learning_rate)
        report = report.model_copy(update={"explanation": found})
    if keep:
        save_capsule(run, log, step=step, reason="kept by 'assay runs replay --keep'")
    _print_and_exit(report, as_json)


def _check_options(
    run_id: str, step: int | None, outer: str | None, others: Mapping[str, object], *, restore: bool
) -> None:
    """Raise `ConfigError` for options that exclude each other."""
    names = [name for name, value in others.items() if value is not None and value is not False]
    if (step is None) == (outer is None):
        raise ConfigError("give --step N, or --outer N for a run of several clusters.")
    if restore and outer is None:
        raise ConfigError("--restore is for --outer N: it puts changes of an outer step again.")
    if outer is not None and names:
        raise ConfigError(f"--outer replays whole outer steps, and --{names[0]} is for a single --step. Leave it out.")
    if {"watch", "audit-ops"} <= {*names}:
        raise ConfigError("--watch and --audit-ops exclude each other: give one of them.")
    for_runs = [name for name in names if name not in ("through", "watch", "audit-ops")]
    if is_session(run_id) and for_runs:
        raise ConfigError(f"--{for_runs[0]} is for runs. Leave it out for a session.")


def _replay_outer(run_id: str, outer: str, *, restores: bool, as_json: bool) -> NoReturn:
    if outer != "all" and not outer.isdecimal():
        raise ConfigError(f"--outer {outer}: give the number of an outer step, or 'all'.")
    from assay.workflows.outer.replay import replay_outer
    from assay.workflows.run import load_run

    outer_step = None if outer == "all" else int(outer)
    report = replay_outer(load_run(current_home(), run_id), outer_step, restores=restores)
    print_view(report, lambda found: click.echo(_outer_text(found)), as_json=as_json)
    sys.exit(1 if report.verdict == "differs" else 0)


def _outer_text(report: "OuterReplayReport") -> str:
    steps = f"outer step {report.last_outer_step}"
    if report.first_outer_step != report.last_outer_step:
        steps = f"outer steps {report.first_outer_step} to {report.last_outer_step}"
    head = f"{_verdict_text(report.verdict)}  {report.run_id}, {steps}: {len(report.parts)} parts of clusters"
    lines = [
        f"  {'≠' if part.differing else '='} outer step {part.outer_step}, cluster {part.cluster}"
        + (f": {', '.join(part.differing)}" if part.differing else "; its change is restored" * part.is_restored)
        for part in report.parts
    ]
    if report.weights is not None:
        sign = "=" if report.weights.is_equal else "≠"
        lines.append(f"  {sign} weights after outer step {report.last_outer_step}: {report.weights.replayed}")
    return "\n".join([head, *lines])


def _verdict_text(verdict: str) -> str:
    colour = {"equal": "green", "differs": "red", "not recorded": "yellow"}[verdict]
    return click.style(verdict.upper(), fg=colour, bold=True)


def _replay_session(
    name: str, step: int, through: int | None, *, watch: bool, audit_ops: bool, as_json: bool
) -> NoReturn:
    from assay.training.replay.request import ReplayRequest
    from assay.workers.sessions.replay import replay_session

    request = ReplayRequest(step, through, mode="watch" if watch else "audit-ops" if audit_ops else None)
    _print_and_exit(replay_session(current_sessions(), name, request, progress=_progress), as_json)


def _print_and_exit(report: "ReplayReport", as_json: bool) -> NoReturn:
    print_view(report, print_replay, as_json=as_json)
    is_wrong = report.verdict == "differs" or (report.operators and report.operators.finding)
    sys.exit(1 if is_wrong else 0)


def _progress(step: int, first: int, last: int) -> None:
    if last > first and sys.stderr.isatty():
        click.echo(f"\rreplaying step {step} of {first} to {last}", err=True, nl=step == last)


def print_replay(report: "ReplayReport") -> None:
    """Print a replay."""
    from rich.text import Text

    from assay.reporting.terminal.terminal import stdout

    stdout().print(Text.from_ansi(_text(report)), soft_wrap=True)


def _text(report: "ReplayReport") -> str:
    origin = f"the commit of step {report.from_step}" if report.from_step else "the starting weights"
    lines = [
        f"{_verdict_text(report.verdict)}  {report.run_id}, step {report.step}, "
        f"replayed from {origin}: {report.compared} numbers compared"
    ]
    if report.recorded_code_version not in ("", report.code_version):
        lines.append(f"  run with {report.recorded_code_version}, replayed with {report.code_version}")
    lines += [
        f"  {'=' if number.is_equal else '≠'} step {number.step} {number.quantity}: {number.replayed}"
        + ("" if number.is_equal else f", on record {number.recorded}")
        for number in report.at_step
    ]
    first = report.first_difference
    if first is not None and first not in report.at_step:
        lines.append(f"  ≠ step {first.step} {first.quantity}: {first.replayed}, on record {first.recorded}")
    if not report.at_step and not (report.operators and report.operators.as_written):
        value = "not finite" if report.loss is None else f"{report.loss!r}"
        lines.append(f"  the run has no record of step {report.step}; its loss here: {value}")
    if report.lane_loss is not None:
        lines.append(f"  the lane's mean loss: {report.lane_loss!r}")
    lines += _operator_lines(report.operators) + _row_lines(report.rows)
    if report.explanation is not None:
        from assay.reporting.views.triage_statements import triage_text

        because = triage_text(report.explanation.because)
        lines.append(f"  {click.style(report.explanation.cause, bold=True)}: {because}")
    return "\n".join(lines)


def _operator_lines(watched: "OperatorWatchReport | None") -> list[str]:
    if watched is None:
        return []
    lines = [f"  the step raised {watched.raised}"] if watched.raised else []
    if watched.as_written:
        lines.append(f"  {_AS_WRITTEN}")
    looked = f"{watched.num_calls} calls of {watched.num_operators} operators"
    if watched.finding is None:
        right = "finite" if watched.mode == "watch" else "within its error bound"
        lines.append(f"  {looked}: every output is {right}")
    else:
        found = watched.finding
        lines += [
            click.style(f"  {found.operator} is {found.problem}", fg="red", bold=True),
            f"    in {found.module or 'no module (loss, sums of gradients, update)'}, {found.phase}",
            f"    {', '.join(found.inputs)} -> {found.output}",
            f"    {found.detail}",
        ]
        if found.lane is not None:
            lines.append(f"    lane {found.lane}, rows {', '.join(map(str, found.row_ids))}")
        lines.append(f"    the first after {watched.num_calls - 1} calls")
    if watched.not_audited:
        named = ", ".join(f"{name} ({reason})" for name, reason in sorted(watched.not_audited.items()))
        lines.append(f"  not audited: {named}")
    return lines


def _row_lines(search: "RowSearch | None") -> list[str]:
    if search is None:
        return []
    if not search.rows:
        return [f"  no row is the cause: none contributes to {search.criterion}"]
    lines = [f"  {len(search.rows):,} of {search.num_rows:,} rows: {search.criterion}"]
    for row in search.rows[:MAX_ROWS]:
        loss = "not finite" if row.loss is None else f"{row.loss:.4g}"
        lines.append(f"    row {row.row_id} ({row.location}), lane {row.lane}: loss {loss}")
        lines += [f"      from {one_line(row.origin)}"] if row.origin else []
        lines += [f"      {one_line(row.text)}"] if row.text else []
    if len(search.rows) > MAX_ROWS:
        lines.append(f"    and {len(search.rows) - MAX_ROWS} more (--json lists all)")
    return lines

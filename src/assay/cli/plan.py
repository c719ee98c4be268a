"""`assay plan`: check, schedule and simulate a program of experiments."""

import datetime
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from assay.base.errors import ConfigError
from assay.cli.command import CommandGroup
from assay.cli.parameters import (
    FILE,
    OUT_FILE,
    InputFile,
    OutFile,
    current_home,
    force_option,
    jobs_option,
    json_option,
    timeout_option,
)

if TYPE_CHECKING:
    from assay.planning.in_progress import ActivityInProgress
    from assay.planning.program.file import ProgramFile
    from assay.planning.program.plan import Plan
    from assay.planning.program.program import Program
    from assay.planning.schedule import Effort


_program = click.argument("program", type=FILE)
_timeout = timeout_option(60.0, "the proof of one objective")
_jobs = jobs_option(1, "Threads of the solver; with several, each solve may find another, equally good schedule.")


_MODULES = {
    "new": ("assay.cli.plan", "Write a small valid program as a template."),
    "check": ("assay.cli.plan", "Check that all limits of a program can hold together."),
    "solve": ("assay.cli.plan", "Find the best schedule."),
    "what-if": ("assay.cli.plan", "Compare changes of a program."),
    "offer": ("assay.cli.plan_risk", "Choose a scope that meets its targets; write its documents."),
    "risk": ("assay.cli.plan_risk", "Simulate the probability of keeping date and budget."),
    "status": ("assay.cli.plan_risk", "Show status and forecast of an offered plan."),
    "review": ("assay.cli.plan_risk", "Write the review: scale, narrow or stop."),
    "export": ("assay.cli.plan", "Export a plan as a calendar, table, Slurm script or drawing."),
    "keys": ("assay.cli.plan", "Print every key of a program."),
}


@click.group(cls=CommandGroup, modules=_MODULES)
def plan() -> None:
    """Plan a program of activities, people, devices, budget, gates and dates, declared in a YAML file."""


@plan.command()
@click.argument("out", type=OUT_FILE)
@force_option
@click.option(
    "--start",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="First day of the program, e.g. 2027-01-04; by default the next Monday.",
)
def new(out: Path, start: datetime.datetime | None) -> None:
    """Write a small valid program with comments to OUT, as a template."""
    from assay.planning.program.new import new_program

    today = datetime.date.today()
    monday = today + datetime.timedelta(days=-today.weekday() % 7)
    new_program(out, start=start.date() if start else monday)
    click.echo(f"wrote {out}; next: assay plan check {out}")


@plan.command()
def keys() -> None:
    """Print every key of a program with its default and meaning, as Markdown."""
    from assay.planning.program.reference import program_reference

    click.echo(program_reference(), nl=False)


@plan.command()
@_program
@click.option("--quick", is_flag=True, help="Check names, dates and sums only; do not search for a schedule.")
@_timeout
@_jobs
def check(program: Path, quick: bool, timeout_s: float, jobs: int) -> None:
    """Check that PROGRAM is valid, and that all its limits can hold together.

    Errors are reported with their lines. If no schedule exists, the command prints a minimal set of conflicting
    limits and what relaxing each would achieve. Exit code 2 if the program is invalid or infeasible.
    """
    from assay.planning.conflict import conflict_error, find_conflict
    from assay.planning.program.checks import short_budgets
    from assay.planning.program.file import read_program
    from assay.reporting.documents.plan.schedule_documents import program_document
    from assay.reporting.terminal.document import print_document

    file = read_program(program, allow_short_budget=not quick)
    print_document(program_document(file.program))
    if quick:
        return
    conflict = find_conflict(file.program, effort=_effort(timeout_s, jobs))
    short = {budget.key for budget in short_budgets(file.program)}
    if short and (conflict is None or conflict.keys() <= short):
        read_program(program)  # raises an error that lists the runs that need the most
    if conflict is not None:
        raise conflict_error(file.location, conflict)
    by = file.program.calendar.deadline_text(file.program.decision.by)
    click.secho(f"all limits can hold, including the decision by the {by}", fg="green")


@plan.command()
@_program
@click.option(
    "--out", type=OutFile('"kind":"plan"'), help="File for the plan (JSON), which export, review and re-planning read."
)
@force_option
@click.option("--prices", is_flag=True, help="Also solve with a little more of each limit, to show what it is worth.")
@click.option("--option", "options", multiple=True, help="Apply an option of the program. May be repeated.")
@click.option(
    "--progress",
    type=FILE,
    help="Progress so far (YAML); needs --earlier. Device time of its runs is read from the ledger.",
)
@click.option("--earlier", type=FILE, help="The current plan; re-planning changes it as little as possible.")
@json_option
@_timeout
@_jobs
def solve(
    program: Path,
    out: Path | None,
    prices: bool,
    options: tuple[str, ...],
    progress: Path | None,
    earlier: Path | None,
    as_json: bool,
    timeout_s: float,
    jobs: int,
) -> None:
    """Find the best schedule of PROGRAM: earliest decision, then fewest device-hours, then lowest peak.

    Prints the weeks, what delays the decision, and what was proved optimal; an independent checker verifies
    every hour. Exit code 1 if the decision is later than its date.
    """
    from assay.planning.explain import prices as priced
    from assay.reporting.documents.plan.schedule_documents import schedule_document
    from assay.reporting.documents.render import write_file
    from assay.reporting.terminal.document import print_document

    effort = _effort(timeout_s, jobs)
    chosen, found, now_h, in_progress, solved_again = _solved(program, options, progress, earlier, effort)
    if out is not None:
        write_file(out, found.to_json())
    if as_json:
        click.echo(found.to_json())
    else:
        price = current_home().settings().planned_price()
        limit_prices = None
        if prices:
            earliest = found if now_h is None else solved_again(chosen)
            limit_prices = earliest, priced(chosen, earliest, solved_again, now_h=now_h or 0)
        document = schedule_document(
            chosen, found, now_h=now_h, in_progress=in_progress, price=price, prices=limit_prices
        )
        print_document(document)
        if out is not None:
            click.echo(out)
    late = found.decision_h > chosen.calendar.hour_of(chosen.decision.by)
    sys.exit(1 if late else 0)


@plan.command("what-if")
@_program
@click.argument("names", nargs=-1)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A change of your own. May be repeated.")
@click.option("--readings", is_flag=True, help="Compare all interpretations of the fair-use rule instead.")
@_timeout
@_jobs
def what_if(
    program: Path,
    names: tuple[str, ...],
    changes: tuple[str, ...],
    readings: bool,
    timeout_s: float,
    jobs: int,
) -> None:
    """Compare what-ifs of PROGRAM: those in the file (NAMES, or all), or your own by --set.

    Each is scheduled again and simulated with the same random draws.

    For example: --set team.research_engineer.fte=6 --set events.refreshed_data.at='end of week 3'
    """
    from assay.base.config import parse_override
    from assay.base.names import meant
    from assay.planning.program.file import read_program

    subject = read_program(program).program
    for name in names:
        if name not in subject.what_ifs:
            has = ", ".join(subject.what_ifs) or "none"
            raise ConfigError(f"{program}: no what-if '{name}'{meant(name, subject.what_ifs)}. It has: {has}.")
    own: dict[str, Any] = dict(parse_override(change) for change in changes)
    from assay.planning import what_if as questions
    from assay.planning.simulation.questions import simulate_what_ifs
    from assay.reporting.documents.plan.schedule_documents import what_if_document
    from assay.reporting.terminal.document import print_document

    effort = _effort(timeout_s, jobs)
    if readings:
        if not (found := questions.readings(subject, effort=effort)):
            raise ConfigError(f"{program}: no capacity.fair_use, so there is nothing to interpret.")
    else:
        selected = names or (() if own else None)
        found = questions.what_if_results(subject, selected, own=own, effort=effort)
    print_document(what_if_document(subject, simulate_what_ifs(found)))


@plan.command()
@_program
@click.argument("solved", metavar="PLAN", type=InputFile("'assay plan solve PROGRAM --out {path}' writes it."))
@click.option("--format", "kind", type=click.Choice(["ics", "csv", "slurm", "gantt", "capacity"]), required=True)
@click.option("--out", type=OUT_FILE, help="Output file; by default stdout.")
@force_option
@click.option("--account", help="slurm: account of the reservations; by default the program's name.")
@click.option("--partition", help="slurm: partition, if it is not the default.")
def export(
    program: Path, solved: Path, kind: str, out: Path | None, account: str | None, partition: str | None
) -> None:
    """Export a PLAN of PROGRAM for other tools.

    ics: a calendar; csv: a table; slurm: a script with reservations; gantt and capacity: drawings (SVG).
    """
    from assay.reporting.documents.render import write_file
    from assay.reporting.terminal.terminal import print_file

    file, found = _program_and_plan(program, solved)
    text = _exported(file.program, found, kind, account or file.program.name, partition)
    if out is None:
        print_file(text)
    else:
        write_file(out, text)
        click.echo(out)


def _exported(program: "Program", found: "Plan", kind: str, account: str, partition: str | None) -> str:
    from assay.planning import calendar_export
    from assay.reporting.charts import plan_figures

    if kind == "ics":
        return calendar_export.to_icalendar(program, found, stamp=datetime.datetime.now(datetime.UTC))
    if kind == "csv":
        return calendar_export.to_csv(program, found)
    if kind == "slurm":
        now = datetime.datetime.now()
        return calendar_export.to_slurm(program, found, account=account, partition=partition, now=now)
    draw = plan_figures.gantt if kind == "gantt" else plan_figures.capacity_profile
    return plan_figures.stand_alone(draw(program, found))


class _Solved(NamedTuple):
    """A plan with its program."""

    program: "Program"
    """The program as known now."""
    plan: "Plan"
    now_h: int | None
    """If the plan was re-planned: the hour from which on."""
    in_progress: "dict[str, ActivityInProgress] | None"
    again: "Callable[[Program], Plan]"
    """Returns the earliest plan of the program with other limits."""


def _solved(
    path: Path, options: tuple[str, ...], progress: Path | None, earlier: Path | None, effort: "Effort"
) -> "_Solved":
    from assay.base.names import meant
    from assay.planning.actuals import clock_of
    from assay.planning.conflict import conflict_error, find_conflict
    from assay.planning.in_progress import activities_in_progress
    from assay.planning.program.file import read_program, read_progress
    from assay.planning.replan import known_program, replan, replan_earliest
    from assay.planning.schedule import InfeasibleError, schedule
    from assay.workflows.program_status import collect_progress

    if (progress is None) != (earlier is None):
        raise ConfigError("--progress and --earlier belong together: give the progress and the current plan.")
    file = read_program(path)
    for option in options:
        if option not in file.program.options:
            raise ConfigError(f"{path}: no option '{option}'{meant(option, file.program.options)}.")
    program = file.program.with_options(options)
    try:
        if progress is not None and earlier is not None:
            noted, clock = read_progress(progress, program), clock_of(program)
            now_s = clock.start_s + clock.hour_s * program.calendar.hour_of(noted.now)
            progress_now = collect_progress(current_home(), program, noted, clock=clock, now_s=now_s).progress
            before, known = _read_plan(earlier), known_program(program, progress_now)
            again = replan(program, before, progress_now, effort=effort)
            rest = partial(replan_earliest, before=before, progress=progress_now, effort=effort)
            now_h = program.calendar.hour_of(progress_now.now)
            return _Solved(known, again, now_h, activities_in_progress(known, before, progress_now), rest)
        anew = partial(schedule, objectives=("decision_h", "device_hours"), effort=effort)
        return _Solved(program, schedule(program, effort=effort), None, None, anew)
    except InfeasibleError as error:
        conflict = find_conflict(program, effort=effort) if progress is None else None
        raise (error if conflict is None else conflict_error(file.location, conflict)) from error


def _program_and_plan(path: Path, solved: Path) -> tuple["ProgramFile", "Plan"]:
    from assay.planning.checker import plan_problems
    from assay.planning.program.file import read_program

    file, found = read_program(path), _read_plan(solved)
    if found.program != file.program.name:
        raise ConfigError(f"{solved}: this is a plan of '{found.program}', not of '{file.program.name}'.")
    if found.program_sha256 != file.program.digest():
        broken = [
            violation for violation in plan_problems(file.program, found) if not violation.key.startswith("plan.")
        ]
        what = f" It now breaks {broken[0].key}: {broken[0].message}." if broken else ""
        click.secho(f"warning: {path} has changed since {solved} was written.{what}", err=True, fg="yellow")
    return file, found


def _read_plan(path: Path) -> "Plan":
    from assay.planning.program.plan import Plan

    try:
        return Plan.from_json(path.read_text(encoding="utf-8"), source=path)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file. 'assay plan solve PROGRAM --out {path}' writes it.") from error


def _effort(timeout_s: float, jobs: int) -> "Effort":
    from assay.planning.schedule import Effort

    return Effort(seconds=timeout_s, workers=jobs)

"""`assay plan`: from a program to its weeks. Each subcommand reads a program, asks `planning`, and prints."""

import datetime
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import FILE, OUT_FILE, CommandGroup, InputFile, OutFile, current_home, force_option
from assay.cli.plan_risk import offer, review_command, risk, status

if TYPE_CHECKING:
    from assay.planning.in_progress import ActivityInProgress
    from assay.planning.program.file import ProgramFile
    from assay.planning.program.plan import Plan
    from assay.planning.program.program import Program
    from assay.planning.schedule import Effort


_program = click.argument("program", type=FILE)
_seconds = click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.0, min_open=True),
    help="Most time that one aim may take to be proved.",
)
_workers = click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Threads of the solver. With several the schedule may be another, as good, each time.",
)


@click.group(cls=CommandGroup)
def plan() -> None:
    """Plan a program: activities, people, devices, budget, gates and dates, as one YAML file."""


for command in (offer, risk, status, review_command):
    plan.add_command(command)


@plan.command()
@click.argument("out", type=OUT_FILE)
@force_option
@click.option(
    "--start",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="First day, e.g. 2027-01-04; by default the next Monday.",
)
def new(out: Path, start: datetime.datetime | None) -> None:
    """Write a small valid program to OUT, every section explained, to be changed into yours."""
    from assay.planning.program.new import new_program

    today = datetime.date.today()
    monday = today + datetime.timedelta(days=-today.weekday() % 7)
    new_program(out, start=start.date() if start else monday)
    click.echo(f"wrote {out}; next: assay plan check {out}")


@plan.command()
def keys() -> None:
    """Print every key of a program, with its default and meaning (Markdown)."""
    from assay.planning.program.reference import program_reference

    click.echo(program_reference(), nl=False)


@plan.command()
@_program
@click.option("--fast", is_flag=True, help="Look at names, dates and sums only; seek no schedule.")
@_seconds
@_workers
def check(program: Path, fast: bool, seconds: float, workers: int) -> None:
    """Check that a PROGRAM is valid, and that all its limits can hold at once.

    Everything that is wrong is said with its line. Where nothing fits, says which limits clash, as few as
    possible, and what concession on each would do. Exit code 2 if it is not valid or cannot hold.
    """
    from assay.planning.conflict import find_conflict
    from assay.planning.program.checks import short_budgets
    from assay.planning.program.file import read_program
    from assay.reporting.terminal.plan import conflict_error, print_program

    file = read_program(program, allow_short_budget=not fast)
    print_program(file.program)
    if fast:
        return
    conflict = find_conflict(file.program, effort=_effort(seconds, workers))
    short = {budget.key for budget in short_budgets(file.program)}
    if short and (conflict is None or conflict.keys() <= short):
        read_program(program)  # raises: what the runs need, and which need most
    if conflict is not None:
        raise conflict_error(file.location, conflict)
    by = file.program.calendar.deadline_text(file.program.decision.by)
    click.secho(f"all limits can hold, the decision by the {by} among them", fg="green")


@plan.command()
@_program
@click.option(
    "--out",
    type=OutFile('"kind":"plan"'),
    help="Write the plan (JSON) here, for export, review, re-planning.",
)
@force_option
@click.option("--prices", is_flag=True, help="Also solve with a little more of each limit: what is it worth?")
@click.option("--option", "options", multiple=True, help="Apply one of the program's options; may be repeated.")
@click.option(
    "--progress",
    type=FILE,
    help="What happened so far (YAML); needs --earlier. What its runs held is read from the ledger.",
)
@click.option("--earlier", type=FILE, help="The plan that is under way; changed as little as possible.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's record.")
@_seconds
@_workers
def solve(
    program: Path,
    out: Path | None,
    prices: bool,
    options: tuple[str, ...],
    progress: Path | None,
    earlier: Path | None,
    as_json: bool,
    seconds: float,
    workers: int,
) -> None:
    """The best schedule of a PROGRAM: earliest decision, then least device-hours, then least peak.

    Shows the weeks, what holds the decision up, and what was proved; an independent checker confirms every
    hour. Exit code 1 if the decision comes after its date.
    """
    from assay.planning.explain import prices as priced
    from assay.reporting.documents.render import write_file
    from assay.reporting.terminal.plan import print_plan, print_prices

    effort = _effort(seconds, workers)
    chosen, found, now_h, in_progress, solved_again = _solved(program, options, progress, earlier, effort)
    if out is not None:
        write_file(out, found.to_json())
    if as_json:
        click.echo(found.to_json())
    else:
        price = current_home().settings().planned_price()
        print_plan(chosen, found, now_h=now_h, in_progress=in_progress, price=price)
        if prices:
            earliest = found if now_h is None else solved_again(chosen)
            price_list = priced(chosen, earliest, solved_again, now_h=now_h or 0)
            print_prices(found, earliest, price_list)
        if out is not None:
            click.echo(out)
    late = found.decision_h > chosen.calendar.hour_of(chosen.decision.by)
    sys.exit(1 if late else 0)


@plan.command("what-if")
@_program
@click.argument("names", nargs=-1)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="A change of your own; repeat for more.")
@click.option("--readings", is_flag=True, help="Instead: every reading of the fair-use rule, side by side.")
@_seconds
@_workers
def what_if(
    program: Path,
    names: tuple[str, ...],
    changes: tuple[str, ...],
    readings: bool,
    seconds: float,
    workers: int,
) -> None:
    """Questions about a PROGRAM side by side: those of the file (NAMES, or all), or your own by --set.

    Each is scheduled anew, and played many times under the same luck.

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
    from assay.reporting.terminal.plan import print_what_ifs

    effort = _effort(seconds, workers)
    if readings:
        if not (found := questions.readings(subject, effort=effort)):
            raise ConfigError(f"{program}: no capacity.fair_use, so there is nothing to read in several ways.")
        print_what_ifs(simulate_what_ifs(found))
        return
    selected = names or (() if own else None)
    print_what_ifs(simulate_what_ifs(questions.what_if_results(subject, selected, own=own, effort=effort)))


@plan.command()
@_program
@click.argument("solved", metavar="PLAN", type=InputFile("'assay plan solve PROGRAM --out {path}' writes it."))
@click.option("--format", "kind", type=click.Choice(["ics", "csv", "slurm", "gantt", "capacity"]), required=True)
@click.option("--out", type=OUT_FILE, help="By default to the screen.")
@force_option
@click.option("--account", help="For slurm: who may use the reservations; by default the program's name.")
@click.option("--partition", help="For slurm: the partition, where it is not the default one.")
def export(
    program: Path, solved: Path, kind: str, out: Path | None, account: str | None, partition: str | None
) -> None:
    """A PLAN of a PROGRAM for other tools.

    ics: a calendar; csv: a table; slurm: reservations as a script; gantt and capacity: drawings (SVG).
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
    """A plan, and what it is one of."""

    program: "Program"
    """As it is known now."""
    plan: "Plan"
    now_h: int | None
    """Where it was planned anew, the hour from which on."""
    in_progress: "dict[str, ActivityInProgress] | None"
    again: "Callable[[Program], Plan]"
    """Finds the earliest plan of such a program with other limits."""


def _solved(
    path: Path, options: tuple[str, ...], progress: Path | None, earlier: Path | None, effort: "Effort"
) -> "_Solved":
    from assay.base.names import meant
    from assay.planning.actuals import clock_of
    from assay.planning.conflict import find_conflict
    from assay.planning.in_progress import activities_in_progress
    from assay.planning.program.file import read_program, read_progress
    from assay.planning.replan import known_program, replan, replan_earliest
    from assay.planning.schedule import InfeasibleError, schedule
    from assay.reporting.terminal.plan import conflict_error
    from assay.workflows.program_status import collect_progress

    if (progress is None) != (earlier is None):
        raise ConfigError("--progress and --earlier go together: what happened, and the plan that was under way.")
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
        raise ConfigError(f"{solved}: a plan of '{found.program}', not of '{file.program.name}'.")
    if found.program_sha256 != file.program.digest():
        broken = [
            violation for violation in plan_problems(file.program, found) if not violation.rule.startswith("plan.")
        ]
        what = f" It now breaks {broken[0].rule}: {broken[0].message}." if broken else ""
        click.secho(f"warning: {path} has changed since {solved} was made.{what}", err=True, fg="yellow")
    return file, found


def _read_plan(path: Path) -> "Plan":
    from assay.planning.program.plan import Plan

    try:
        return Plan.from_json(path.read_text(encoding="utf-8"), source=path)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file. 'assay plan solve PROGRAM --out {path}' writes it.") from error


def _effort(seconds: float, workers: int) -> "Effort":
    from assay.planning.schedule import Effort

    return Effort(seconds=seconds, workers=workers)

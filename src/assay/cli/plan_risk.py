"""`assay plan offer`, `risk`, `status`, `review`: plans under uncertainty, and how a program goes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.base.clock import SystemClock
from assay.cli.parameters import (
    FILE,
    FOLDER,
    PATH,
    current_home,
    json_option,
    print_status,
    seed_option,
    writable_ledger,
)

if TYPE_CHECKING:
    from assay.planning.program.program import Program
    from assay.records.failure_rates import FailureRates
    from assay.workflows.program_status import ProgramStatus

_program = click.argument("program", type=FILE)
_num_samples = click.option(
    "--samples", "num_samples", default=32_768, type=click.IntRange(min=100),
    help="Number of simulated programs."
)  # fmt: skip
_seed = seed_option("the simulation")
_rates_from = click.option(
    "--rates-from", metavar="RUNS",
    help="Estimate the interrupt rate from the ledger's runs whose ids match this pattern ('*': all), instead "
    "of the program's `noise` section."
)  # fmt: skip
_SHARE = click.FloatRange(min=0.0, max=1.0)


@click.command()
@_program
@click.option("--out", type=FOLDER, help="Output folder for the offer and its documents; by default plans/NAME.")
@click.option("--on-time", default=0.85, type=_SHARE, help="Target for P(decision by its date).")
@click.option("--over-budget", default=0.02, type=_SHARE, help="Upper limit for P(over budget).")
@_num_samples
@_seed
@_rates_from
@click.option(
    "--quick", is_flag=True, help="Leave out what-ifs and readings of the fair-use rule, which need further solves."
)
@json_option
def offer(
    program: Path,
    out: Path | None,
    on_time: float,
    over_budget: float,
    num_samples: int,
    seed: int,
    rates_from: str | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Choose the scope of PROGRAM that meets its targets when things go wrong, and write its documents.

    The scope (options and mitigations of the file) is chosen by simulation, scheduled optimally and simulated;
    the optimum of the full scope is shown for comparison. Writes offer.json, plan.json, the plan on one page
    (PDF), and as HTML and Markdown the execution plan, stage gates, RACI and risk register. Exit code 1 if no
    scope meets both targets.
    """
    from assay.planning.program.file import read_program

    subject = read_program(program).program
    from assay.planning.simulation.offer import make_offer
    from assay.planning.simulation.offer_report import build_offer_report
    from assay.planning.simulation.scope import ReliabilityTargets
    from assay.reporting.documents.plan.plan_folder import write_offer
    from assay.reporting.documents.plan.plan_summary import plan_summary
    from assay.reporting.terminal.document import print_document

    result = make_offer(
        subject,
        targets=ReliabilityTargets(on_time, over_budget),
        rates=_rates(subject, rates_from),
        num_samples=num_samples,
        seed=seed,
        report_progress=print_status,
    )
    report = build_offer_report(result, questions=not quick, report_progress=print_status)
    price = current_home().settings().planned_price()
    folder = out or Path("plans") / subject.name
    pages = write_offer(report, folder, price)
    _follow(subject.name, program, folder)
    if as_json:
        click.echo(result.offer.to_json())
    else:
        print_document(plan_summary(report, price))
        for page in pages:
            click.echo(page)
    sys.exit(0 if result.offer.meets_targets else 1)


@click.command()
@_program
@click.option("--option", "options", multiple=True, help="Apply an option, or 'risk: mitigation'. May be repeated.")
@_num_samples
@_seed
@_rates_from
@click.option("--calendar", is_flag=True, help="Start nothing before its planned date, even if it could.")
@click.option("--tornado", is_flag=True, help="Also show which inputs the date depends on most.")
@json_option
def risk(
    program: Path,
    options: tuple[str, ...],
    num_samples: int,
    seed: int,
    rates_from: str | None,
    calendar: bool,
    tornado: bool,
    as_json: bool,
) -> None:
    """Schedule PROGRAM as it is, and simulate the probability that it keeps its date and budget."""
    from assay.planning.program.file import read_program
    from assay.planning.schedule import schedule
    from assay.planning.simulation.drivers import tornado as drivers_of
    from assay.planning.simulation.offer import baseline_of, program_with
    from assay.planning.simulation.outcome import safety_of, simulate
    from assay.reporting.documents.plan.schedule_documents import risk_document
    from assay.reporting.terminal.document import print_document

    subject = program_with(read_program(program).program, options)
    rates = _rates(subject, rates_from)
    if rates is not None:
        subject = subject.changed(rates.changes())
    plan = schedule(subject)
    baseline = baseline_of(plan)
    outcome = simulate(subject, baseline, num_samples=num_samples, seed=seed, keeps_calendar=calendar)
    if as_json:
        click.echo(safety_of(outcome).model_dump_json())
        return
    price, rates_text = current_home().settings().planned_price(), _rates_text(subject, rates)
    drivers = drivers_of(subject, baseline, seed=seed, known=outcome) if tornado else ()
    print_document(risk_document(subject, plan, outcome, rates_text=rates_text, price=price, drivers=drivers))


_folder = click.argument("folder", type=PATH)
_notes = click.option("--notes", type=FILE, help="Work, gate verdicts and events so far (YAML).")
_hour_s = click.option(
    "--hour-seconds", "hour_s", default=3600.0, help="Seconds per program hour, for a program in miniature."
)
_start = click.option("--start", "start_s", type=float, help="Start of the program, in seconds since the epoch.")


@click.command()
@_program
@_folder
@_notes
@json_option
@_hour_s
@_start
def status(folder: Path, as_json: bool, **where: Any) -> None:
    """Show the status and the forecast of the offered plan in FOLDER.

    What the runs spent is read from the ledger: a run belongs to an activity by its id. Writes the weekly
    status (HTML and Markdown) into FOLDER: delays with their causes, owners and new dates, the changes since the
    status before, the burn-down and the forecast at completion. Exit code 1 if an alarm needs action. A status
    with notes is never replaced by one without.
    """
    from assay.planning.simulation.recommended_action import recommended_action
    from assay.reporting.documents.plan.plan_folder import earlier_status, keep_status, write_with_notes
    from assay.reporting.documents.plan.status_documents import weekly_status
    from assay.reporting.terminal.document import print_document
    from assay.reporting.views.forecast import forecast_view

    found, result, spends, _, notes = _read_status(folder, **where)
    price = current_home().settings().planned_price()
    view, earlier = forecast_view(found, price), earlier_status(folder, found.program, found.progress.now)
    document = weekly_status(found, result, spends, price, notes, earlier)
    page = write_with_notes(document, folder, notes)
    keep_status(folder, view)
    if as_json:
        click.echo(view.to_json())
    else:
        print_document(document)
        click.echo(page)
    sys.exit(1 if recommended_action(found).must_act else 0)


@click.command()
@_program
@_folder
@_notes
@_hour_s
@_start
def review(folder: Path, **where: Any) -> None:
    """Write the review of the program in FOLDER: scale, narrow or stop, and the cost by the ledger.

    It follows from the gates' verdicts and the stop conditions at the time of the notes. A gate that names a
    campaign uses that campaign's decision, and the review shows its clauses. Exit code 1 if an alarm needs
    action, as for 'status'. A review with notes is never replaced by one without.
    """
    from assay.planning.simulation.recommended_action import recommended_action
    from assay.reporting.documents.plan.plan_folder import write_with_notes
    from assay.reporting.documents.plan.status_documents import review as review_of
    from assay.reporting.terminal.document import print_document

    found = _read_status(folder, **where)
    decisions = [(decision.decision, decision.path) for decision in found.decisions]
    document = review_of(found.forecast, found.offer, decisions)
    page = write_with_notes(document, folder, found.notes)
    print_document(document)
    click.echo(page)
    sys.exit(1 if recommended_action(found.forecast).must_act else 0)


def _read_status(
    folder: Path, *, program: Path, notes: Path | None, hour_s: float, start_s: float | None
) -> "ProgramStatus":
    from assay.workflows.program_status import read_program_status

    found = read_program_status(
        current_home(), program, folder, notes=notes, hour_s=hour_s, start_s=start_s, clock=SystemClock()
    )
    _follow(found.forecast.program.name, program, folder, notes=notes, hour_s=hour_s, start_s=start_s)
    return found


def _follow(name: str, file: Path, folder: Path, **options: Any) -> None:
    from assay.store.followed import FollowedProgram, follow_program

    follow_program(current_home(), FollowedProgram(name=name, file=file, folder=folder, **options))


def _rates(program: "Program", runs: str | None) -> "FailureRates | None":
    if runs is None:
        return None
    from assay.planning.failure_rates import failure_rates

    with writable_ledger(current_home()) as ledger:
        return failure_rates(ledger, program.noise, runs=runs)


def _rates_text(program: "Program", rates: "FailureRates | None") -> str:
    if rates is not None:
        return f"from the ledger: {rates.sentence()}"
    return f"as the program states: {program.noise.interrupts_per_device_hour:.2g} interrupts per device-hour"

"""`assay plan offer`, `risk`, `status`, `review`: plans under uncertainty, and how a program goes."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.base.clock import SystemClock
from assay.base.units import sampled_percent_text
from assay.cli.parameters import FILE, FOLDER, PATH, current_home, print_status, writable_ledger

if TYPE_CHECKING:
    from assay.planning.program.offer import Offer, Safety
    from assay.planning.program.program import Program
    from assay.planning.simulation.drivers import Driver
    from assay.planning.simulation.forecast import Alarm
    from assay.records.failure_rates import FailureRates
    from assay.reporting.views.forecast import AlarmView, ForecastView
    from assay.store.settings import HourPrice
    from assay.workflows.program_status import ProgramStatus

_program = click.argument("program", type=FILE)
_num_samples = click.option(
    "--samples", "num_samples", default=32_768, show_default=True, type=click.IntRange(min=100),
    help="Number of simulated programs.",
)  # fmt: skip
_seed = click.option(
    "--seed", default=0, show_default=True, help="Seed of the simulation; the same seed gives the same numbers."
)
_rates_from = click.option(
    "--rates-from", metavar="RUNS",
    help="Estimate the interrupt rate from the ledger's runs whose ids match this pattern ('*': all), instead "
    "of the program's `noise` section.",
)  # fmt: skip
_SHARE = click.FloatRange(min=0.0, max=1.0)


@click.command()
@_program
@click.option("--out", type=FOLDER, help="Output folder for the offer and its documents; by default plans/NAME.")
@click.option("--on-time", default=0.85, show_default=True, type=_SHARE, help="Target for P(decision by its date).")
@click.option("--over-budget", default=0.02, show_default=True, type=_SHARE, help="Upper limit for P(over budget).")
@_num_samples
@_seed
@_rates_from
@click.option(
    "--quick",
    is_flag=True,
    help="Leave out what-ifs and readings of the fair-use rule, which need further solves.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the offer's record.")
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
    """Choose the scope of PROGRAM that keeps its promises when things go wrong, and write its documents.

    The scope (options and mitigations of the file) is chosen by simulation, scheduled optimally and simulated;
    the optimum of the full scope is shown for comparison. Writes offer.json, plan.json, and as HTML and
    Markdown the execution plan, stage gates, RACI and risk register. Exit code 1 if no scope keeps both
    promises.
    """
    from assay.planning.program.file import read_program

    subject = read_program(program).program
    from assay.planning.simulation.offer import make_offer
    from assay.planning.simulation.offer_report import build_offer_report
    from assay.planning.simulation.scope import ReliabilityTargets
    from assay.reporting.documents.plan_documents import more_seeds_text
    from assay.reporting.documents.plan_folder import write_offer

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
    pages = write_offer(report, out or Path("plans") / subject.name, price)
    if as_json:
        click.echo(result.offer.to_json())
    else:
        print_offer(result.program, result.offer, price)
        if more := more_seeds_text(report):
            click.echo(f"  {'more seeds':<14} {more}")
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
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
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
    """Schedule PROGRAM as it is, and simulate how likely it keeps its date and budget."""
    from assay.planning.program.file import read_program
    from assay.planning.schedule import schedule
    from assay.planning.simulation.drivers import tornado as drivers_of
    from assay.planning.simulation.offer import baseline_of, program_with, safety_of
    from assay.planning.simulation.outcome import simulate

    subject = program_with(read_program(program).program, options)
    rates = _rates(subject, rates_from)
    if rates is not None:
        subject = subject.changed(rates.changes())
    plan = schedule(subject)
    baseline = baseline_of(plan)
    outcome = simulate(subject, baseline, num_samples=num_samples, seed=seed, keeps_calendar=calendar)
    safety = safety_of(outcome)
    if as_json:
        click.echo(safety.model_dump_json())
        return
    baseline_day = subject.calendar.day_text(plan.decision_h)
    click.echo(f"if nothing goes wrong: {baseline_day}; {plan.device_hours:,} device-hours")
    print_safety(subject, safety, current_home().settings().planned_price())
    click.echo(f"  {'failure rates':<14} {_rates_text(subject, rates)}")
    if tornado:
        _print_tornado(drivers_of(subject, baseline, seed=seed))


_folder = click.argument("folder", type=PATH)
_notes = click.option("--notes", type=FILE, help="Work, gate verdicts and events so far (YAML).")
_hour_s = click.option(
    "--hour-seconds",
    "hour_s",
    default=3600.0,
    show_default=True,
    help="Seconds per program hour, for a program in miniature.",
)
_start = click.option("--start", "start_s", type=float, help="Start of the program, in seconds since the epoch.")


@click.command()
@_program
@_folder
@_notes
@click.option("--json", "as_json", is_flag=True, help="Print the forecast and its alarms as JSON.")
@_hour_s
@_start
def status(folder: Path, as_json: bool, **where: Any) -> None:
    """Show the status and the forecast of the offered plan in FOLDER.

    What the runs spent is read from the ledger: a run belongs to an activity by its id. Writes the weekly
    status (HTML and Markdown) with the burn-down and the forecast at completion into FOLDER. Exit code 1 if an
    alarm needs action. A status with notes is never replaced by one without.
    """
    from assay.planning.simulation.recommended_action import recommended_action
    from assay.reporting.documents.plan_folder import write_with_notes
    from assay.reporting.documents.status_documents import WITHOUT_NOTES, weekly_status
    from assay.reporting.views.forecast import forecast_view

    found, result, spends, _, notes = _read_status(folder, **where)
    price = current_home().settings().planned_price()
    page = write_with_notes(weekly_status(found, result, spends, price, notes), folder, notes)
    view = forecast_view(found, price)
    if as_json:
        click.echo(view.to_json())
    else:
        print_forecast(found.program, view, price)
        if notes is None:
            click.secho(f"  {WITHOUT_NOTES}", fg="yellow")
        click.echo(page)
    sys.exit(1 if recommended_action(found).must_act else 0)


@click.command("review")
@_program
@_folder
@_notes
@_hour_s
@_start
def review_command(folder: Path, **where: Any) -> None:
    """Write the review of the program in FOLDER: scale, narrow or stop, and the cost by the ledger.

    It follows from the gates' verdicts and the stop conditions at the time of the notes. A gate that names a
    campaign uses that campaign's decision, and the review shows its clauses. Exit code 1 if an alarm needs
    action, as for 'status'. A review with notes is never replaced by one without.
    """
    from assay.planning.simulation.recommended_action import recommended_action
    from assay.reporting.documents.plan_folder import write_with_notes
    from assay.reporting.documents.status_documents import review
    from assay.reporting.terminal.terminal import TONE_STYLES

    found = _read_status(folder, **where)
    decisions = [(decision.decision, decision.path) for decision in found.decisions]
    document = review(found.forecast, found.offer, decisions)
    page = write_with_notes(document, folder, found.notes)
    click.secho(document.verdict.word.upper(), bold=True, fg=TONE_STYLES[document.verdict.tone])
    click.echo(f"  {document.verdict.sentence}")
    _print_alarms(found.forecast.alarms)
    click.echo(page)
    sys.exit(1 if recommended_action(found.forecast).must_act else 0)


def _read_status(
    folder: Path, *, program: Path, notes: Path | None, hour_s: float, start_s: float | None
) -> "ProgramStatus":
    from assay.workflows.program_status import read_program_status

    return read_program_status(
        current_home(), program, folder, notes=notes, hour_s=hour_s, start_s=start_s, clock=SystemClock()
    )


def print_forecast(program: "Program", found: "ForecastView", price: "HourPrice | None") -> None:
    """Print the spent device-hours, the forecast and the alarms."""
    moment = program.calendar.date_of(program.calendar.hour_of(found.now))
    today = program.calendar.day_of(program.calendar.hour_of(found.now), begins=True)
    spent = f"spent: {found.spent_device_hours:,.4g} device-hours by {moment:%a %d %b %Y %H:%M}"
    spent += f" (day {today})" if today > 0 else " (before day 1)"
    if price is not None:
        spent += f", {price.of(found.spent_device_hours)}"
    click.echo(f"{spent}; still expected of started activities: {found.remaining_device_hours:,.4g}")
    print_safety(program, found.forecast, price)
    _print_alarms(found.alarms)


def _print_alarms(alarms: "Iterable[Alarm | AlarmView]") -> None:
    for alarm in alarms:
        click.secho(f"  {alarm.level}: {alarm.text}", fg="red" if alarm.level == "act" else "yellow")


def print_offer(program: "Program", found: "Offer", price: "HourPrice | None") -> None:
    """Print the offered plan and its safety."""
    from assay.planning.simulation.offer import MEASURED
    from assay.reporting.documents.plan_documents import offer_verdict

    verdict = offer_verdict(program, found)
    click.secho(verdict.word.upper(), fg="green" if found.meets_targets else "red", bold=True)
    click.echo(f"  {verdict.sentence}")
    for move in found.moves:
        gives_up = f" (gives up: {move.gives_up[0].lower()}{move.gives_up[1:]})" if move.gives_up else ""
        click.echo(f"  · {move.name}: {move.title}{gives_up}")
    print_safety(program, found.safety, price)
    if not any(move.name == MEASURED for move in found.moves):
        click.echo(f"  {'failure rates':<14} {_rates_text(program, None)}")


def print_safety(program: "Program", safety: "Safety", price: "HourPrice | None") -> None:
    """Print the distributions of date, device-hours, cost and verdict."""
    from assay.planning.program.checks import why_nothing_passes
    from assay.reporting.documents.plan_documents import deadline_text, quantile_dates

    day, hours = quantile_dates(program, safety.decision_day), safety.device_hours
    budget = f"more than {program.budget.device_hours:,.0f} device-hours"
    cases = {
        "on time": f"{safety.probability_text(safety.p_on_time)} of {safety.num_programs:,} simulations, by the "
        f"{deadline_text(program)}",
        "over budget": f"{safety.probability_text(safety.p_over_budget)} of simulations spend {budget}",
        "decision": f"{day.p50} (median); 80% of simulations: {day.p10} to {day.p90}",
        "device-hours": f"{hours.p50:,.0f} (median); 80% of simulations: {hours.p10:,.0f} to {hours.p90:,.0f}",
    }
    if price is not None:
        low, middle, high = (price.of(item) for item in (hours.p10, hours.p50, hours.p90))
        cases["cost"] = f"{middle} (median); 80% of simulations: {low} to {high}, at {price}"
    for verdict, share in safety.verdicts.items():
        cases[f"if {verdict}"] = (
            f"{safety.probability_text(share)} of simulations{_means_text(program, safety, verdict)}"
        )
    for name, value in cases.items():
        click.echo(f"  {name:<14} {value}")
    for text in () if safety.verdicts["scale"] else why_nothing_passes(program):
        click.secho(f"  {'no scale':<14} {text}", fg="yellow")


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


def _means_text(program: "Program", safety: "Safety", verdict: str) -> str:
    if (means := safety.by_verdict.get(verdict)) is None:
        return ""
    day = program.calendar.day_text(24 * means.decision_day)
    return f"; means: {day}, and {means.device_hours:,.0f} device-hours"


def _print_tornado(drivers: "list[Driver]") -> None:
    from assay.planning.simulation.drivers import DRIVER_SAMPLES

    samples = f"{DRIVER_SAMPLES:,} samples each"
    click.echo(f"  what the date hangs on (P(on time) from the best to the worst case, {samples}):")
    for driver in drivers:
        low, high = (sampled_percent_text(end.p_on_time, DRIVER_SAMPLES) for end in (driver.low, driver.high))
        ends = f"{low:>6} ({driver.low_text}) to {high:>6} ({driver.high_text})"
        click.echo(f"    {driver.title:<60} {ends}")

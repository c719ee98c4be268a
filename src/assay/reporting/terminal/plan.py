"""Programs and plans on a terminal: a bar chart of weeks, the critical chain, and what-if tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.planning.checker import plan_problems
from assay.planning.conflict import Conflict, Member
from assay.planning.explain import Price, critical_chain
from assay.planning.in_progress import ActivityInProgress
from assay.planning.program.checks import unawaited
from assay.planning.program.plan import Plan, Planned
from assay.planning.program.program import Program
from assay.reporting.terminal.terminal import stdout

if TYPE_CHECKING:
    from assay.planning.simulation.questions import SimulatedWhatIf
    from assay.planning.what_if import WhatIfResult
    from assay.store.settings import HourPrice

GOALS = {
    "decision_h": "earliest decision, h",
    "device_hours": "least device-hours",
    "peak_devices": "least peak",
    "late_h": "least delay, h",
    "changes_h": "least change, h",
}
STILL_TO_BEGIN = {"device_hours": "hours still to begin", "peak_devices": "peak still to begin"}
"""Titles for a replanned schedule, which only optimizes work that has not started."""


def print_program(program: Program) -> None:
    """Print a summary of a program."""
    console, nodes = stdout(), program.nodes().values()
    runs = [node.runs for node in nodes if node.runs]
    least = sum(run.count * min(m.devices * m.hours for m in run.all_modes()) for run in runs)
    console.print(Text(f"{program.name}: {program.title}", style="bold"))
    people = sum(role.fte for role in program.team.values() if role.part_of is None)
    console.print(
        f"{number_of(len(program.activities), 'activity', 'activities')}, "
        f"{number_of(len(program.gates), 'gate')}, {number_of(sum(run.count for run in runs), 'run')}; "
        f"at least {least:,} of {program.budget.plannable_device_hours():,.0f} plannable device-hours; "
        f"{people:g} {'person' if people == 1 else 'people'}; "
        f"risks: {len(program.risks)}, options: {len(program.options)}, what-ifs: {len(program.what_ifs)}"
    )
    _print_moments(console, program)
    loose = unawaited(program)
    if loose:
        console.print(f"the decision does not wait for: {', '.join(loose)} (name what should be known in an 'after')")


def _print_moments(console: Console, program: Program) -> None:
    """Print dates as parsed: 'week 6' means its start, which is easily misread."""
    begins = program.calendar.hour_of
    for name, booking in program.capacity.bookings.items():
        console.print(f"  {booking.title or name}: {_span(program, begins(booking.since), begins(booking.until))}")
    for event in program.events.values():
        console.print(f"  {event.title}: from {_date(program, begins(event.at))}")
    console.print(f"  decision: by {_date(program, begins(program.decision.by) - 1)}")


def _span(program: Program, since: int, until: int) -> str:
    """Return whole days as dates; other spans with their hours."""
    if since % 24 == 0 and until % 24 == 0:
        return f"{_date(program, since)} to {_date(program, until - 1)}"
    begins, ends = program.calendar.date_of(since), program.calendar.date_of(until)
    same_day = begins.date() == ends.date()
    return (
        f"{begins:%a %d %b %H:%M} to {ends:%H:%M}" if same_day else f"{begins:%a %d %b %H:%M} to {ends:%a %d %b %H:%M}"
    )


def _date(program: Program, hour: int) -> str:
    return f"{program.calendar.date_of(hour):%a %d %b}"


def conflict_error(locate: Callable[[str], str], conflict: Conflict) -> ConfigError:
    """Return an error that lists the conflicting limits, their lines in the file, and possible fixes."""
    minimal = "" if conflict.is_minimal else " (time ran out: one of them may not be to blame)"
    if any(member.fix for member in conflict.members):
        lines = [_member_text(locate, member) for member in conflict.members]
        return ConfigError(
            f"no schedule keeps all limits. These cannot hold together{minimal}; give way on one:\n" + "\n".join(lines)
        )
    lines = [f"no schedule keeps all limits, and giving way on one is not enough{minimal}."]
    for clash, is_further in ((clash, index) for index, clash in enumerate((conflict.members, *conflict.others))):
        lines.append("These cannot hold together either:" if is_further else "These cannot hold together:")
        lines += [f"  {locate(member.key)}: {member.key}: {member.demand}" for member in clash]
    if not conflict.fixes:
        lines.append("No few concessions that were tried are enough: look for what is asked for twice.")
    for number, fix in enumerate(conflict.fixes):
        lines.append("Or all of these:" if number else "Give way on all of these:")
        lines += [f"  {locate(key)}: {key}: {text}" for key, text in fix]
    return ConfigError("\n".join(lines))


def _member_text(locate: Callable[[str], str], member: Member) -> str:
    fix = member.fix or "no concession on this alone is enough"
    return f"  {locate(member.key)}: {member.key}: {member.demand}; {fix}"


def print_plan(
    program: Program,
    plan: Plan,
    *,
    now_h: int | None,
    in_progress: Mapping[str, ActivityInProgress] | None = None,
    price: "HourPrice | None" = None,
) -> None:
    """Print the schedule, its critical chain and its proofs. `now_h` and `in_progress` are for replanning."""
    console, hours = stdout(), f"{plan.device_hours:,} device-hours of {program.budget.device_hours:,.0f}"
    peak = f"at most {number_of(plan.peak_devices, 'device')} at once"
    if in_progress:
        peak += ", what has begun included"
    if in_progress is not None:
        spent, to_come = (
            sum(getattr(activity, what) for activity in in_progress.values()) for what in ("spent", "to_come")
        )
        hours += f" ({spent:,.4g} spent; still expected of started activities: {to_come:,.4g})"
    if price is not None:
        hours += f", {price.of(plan.device_hours)} at {price}"
    late = plan.decision_h > program.calendar.hour_of(program.decision.by)
    console.print(
        Text.assemble(
            (f"decision on day {plan.decision_day()}", "bold red" if late else "bold green"),
            f" ({_day(program, plan.decision_h)}), {'after' if late else 'by'} the "
            f"{program.calendar.deadline_text(program.decision.by)}; "
            f"{hours}; {peak}",
        )
    )
    _print_bars(console, program, plan)
    console.print("\nWhat holds the decision up, last first:")
    for step in critical_chain(program, plan, now_h=now_h):
        because = f"{step.reason}: {step.because}" if step.because else step.reason
        begins, ends = _day(program, step.start_h, begins=True), _day(program, step.end_h)
        console.print(f"  {step.name:<22} {begins} to {ends}   {because}")
    console.print()
    for result in plan.objective_results:
        proof = "proved" if result.proved else f"not proved; nothing below {result.bound:g} is possible"
        title = GOALS.get(result.name, result.name)
        if in_progress:  # it is among the plan's hours and its peak, and not the solver's
            title = STILL_TO_BEGIN.get(result.name, title)
        console.print(f"{title:<20} {result.value:>8,g}   {proof} ({result.solve_s:.1f} s)")
    if now_h is not None:
        return
    broken = plan_problems(program, plan)
    for violation in broken:
        console.print(Text(f"BROKEN {violation.rule}: {violation.message}", style="bold red"))
    if not broken:
        console.print("confirmed hour by hour by a checker that shares no code with the solver")


def _print_bars(console: Console, program: Program, plan: Plan) -> None:
    days = -(-max(item.end_h for item in plan.items) // 24)
    weeks = -(-days // 7)
    head = "".join(f"{f'week {week + 1}':<7}" for week in range(weeks))
    console.print(f"{'':<22} {head}")
    for item in plan.items:
        node = program.nodes()[item.name]
        style = "yellow" if node.is_gate else "cyan" if item.runs else "green"
        line = Text(f"{item.name:<22} ")
        for day in range(7 * weeks):
            line.append(_cell(program, item, day), style=style)
        line.append(f" {_needs(item)}", style="dim")
        console.print(line)


def _cell(program: Program, item: Planned, day: int) -> str:
    begin, end = 24 * day, 24 * (day + 1)
    if item.runs:
        busy = any(since < end and until > begin for run in item.runs for since, until in run.holds)
        return "▒" if busy else "·" if day % 7 == 6 else " "
    busy = item.start_h < end and item.end_h > begin
    if busy and not program.calendar.works_on(program.calendar.date_of(begin).date()):
        return "-"
    return "█" if busy else "·" if day % 7 == 6 else " "


def _needs(item: Planned) -> str:
    if item.runs:
        return f"{len(item.runs)} x {number_of(item.runs[0].devices, 'device')}"
    return ", ".join(f"{fte:g} {name}" for name, fte in item.people.items())


def print_prices(plan: Plan, earliest: Plan, prices: Sequence[Price]) -> None:
    """Print how the earliest decision changes with a little more of each limit."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title="\nPrices")
    for column in ("with", "decision", "device-hours"):
        table.add_column(column, justify="left" if column == "with" else "right")
    for price in sorted(prices, key=lambda price: math.inf if (h := price.decision_change_h) is None else h):
        if price.decision_change_h is None:
            table.add_row(price.title, Text("no schedule", style="red"), "")
            continue
        days = price.decision_change_h / 24
        table.add_row(
            price.title,
            "no change" if not price.decision_change_h else f"{days:+.1f} days",
            "no change" if not price.device_hours_change else f"{price.device_hours_change:+,}",
        )
    stdout().print(table)
    if earliest.decision_h < plan.decision_h:
        sooner = (plan.decision_h - earliest.decision_h) / 24
        stdout().print(
            f"against the earliest decision that the limits as they are still allow, {sooner:.1f} days before "
            "this plan's: it moves nobody for an earlier date alone"
        )


def print_what_ifs(found: "Sequence[SimulatedWhatIf]") -> None:
    """Print what-if questions side by side, without and with simulated disruptions; the first is the
    baseline."""
    console = stdout()
    console.print(_baseline_table([question.result for question in found]))
    console.print()
    console.print(_simulated_table(found))


def _simulated_table(found: "Sequence[SimulatedWhatIf]") -> Table:
    safeties = [question.safety for question in found if question.safety is not None]
    table = _side_by_side(f"what if, {safeties[0].num_programs:,} times" if safeties else "what if")
    for column in (
        "decision (median)",
        "80% of simulations",
        "on time",
        "over budget",
        "scale / narrow / stop",
        "hours saved (mean)",
    ):
        table.add_column(column, justify="right")
    for question in found:
        if (safety := question.safety) is None:
            table.add_row(question.result.title, Text("none", style="red"), "", "", "", "", "")
            continue
        day, saved = safety.decision_day, question.device_hours_saved
        day_of = question.result.program.calendar.day_of
        table.add_row(
            question.result.title,
            f"day {day_of(24 * day.p50)}",
            f"{day_of(24 * day.p10)} to {day_of(24 * day.p90)}",
            safety.probability_text(safety.p_on_time),
            safety.probability_text(safety.p_over_budget),
            " / ".join(safety.probability_text(safety.verdicts[name]) for name in ("scale", "narrow", "stop")),
            "" if saved is None or question is found[0] else f"{round(saved):+,}" if round(saved) else "0",
        )
    return table


def _side_by_side(first: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    return table


def _baseline_table(found: "Sequence[WhatIfResult]") -> Table:
    table = _side_by_side("what if, when nothing happens")
    for column in ("decision", "", "device-hours", "peak", ""):
        table.add_column(column, justify="left" if not column else "right")
    base = found[0].plan if found else None
    for item in found:
        if item.plan is None:
            keys = ", ".join(member.key for member in item.conflict.members) if item.conflict else ""
            table.add_row(item.title, "none", Text(f"cannot hold together: {keys}", style="red"), "", "", "")
            continue
        days = "" if base is None or item is found[0] else f"{(item.plan.decision_h - base.decision_h) / 24:+.1f} d"
        date = _day(item.program, item.plan.decision_h)
        table.add_row(
            item.title,
            f"day {item.plan.decision_day()}",
            Text(f"{date} {days}", style="" if item.is_in_time() else "red"),
            f"{item.plan.device_hours:,}",
            str(item.plan.peak_devices),
            "proved" if item.plan.is_proved() else "not proved",
        )
    return table


def _day(program: Program, hour: int, *, begins: bool = False) -> str:
    # What ends at midnight ends on the day before.
    return f"{program.calendar.date_of(hour if begins else hour - 1):%a %d %b}"

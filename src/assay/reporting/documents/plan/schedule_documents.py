"""The documents of a program and its schedule on a terminal: what was read, the schedule, prices of limits, what-ifs,
and the risk of a schedule."""

import math
from collections.abc import Iterator, Mapping, Sequence

from assay.base.units import number_of, sampled_percent_text
from assay.planning.checker import plan_problems
from assay.planning.explain import Price, critical_chain
from assay.planning.in_progress import ActivityInProgress
from assay.planning.program.checks import unawaited
from assay.planning.program.plan import Plan, Planned
from assay.planning.program.program import Program
from assay.planning.simulation.drivers import DRIVER_SAMPLES, Driver
from assay.planning.simulation.outcome import Outcome
from assay.planning.simulation.questions import SimulatedWhatIf
from assay.reporting.document import (
    Block,
    Cell,
    Code,
    Document,
    Fact,
    FactList,
    Listing,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Verdict,
    number,
)
from assay.reporting.documents.plan.plan_documents import what_if_table
from assay.reporting.documents.plan.plan_summary import nothing_scales, outcome_table, outcome_tiles
from assay.store.settings import HourPrice

GOALS = {
    "decision_h": "earliest decision (hours)",
    "device_hours": "fewest device-hours",
    "peak_devices": "lowest peak",
    "late_h": "least delay (hours)",
    "changes_h": "least change (hours)",
}
STILL_TO_BEGIN = {"device_hours": "device-hours still to begin", "peak_devices": "peak still to begin"}
"""Titles for a replanned schedule, which only optimizes work that has not started."""


def program_document(program: Program) -> Document:
    """Return a summary of a program, with its dates as they were read: 'week 6' means its start."""
    nodes = program.nodes().values()
    runs = [node.runs for node in nodes if node.runs]
    least = sum(run.count * min(m.devices * m.hours for m in run.all_modes()) for run in runs)
    people = sum(role.fte for role in program.team.values() if role.part_of is None)
    counts = [
        number_of(len(program.activities), "activity", "activities"),
        number_of(len(program.gates), "gate"),
        number_of(sum(run.count for run in runs), "run"),
    ]
    facts = [
        Fact("work", ", ".join(counts)),
        Fact("device-hours", f"at least {least:,} of {program.budget.plannable_device_hours():,.0f} plannable"),
        Fact("people", f"{people:g} full-time equivalents"),
        Fact(
            "declared",
            f"risks: {len(program.risks)}, options: {len(program.options)}, what-ifs: {len(program.what_ifs)}",
        ),
    ]
    blocks: list[Block] = [FactList(facts), FactList(list(_moments(program)), title="Dates")]
    if loose := unawaited(program):
        text = f"The decision does not wait for: {', '.join(loose)}. Name what should be known in an 'after'."
        blocks.append(Paragraph(Cell(text, "open")))
    return Document(title=f"{program.name}: {program.title}", kind="program", sections=[Section("", blocks)])


def _moments(program: Program) -> Iterator[Fact]:
    begins = program.calendar.hour_of
    for name, booking in program.capacity.bookings.items():
        yield Fact(booking.title or name, _span(program, begins(booking.since), begins(booking.until)))
    for event in program.events.values():
        yield Fact(event.title, f"from {_date(program, begins(event.at))}")
    yield Fact("decision", f"by {_date(program, begins(program.decision.by) - 1)}")


def _span(program: Program, since: int, until: int) -> str:
    """Return whole days as dates; other spans with their hours."""
    if since % 24 == 0 and until % 24 == 0:
        return f"{_date(program, since)} to {_date(program, until - 1)}"
    begins, ends = program.calendar.date_of(since), program.calendar.date_of(until)
    end_format = "%H:%M" if begins.date() == ends.date() else "%a %d %b %H:%M"
    return f"{begins:%a %d %b %H:%M} to {ends:{end_format}}"


def _date(program: Program, hour: int) -> str:
    return f"{program.calendar.date_of(hour):%a %d %b}"


def schedule_document(
    program: Program,
    plan: Plan,
    *,
    now_h: int | None = None,
    in_progress: Mapping[str, ActivityInProgress] | None = None,
    price: HourPrice | None = None,
    prices: tuple[Plan, Sequence[Price]] | None = None,
) -> Document:
    """Return the schedule, its critical chain and its proofs. `now_h` and `in_progress` are for replanning; `prices`
    are the earliest plan and what each limit costs."""
    late = plan.decision_h > program.calendar.hour_of(program.decision.by)
    deadline = program.calendar.deadline_text(program.decision.by)
    date = program.calendar.day_text(plan.decision_h)
    return Document(
        title=program.title,
        kind="schedule",
        verdict=Verdict(
            "bad" if late else "good",
            f"decision on {date}",
            f"That is {'after' if late else 'by'} the {deadline}, if nothing disturbs the schedule.",
        ),
        tiles=list(_schedule_facts(program, plan, in_progress, price)),
        sections=[
            Section("Weeks", [Code(_bars(program, plan))]),
            Section("Critical chain, last first", [_chain(program, plan, now_h)]),
            Section(
                "Optimality",
                list(_proofs(program, plan, is_in_progress=bool(in_progress), is_replan=now_h is not None)),
            ),
            *([Section("Prices of limits", list(_prices(plan, *prices)))] if prices else []),
        ],
    )


def _schedule_facts(
    program: Program, plan: Plan, in_progress: Mapping[str, ActivityInProgress] | None, price: HourPrice | None
) -> Iterator[Fact]:
    budget = f"of {program.budget.device_hours:,.0f}"
    if in_progress is not None:
        spent, to_come = (
            sum(getattr(activity, what) for activity in in_progress.values()) for what in ("spent", "to_come")
        )
        budget += f"; {spent:,.4g} spent; still expected of started activities: {to_come:,.4g}"
    yield Fact("device-hours", f"{plan.device_hours:,}", budget)
    if price is not None:
        yield Fact("cost", str(price.of(plan.device_hours)), f"at {price}")
    included = ", started activities included" if in_progress else ""
    yield Fact("peak", number_of(plan.peak_devices, "device"), f"at once{included}")


def _chain(program: Program, plan: Plan, now_h: int | None) -> TitledTable:
    return TitledTable.of(
        "",
        "",
        critical_chain(program, plan, now_h=now_h),
        ("activity", lambda step: step.name),
        ("begins", lambda step: _date(program, step.start_h)),
        ("ends", lambda step: _date(program, step.end_h - 1)),
        ("waits for", lambda step: f"{step.reason}: {step.because}" if step.because else step.reason),
    )


def _proofs(program: Program, plan: Plan, *, is_in_progress: bool, is_replan: bool) -> Iterator[Block]:
    def goal(name: str) -> str:  # what has begun is among the plan's hours and its peak, and not the solver's
        return STILL_TO_BEGIN.get(name, GOALS.get(name, name)) if is_in_progress else GOALS.get(name, name)

    yield TitledTable.of(
        "",
        "",
        plan.objective_results,
        ("goal", lambda result: goal(result.name)),
        (number("value"), lambda result: f"{result.value:,g}"),
        ("proof", lambda result: "proved" if result.proved else f"not proved; at least {result.bound:g}"),
        (number("time"), lambda result: f"{result.solve_s:.1f} s"),
    )
    if is_replan:
        return
    broken = plan_problems(program, plan)
    if broken:
        yield Listing([Cell(f"broken limit {problem.key}: {problem.message}", "bad") for problem in broken])
    else:
        yield Paragraph("Confirmed hour by hour by a checker that shares no code with the solver.")


def _bars(program: Program, plan: Plan) -> str:
    """Return a line for each activity with a character for each day."""
    weeks = -(-max(item.end_h for item in plan.items) // (7 * 24))
    head = "".join(f"week {week + 1}".ljust(7) for week in range(weeks))
    lines = [f"{'':<22} {head}".rstrip()]
    for item in plan.items:
        days = "".join(_cell(program, item, day) for day in range(7 * weeks))
        lines.append(f"{item.name:<22} {days} {_needs(item)}")
    return "\n".join([*lines, "█ people   ◆ gate   ▒ devices   - weekend or holiday within"])


def _cell(program: Program, item: Planned, day: int) -> str:
    begin, end = 24 * day, 24 * (day + 1)
    spans = [hold for run in item.runs for hold in run.holds] or [(item.start_h, item.end_h)]
    if not any(since < end and until > begin for since, until in spans):
        return "·" if day % 7 == 6 else " "
    if item.runs:
        return "▒"
    if not program.calendar.works_on(program.calendar.date_of(begin).date()):
        return "-"
    return "◆" if item.name in program.gates else "█"


def _needs(item: Planned) -> str:
    if item.runs:
        return f"{len(item.runs)} x {number_of(item.runs[0].devices, 'device')}"
    return ", ".join(f"{fte:g} {name}" for name, fte in item.people.items())


def _prices(plan: Plan, earliest: Plan, prices: Sequence[Price]) -> Iterator[Block]:
    def decision(price: Price) -> str | Cell:
        if price.decision_change_h is None:
            return Cell("no schedule", "bad")
        return f"{price.decision_change_h / 24:+.1f} days" if price.decision_change_h else "no change"

    def hours(price: Price) -> str:
        if price.device_hours_change is None:
            return ""
        return f"{price.device_hours_change:+,}" if price.device_hours_change else "no change"

    def change_h(price: Price) -> float:
        return math.inf if price.decision_change_h is None else price.decision_change_h

    yield TitledTable.of(
        "",
        "",
        sorted(prices, key=change_h),
        ("with", lambda price: price.title),
        (number("decision"), decision),
        (number("device-hours"), hours),
    )
    if earliest.decision_h < plan.decision_h:
        sooner = (plan.decision_h - earliest.decision_h) / 24
        yield Paragraph(
            f"Compared with the earliest decision within today's limits, {sooner:.1f} days before this plan's: "
            "replanning moves nobody for an earlier date alone."
        )


def what_if_document(program: Program, questions: Sequence[SimulatedWhatIf]) -> Document:
    """Return what-ifs side by side, undisturbed and simulated; the first is the unchanged plan."""
    return Document(title=program.title, kind="what if", sections=[Section("", [what_if_table("", "", questions)])])


def risk_document(
    program: Program,
    plan: Plan,
    outcome: Outcome,
    *,
    rates_text: str,
    price: HourPrice | None = None,
    drivers: Sequence[Driver] = (),
) -> Document:
    """Return the simulated risk of a schedule, and optionally what the date depends on."""
    rates = FactList([Fact("failure rates", rates_text)])
    blocks: list[Block] = [outcome_table(outcome, price), *nothing_scales(program, outcome), rates]
    sections = [Section("Outcomes", blocks)]
    if drivers:
        sections.append(Section("What the date depends on", [_driver_table(drivers)]))
    word = f"on time {outcome.probability_text(outcome.p_on_time())}"
    return Document(
        title=program.title,
        kind="risk of a schedule",
        verdict=Verdict("open", word, f"{len(outcome.verdict):,} simulations."),
        tiles=outcome_tiles(outcome, plan, price),
        sections=sections,
    )


def _driver_table(drivers: Sequence[Driver]) -> TitledTable:
    def end(share: float, text: str) -> str:
        return f"{sampled_percent_text(share, DRIVER_SAMPLES)} ({text})"

    rows = [
        (driver.title, end(driver.low.p_on_time, driver.low_text), end(driver.high.p_on_time, driver.high_text))
        for driver in drivers
    ]
    caption = f"Probability of a decision on time at both ends of each driver; {DRIVER_SAMPLES:,} simulations each."
    return TitledTable("", caption, Table(("driver", number("best"), number("worst")), rows))

"""What a plan buys, how sure that is, what it costs, and the next step: the first page of an execution plan, and a
sheet of its own (`plan-summary.pdf`).

The tiles and tables of an outcome are also those of a running program's forecast.
"""

from collections.abc import Iterator

import numpy as np

from assay.base.units import number_of, percent_text
from assay.planning.explain import people_load
from assay.planning.program.checks import why_nothing_passes
from assay.planning.program.offer import Offer
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.simulation.offer_report import OfferReport
from assay.planning.simulation.outcome import Outcome, safety_of
from assay.reporting.document import (
    Cell,
    Column,
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
from assay.statistics.warnings import MIN_FOUND
from assay.store.settings import HourPrice

FOOT = (
    "Made by 'assay plan offer' from the program file, the solver's schedule and the simulations; "
    "the same schedule and seed give the same numbers, and offer.json keeps both."
)
MEANINGS = {"scale": "every gate passes", "narrow": "a gate narrows or cannot tell", "stop": "a gate stops it"}
SHOWN_RISKS = 3
"""Risks on the first page; the register has all."""
MAX_LOAD_COLUMNS = 13
"""Longer plans show the load of people over several weeks each."""


def plan_summary(report: OfferReport, price: HourPrice | None = None) -> Document:
    """Return a plan on one page."""
    program = report.offered.program
    return Document(
        name="plan-summary",
        title=program.title,
        kind="plan on one page",
        subtitle=date_range_text(program),
        verdict=offer_verdict(report),
        tiles=offer_tiles(report, price),
        sections=summary_sections(report, price),
        footer=FOOT,
    )


def summary_sections(report: OfferReport, price: HourPrice | None) -> list[Section]:
    """Return the sections of the first page."""
    program, offer, outcome = report.offered.program, report.offered.offer, report.offered.outcome
    return [
        Section("Next step", [_next_step(report, price)]),
        Section("What the budget buys", [outcome_table(outcome, price), *nothing_scales(program, outcome)]),
        Section("Dates", [_milestones(program, offer.plan, outcome)]),
        Section("People", [load_table(program, offer.plan)]),
        Section("Largest risks", list(_risks(report))),
    ]


# Texts that several documents share


def date_range_text(program: Program) -> str:
    """`helpfulness · 4 January 2027 to 28 February 2027`."""
    calendar = program.calendar
    first, last = calendar.start, calendar.date_of(calendar.hour_of(program.decision.by) - 1)
    return f"{program.name} · {first.day} {first:%B %Y} to {last.day} {last:%B %Y}"


def deadline_text(program: Program) -> str:
    """`end of week 8 (day 56, 28 Feb)`: when the decision is due."""
    return program.calendar.deadline_text(program.decision.by)


def owner_text(program: Program, name: str) -> str:
    """`Research engineers (Ada, Grace)`: a role with its named people, a person, or a stakeholder."""
    people = [program.title_of(person) for person, role in program.team.items() if role.part_of == name]
    return f"{program.title_of(name)} ({', '.join(people)})" if people else program.title_of(name)


def lower_first(text: str) -> str:
    """Return a title for use within a sentence; an abbreviation such as `G1` stays."""
    return text if text[1:2].isupper() or text[1:2].isdigit() else f"{text[:1].lower()}{text[1:]}"


def days_text(program: Program, outcome: Outcome, *shares: float) -> list[str]:
    """Return quantiles of the decision's date."""
    return [program.calendar.date_text(24 * day) for day in outcome.decision_days(*shares)]


def cost_text(price: HourPrice | None, device_hours: float) -> str:
    """`6,300 EUR`, or a dash if the price is not known."""
    return "—" if price is None else str(price.of(device_hours))


# The verdict


def offer_verdict(report: OfferReport) -> Verdict:
    """Return what the budget buys and how sure that is; the tone follows the targets and the power."""
    offer, power = report.offered.offer, report.power
    budget = report.offered.program.budget.device_hours
    sentences = [f"{budget:,.0f} device-hours buy: {verdicts_text(offer)}."]
    if power is not None:
        sentences.append(
            f"A gain worth having ({power.least_gain:g} points or more) would be recognised "
            f"{percent_text(power.look.scales)} of the time."
        )
        if not power.look.is_enough:
            sentences.append(f"A campaign warns below {MIN_FOUND:.0%}. Remedy: {remedy_text(report)}.")
    if missed := missed_targets(offer):
        on_time, over = map(offer.safety.probability_text, (offer.safety.p_on_time, offer.safety.p_over_budget))
        reached = {
            "date": f"on time in {on_time} (target {percent_text(offer.target_on_time)})",
            "budget": f"over budget in {over} (target at most {percent_text(offer.target_over_budget)})",
        }
        sentences.append(f"No scope of the program meets both targets: {', '.join(reached[what] for what in missed)}.")
        return Verdict("bad", f"misses its {' and its '.join(missed)} target", " ".join(sentences))
    if power is not None and not power.look.is_enough:
        return Verdict("open", "on time and in budget, but too little power", " ".join(sentences))
    return Verdict("good", "meets its targets", " ".join(sentences))


def verdicts_text(offer: Offer) -> str:
    """`scale 14.6%, narrow 63.8%, stop 21.6%`."""
    return ", ".join(f"{name} {offer.safety.probability_text(share)}" for name, share in offer.safety.verdicts.items())


def missed_targets(offer: Offer) -> list[str]:
    """Return which targets the plan misses: `date`, `budget`."""
    is_missed = {
        "date": offer.safety.p_on_time < offer.target_on_time,
        "budget": offer.safety.p_over_budget > offer.target_over_budget,
    }
    return [what for what, missed in is_missed.items() if missed]


def remedy_text(report: OfferReport) -> str:
    """Return the cheapest design with enough power, and what it does to the budget."""
    power, now = report.power, report.offered.offer.safety
    assert power is not None, "no gate reads a gain"
    enough = power.sufficient
    if enough is None:
        return "none; no number of seeds or items is enough, so request for a larger gain"
    seeds = f"{number_of(enough.num_seeds, 'seed')} of each arm instead of {power.look.num_seeds}"
    if enough.items_factor > 1:
        return f"{seeds}, on {enough.items_factor} times as many items"
    line = next((line for line in report.seeds if line.num_seeds == enough.num_seeds), None)
    if line is None:
        return seeds
    more = line.safety.device_hours.p50 - now.device_hours.p50
    scales, over = (
        line.safety.probability_text(share) for share in (line.safety.verdicts["scale"], line.safety.p_over_budget)
    )
    return f"{seeds} (about {more:,.0f} device-hours more); scale becomes {scales}, over budget {over}"


# Tiles and tables of an outcome


def outcome_tiles(
    outcome: Outcome, plan: Plan, price: HourPrice | None, *, on_time_note: str = "", over_budget_note: str = ""
) -> list[Fact]:
    """Return cost, date, and the probabilities of keeping both."""
    program, safety = outcome.compiled.program, safety_of(outcome)
    hours = safety.device_hours
    interval = f"80% of simulations: {hours.p10:,.0f} to {hours.p90:,.0f}"
    used = Fact("device-hours", f"{hours.p50:,.0f}", f"median, of {program.budget.device_hours:,.0f}; {interval}")
    if price is not None:
        low, high = (str(price.of(value)) for value in (hours.p10, hours.p90))
        note = f"median, at {price}; 80% of simulations: {low} to {high}; {hours.p50:,.0f} device-hours"
        used = Fact("cost", str(price.of(hours.p50)), note)
    middle, late = days_text(program, outcome, 0.5, 0.8)
    undisturbed = program.calendar.date_text(plan.decision_h)
    return [
        used,
        Fact("decision", middle, f"P50; P80: {late}; if undisturbed: {undisturbed}"),
        Fact("on time", safety.probability_text(safety.p_on_time), f"by the {deadline_text(program)}{on_time_note}"),
        Fact(
            "over budget",
            safety.probability_text(safety.p_over_budget),
            f"more than {program.budget.device_hours:,.0f} device-hours{over_budget_note}",
        ),
    ]


def offer_tiles(report: OfferReport, price: HourPrice | None) -> list[Fact]:
    """Return the tiles of a plan with its targets."""
    offer = report.offered.offer
    return outcome_tiles(
        report.offered.outcome,
        offer.plan,
        price,
        on_time_note=f"; target {percent_text(offer.target_on_time)}",
        over_budget_note=f"; target at most {percent_text(offer.target_over_budget)}",
    )


def outcome_table(outcome: Outcome, price: HourPrice | None) -> TitledTable:
    """Return the probability, date and cost of each verdict."""
    program, safety = outcome.compiled.program, safety_of(outcome)

    def row(verdict: str) -> tuple[str, ...]:
        share, means = safety.verdicts[verdict], safety.by_verdict.get(verdict)
        error = f"± {100 * safety.standard_error(share):.1f}"
        if means is None:
            return (verdict, MEANINGS[verdict], safety.probability_text(share), error, "—", "—", "—")
        return (
            verdict,
            MEANINGS[verdict],
            safety.probability_text(share),
            error,
            program.calendar.date_text(24 * means.decision_day),
            f"{means.device_hours:,.0f}",
            cost_text(price, means.device_hours),
        )

    header = (
        "verdict",
        "if",
        number("probability"),
        number("error (points)"),
        Column("decision (mean)", "name"),
        number("device-hours (mean)"),
        number("cost (mean)"),
    )
    table = Table(header, [row(verdict) for verdict in safety.verdicts])
    caption = f"{safety.num_programs:,} simulations; the error is the simulation's standard error."
    return TitledTable("", caption, table if price is not None else Table(header[:-1], [r[:-1] for r in table.rows]))


def nothing_scales(program: Program, outcome: Outcome) -> Iterator[Listing]:
    """Yield why no simulation scales, if none does and a reason is known."""
    reasons = [] if outcome.shares()["scale"] else list(why_nothing_passes(program))
    if reasons:
        yield Listing([Cell(reason, "open") for reason in reasons], title="Why nothing scales")


def _milestones(program: Program, plan: Plan, outcome: Outcome) -> TitledTable:
    """Return the dates of the gates and of the decision."""
    rows = []
    for item in plan.items:
        is_decision = item.name == program.decision.decided_by
        if item.name not in program.gates and not is_decision:
            continue
        _, ends = outcome.span_h(item.name)
        is_reached = outcome.probability_text(ends.size / len(outcome.verdict))
        hours = np.quantile(ends, (0.5, 0.8)).tolist() if ends.size else []
        if is_decision:  # also where a stop ends the program before
            hours, is_reached = [24 * day for day in outcome.decision_days(0.5, 0.8)], "—"
        dates = [program.calendar.date_text(hour) for hour in hours] or ["—", "—"]
        title = program.nodes()[item.name].title
        owner = owner_text(program, program.owners_of(item.name).accountable)
        rows.append((title, owner, program.calendar.date_text(item.end_h), *dates, is_reached))
    columns = (Column(heading, "name") for heading in ("if undisturbed", "P50", "P80"))
    header: tuple[str | Column, ...] = ("milestone", "accountable", *columns, number("reached"))
    caption = (
        f"P50 and P80: half and 80% of the simulations that reach it do so by then. Due: {deadline_text(program)}."
    )
    return TitledTable("", caption, Table(header, rows))


def load_table(program: Program, plan: Plan) -> TitledTable:
    """Return the planned full-time equivalents of each role and person over the weeks."""
    load = people_load(program, plan)
    num_weeks = max(map(len, load.values()), default=0)
    width = max(1, -(-num_weeks // MAX_LOAD_COLUMNS))
    spans = [range(first, min(first + width, num_weeks)) for first in range(0, num_weeks, width)]

    def heading(weeks: range) -> str:
        return f"week {weeks[0] + 1}" if len(weeks) == 1 else f"weeks {weeks[0] + 1}–{weeks[-1] + 1}"

    def cell(weeks: range, name: str) -> str:
        planned = sum(load[name][week][0] for week in weeks) / len(weeks)
        return f"{planned:.1f}" if planned else "—"

    rows = [
        (program.title_of(name), f"{role.fte:g}", *(cell(weeks, name) for weeks in spans))
        for name, role in program.team.items()
    ]
    header: tuple[str | Column, ...] = ("who", number("has"), *(number(heading(weeks)) for weeks in spans))
    return TitledTable("", "Full-time equivalents planned, in the undisturbed schedule.", Table(header, rows))


def _risks(report: OfferReport) -> Iterator[TitledTable | Paragraph]:
    program = report.offered.program
    lines = [line for line in report.register if line.cost() >= 0.0005][:SHOWN_RISKS]
    if not lines:
        yield Paragraph("No stated risk changes the probability of a decision on time and in budget.")
        return
    yield TitledTable.of(
        "",
        "Cost: points by which a decision on time and in budget would be more likely without the risk.",
        lines,
        ("risk", lambda line: line.risk.title),
        (number("probability"), lambda line: percent_text(line.risk.probability)),
        (number("cost"), lambda line: f"{100 * line.cost():.1f} pt"),
        ("owner", lambda line: owner_text(program, line.risk.owner)),
        ("first sign", lambda line: line.risk.sign or "—"),
    )


def _next_step(report: OfferReport, price: HourPrice | None) -> FactList:
    """Return who decides what, and which work begins first."""
    program, offer, power = report.offered.program, report.offered.offer, report.power
    first = offer.plan.items[0]
    owners = program.owners_of(program.decision.decided_by)
    budget = program.budget.device_hours
    money = "" if price is None else f" ({price.of(budget)})"
    request = f"approve this plan with {budget:,.0f} device-hours{money}"
    if power is not None and not power.look.is_enough:
        request = f"accept a power of {percent_text(power.look.scales)} or approve the remedy, then {request}"
    elif missed_targets(offer):
        request = f"accept the missed target or change the program, then {request}"
    by = program.calendar.date_text(first.start_h, begins=True)
    work = f"{program.nodes()[first.name].title}: {owner_text(program, program.owners_of(first.name).responsible)}"
    return FactList(
        [
            Fact("decide", request, f"{owner_text(program, owners.accountable)}, by {by}"),
            Fact("then begin", work, f"{by} to {program.calendar.date_text(first.end_h)}"),
            Fact(
                "deliver",
                program.nodes()[program.decision.decided_by].title,
                owner_text(program, owners.responsible),
            ),
        ]
    )

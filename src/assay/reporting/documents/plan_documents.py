"""The documents of an offered plan: execution plan, stage gates and responsibilities (RACI)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from assay.base.units import number_of, percent_text, sampled_percent_text
from assay.planning.explain import critical_chain
from assay.planning.program.offer import Offer, Quantiles, Safety
from assay.planning.program.plan import Planned
from assay.planning.program.program import Program
from assay.planning.program.risk import StopCondition
from assay.planning.program.work import Evidence, GateRule, Owners, ProgramGate
from assay.planning.simulation.information import STOP_PROBABILITY, least_gain
from assay.planning.simulation.offer import Offered
from assay.planning.simulation.offer_report import OfferReport
from assay.planning.simulation.outcome import Outcome
from assay.planning.simulation.questions import SimulatedWhatIf
from assay.planning.simulation.scope import SEARCH_SAMPLES
from assay.reporting.charts.plan_figures import capacity_profile, gantt
from assay.reporting.charts.risk_figures import Distribution, probability_figure, tornado_figure
from assay.reporting.document import (
    Block,
    Document,
    Fact,
    Figure,
    Listing,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Verdict,
    figure,
)
from assay.store.settings import HourPrice

DOCUMENT_LINKS = (
    ("execution-plan.html", "Execution plan"),
    ("stage-gates.html", "Stage gates"),
    ("raci.html", "Who answers for what"),
    ("risk-register.html", "Risk register"),
)
FOOT = (
    "Made by 'assay plan offer' from the program file, the solver's schedule and the simulations; "
    "the same schedule and seed give the same numbers, and offer.json keeps both."
)


SHOWN_SCOPES = 8
"""Scopes listed besides the full one; offer.json has all."""


def execution_plan(report: OfferReport, price: HourPrice | None = None) -> Document:
    """Return what is done when, by whom and on how many devices, and what was given up for safety."""
    program, offer = report.offered.program, report.offered.offer
    return Document(
        name="execution-plan",
        title=program.title,
        kind="execution plan",
        subtitle=date_range_text(program),
        verdict=offer_verdict(program, offer),
        tiles=safety_tiles(program, offer.safety, price),
        sections=[
            *_what_breaks(report),
            Section("The weeks", list(_weeks(report))),
            Section("What was chosen", list(_chosen(report.offered))),
            Section("Who does what, when", [_activities(program, offer)]),
            Section("Which experiment next", list(_ladder(report))),
            Section("What if", list(_questions(report))),
        ],
        footer=FOOT,
        links=DOCUMENT_LINKS,
    )


def stage_gates(report: OfferReport) -> Document:
    """Return each gate's question, evidence, thresholds, consequences and value."""
    program, offer = report.offered.program, report.offered.offer
    saved = sum(line.device_hours_saved for line in report.stages)
    shares = {name: offer.safety.probability_text(share) for name, share in offer.safety.verdicts.items()}
    sentence = (
        f"Being able to stop early saves {saved:,.0f} device-hours on average. As things are believed today "
        f"the program ends with 'scale' in {shares['scale']} of simulations, 'narrow' in "
        f"{shares['narrow']} and 'stop' in {shares['stop']}."
    )
    gates = [item for item in offer.plan.items if item.name in program.gates]
    return Document(
        name="stage-gates",
        title=f"Stage gates: {program.title}",
        kind="stage gates",
        subtitle=date_range_text(program),
        verdict=Verdict("open", number_of(len(gates), "gate"), sentence),
        tiles=[
            Fact(
                program.gates[item.name].title.split(":")[0],
                program.calendar.day_text(item.end_h),
                _shares(report, item.name),
            )
            for item in gates
        ],
        sections=[
            *_pilot(program),
            Section("What each gate is worth", list(_worth(report))),
            *(Section(program.gates[item.name].title, list(_gate(report, item))) for item in gates),
            Section("Conditions that end it at any time", [_stops(program)]),
        ],
        footer=FOOT,
        links=DOCUMENT_LINKS,
    )


def raci(report: OfferReport) -> Document:
    """Return the responsibility matrix."""
    program = report.offered.program
    accountable = {stage.owners.accountable for stage in program.stages.values()}
    return Document(
        name="raci",
        title=f"Who answers for what: {program.title}",
        kind="RACI",
        subtitle=date_range_text(program),
        verdict=Verdict(
            "good",
            "one name each",
            f"Of {number_of(len(program.stages), 'stage')} each has one who answers for it: "
            f"{', '.join(sorted(program.title_of(name) for name in accountable))}.",
        ),
        tiles=[
            Fact(program.title_of(name), f"{role.fte:g}", "full-time equivalents")
            for name, role in program.team.items()
        ],
        sections=[
            Section("The matrix", list(_matrix(program))),
            Section("Who watches which risk", [_risk_owners(program)]),
        ],
        footer=FOOT,
        links=DOCUMENT_LINKS,
    )


# Texts that several documents share


def date_range_text(program: Program) -> str:
    """`helpfulness · 4 January 2027 to 28 February 2027`."""
    calendar = program.calendar
    first, last = calendar.start, calendar.date_of(calendar.hour_of(program.decision.by) - 1)
    return f"{program.name} · {first.day} {first:%B %Y} to {last.day} {last:%B %Y}"


def deadline_text(program: Program) -> str:
    """`end of week 8 (day 56, 28 Feb)`: when the decision is due."""
    return program.calendar.deadline_text(program.decision.by)


class QuantileDates(NamedTuple):
    """Quantiles of a date, as text."""

    p10: str
    p50: str
    p90: str


def quantile_dates(program: Program, days: Quantiles) -> QuantileDates:
    """Convert days since the program's start to dates."""
    return QuantileDates(*(program.calendar.day_text(24 * value) for value in (days.p10, days.p50, days.p90)))


def offer_verdict(program: Program, offer: Offer) -> Verdict:
    """Return whether the plan meets its targets, compared with the optimal plan without disruptions."""
    safety, baseline = offer.safety, offer.baseline_safety
    sentence = (
        f"The decision stands by the {deadline_text(program)} in {safety.probability_text(safety.p_on_time)} of "
        f"{safety.num_programs:,} simulations, and the budget is broken in "
        f"{safety.probability_text(safety.p_over_budget)}."
    )
    if offer.moves:
        sentence += (
            f" The optimum of the full scope ({program.calendar.day_text(offer.baseline_plan.decision_h)}, when "
            "nothing happens) would "
            f"be in time in {baseline.probability_text(baseline.p_on_time)} and over budget in "
            f"{baseline.probability_text(baseline.p_over_budget)}; it would end with 'scale' in "
            f"{baseline.probability_text(baseline.verdicts['scale'])}, this plan does in "
            f"{safety.probability_text(safety.verdicts['scale'])}."
        )
    if offer.meets_targets:
        return Verdict("good", "keeps its promises", sentence)
    promised = f"{percent_text(offer.target_on_time)} and {percent_text(offer.target_over_budget)}"
    broken = " and ".join(f"the {what}" for what in broken_promises(offer))
    return Verdict(
        "bad",
        "breaks a promise",
        f"{sentence} Promised were {promised}: no scope of the program keeps both; this one breaks {broken}.",
    )


def more_seeds_text(report: OfferReport) -> str:
    """`scale in 18.5% with 4 of each arm (over budget in 6.1%), in ...`; empty if no gate reads a gain."""
    more = [line for line in report.seeds if line.num_more > 0]

    def shares(safety: Safety) -> tuple[str, str]:
        return safety.probability_text(safety.verdicts["scale"]), safety.probability_text(safety.p_over_budget)

    first, *others = ((line.num_seeds, *shares(line.safety)) for line in more)
    texts = [f"scale in {first[1]} with {first[0]} of each arm (over budget in {first[2]})"]
    texts += [f"in {scales} with {num_seeds} (over budget in {over})" for num_seeds, scales, over in others]
    return ", ".join(texts)


def broken_promises(offer: Offer) -> list[str]:
    """Return which targets the plan misses: `date`, `budget`."""
    is_broken = {
        "date": offer.safety.p_on_time < offer.target_on_time,
        "budget": offer.safety.p_over_budget > offer.target_over_budget,
    }
    return [what for what, broken in is_broken.items() if broken]


def safety_tiles(program: Program, safety: Safety, price: HourPrice | None) -> list[Fact]:
    """Return tiles for date, device-hours and their risks, with the cost if the price is known."""
    day, hours = quantile_dates(program, safety.decision_day), safety.device_hours
    return [
        Fact(
            "decision by its date",
            safety.probability_text(safety.p_on_time),
            f"by the {deadline_text(program)}",
        ),
        Fact(
            "over budget",
            safety.probability_text(safety.p_over_budget),
            f"of simulations spend more than {program.budget.device_hours:,.0f} device-hours",
        ),
        Fact("decision", day.p50, f"median; 80% of simulations: {day.p10} to {day.p90}"),
        Fact(
            "device-hours",
            f"{hours.p50:,.0f}",
            f"median; 80% of simulations: {hours.p10:,.0f} to {hours.p90:,.0f}{cost_note(price, hours.p50)}",
        ),
    ]


def cost_note(price: HourPrice | None, device_hours: float) -> str:
    """`; 6,300 EUR at 2.10 EUR a device-hour of H100`, or empty if the price is not known."""
    return "" if price is None else f"; {price.of(device_hours)} at {price}"


# The promises


def _what_breaks(report: OfferReport) -> Iterator[Section]:
    """Yield figures of each missed target and its drivers."""
    offer = report.offered.offer
    draw = {"date": date_figure, "budget": money_figure}
    figures: list[Block] = [draw[what](report) for what in broken_promises(offer)]
    if figures:
        figures.append(tornado_figure(report.drivers, now=offer.safety.p_on_time, num_samples=report.num_few_samples))
        yield Section("What breaks the promise", figures)


def date_figure(report: OfferReport) -> Figure:
    """Return the probability of a decision by each day."""
    program, offer = report.offered.program, report.offered.offer
    last_h = program.calendar.hour_of(program.decision.by)
    return probability_figure(
        [Distribution(name, outcome.decision_h / 24) for name, outcome in _outcomes(report)],
        title="The date",
        caption="How many simulations have decided by a day; the dashed line is the date, the dotted one "
        f"the {percent_text(offer.target_on_time)} that were asked for. Early ones were stopped at a gate.",
        limit=last_h / 24,
        limit_text=program.calendar.day_text(last_h),
        x_label="day of the decision",
        value_text=lambda days: program.calendar.day_text(24 * days),
        promised=offer.target_on_time,
    )


def money_figure(report: OfferReport) -> Figure:
    """Return the probability of staying below each number of device-hours."""
    offer, budget = report.offered.offer, report.offered.program.budget.device_hours
    return probability_figure(
        [Distribution(name, outcome.device_hours) for name, outcome in _outcomes(report)],
        title="The money",
        caption="How many stay below so many device-hours; the dashed line is the budget, the dotted one the "
        f"{percent_text(1.0 - offer.target_over_budget)} that were asked for.",
        limit=budget,
        limit_text=f"{budget:,.0f}",
        x_label="device-hours",
        promised=1.0 - offer.target_over_budget,
    )


def _outcomes(report: OfferReport) -> tuple[tuple[str, Outcome], ...]:
    offered = report.offered
    return ("offered plan", offered.outcome), ("calm optimum of the full scope", offered.baseline_outcome)


# The execution plan


def _weeks(report: OfferReport) -> Iterator[Block]:
    program, plan = report.offered.program, report.offered.offer.plan
    nodes = program.nodes()
    chain = [f"'{nodes[step.name].title}'" for step in critical_chain(program, plan)]
    bookings = [booking.title or name for name, booking in program.capacity.bookings.items()]
    behind = f"Behind it: {', '.join(bookings)}. " if bookings else ""
    yield figure(
        lambda width: gantt(program, plan, width=width),
        title="What happens when",
        caption="Work of people, runs on devices, gates. Outlined is what the date hangs on: "
        f"{' ← '.join(chain[:3])}{f', and {len(chain) - 3} more' if len(chain) > 3 else ''}. "
        f"{behind}The dashed line is the date of the decision.",
        legend=[("s3", "people"), ("s1", "runs"), ("s2", "gates")],
    )
    yield figure(
        lambda width: capacity_profile(program, plan, width=width),
        title="Devices held",
        caption=f"At most {plan.peak_devices} of {program.capacity.devices} at once: the least peak that keeps "
        "the date and the cost. The upper line is what no booking holds; the dotted one is the share above "
        "which a job's hours are limited.",
    )


def _chosen(offered: Offered) -> Iterator[Block]:
    offer = offered.offer
    if not offer.moves:
        yield Paragraph(
            "The full scope keeps the promises; nothing was given up."
            if offer.meets_targets
            else "Nothing was given up: no option or mitigation of the program brings the promises nearer, and "
            "the full scope breaks one."
        )
    else:
        yield TitledTable.of(
            "Moves made",
            "Chosen under the simulation from the program's options and mitigations: "
            + (
                "the fewest that keep both promises."
                if offer.meets_targets
                else "those that bring the promises nearest; a promise is broken even so."
            ),
            offer.moves,
            ("move", lambda move: move.name),
            ("what", lambda move: move.title),
            ("given up", lambda move: move.gives_up or "—"),
        )
    if len(offer.evaluated) > 1:
        yield _tried(offered)


def _tried(offered: Offered) -> TitledTable:
    """Return the best scopes of the search, below the offered one."""
    full, *others = offered.offer.evaluated
    best = [full, *sorted(others, key=lambda scope: -scope.p_within_limits)[:SHOWN_SCOPES]]
    outcome = offered.outcome
    p_within_limits = float((outcome.is_on_time() & ~outcome.is_over_budget()).mean())
    final = (outcome.p_on_time(), outcome.p_over_budget(), p_within_limits)
    rows = [("as offered, on its own schedule", f"{len(outcome.verdict):,}", *map(outcome.probability_text, final))]
    rows += [
        (
            " + ".join(scope.moves) or "full scope",
            f"{SEARCH_SAMPLES:,}",
            *(
                sampled_percent_text(share, SEARCH_SAMPLES)
                for share in (scope.p_on_time, scope.p_over_budget, scope.p_within_limits)
            ),
        )
        for scope in best
    ]
    return TitledTable(
        f"Of {len(offered.offer.evaluated)} scopes that were played, the full one and the safest",
        "Each on a quick schedule and on fewer simulations, so that many can be compared: coarser than what is said "
        "of the plan that is offered. Both promises together ('neither broken') are what counts.",
        Table(("scope", "simulations", "on time", "over budget", "neither broken"), rows),
    )


def _activities(program: Program, offer: Offer) -> TitledTable:
    nodes = program.nodes()

    def held(item: Planned) -> str:
        if item.runs:
            return f"{number_of(len(item.runs), 'run')} x {number_of(item.runs[0].devices, 'device')}"
        return ", ".join(f"{program.title_of(name)} ({fte:g})" for name, fte in item.people.items()) or "—"

    return TitledTable.of(
        "In the order in which they begin",
        "",
        offer.plan.items,
        ("activity", lambda item: nodes[item.name].title),
        ("begins", lambda item: program.calendar.day_text(item.start_h, begins=True)),
        ("ends", lambda item: program.calendar.day_text(item.end_h)),
        ("held", held),
        ("device-hours", lambda item: f"{item.device_hours():,}" if item.runs else "—"),
        ("responsible", lambda item: program.title_of(program.owners_of(item.name).responsible)),
    )


def _ladder(report: OfferReport) -> Iterator[Block]:
    program = report.offered.program
    if not report.ladder:
        yield Paragraph(_why_no_ladder(program))
        return
    yield TitledTable.of(
        "The ladder: smallest first, one change at a time",
        f"Each rung repeats the comparison at a larger size. {_best_rung(report)} Shares are of the simulations "
        "that reach the rung. It would stop where its evidence alone leaves a gain worth having less likely "
        f"than {percent_text(STOP_PROBABILITY)}; what that saves comes on top of what the gates save. A "
        "smaller size is taken to show the same gain; how far it really does, the records of earlier ladders "
        "must tell.",
        report.ladder,
        ("rung", lambda rung: rung.title),
        ("ends (mean)", lambda rung: program.calendar.day_text(24 * rung.end_day)),
        ("seeds", lambda rung: str(rung.num_seeds)),
        ("error (points)", lambda rung: f"{rung.standard_error:.2f}"),
        ("device-hours (mean)", lambda rung: f"{rung.device_hours:,.0f}"),
        ("wrong if decided here", lambda rung: percent_text(rung.p_wrong)),
        ("would stop", lambda rung: percent_text(rung.p_stop)),
        ("would stop a good one", lambda rung: percent_text(rung.p_stopped_wrongly)),
        ("hours saved (mean)", lambda rung: f"{rung.device_hours_saved:,.0f}"),
    )
    if report.seeds:
        yield TitledTable.of(
            "Seeds of the last gate",
            "What more seeds would tell, and what they do to the date and the budget. "
            f"{report.num_few_samples:,} simulations each.",
            report.seeds,
            ("seeds of each arm", lambda line: str(line.num_seeds)),
            ("error (points)", lambda line: f"{line.standard_error:.2f}"),
            ("wrong if decided on it alone", lambda line: percent_text(line.p_wrong)),
            ("recognises a gain worth having", lambda line: percent_text(line.power)),
            ("ends with 'scale'", lambda line: line.safety.probability_text(line.safety.verdicts["scale"])),
            ("on time", lambda line: line.safety.probability_text(line.safety.p_on_time)),
            ("over budget", lambda line: line.safety.probability_text(line.safety.p_over_budget)),
            ("device-hours (median)", lambda line: f"{line.safety.device_hours.p50:,.0f}"),
        )


def _best_rung(report: OfferReport) -> str:
    """Return after which rung a gate would save the most."""
    program, best = report.offered.program, max(report.ladder, key=lambda rung: rung.worth())
    if best.device_hours_saved < 1:
        return "To stop behind any of them would save nothing."
    gated = {gate.evidence.runs for gate in program.gates.values() if gate.evidence is not None}
    gate_text = "a gate stands there" if best.activity in gated else "no gate stands there yet: consider one"
    return (
        f"Most is saved, beyond what it takes itself, behind '{program.activities[best.activity].title}' "
        f"({gate_text}): {best.device_hours_saved:,.0f} device-hours on average, for {best.device_hours:,.0f}."
    )


def _why_no_ladder(program: Program) -> str:
    if program.pilot is None:
        return "No pilot is stated, so nothing says which experiment tells most."
    return (
        "No rung is stated. Say in 'changes' what each activity's runs compare; those that change what a "
        "gate's runs change, four runs or more, are the rungs of a ladder."
    )


def _questions(report: OfferReport) -> Iterator[Block]:
    if report.what_ifs:
        yield TitledTable(
            "If the world is otherwise",
            f"Each is solved and simulated anew, {_simulations_text(report.what_ifs)}. Hours saved: against the "
            "plan as it is.",
            _what_if_table(report.what_ifs),
        )
    if report.readings:
        yield TitledTable(
            "What each reading of the cluster's rule costs",
            f"{_rule_text(report.offered.program)} can be read in these ways, each played "
            f"{_simulations_text(report.readings)}.",
            _what_if_table(report.readings),
        )
    if not report.what_ifs and not report.readings:
        yield Paragraph("Not asked: 'assay plan offer' was told to be quick.")


def _simulations_text(questions: Sequence[SimulatedWhatIf]) -> str:
    num_programs = max((question.safety.num_programs for question in questions if question.safety), default=0)
    return f"in {num_programs:,} simulations"


def _rule_text(program: Program) -> str:
    rule = program.capacity.fair_use
    assert rule is not None, "readings without a rule"
    return f"'No job may hold more than {rule.share:.0%} of capacity for more than {rule.max_hours:g} hours'"


def _what_if_table(questions: Sequence[SimulatedWhatIf]) -> Table:
    baseline_columns = ("decision, calm", "device-hours, calm")
    header = ("", *baseline_columns, "on time", "over budget", "scale / narrow / stop", "hours saved (mean)")
    return Table(header, [_what_if_row(question) for question in questions])


def _what_if_row(question: SimulatedWhatIf) -> tuple[str, ...]:
    title, plan = question.result.title, question.result.plan
    if question.safety is None or plan is None:
        return (title, "nothing fits", "—", "—", "—", "—", "—")
    shares = question.safety.verdicts
    verdicts = " / ".join(question.safety.probability_text(shares[name]) for name in ("scale", "narrow", "stop"))
    saved = question.device_hours_saved
    return (
        title,
        question.result.program.calendar.day_text(plan.decision_h),
        f"{plan.device_hours:,}",
        question.safety.probability_text(question.safety.p_on_time),
        question.safety.probability_text(question.safety.p_over_budget),
        verdicts,
        "—" if saved is None or abs(saved) < 1 else f"{saved:+,.0f}",
    )


# The gates


def _shares(report: OfferReport, gate: str) -> str:
    looks = report.offered.outcome.samples.gates[gate]
    found = {verdict: float((looks[0].verdict == verdict).mean()) for verdict in ("pass", "narrow", "again", "stop")}
    return ", ".join(f"{name} {percent_text(share)}" for name, share in found.items() if share)


def _worth(report: OfferReport) -> Iterator[Block]:
    least = least_gain(report.offered.outcome)
    yield TitledTable.of(
        "Information, stage by stage",
        f"'Wrong' means: scaling a gain below {least:g} points, or stopping one above, were it decided there. "
        "A gate's hours are saved because weak evidence ends the program.",
        report.stages,
        ("gate", lambda line: line.title),
        ("wrong if decided here", lambda line: "—" if line.p_wrong is None else percent_text(line.p_wrong)),
        (
            "points secured (mean)",
            lambda line: "—" if line.points_secured is None else f"{line.points_secured:.2f}",
        ),
        ("device-hours by then (mean)", lambda line: f"{line.device_hours:,.0f}"),
        ("stops", lambda line: percent_text(line.p_stop)),
        ("stops a good one", lambda line: percent_text(line.p_stopped_wrongly)),
        ("hours saved (mean)", lambda line: f"{line.device_hours_saved:,.0f}"),
        ("days saved (mean)", lambda line: f"{line.days_saved:.1f}"),
    )


def _pilot(program: Program) -> Iterator[Section]:
    if program.pilot is not None and program.pilot.note:
        gains = ", then ".join(f"{gain:+g}" for gain in program.pilot.gains)
        yield Section("What is known before", [Paragraph(f"{program.pilot.note} Gains so far: {gains} points.")])


def _gate(report: OfferReport, item: Planned) -> Iterator[Block]:
    program = report.offered.program
    gate = program.gates[item.name]
    owners = program.owners_of(item.name)
    nodes = program.nodes()
    inputs = [nodes[dependency.name].title for dependency in gate.after if dependency.name in nodes]
    yield Listing(
        [
            f"Held on {program.calendar.day_text(item.end_h)}; {program.title_of(owners.accountable)} answers for it.",
            f"Judges: {', '.join(inputs)}.",
            *_thresholds(report, item.name, gate),
        ]
    )
    yield Listing([*_consequences(program, gate)], title="What follows")


def _thresholds(report: OfferReport, name: str, gate: ProgramGate) -> Iterator[str]:
    program = report.offered.program
    if gate.evidence is None:
        declared = ", ".join(f"{verdict} {percent_text(share)}" for verdict, share in gate.probabilities.items())
        yield f"Judged by people from their findings; taken as likely: {declared}."
        return
    evidence = gate.evidence
    look = report.offered.outcome.samples.gates[name][0]
    error = float(look.standard_error[0]) if look.standard_error is not None else 0.0
    title = program.benchmarks[evidence.benchmark].title or evidence.benchmark
    yield (
        f"Reads the gain on '{title}' over the runs of '{program.activities[evidence.runs].title}': its "
        f"standard error is {error:.2f} points."
    )
    if evidence.rule is None:
        pass_at, stop_below = evidence.thresholds
        between = f"between the two: {evidence.between}"
        yield f"Passes at {pass_at:+g} points or more, stops below {stop_below:+g}; {between}."
    else:
        yield from _campaign_text(evidence.rule)
    yield f"As things are believed today: {_shares(report, name)}."


def criterion_text(evidence: Evidence) -> str:
    """`pass +1, stop below +0`, in points."""
    if evidence.rule is not None:
        return f"a campaign's rule, worth {evidence.rule.least_effect:+g}"
    pass_at, stop_below = evidence.thresholds
    return f"pass {pass_at:+g}, stop below {stop_below:+g}"


def _campaign_text(rule: GateRule) -> Iterator[str]:
    looks = f"looks at {', '.join(map(str, rule.looks))} seeds; " if rule.looks else ""
    shared = f", shared by {number_of(rule.candidates, 'candidate')}" if rule.candidates > 1 else ""
    yield (
        f"Judged by a campaign's rule, as that will be: {rule.least_effect:+g} points are worth having; "
        f"{looks}{rule.confidence:.0%} confidence over all looks{shared}."
    )
    for guardrail in rule.guardrails:
        yield f"Passes only if '{guardrail.benchmark}' has lost less than {guardrail.margin:g} points, surely."
    for mode in rule.safety:
        most = f"at most {100 * mode.max_rate:g}% of its items"
        yield f"Passes only if '{mode.benchmark}' fails on {most}, surely, in each seed."


def _consequences(program: Program, gate: ProgramGate) -> Iterator[str]:
    titles = {name: node.title for name, node in program.nodes().items()}
    yield "Pass: what waits for it begins."
    if gate.narrow.drops:
        yield f"Narrow: goes on without {', '.join(titles[name] for name in gate.narrow.drops)}."
    else:
        yield "Narrow: goes on; the recommendation will say so."
    if gate.again is not None:
        repeated = ", ".join(titles[name] for name in gate.again.activities)
        at_most = f"at most {number_of(gate.again.at_most, 'time')}"
        yield f"Again ({at_most}): repeats {repeated}."
    closing = ", ".join(titles[name] for name in gate.stop_goes_to) or "nothing more"
    yield f"Stop: running jobs are ended, and only this is still done: {closing}."


def _stops(program: Program) -> Block:
    if not program.stops:
        return Paragraph("None are stated.")

    def limit(stop: StopCondition) -> str:
        is_above = stop.above is not None
        return f"{stop.watch} {'above' if is_above else 'below'} {stop.above if is_above else stop.below:g}"

    return TitledTable.of(
        "Watched all the time",
        "",
        program.stops.values(),
        ("condition", lambda stop: stop.title),
        ("limit", limit),
        ("then", lambda stop: stop.then),
        ("who watches", lambda stop: program.title_of(stop.owner)),
    )


# RACI


def _matrix(program: Program) -> Iterator[Block]:
    names = [*program.team, *program.stakeholders]
    header = ("", *(program.title_of(name) for name in names))

    def row(title: str, owners: Owners) -> tuple[str, ...]:
        return (title, *(_letter(owners, name) for name in names))

    yield TitledTable(
        "By stage",
        "R does it, A answers for it, C is asked, I is told.",
        Table(header, [row(stage.title, stage.owners) for stage in program.stages.values()]),
    )
    own = [
        row(node.title, program.owners_of(node.name)) for node in program.nodes().values() if node.owners is not None
    ]
    if own:
        yield TitledTable("Where it is otherwise", "", Table(header, own))
    requests = [
        (stakeholder.title, stakeholder.wants) for stakeholder in program.stakeholders.values() if stakeholder.wants
    ]
    if requests:
        yield TitledTable("What they ask of the plan", "", Table(("who", "wants"), requests))


def _letter(owners: Owners, name: str) -> str:
    does = {"R": [owners.responsible], "A": [owners.accountable], "C": owners.consulted, "I": owners.informed}
    return "".join(letter for letter, people in does.items() if name in people) or "·"


def _risk_owners(program: Program) -> Block:
    rows = [(risk.title, program.title_of(risk.owner), risk.sign or "—") for risk in program.risks.values()]
    return TitledTable("Risks", "", Table(("risk", "who watches it", "seen first"), rows))

"""The documents of an offered plan: execution plan, stage gates, responsibilities (RACI) and risk register."""

from collections.abc import Iterator, Sequence

import numpy as np

from assay.base.units import number_of, percent_text, sampled_percent_text
from assay.planning.explain import critical_chain
from assay.planning.program.plan import Planned
from assay.planning.program.program import Program
from assay.planning.program.risk import StopCondition
from assay.planning.program.work import Evidence, GateRule, Owners, ProgramGate
from assay.planning.simulation.drivers import RegisterLine
from assay.planning.simulation.information import STOP_PROBABILITY, SeedCountOption, least_gain
from assay.planning.simulation.offer import Offered
from assay.planning.simulation.offer_report import OfferReport
from assay.planning.simulation.outcome import Outcome
from assay.planning.simulation.questions import SimulatedWhatIf
from assay.planning.simulation.scope import SEARCH_SAMPLES
from assay.reporting.charts.plan_figures import Ends, capacity_profile, gantt
from assay.reporting.charts.risk_figures import Distribution, probability_figure, tornado_figure
from assay.reporting.document import (
    Block,
    Column,
    Document,
    Fact,
    Figure,
    Listing,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Tone,
    Verdict,
    figure,
    name,
    number,
)
from assay.reporting.documents.plan.plan_summary import (
    FOOT,
    date_range_text,
    lower_first,
    missed_targets,
    offer_tiles,
    offer_verdict,
    owner_text,
    summary_sections,
    verdicts_text,
)
from assay.reporting.values import signed_text
from assay.store.settings import HourPrice

DOCUMENT_LINKS = (
    ("plan-summary.pdf", "One page (PDF)"),
    ("execution-plan.html", "Execution plan"),
    ("stage-gates.html", "Stage gates"),
    ("raci.html", "Responsibilities"),
    ("risk-register.html", "Risk register"),
)
SHOWN_SCOPES = 8
"""Scopes listed besides the full one and the offered one; offer.json has all."""
LEAST_HELP = 0.002
"""A mitigation helps if it raises P(on time and in budget) by more."""


def execution_plan(report: OfferReport, price: HourPrice | None = None) -> Document:
    """Return what is done when, by whom and on how many devices, and what was given up for safety."""
    sections = [
        *summary_sections(report, price),
        *_missed(report),
        Section("Schedule", list(_weeks(report))),
        Section("Who does what, when", [_activities(report)]),
        Section("Scope", list(_scope(report.offered))),
        Section("Which experiment next", list(_ladder(report))),
        Section("What if", list(_questions(report))),
    ]
    return _document(report, "execution plan", offer_verdict(report), offer_tiles(report, price), sections)


def stage_gates(report: OfferReport) -> Document:
    """Return each gate's question, evidence, thresholds, consequences and value."""
    program, offer = report.offered.program, report.offered.offer
    saved = sum(line.device_hours_saved for line in report.stages)
    gates = [item for item in offer.plan.items if item.name in program.gates]
    verdict = Verdict(
        "open",
        number_of(len(gates), "gate"),
        f"The program ends with {verdicts_text(offer)}: it scales if it passes every gate, and stops if one gate "
        f"stops it. Stopping early saves {saved:,.0f} device-hours on average.",
    )
    tiles = [
        Fact(
            program.gates[item.name].title.split(":")[0],
            program.calendar.date_text(item.end_h),
            f"if undisturbed; {_shares_text(report, item.name)}",
        )
        for item in gates
    ]
    sections = [
        *_pilot(program),
        Section("Verdicts and value of each gate", list(_worth(report))),
        *(Section(program.gates[item.name].title, list(_gate(report, item))) for item in gates),
        Section("Conditions that end it at any time", [_stops(program)]),
    ]
    return _document(report, "stage gates", verdict, tiles, sections, about="Stage gates")


def raci(report: OfferReport) -> Document:
    """Return who is responsible and accountable for each stage, who is consulted, and who is informed."""
    program = report.offered.program
    accountable = {stage.owners.accountable for stage in program.stages.values()}
    verdict = Verdict(
        "good",
        "every stage has one accountable owner",
        f"{number_of(len(program.stages), 'stage')}; accountable: "
        f"{', '.join(sorted(owner_text(program, name) for name in accountable))}.",
    )
    tiles = [
        Fact(program.title_of(name), f"{role.fte:g}", "full-time equivalents") for name, role in program.team.items()
    ]
    sections = [
        Section("By stage", list(_responsibilities(program))),
        Section("Risk owners", [_risk_owners(program)]),
    ]
    return _document(report, "RACI", verdict, tiles, sections, about="Responsibilities")


def risk_register(report: OfferReport, price: HourPrice | None = None) -> Document:
    """Return risks by cost, with their mitigations, and what drives date and cost."""
    sections = [
        Section("Risks", [_register(report.offered.program, report.register), *_mitigations(report)]),
        Section("Distribution of date and cost", [date_figure(report), cost_figure(report)]),
        Section("What date and budget depend on", [_drivers_figure(report)]),
        Section("Device-hours by stage", [_stages(report)]),
    ]
    return _document(
        report, "risk register", _risk_verdict(report), offer_tiles(report, price), sections, about="Risks"
    )


def _document(
    report: OfferReport,
    kind: str,
    verdict: Verdict,
    tiles: Sequence[Fact],
    sections: Sequence[Section],
    *,
    about: str = "",
) -> Document:
    """Return a document of an offer; `about` stands before the program's title."""
    program = report.offered.program
    return Document(
        name=kind.lower().replace(" ", "-"),
        title=f"{about}: {program.title}" if about else program.title,
        kind=kind,
        subtitle=date_range_text(program),
        verdict=verdict,
        tiles=tiles,
        sections=sections,
        footer=FOOT,
        links=DOCUMENT_LINKS,
    )


# Targets


def _missed(report: OfferReport) -> Iterator[Section]:
    """Yield figures of each missed target and its drivers."""
    draw = {"date": date_figure, "budget": cost_figure}
    figures: list[Block] = [draw[what](report) for what in missed_targets(report.offered.offer)]
    if figures:
        yield Section("Why a target is missed", [*figures, _drivers_figure(report)])


def _drivers_figure(report: OfferReport) -> Figure:
    now = report.offered.offer.safety.p_on_time
    return tornado_figure(report.drivers, now=now, num_samples=report.num_few_samples)


def date_figure(report: OfferReport) -> Figure:
    """Return the probability of a decision by each day."""
    program, offer = report.offered.program, report.offered.offer
    last_h = program.calendar.hour_of(program.decision.by)
    return probability_figure(
        [Distribution(name, outcome.decision_h / 24) for name, outcome in _outcomes(report)],
        title="Date of the decision",
        caption="Share of simulations that have decided by a day. The dashed line is the deadline, the dotted one the "
        f"target of {percent_text(offer.target_on_time)}. Early decisions are stops at a gate.",
        limit=last_h / 24,
        limit_text=program.calendar.day_text(last_h),
        x_label="day of the decision",
        value_text=lambda days: program.calendar.day_text(24 * days),
        target=offer.target_on_time,
    )


def cost_figure(report: OfferReport) -> Figure:
    """Return the probability of staying below each number of device-hours."""
    offer, budget = report.offered.offer, report.offered.program.budget.device_hours
    return probability_figure(
        [Distribution(name, outcome.device_hours) for name, outcome in _outcomes(report)],
        title="Device-hours",
        caption="Share of simulations that spend at most this much. The dashed line is the budget, the dotted one the "
        f"target of {percent_text(1.0 - offer.target_over_budget)}.",
        limit=budget,
        limit_text=f"{budget:,.0f}",
        x_label="device-hours",
        target=1.0 - offer.target_over_budget,
    )


def _outcomes(report: OfferReport) -> tuple[tuple[str, Outcome], ...]:
    offered = report.offered
    return ("offered plan", offered.outcome), ("full scope, earliest schedule", offered.baseline_outcome)


# The execution plan


def _weeks(report: OfferReport) -> Iterator[Block]:
    program, plan = report.offered.program, report.offered.offer.plan
    nodes, ends = program.nodes(), _ends(report)
    chain = [f"'{nodes[step.name].title}'" for step in critical_chain(program, plan)]
    yield figure(
        lambda width: gantt(program, plan, width=width, ends=ends),
        title="Work of people, runs on devices, and gates",
        caption="Bars: the schedule if nothing disturbs it. Dots and lines: the P50 and P80 of each end. Outlined: the "
        f"critical chain, last first: {' ← '.join(chain[:3])}"
        f"{f', and {len(chain) - 3} more' if len(chain) > 3 else ''}.",
        legend=[("s3", "people"), ("s1", "runs"), ("s2", "gates"), ("end-range", "end: P50 to P80")],
    )
    yield figure(
        lambda width: capacity_profile(program, plan, width=width, ends=ends),
        title="Devices held",
        caption=f"At most {plan.peak_devices} of {program.capacity.devices} at once: the least peak that keeps "
        "the date and the cost. The dashed line shows the devices that no booking holds, the dotted one the share "
        "above which a job's hours are limited.",
    )


def _ends(report: OfferReport) -> Ends:
    """Return the P50 and P80 of each end, of the simulations that complete it."""
    found = {}
    for item in report.offered.offer.plan.items:
        _, ends = report.offered.outcome.span_h(item.name)
        if ends.size:
            middle, late = np.quantile(ends, (0.5, 0.8)).tolist()
            found[item.name] = (middle, late)
    return found


def _activities(report: OfferReport) -> TitledTable:
    program, ends = report.offered.program, _ends(report)
    nodes, date_text = program.nodes(), program.calendar.date_text

    def needs(item: Planned) -> str:
        if item.runs:
            runs = f"{number_of(len(item.runs), 'run')} x {number_of(item.runs[0].devices, 'device')}"
            return f"{runs}, {item.device_hours():,} device-hours"
        return ", ".join(f"{program.title_of(name)} ({fte:g})" for name, fte in item.people.items()) or "—"

    def quantile(item: Planned, index: int) -> str:
        return date_text(ends[item.name][index]) if item.name in ends else "—"

    return TitledTable.of(
        "In the order in which they begin",
        "P50 and P80: half and 80% of the simulations that complete an activity do so by then. The undisturbed "
        "schedule is what the solver planned; few simulations keep it.",
        report.offered.offer.plan.items,
        ("activity", lambda item: nodes[item.name].title),
        ("responsible", lambda item: owner_text(program, program.owners_of(item.name).responsible)),
        (name("begins, undisturbed"), lambda item: date_text(item.start_h, begins=True)),
        (name("ends, undisturbed"), lambda item: date_text(item.end_h)),
        (name("ends, P50"), lambda item: quantile(item, 0)),
        (name("ends, P80"), lambda item: quantile(item, 1)),
        ("needs", needs),
    )


def _scope(offered: Offered) -> Iterator[Block]:
    offer = offered.offer
    if not offer.moves:
        yield Paragraph(
            "The full scope meets the targets; nothing was given up."
            if offer.meets_targets
            else "Nothing was given up: no option or mitigation of the program brings the targets nearer, and "
            "the full scope misses one."
        )
    else:
        yield TitledTable.of(
            "Changes to the full scope",
            "Chosen by simulation from the program's options and mitigations: "
            + (
                "the fewest that meet both targets."
                if offer.meets_targets
                else "those that come nearest to the targets; one is missed even so."
            ),
            offer.moves,
            ("change", lambda move: move.name),
            ("what", lambda move: move.title),
            ("given up", lambda move: move.gives_up or "—"),
        )
    if len(offer.evaluated) > 1:
        yield _scopes(offered)


def _scopes(offered: Offered) -> TitledTable:
    """Return the offered scope, the full scope, and the best others of the search."""
    offer = offered.offer

    def simulated(title: str, outcome: Outcome) -> tuple[str, ...]:
        is_within = outcome.is_on_time() & ~outcome.is_over_budget()
        shares = (outcome.p_on_time(), outcome.p_over_budget(), float(is_within.mean()), outcome.shares()["scale"])
        return (title, f"{len(outcome.verdict):,}", *map(outcome.probability_text, shares))

    rows = [simulated("as offered", offered.outcome)]
    chosen = {move.name for move in offer.moves}
    if chosen:
        rows.append(simulated("full scope", offered.baseline_outcome))
    others = [scope for scope in offer.evaluated if scope.moves and set(scope.moves) != chosen]
    for scope in sorted(others, key=lambda scope: -scope.p_within_limits)[:SHOWN_SCOPES]:
        shares = (scope.p_on_time, scope.p_over_budget, scope.p_within_limits)
        texts = (sampled_percent_text(share, SEARCH_SAMPLES) for share in shares)
        rows.append((" + ".join(scope.moves), f"{SEARCH_SAMPLES:,}", *texts, "—"))
    header: tuple[str | Column, ...] = (
        "scope",
        *map(number, ("simulations", "on time", "over budget", "on time and in budget", "scale")),
    )
    return TitledTable(
        f"The best of {len(offer.evaluated)} scopes",
        "The offered and the full scope have optimal schedules. The others have quick ones and fewer simulations, "
        "with a standard error of about 0.8 points, which is enough to rank them.",
        Table(header, rows),
    )


def _ladder(report: OfferReport) -> Iterator[Block]:
    program = report.offered.program
    if not report.ladder:
        yield Paragraph(
            "The program states no pilot, so nothing says which experiment tells most."
            if program.pilot is None
            else "The program states no ladder. List in 'changes' what the runs of each activity compare; activities "
            "of four runs or more that change what a gate's runs change form a ladder."
        )
        return
    yield TitledTable.of(
        "Ladder of sizes: smallest first, one change at a time",
        f"Each activity repeats the comparison at a larger size. {_best_site(report)} Shares are of the simulations "
        "that reach the activity. A gate there would stop if its evidence alone leaves a gain worth having less "
        f"likely than {percent_text(STOP_PROBABILITY)}; the saving is on top of that of the existing gates. A smaller "
        "size is assumed to show the same gain; only records of earlier ladders can confirm this.",
        report.ladder,
        ("activity", lambda rung: rung.title),
        ("ends (mean)", lambda rung: program.calendar.date_text(24 * rung.end_day)),
        (number("seeds"), lambda rung: str(rung.num_seeds)),
        (number("error (points)"), lambda rung: f"{rung.standard_error:.2f}"),
        (number("device-hours (mean)"), lambda rung: f"{rung.device_hours:,.0f}"),
        (number("wrong if decided here"), lambda rung: percent_text(rung.p_wrong)),
        (number("would stop"), lambda rung: percent_text(rung.p_stop)),
        (number("would stop a good one"), lambda rung: percent_text(rung.p_stopped_wrongly)),
        (number("hours saved (mean)"), lambda rung: f"{rung.device_hours_saved:,.0f}"),
    )
    if report.seeds:
        yield _seeds(report)


def _seeds(report: OfferReport) -> TitledTable:
    assert report.power is not None, "seeds of a gate that reads no gain"

    def of(share: str, line: SeedCountOption) -> str:
        shares = {"on time": line.safety.p_on_time, "over budget": line.safety.p_over_budget, **line.safety.verdicts}
        return line.safety.probability_text(shares[share])

    return TitledTable.of(
        "Seeds of the last gate",
        f"Power: the probability that the gate recognises a gain of {report.power.least_gain:g} points or more, as "
        f"'assay decide run --check' states it. The plan has {number_of(report.power.look.num_seeds, 'seed')}; "
        f"the other rows are its figures plus the change over {report.num_few_samples:,} simulations.",
        report.seeds,
        (number("seeds of each arm"), lambda line: str(line.num_seeds)),
        (number("error (points)"), lambda line: f"{line.standard_error:.2f}"),
        (number("power"), lambda line: percent_text(line.power)),
        (number("wrong if decided on it alone"), lambda line: percent_text(line.p_wrong)),
        (number("scale"), lambda line: of("scale", line)),
        (number("on time"), lambda line: of("on time", line)),
        (number("over budget"), lambda line: of("over budget", line)),
        (number("device-hours (median)"), lambda line: f"{line.safety.device_hours.p50:,.0f}"),
    )


def _best_site(report: OfferReport) -> str:
    """Return after which activity a gate would save the most."""
    program, best = report.offered.program, max(report.ladder, key=lambda rung: rung.worth())
    if best.device_hours_saved < 1:
        return "A gate behind any of them would save nothing."
    gated = {gate.evidence.runs for gate in program.gates.values() if gate.evidence is not None}
    gate_text = (
        "the program has a gate there" if best.activity in gated else "the program has no gate there: consider one"
    )
    return (
        f"A gate saves most behind '{program.activities[best.activity].title}' ({gate_text}): "
        f"{best.device_hours_saved:,.0f} device-hours on average, for {best.device_hours:,.0f} spent."
    )


def _questions(report: OfferReport) -> Iterator[Block]:
    if report.what_ifs:
        yield what_if_table("Changed circumstances", "", report.what_ifs)
    if report.readings:
        rule = report.offered.program.capacity.fair_use
        assert rule is not None, "readings without a rule"
        text = f"'No job may hold more than {rule.share:.0%} of capacity for more than {rule.max_hours:g} hours'"
        yield what_if_table("Readings of the cluster's rule", f"{text} can be read in these ways.", report.readings)
    if not report.what_ifs and not report.readings:
        yield Paragraph("Not computed: 'assay plan offer' was called with --quick.")


def what_if_table(title: str, caption: str, questions: Sequence[SimulatedWhatIf]) -> TitledTable:
    """Return what-ifs with their undisturbed schedules and their simulations; the first is the unchanged plan."""
    base, num_programs = questions[0], max((q.safety.num_programs for q in questions[1:] if q.safety), default=0)
    error = 100 * max(question.error for question in questions)
    base_h = base.result.plan.decision_h if base.result.plan else None

    def row(question: SimulatedWhatIf) -> tuple[str, ...]:
        result, plan, safety = question.result, question.result.plan, question.safety
        if safety is None or plan is None:
            keys = ", ".join(member.key for member in result.conflict.members) if result.conflict else ""
            return (result.title, f"no schedule{f': {keys} conflict' if keys else ''}", *("—",) * 6)
        date_text, saved = result.program.calendar.date_text, question.device_hours_saved
        later = "" if base_h is None or question is base else f" ({(plan.decision_h - base_h) / 24:+.1f} d)"
        verdicts = " / ".join(safety.probability_text(safety.verdicts[name]) for name in ("scale", "narrow", "stop"))
        return (
            result.title,
            f"{date_text(plan.decision_h)}{later}",
            date_text(24 * safety.decision_day.p50),
            f"{plan.device_hours:,}",
            safety.probability_text(safety.p_on_time),
            safety.probability_text(safety.p_over_budget),
            verdicts,
            "—" if saved is None or question is base else signed_text(saved),
        )

    how = f"Each is scheduled again and simulated {num_programs:,} times with the same random samples. " * bool(
        num_programs
    )
    anchor = f"The standard error of a change is at most {error:.1f} points. " * (error >= 0.05)
    header = (
        "",
        "decision, undisturbed",
        "decision, P50",
        number("device-hours, undisturbed"),
        number("on time"),
        number("over budget"),
        number("scale / narrow / stop"),
        number("hours saved (mean)"),
    )
    return TitledTable(
        title, f"{caption} {how}{anchor}".strip(), Table(header, [row(question) for question in questions])
    )


# The gates


def _shares_text(report: OfferReport, gate: str) -> str:
    """`pass 80.1%, stop 8.7%, not reached 11.2%`, of all simulations."""
    outcome = report.offered.outcome
    shares = outcome.gate_shares(gate)
    return ", ".join(f"{name} {outcome.probability_text(share)}" for name, share in shares.items() if share)


def _worth(report: OfferReport) -> Iterator[Block]:
    outcome = report.offered.outcome
    shares = {name: outcome.gate_shares(name) for name in report.offered.program.gates}
    verdicts = ("pass", "narrow", "stop", "not reached")

    def text(gate: str, verdict: str) -> str:
        return outcome.probability_text(shares[gate][verdict]) if shares[gate][verdict] else "—"

    yield TitledTable(
        "Verdicts",
        f"Shares of all {len(outcome.verdict):,} simulations, by each gate's last verdict. The stops add up to those "
        "of the program. A simulation scales only if it passes every gate, so fewer scale than pass the last gate.",
        Table(
            ("gate", *map(number, verdicts)),
            [
                (report.offered.program.gates[name].title, *(text(name, verdict) for verdict in verdicts))
                for name in shares
            ],
        ),
    )
    yield TitledTable.of(
        "Information",
        f"'Wrong' means scaling a gain below {least_gain(outcome):g} points, or stopping one above, if the decision "
        "were taken there. A gate saves hours because weak evidence ends the program.",
        report.stages,
        ("gate", lambda line: line.title),
        (number("wrong if decided here"), lambda line: "—" if line.p_wrong is None else percent_text(line.p_wrong)),
        (
            number("points secured (mean)"),
            lambda line: "—" if line.points_secured is None else f"{line.points_secured:.2f}",
        ),
        (number("device-hours by then (mean)"), lambda line: f"{line.device_hours:,.0f}"),
        (number("stops a good one"), lambda line: percent_text(line.p_stopped_wrongly)),
        (number("hours saved (mean)"), lambda line: f"{line.device_hours_saved:,.0f}"),
        (number("days saved (mean)"), lambda line: f"{line.days_saved:.1f}"),
    )


def _pilot(program: Program) -> Iterator[Section]:
    if program.pilot is not None and program.pilot.note:
        gains = ", then ".join(f"{gain:+g}" for gain in program.pilot.gains)
        yield Section("What is known before", [Paragraph(f"{program.pilot.note} Gains so far: {gains} points.")])


def _gate(report: OfferReport, item: Planned) -> Iterator[Block]:
    program = report.offered.program
    gate, nodes = program.gates[item.name], program.nodes()
    inputs = [nodes[dependency.name].title for dependency in gate.after if dependency.name in nodes]
    yield Listing(
        [
            f"Held on {program.calendar.day_text(item.end_h)} if undisturbed. Accountable: "
            f"{owner_text(program, program.owners_of(item.name).accountable)}.",
            f"Judges: {', '.join(inputs)}.",
            *_thresholds(report, item.name, gate),
            f"Of all simulations: {_shares_text(report, item.name)}.",
        ]
    )
    yield Listing([*_consequences(program, gate)], title="Consequences")


def _thresholds(report: OfferReport, name: str, gate: ProgramGate) -> Iterator[str]:
    program = report.offered.program
    if gate.evidence is None:
        declared = ", ".join(f"{verdict} {percent_text(share)}" for verdict, share in gate.probabilities.items())
        yield f"Judged by people from their findings; assumed probabilities: {declared}."
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
        f"Judged by the rule of a campaign: {rule.least_effect:+g} points are worth having; "
        f"{looks}{rule.confidence:.0%} confidence over all looks{shared}."
    )
    for guardrail in rule.guardrails:
        yield f"Passes only if '{guardrail.benchmark}' has demonstrably lost less than {guardrail.margin:g} points."
    for mode in rule.safety:
        most = f"at most {100 * mode.max_rate:g}% of its items"
        yield f"Passes only if '{mode.benchmark}' demonstrably fails on {most}, in each seed."


def _consequences(program: Program, gate: ProgramGate) -> Iterator[str]:
    titles = {name: node.title for name, node in program.nodes().items()}
    yield "Pass: what waits for it begins."
    if gate.narrow.drops:
        yield f"Narrow: goes on without {', '.join(titles[name] for name in gate.narrow.drops)}."
    else:
        yield "Narrow: goes on; the recommendation will be narrow."
    if gate.again is not None:
        repeated = ", ".join(titles[name] for name in gate.again.activities)
        at_most = f"at most {number_of(gate.again.at_most, 'time')}"
        yield f"Again ({at_most}): repeats {repeated}."
    closing = ", ".join(titles[name] for name in gate.stop_goes_to) or "nothing"
    yield f"Stop: running jobs are ended; what is still done: {closing}."


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
        ("watched by", lambda stop: owner_text(program, stop.owner)),
    )


# Responsibilities


def _responsibilities(program: Program) -> Iterator[Block]:
    def names(people: Sequence[str]) -> str:
        return ", ".join(owner_text(program, name) for name in people) or "—"

    def row(title: str, owners: Owners) -> tuple[str, ...]:
        one = (names([owners.responsible]), names([owners.accountable]))
        return (title, *one, names(owners.consulted), names(owners.informed))

    header = ("stage", "responsible (does it)", "accountable (decides)", "consulted", "informed")
    yield TitledTable("", "", Table(header, [row(stage.title, stage.owners) for stage in program.stages.values()]))
    own = [
        row(node.title, program.owners_of(node.name)) for node in program.nodes().values() if node.owners is not None
    ]
    if own:
        yield TitledTable("Activities with other owners", "", Table(("activity", *header[1:]), own))
    requests = [
        (stakeholder.title, stakeholder.wants) for stakeholder in program.stakeholders.values() if stakeholder.wants
    ]
    if requests:
        yield TitledTable("Expectations of the plan", "", Table(("who", "wants"), requests))


def _risk_owners(program: Program) -> Block:
    rows = [(risk.title, owner_text(program, risk.owner), risk.sign or "—") for risk in program.risks.values()]
    return TitledTable("", "", Table(("risk", "owner", "first sign"), rows))


# Risks


def _risk_verdict(report: OfferReport) -> Verdict:
    largest = report.register[0] if report.register else None
    if largest is None:
        return Verdict("open", "no risks stated", "The program states no risks; only noise was simulated.")
    helpful = [
        (mitigation.after.p_within_limits - line.now.p_within_limits, mitigation)
        for line in report.register
        for mitigation in line.mitigations
        if mitigation.after.p_within_limits > line.now.p_within_limits + LEAST_HELP
    ]
    sentence = (
        f"The largest risk is '{lower_first(largest.risk.title)}': without it, a decision on time and in budget would "
        f"be {100 * largest.cost():.1f} points more likely. "
    )
    if helpful:
        gain, mitigation = max(helpful, key=lambda pair: pair[0])
        sentence += f"The most useful mitigation is '{lower_first(mitigation.title)}' ({100 * gain:+.1f} points)."
    else:
        sentence += "No mitigation that was tried helps on balance."
    tone: Tone = "good" if report.offered.offer.meets_targets else "bad"
    return Verdict(tone, number_of(len(report.register), "risk"), sentence)


def _register(program: Program, lines: tuple[RegisterLine, ...]) -> TitledTable:
    return TitledTable.of(
        "Ranked by cost",
        "Cost: by how many points a decision on time and in budget would be more likely without the risk. Date and "
        "device-hours: by how much the risk raises their means over all simulations.",
        lines,
        ("risk", lambda line: line.risk.title),
        (number("probability"), lambda line: percent_text(line.risk.probability)),
        (number("cost"), lambda line: f"{100 * line.cost():.1f} pt"),
        (number("date"), lambda line: f"{signed_text(line.now.decision_day - line.without.decision_day, 1)} d"),
        (number("device-hours"), lambda line: signed_text(line.now.device_hours - line.without.device_hours)),
        ("owner", lambda line: owner_text(program, line.risk.owner)),
        ("first sign", lambda line: line.risk.sign or "—"),
    )


def _mitigations(report: OfferReport) -> Iterator[Block]:
    chosen = {move.name for move in report.offered.offer.moves}
    rows = [
        (
            mitigation.title,
            line.risk.title,
            f"{signed_text(100 * (mitigation.after.p_on_time - line.now.p_on_time), 1)} pt",
            f"{signed_text(100 * (mitigation.after.p_over_budget - line.now.p_over_budget), 1)} pt",
            signed_text(mitigation.after.device_hours - line.now.device_hours),
            "taken"
            if f"{line.name}: {mitigation.name}" in chosen
            else _advice(line.now.p_within_limits, mitigation.after.p_within_limits),
        )
        for line in report.register
        for mitigation in line.mitigations
    ]
    if rows:
        header: tuple[str | Column, ...] = (
            "mitigation",
            "against",
            *map(number, ("on time", "over budget", "device-hours (mean)")),
            "advice",
        )
        yield TitledTable(
            "Mitigations, simulated",
            f"Changes by each alone, its own work included, over {report.num_few_samples:,} simulations.",
            Table(header, rows),
        )


def _advice(before: float, after: float) -> str:
    if after > before + LEAST_HELP:
        return "helps"
    return "costs more than it saves" if after < before - LEAST_HELP else "makes no difference"


def _stages(report: OfferReport) -> TitledTable:
    offered = report.offered
    planned: dict[str, float] = dict.fromkeys(offered.program.stages, 0.0)
    nodes = offered.program.nodes()
    for item in offered.offer.plan.items:
        planned[nodes[item.name].stage] += item.device_hours()
    rows = []
    for stage, hours in offered.outcome.stage_device_hours().items():
        low, high = np.quantile(hours, (0.1, 0.9))
        limit = offered.program.budget.stages.get(stage)
        rows.append(
            (
                offered.program.stages[stage].title,
                f"{planned[stage]:,.0f}",
                f"{hours.mean():,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                f"{limit:,.0f}" if limit else "—",
            )
        )
    header: tuple[str | Column, ...] = ("stage", *map(number, ("undisturbed", "mean", "80% of simulations", "limit")))
    return TitledTable("", "The mean and the interval include programs that were stopped.", Table(header, rows))

"""The documents of a running program: weekly status and final review. Both start with what to act on. Past
numbers come from the ledger; future ones are forecasts with intervals."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from assay.base.units import number_of, percent_text
from assay.planning.actuals import Spend
from assay.planning.program.offer import Offer
from assay.planning.program.program import Program
from assay.planning.program.progress import Actual, Progress, RunActual, called_off
from assay.planning.simulation.forecast import (
    MIN_MATCHING_SAMPLES,
    Alarm,
    ProgramForecast,
    budget_by_day,
    remaining_by_day,
    unwatched,
)
from assay.planning.simulation.recommended_action import RecommendedAction, left_to_do, recommended_action
from assay.records.decision import Decision
from assay.reporting.charts.risk_figures import BudgetSeries, budget_figure
from assay.reporting.document import (
    Block,
    Document,
    Fact,
    Listing,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Tone,
    Verdict,
    worst,
)
from assay.reporting.documents.plan_documents import cost_note, criterion_text, deadline_text
from assay.reporting.views.statements import decision_text, requirement_text, seen_text
from assay.store.settings import HourPrice

FOOT = (
    "What happened is read from the ledger (runs by their ids) and from the notes on people's work; what will "
    "happen is the program's simulation from today. Made by 'assay plan status' and 'assay plan review'."
)
NEXT_H = 14 * 24
"""Work that starts within this time is listed as next."""


WITHOUT_NOTES = "No notes were given (--notes): work of people, gates and events count as not begun, whatever was done."


def weekly_status(
    found: ProgramForecast,
    offer: Offer,
    spends: Sequence[Spend],
    price: HourPrice | None = None,
    notes: Progress | None = None,
) -> Document:
    """Return progress, forecast and alarms, from the notes and the ledger."""
    program = found.program
    return Document(
        name="weekly-status",
        title=f"Status: {program.title}",
        kind="weekly status",
        subtitle=f"{program.name} · {_today(found)}",
        verdict=_status_verdict(found, offer),
        tiles=_tiles(found, price),
        sections=[
            Section("What to act on", [_alarms(found), *_limits(found, notes)]),
            Section("Device-hours", [_burn_down(found, spends), *_hours_tables(found)]),
            Section("Work", list(_work(found))),
        ],
        footer=FOOT,
    )


def review(found: ProgramForecast, offer: Offer, decisions: Sequence[tuple[Decision, Path]] = ()) -> Document:
    """Return the recommendation (scale, narrow or stop) with the gates' verdicts, the campaigns' decisions and
    the cost."""
    program = found.program
    evidence = [block for decision, path in decisions for block in _decision(decision, path)]
    return Document(
        name="review",
        title=f"Review: {program.title}",
        kind=f"review, to be presented {_review_text(program)}",
        subtitle=f"{program.name} · {_today(found)}",
        verdict=_recommendation(found),
        tiles=_review_tiles(found, offer),
        sections=[
            Section("What to act on", [_alarms(found)]),
            Section("What the gates said", [_gate_table(found)]),
            *([Section("The evidence", evidence)] if evidence else []),
            Section("What it cost", list(_costs(found))),
            Section("What was not done", list(_not_done(found))),
        ],
        footer=FOOT,
    )


def _review_text(program: Program) -> str:
    if (review := program.decision.review) is None:
        return "after the decision"
    return f"{review} ({program.calendar.day_text(program.calendar.hour_of(review), begins=True)})"


# The status


def _today(found: ProgramForecast) -> str:
    moment = found.program.calendar.date_of(round(found.now_h))
    day = f"{moment.day} {moment:%B %Y}"
    if found.now_h < 0:
        return f"{day}, before its first day"
    today = found.program.calendar.day_of(found.now_h, begins=True)
    return f"{day}, day {today}, week {int(found.now_h // 168) + 1}"


def _status_verdict(found: ProgramForecast, offer: Offer) -> Verdict:
    program, outcome = found.program, found.outcome
    on_time = outcome.p_on_time()
    low, middle, high = np.quantile(outcome.device_hours, (0.1, 0.5, 0.9))
    sentence = (
        f"A decision by the {deadline_text(program)} is {outcome.probability_text(on_time)} likely (promised: "
        f"{percent_text(offer.target_on_time)}). At completion {middle:,.0f} device-hours are the median, "
        f"{low:,.0f} to {high:,.0f} in four of five simulations, of {program.budget.device_hours:,.0f}."
    )
    must_act = recommended_action(found).must_act
    word = _act_text(must_act) if must_act else "watch" if found.alarms else "on course"
    return Verdict(_alarmed(found), word, sentence)


def _alarmed(found: ProgramForecast) -> Tone:
    """Return the tone of the status, which bounds the review's."""
    return "bad" if recommended_action(found).must_act else "open" if found.alarms else "good"


def _act_text(alarms: Sequence[Alarm]) -> str:
    return f"{number_of(len(alarms), 'alarm')}: act"


def _tiles(found: ProgramForecast, price: HourPrice | None) -> list[Fact]:
    program, outcome = found.program, found.outcome
    days = [program.calendar.day_text(24 * day) for day in outcome.decision_days(0.1, 0.5, 0.9)]
    low, middle, high = np.quantile(outcome.device_hours, (0.1, 0.5, 0.9))
    budget = program.budget.device_hours
    done = sum(actual.ended is not None for actual in found.progress.activities.values())
    return [
        Fact("decision", days[1], f"median; 80% of simulations: {days[0]} to {days[2]}"),
        Fact("on time", outcome.probability_text(outcome.p_on_time()), f"by the {deadline_text(program)}"),
        Fact(
            "spent",
            f"{found.spent:,.4g}",
            f"of {budget:,.0f} device-hours; {found.to_come:,.4g} to come of what goes on"
            + cost_note(price, found.spent),
        ),
        Fact(
            "at completion",
            f"{middle:,.0f}",
            f"median; 80% of simulations: {low:,.0f} to {high:,.0f}{cost_note(price, middle)}",
        ),
        Fact("done", f"{done} of {len(program.nodes())}", "activities and gates"),
    ]


def _alarms(found: ProgramForecast) -> Block:
    if not found.alarms:
        return Paragraph("Nothing: the forecast keeps the promises, and nothing is overdue.")
    table = Table(("level", "what"), [(alarm.level, alarm.text) for alarm in found.alarms])
    return TitledTable("Alarms", "Raised by the forecast, before the overrun.", table)


def _limits(found: ProgramForecast, notes: Progress | None) -> Iterator[Block]:
    """Yield what the forecast does not account for."""
    if notes is None:
        yield Paragraph(WITHOUT_NOTES)
    if not found.is_conditioned():
        yield Paragraph(
            f"The forecast does not learn from the verdicts: only {found.num_matching} of "
            f"{found.num_samples:,} simulations had gates that said what ours said, and fewer than "
            f"{MIN_MATCHING_SAMPLES} tell nothing. So all are played on; what the gates said is fixed in each, and "
            "the gain, and with it what later gates will say, is believed as before the verdicts."
        )
    nodes = found.program.nodes()
    if guessed := [
        nodes[name].title for name, activity in found.in_progress.items() if nodes[name].runs and not activity.is_noted
    ]:
        yield Listing(guessed, title="Nobody has noted what these spent: taken as planned until today")
    if silent := unwatched(found):
        yield Listing(
            [f"{stop.title} ({stop.watch}): {found.program.title_of(stop.owner)}" for stop in silent],
            title="Watched by the campaign's gates and their owners, not by this status",
        )


def _burn_down(found: ProgramForecast, spends: Sequence[Spend]) -> Block:
    deadline = found.outcome.deadline_h() / 24
    last = int(max(deadline, *found.outcome.decision_days(0.9))) + 1
    planned, actual = budget_by_day(found, spends, num_days=last)
    today = found.now_h / 24
    remaining = [today, *(float(day) for day in range(last + 1) if day > today)]
    low, middle, high = remaining_by_day(found, days=remaining, shares=(0.1, 0.5, 0.9))
    return budget_figure(
        BudgetSeries(
            planned,
            actual,
            remaining,
            low,
            middle,
            high,
            found.program.budget.device_hours,
            found.program.calendar,
        ),
        caption="What is left of the budget: as planned, as it is until today, and where it is heading (band: "
        "four of five simulations). The dashed line is an empty budget.",
    )


def _hours_tables(found: ProgramForecast) -> Iterator[Block]:
    yield TitledTable.of(
        "By stage",
        "",
        found.stages,
        ("stage", lambda stage: found.program.stages[stage.name].title),
        ("planned", lambda stage: f"{stage.planned:,.0f}"),
        ("spent", lambda stage: f"{stage.spent:,.4g}"),
        (
            "at completion: median [P10, P90]",
            lambda stage: f"{stage.middle:,.0f} [{stage.low:,.0f}, {stage.high:,.0f}]",
        ),
        ("limit", lambda stage: f"{stage.limit:,.0f}" if stage.limit else "—"),
    )
    by_phase: dict[str, float] = defaultdict(float)
    for run in _runs(found.progress):
        for phase, hours in run.device_hours_by_phase.items():
            by_phase[phase] += hours
    if total := sum(by_phase.values()):
        yield TitledTable.of(
            "By category",
            "What the runs held their devices for; 'lost' was rolled back, 'unreported' still goes on.",
            sorted((part for part in by_phase.items() if part[1]), key=lambda part: -part[1]),
            ("category", lambda part: part[0]),
            ("device-hours", lambda part: f"{part[1]:,.4g}"),
            ("share", lambda part: percent_text(part[1] / total)),
        )


def _work(found: ProgramForecast) -> Iterator[Block]:
    nodes, activities = found.program.nodes(), found.progress.activities
    in_progress = [_line(found, name, actual) for name, actual in activities.items() if actual.ended is None]
    done = [_line(found, name, actual) for name, actual in activities.items() if actual.ended is not None]
    off = called_off(found.program, found.progress)
    open_items = [item for item in found.plan.items if item.name not in {*activities, *found.progress.verdicts, *off}]
    coming = [
        f"{nodes[item.name].title} ({_planned_for(found, item.start_h)})"
        for item in open_items
        if item.start_h < found.now_h + NEXT_H
    ]
    for title, lines in (("Under way", in_progress), ("Next two weeks", coming), ("Done", done)):
        if lines:
            yield Listing(lines, title=title)


def _planned_for(found: ProgramForecast, start_h: int) -> str:
    text = f"planned for {found.program.calendar.day_text(start_h, begins=True)}"
    return f"overdue: {text}" if start_h < found.now_h else text


def _line(found: ProgramForecast, name: str, actual: Actual) -> str:
    calendar, title = found.program.calendar, found.program.nodes()[name].title
    parts = [f"since {calendar.day_text(calendar.hour_of(actual.started), begins=True)}"]
    if actual.ended is not None:
        parts = [f"ended {calendar.day_text(calendar.hour_of(actual.ended))}"]
    if actual.runs:
        over = sum(run.ended is not None for run in actual.runs)
        failed = sum(run.num_failed for run in actual.runs)
        parts.append(
            f"{over} of {number_of(len(actual.runs), 'run')} over, {found.in_progress[name].spent:,.4g} device-hours"
        )
        parts += [f"{number_of(failed, 'attempt')} failed"] if failed else []
    if name in found.progress.verdicts:
        parts.append(f"verdict: {', then '.join(found.progress.verdicts[name])}")
    return f"{title}: {', '.join(parts)}"


# The review


def _recommendation(found: ProgramForecast) -> Verdict:
    action = recommended_action(found)
    word: str = action.word or "not decided yet"
    if action.must_act and action.word in (None, "scale"):
        word = f"{word}, {_act_text(action.must_act)}"
    tones: dict[str | None, Tone] = {"scale": "good", "stop": "ended"}
    tone = worst((tones.get(action.word, "open"), _alarmed(found)))
    spent = f"{found.spent:,.4g} of {found.program.budget.device_hours:,.0f} device-hours were spent"
    raised = [f"Raised: {alarm.text}" for alarm in action.raised]
    return Verdict(tone, word, " ".join([*raised, _of_gates(found, action, spent), *_not_over(found)]))


def _of_gates(found: ProgramForecast, action: RecommendedAction, spent: str) -> str:
    program, progress = found.program, found.progress
    if action.by_gates is None:
        missing = [f"'{gate.title}'" for name, gate in program.gates.items() if name not in progress.verdicts]
        return f"Open: {', '.join(missing) or 'a repeat'}. So far {spent}."
    if action.by_gates == "scale":
        advice = "Scale further: every gate passed" if not action.must_act else "Every gate passed"
        return f"{advice}; {spent}."
    gate = next(program.gates[name] for name, verdicts in progress.verdicts.items() if verdicts[-1] == action.by_gates)
    if action.by_gates == "narrow":
        return f"Narrow the scope: '{gate.title}' asked for it; {spent}."
    finding = "found too little gain to go on" if gate.evidence is not None else "says that it goes no further"
    left = f"{max(0.0, program.budget.device_hours - found.spent):,.0f} are left for something else"
    return f"Stop: '{gate.title}' {finding}; {spent}, and {left}."


def _not_over(found: ProgramForecast) -> Iterator[str]:
    program = found.program
    if left := left_to_do(program, found.progress):
        nodes, decides = program.nodes(), program.decision.decided_by
        what = (
            f"'{nodes[decides].title}' makes the decision and has not ended"
            if decides in left
            else f"still to end: {', '.join(nodes[name].title for name in left)}"
        )
        moment = program.calendar.date_of(round(found.now_h))
        yield f"On {moment.day} {moment:%B %Y} the program is not over: {what}."


def _review_tiles(found: ProgramForecast, offer: Offer) -> list[Fact]:
    runs = _runs(found.progress)
    failed, attempts = sum(run.num_failed for run in runs), sum(run.num_attempts for run in runs)
    lost = sum(run.device_hours_lost for run in runs)
    ends = [a.ended for a in found.progress.activities.values() if a.ended is not None]
    calendar = found.program.calendar
    last = calendar.day_text(max(map(calendar.hour_of, ends))) if ends else "—"
    return [
        Fact("device-hours", f"{found.spent:,.4g}", f"planned {offer.plan.device_hours:,}"),
        Fact("last finished", last, f"decision planned: {calendar.day_text(offer.plan.decision_h)}"),
        Fact("runs", str(len(runs)), f"{number_of(attempts, 'attempt')}, {failed} killed or failed"),
        Fact("lost work", f"{lost:,.3g}", "device-hours rolled back"),
    ]


def _gate_table(found: ProgramForecast) -> Block:
    rows = []
    for name, gate in found.program.gates.items():
        verdicts = found.progress.verdicts.get(name, ())
        reads = "—"
        if gate.evidence is not None:
            evidence = gate.evidence
            reads = f"{evidence.benchmark}: {criterion_text(evidence)}"
        dropped = [found.program.nodes()[drop].title for drop in gate.narrow.drops if "narrow" in verdicts]
        rows.append((gate.title, reads, ", then ".join(verdicts) or "not held", ", ".join(dropped) or "—"))
    return TitledTable("Gate by gate", "", Table(("gate", "reads", "said", "dropped by it"), rows))


def _decision(decision: Decision, path: Path) -> Iterator[Block]:
    """Yield a campaign's recommendation and clauses; `path` is its record."""
    yield Paragraph(f"{decision.question} {decision_text(decision)}")
    yield TitledTable.of(
        f"Campaign {decision.campaign}, candidate {decision.candidate}",
        f"{decision.effect.value:+.4g} {decision.unit} on the primary benchmark; decided by "
        f"{decision.decided_by}. Record: {'/'.join(path.parts[-3:])}, SHA-256 {decision.digest()[:12]}…",
        ((gate, clause) for gate in decision.gates for clause in gate.clauses),
        ("gate", lambda held: held[0].gate),
        ("clause", lambda held: held[1].name),
        ("asks", lambda held: requirement_text(held[1])),
        ("seen", lambda held: seen_text(held[1])),
        ("verdict", lambda held: held[1].verdict),
    )


def _costs(found: ProgramForecast) -> Iterator[Block]:
    yield from _hours_tables(found)
    nodes = found.program.nodes()
    planned = {item.name: item.device_hours() for item in found.plan.items}
    lines = [(name, actual) for name, actual in found.progress.activities.items() if actual.runs]
    if lines:
        yield TitledTable.of(
            "By activity, from the ledger",
            "Device-hours.",
            lines,
            ("activity", lambda line: nodes[line[0]].title),
            ("runs", lambda line: str(len(line[1].runs))),
            ("attempts", lambda line: str(sum(run.num_attempts for run in line[1].runs))),
            ("failed", lambda line: str(sum(run.num_failed for run in line[1].runs))),
            ("planned", lambda line: f"{planned.get(line[0], 0):,}"),
            ("held", lambda line: f"{found.in_progress[line[0]].spent:,.4g}"),
            ("of it rolled back", lambda line: f"{sum(run.device_hours_lost for run in line[1].runs):,.3g}"),
        )


def _not_done(found: ProgramForecast) -> Iterator[Block]:
    """Yield unfinished work, work cancelled by gates, and work that never started."""
    program, progress, nodes = found.program, found.progress, found.program.nodes()
    left, off = left_to_do(program, progress), called_off(program, progress)
    in_progress = {*progress.activities, *progress.verdicts}
    never = [name for name in nodes if name not in {*left, *off, *in_progress}]
    decides = program.decision.decided_by
    parts = {
        "Not over yet": [f"{nodes[name].title}{' (makes the decision)' * (name == decides)}" for name in left],
        "Called off by the gates": [nodes[node].title for node in nodes if node in off],
        "Never begun": [nodes[name].title for name in never],
    }
    yield from (Listing(titles, title=title) for title, titles in parts.items() if titles)
    if not any(parts.values()):
        yield Paragraph("Everything that was planned was done.")


def _runs(progress: Progress) -> list[RunActual]:
    return [run for actual in progress.activities.values() for run in actual.runs]

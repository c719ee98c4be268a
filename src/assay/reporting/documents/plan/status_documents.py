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
from assay.planning.program.progress import Progress, RunActual, called_off
from assay.planning.simulation.delays import Delay, delays
from assay.planning.simulation.forecast import (
    MIN_MATCHING_SAMPLES,
    Alarm,
    ProgramEstimate,
    budget_by_day,
    remaining_by_day,
    unwatched,
)
from assay.planning.simulation.recommended_action import RecommendedAction, left_to_do, recommended_action
from assay.records.decision import Decision
from assay.reporting.charts.plan_figures import Actuals, gantt
from assay.reporting.charts.risk_figures import BudgetSeries, budget_figure
from assay.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Fact,
    FactList,
    Figure,
    Listing,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Tone,
    Verdict,
    figure,
    number,
    worst,
)
from assay.reporting.documents.plan.plan_documents import criterion_text
from assay.reporting.documents.plan.plan_summary import (
    deadline_text,
    outcome_table,
    outcome_tiles,
    owner_text,
)
from assay.reporting.views.forecast import ProgramEstimateView
from assay.reporting.views.statements import decision_text, requirement_text, seen_text
from assay.store.settings import HourPrice

FOOT = (
    "The past comes from the ledger (runs by their ids) and from the notes on people's work; the future is the "
    "program's simulation from today. Made by 'assay plan status' and 'assay plan review'."
)
NEXT_H = 14 * 24
"""Work that is expected to begin or end within this time is listed as next."""
SHOWN_DELAYS = 3
"""Delays named in the verdict; the table has all."""
WITHOUT_NOTES = "No notes were given (--notes): work of people, gates and events counts as not begun."


def weekly_status(
    found: ProgramEstimate,
    offer: Offer,
    spends: Sequence[Spend],
    price: HourPrice | None = None,
    notes: Progress | None = None,
    earlier: ProgramEstimateView | None = None,
) -> Document:
    """Return progress, forecast, delays and alarms, from the notes and the ledger; with `earlier`, also the changes
    since that status."""
    program, late = found.program, delays(found)
    to_act = [*_delays(found, late), _alarms(found, late), *_limits(found, notes)]
    return Document(
        name="weekly-status",
        title=f"Status: {program.title}",
        kind="weekly status",
        subtitle=f"{program.name} · {_today(found)}",
        verdict=_status_verdict(found, offer, late),
        tiles=_tiles(found, offer, price),
        sections=[
            Section("What to act on", to_act),
            Section(*_changes(found, offer, earlier)),
            Section("Schedule and what happened", [_schedule(found)], pages_only=True),
            Section("Next two weeks", [_next(found)]),
            Section("Forecast at completion", [outcome_table(found.outcome, price)]),
            Section("Device-hours", [_burn_down(found, spends), *_hours_tables(found)], pages_only=True),
            Section("Done", [_done(found)], pages_only=True),
        ],
        footer=FOOT,
    )


def review(found: ProgramEstimate, offer: Offer, decisions: Sequence[tuple[Decision, Path]] = ()) -> Document:
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
            Section("What to act on", [_alarms(found, [])]),
            Section("Verdicts of the gates", [_gate_table(found)]),
            *([Section("The evidence", evidence)] if evidence else []),
            Section("Cost", list(_costs(found)), pages_only=True),
            Section("Not done", list(_not_done(found)), pages_only=True),
        ],
        footer=FOOT,
    )


def _review_text(program: Program) -> str:
    if (review := program.decision.review) is None:
        return "after the decision"
    return f"{review} ({program.calendar.day_text(program.calendar.hour_of(review), begins=True)})"


# The status


def _today(found: ProgramEstimate) -> str:
    moment = found.program.calendar.date_of(round(found.now_h))
    day = f"{moment.day} {moment:%B %Y}"
    if found.now_h < 0:
        return f"{day}, before its first day"
    today = found.program.calendar.day_of(found.now_h, begins=True)
    return f"{day}, day {today}, week {int(found.now_h // 168) + 1}"


def _status_verdict(found: ProgramEstimate, offer: Offer, late: Sequence[Delay]) -> Verdict:
    program, outcome = found.program, found.outcome
    on_time, over = (outcome.probability_text(share) for share in (outcome.p_on_time(), outcome.p_over_budget()))
    sentence = (
        f"A decision by the {deadline_text(program)} has a probability of {on_time} (target "
        f"{percent_text(offer.target_on_time)}), exceeding the budget one of {over}. {_shift_text(found, offer)}"
    )
    causes = [
        f"'{delay.title}' is {delay.days():.1f} days late ({delay.cause}; owner: "
        f"{owner_text(program, delay.owner)}; now {program.calendar.date_text(delay.expected_h)})"
        for delay in late[:SHOWN_DELAYS]
    ]
    more = f"; and {number_of(len(late) - SHOWN_DELAYS, 'further delay')}" if len(late) > SHOWN_DELAYS else ""
    if causes:
        sentence += f" Late: {'; '.join(causes)}{more}."
    must_act = recommended_action(found).must_act
    delayed = number_of(len(late), "delay")
    word = _act_text(must_act) if must_act else delayed if late else "watch" if found.alarms else "on course"
    tone: Tone = "open" if late and _alarmed(found) == "good" else _alarmed(found)
    return Verdict(tone, word, sentence)


def _shift_text(found: ProgramEstimate, offer: Offer) -> str:
    """Return how the expected date has moved since the offer."""
    (now,) = found.outcome.decision_days(0.5)
    text = found.program.calendar.date_text(24 * now)
    days = now - offer.safety.decision_day.p50
    if abs(days) < 0.5:
        return f"The decision is expected on {text} (P50), as offered."
    direction = "later" if days > 0 else "earlier"
    return f"The decision is expected on {text} (P50), {abs(days):.1f} days {direction} than offered."


def _alarmed(found: ProgramEstimate) -> Tone:
    """Return the tone of the status, which bounds the review's."""
    return "bad" if recommended_action(found).must_act else "open" if found.alarms else "good"


def _act_text(alarms: Sequence[Alarm]) -> str:
    return f"{number_of(len(alarms), 'alarm')}: act"


def _tiles(found: ProgramEstimate, offer: Offer, price: HourPrice | None) -> list[Fact]:
    done = sum(actual.ended is not None for actual in found.progress.activities.values())
    cost = "" if price is None else f"; {price.of(found.spent)}"
    to_come = f"still expected of started activities: {found.to_come:,.4g}"
    budget = f"of {found.program.budget.device_hours:,.0f} device-hours"
    at_end, *others = outcome_tiles(found.outcome, offer.plan, price)
    return [
        *others,
        Fact("spent", f"{found.spent:,.4g}", f"{budget}; {to_come}{cost}"),
        Fact(f"{at_end.name} at completion", at_end.value, at_end.note),
        Fact("done", f"{done} of {len(found.program.nodes())}", "activities and gates"),
    ]


def _schedule(found: ProgramEstimate) -> Figure:
    """Return the planned schedule with what happened drawn over it."""
    program, plan, calendar = found.program, found.plan, found.program.calendar
    activities, verdicts = found.progress.activities, found.progress.verdicts
    nodes, spans, ends = program.nodes(), dict[str, tuple[float, float]](), dict[str, tuple[float, float]]()
    rows = []
    for item in plan.items:
        actual, began, ended = activities.get(item.name), "—", "—"
        if actual is not None:
            start_h = float(calendar.hour_of(actual.started))
            end_h = found.now_h if actual.ended is None else float(calendar.hour_of(actual.ended))
            spans[item.name] = (start_h, max(start_h, end_h))
            began = calendar.date_text(start_h, begins=True)
            ended = "in progress" if actual.ended is None else calendar.date_text(end_h)
        _, hours = found.outcome.span_h(item.name)
        expected = "—"
        if (actual is None or actual.ended is None) and hours.size:
            middle, late = np.quantile(hours, (0.5, 0.8)).tolist()
            ends[item.name] = (middle, late)
            expected = calendar.date_text(middle)
        planned = calendar.date_text(item.start_h, begins=True), calendar.date_text(item.end_h)
        rows.append(
            (nodes[item.name].title, *planned, began, ended, expected, ", then ".join(verdicts.get(item.name, ())))
        )
    actuals = Actuals(found.now_h, spans, {name: looks[-1] for name, looks in verdicts.items() if looks})
    dates = (Column(name, "name") for name in ("begins, planned", "ends, planned", "began", "ended", "ends (P50)"))
    return figure(
        lambda width: gantt(program, plan, width=width, ends=ends, actuals=actuals),
        title="Planned and actual",
        caption="Wide bars: the plan. Narrow bars: what happened until now, which the vertical line marks. Dots and "
        "lines: the P50 and P80 of each end that is still to come.",
        legend=[("s3", "people"), ("s1", "runs"), ("s2", "gates"), ("actual", "actual"), ("end-range", "P50 to P80")],
        table=Table(("what", *dates, "verdict"), rows),
    )


def _held_up(program: Program, progress: Progress, name: str) -> str:
    """Return the titles of unstarted work that waits for an activity, gate or event."""
    off = called_off(program, progress)
    waiting = [
        node.title
        for other, node in program.nodes().items()
        if other not in off and other not in progress.activities and name in {entry.name for entry in node.after}
    ]
    return ", ".join(waiting) or "—"


def _delays(found: ProgramEstimate, late: Sequence[Delay]) -> Iterator[Block]:
    program = found.program
    if late:
        date_text = program.calendar.date_text
        yield TitledTable.of(
            "Delays",
            "Later than planned, and other work waits for it.",
            late,
            ("what", lambda delay: delay.title),
            ("cause", lambda delay: delay.cause),
            ("owner", lambda delay: owner_text(program, delay.owner)),
            (number("days late"), lambda delay: f"{delay.days():.1f}"),
            (Column("planned", "name"), lambda delay: date_text(delay.planned_h)),
            (Column("now (P50)", "name"), lambda delay: date_text(delay.expected_h)),
            (Column("P80", "name"), lambda delay: date_text(delay.late_h)),
            ("holds up", lambda delay: _held_up(program, found.progress, delay.name)),
        )


def _alarms(found: ProgramEstimate, late: Sequence[Delay]) -> Block:
    """Return the alarms, without those that a listed delay explains."""
    named = {delay.name for delay in late}
    alarms = [alarm for alarm in found.alarms if alarm.level == "act" or alarm.what not in named]
    if not alarms:
        return Paragraph(
            "No alarm: the forecast meets the targets, and nothing is overdue."
            if not late
            else "No other alarm: the forecast meets the targets."
        )
    tones: dict[str, Tone] = {"act": "bad", "watch": "open"}
    table = Table(("level", "what"), [(Cell(alarm.level, tones[alarm.level]), alarm.text) for alarm in alarms])
    return TitledTable("Alarms", "", table)


def _limits(found: ProgramEstimate, notes: Progress | None) -> Iterator[Block]:
    """Yield what the forecast does not account for."""
    if notes is None:
        yield Paragraph(WITHOUT_NOTES)
    if not found.is_conditioned():
        yield Paragraph(
            f"The forecast does not learn from the verdicts: only {found.num_matching} of {found.num_samples:,} "
            f"simulations have the same verdicts, fewer than {MIN_MATCHING_SAMPLES}. All simulations are used, with "
            "the verdicts fixed, and the gain is believed as before them."
        )
    nodes = found.program.nodes()
    if guessed := [
        nodes[name].title for name, activity in found.in_progress.items() if nodes[name].runs and not activity.is_noted
    ]:
        yield Listing(guessed, title="Spending not noted: assumed as planned until today")
    if silent := unwatched(found):
        yield Listing(
            [f"{stop.title} ({stop.watch}): {owner_text(found.program, stop.owner)}" for stop in silent],
            title="Watched by the campaign's gates and their owners, not by this status",
            pages_only=True,
        )


def _changes(found: ProgramEstimate, offer: Offer, earlier: ProgramEstimateView | None) -> tuple[str, list[Block]]:
    """Return the title and blocks of what has changed since the earlier status, or since the offer."""
    calendar, outcome = found.program.calendar, found.outcome
    before, since_h, since = offer.safety, -np.inf, "the offer"
    if earlier is not None:
        before, since_h = earlier.forecast, calendar.hour_of(earlier.now)
        since = calendar.day_text(since_h, begins=True)
    middle = outcome.decision_days(0.5)[0]

    def change(name: str, then: str, now: str) -> Fact:
        return Fact(name, now if then == now else f"{then} → {now}", "unchanged" if then == now else "")

    facts = [
        change("decision (P50)", calendar.date_text(24 * before.decision_day.p50), calendar.date_text(24 * middle)),
        change("on time", before.probability_text(before.p_on_time), outcome.probability_text(outcome.p_on_time())),
        change(
            "over budget",
            before.probability_text(before.p_over_budget),
            outcome.probability_text(outcome.p_over_budget()),
        ),
        change(
            "device-hours at completion",
            f"{before.device_hours.p50:,.0f}",
            f"{float(np.median(outcome.device_hours)):,.0f}",
        ),
        Fact("spent", f"{found.spent - (earlier.spent_device_hours if earlier else 0.0):+,.4g}", "device-hours"),
    ]
    nodes, activities = found.program.nodes(), found.progress.activities.items()
    ended = [nodes[n].title for n, a in activities if a.ended is not None and calendar.hour_of(a.ended) > since_h]
    known = {alarm.text for alarm in earlier.alarms} if earlier is not None else set()
    new = [alarm.text for alarm in found.alarms if alarm.text not in known]
    blocks: list[Block] = [FactList(facts)]
    if earlier is not None and ended:
        blocks.append(Listing(ended, title="Ended since then"))
    if earlier is not None and new:
        blocks.append(Listing(new, title="New alarms"))
    return f"Changes since {since}", blocks


def _next(found: ProgramEstimate) -> Block:
    """Return what is in progress, and what is expected to begin within the next two weeks, with owner and dates."""
    program, until = found.program, found.now_h + NEXT_H
    off = called_off(program, found.progress)
    date_text, nodes, rows = program.calendar.date_text, program.nodes(), []
    for item in found.plan.items:
        actual = found.progress.activities.get(item.name)
        is_over = item.name in found.progress.verdicts or (actual is not None and actual.ended is not None)
        starts, ends = found.outcome.span_h(item.name)
        if is_over or item.name in off or not ends.size:
            continue
        begin_h = float(program.calendar.hour_of(actual.started)) if actual else float(np.median(starts))
        if begin_h >= until:
            continue
        middle, late = np.quantile(ends, (0.5, 0.8)).tolist()
        state = "in progress" if actual else "overdue" if item.start_h < found.now_h else "to begin"
        title, owner = nodes[item.name].title, owner_text(program, program.owners_of(item.name).responsible)
        begin = date_text(begin_h, begins=True)
        rows.append((begin_h, (title, owner, state, begin, date_text(item.end_h), date_text(middle), date_text(late))))
    if not rows:
        return Paragraph("Nothing is in progress or expected to begin.")
    dates = (Column(heading, "name") for heading in ("state", "begins (P50)", "planned end", "end (P50)", "end (P80)"))
    header: tuple[str | Column, ...] = ("what", "responsible", *dates)
    caption = "Overdue: planned to have begun by now. Dates are those of the simulations that complete it."
    return TitledTable("", caption, Table(header, [row for _, row in sorted(rows, key=lambda pair: pair[0])]))


def _done(found: ProgramEstimate) -> Block:
    calendar, nodes, lines = found.program.calendar, found.program.nodes(), []
    for name, actual in found.progress.activities.items():
        if actual.ended is None:
            continue
        parts = [f"ended {calendar.day_text(calendar.hour_of(actual.ended))}"]
        if actual.runs:
            failed = sum(run.num_failed for run in actual.runs)
            spent = found.in_progress[name].spent
            parts.append(f"{number_of(len(actual.runs), 'run')}, {spent:,.4g} device-hours")
            parts += [f"{number_of(failed, 'attempt')} failed"] if failed else []
        if name in found.progress.verdicts:
            parts.append(f"verdict: {', then '.join(found.progress.verdicts[name])}")
        lines.append(f"{nodes[name].title}: {', '.join(parts)}")
    return Listing(lines) if lines else Paragraph("Nothing has ended.")


def _burn_down(found: ProgramEstimate, spends: Sequence[Spend]) -> Block:
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
        caption="What is left of the budget: as planned, until today, and forecast (band: 80% of simulations). The "
        "dashed line is an empty budget.",
    )


def _hours_tables(found: ProgramEstimate) -> Iterator[Block]:
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
            "What the runs held their devices for; 'lost' was rolled back, 'unreported' is not reported yet.",
            sorted((part for part in by_phase.items() if part[1]), key=lambda part: -part[1]),
            ("category", lambda part: part[0]),
            ("device-hours", lambda part: f"{part[1]:,.4g}"),
            ("share", lambda part: percent_text(part[1] / total)),
        )


# The review


def _recommendation(found: ProgramEstimate) -> Verdict:
    action = recommended_action(found)
    word: str = action.word or "not decided yet"
    if action.must_act and action.word in (None, "scale"):
        word = f"{word}, {_act_text(action.must_act)}"
    tones: dict[str | None, Tone] = {"scale": "good", "stop": "ended"}
    tone = worst((tones.get(action.word, "open"), _alarmed(found)))
    spent = f"{found.spent:,.4g} of {found.program.budget.device_hours:,.0f} device-hours were spent"
    raised = [f"Raised: {alarm.text}" for alarm in action.raised]
    return Verdict(tone, word, " ".join([*raised, _of_gates(found, action, spent), *_not_over(found)]))


def _of_gates(found: ProgramEstimate, action: RecommendedAction, spent: str) -> str:
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


def _not_over(found: ProgramEstimate) -> Iterator[str]:
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


def _review_tiles(found: ProgramEstimate, offer: Offer) -> list[Fact]:
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


def _gate_table(found: ProgramEstimate) -> Block:
    rows = []
    for name, gate in found.program.gates.items():
        verdicts = found.progress.verdicts.get(name, ())
        reads = "—"
        if gate.evidence is not None:
            evidence = gate.evidence
            reads = f"{evidence.benchmark}: {criterion_text(evidence)}"
        dropped = [found.program.nodes()[drop].title for drop in gate.narrow.drops if "narrow" in verdicts]
        rows.append((gate.title, reads, ", then ".join(verdicts) or "not held", ", ".join(dropped) or "—"))
    return TitledTable("Gate by gate", "", Table(("gate", "reads", "verdict", "dropped by it"), rows))


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
        ("requires", lambda held: requirement_text(held[1])),
        ("seen", lambda held: seen_text(held[1])),
        ("verdict", lambda held: held[1].verdict),
    )


def _costs(found: ProgramEstimate) -> Iterator[Block]:
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


def _not_done(found: ProgramEstimate) -> Iterator[Block]:
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

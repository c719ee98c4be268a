"""Checks a program before scheduling: unknown names, cycles, impossible requirements.

Each problem names its key, the value, and what to do. Whether everything fits together is a question for the
solver (`planning/conflict`); a part that is impossible by itself is reported here.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.base.names import meant
from assay.base.units import number_of
from assay.planning.program.program import Program
from assay.planning.program.progress import Actual, Progress, called_off
from assay.planning.program.readable import UNREAD, is_touched
from assay.planning.program.risk import Away, BookingOverruns, Late, Longer, MoreWork
from assay.planning.program.work import GateRule, Node, ProgramGate, Verdict

WATCHED = ("device_hours", "decision_day", "failure_share", "gain")
"""What a stop condition may watch besides benchmarks."""


MOST = 1e12
"""Maximal number in a program: device-hours, items, points."""

MAX_DAYS = 3640
"""Maximal days of a calendar."""


class ProgramProblem(NamedTuple):
    """A rule that a program or its plan breaks."""

    key: str
    """Dotted key of the program."""

    message: str


def problems_of(program: Program, unread: Collection[str] = ()) -> Iterator[ProgramProblem]:
    """Yield every problem; a program with problems is not scheduled.

    `unread`: dotted keys left out because they could not be read; what depends on them is not reported.
    """
    if beyond := list(_beyond_measure("", program.model_dump(mode="json"))):
        yield from beyond  # with such numbers nothing can be counted on
        return
    sections = {key.partition(".")[0] for key in unread}
    yield from _dangling(program, {UNREAD, *sections, *(key.rpartition(".")[2] for key in unread)})
    yield from _triangles(program)
    yield from _twice_named(program)
    yield from _optional_and_needed(program)
    yield from unusable_run_counts(program, unread)
    if "calendar" not in sections:
        yield from _dates(program)
        yield from _booked_twice(program)
    yield from _cycles(program)
    yield from _too_few_people(program)
    if not sections & {"calendar", "capacity"}:
        yield from _too_few_devices(program)
    if "budget" not in sections:
        yield from short_budgets(program)


def strangers(program: Program, progress: Progress, unread: Collection[str] = ()) -> Iterator[ProgramProblem]:
    """Yield names in the progress, readable or not, that the program does not have."""
    nodes = program.nodes()
    for section, noted, known in (
        ("activities", progress.activities, nodes),
        ("events", progress.events, program.events),
        ("verdicts", progress.verdicts, program.gates),
    ):
        names = [*noted, *(key.split(".")[1] for key in unread if key.startswith(f"{section}."))]
        for name in dict.fromkeys(names):
            if name not in known:
                text = f"not in program '{program.name}'{meant(name, known)}."
                yield ProgramProblem(f"{section}.{name}", text)
    for name, actual in progress.activities.items():
        if actual.runs and name in nodes and nodes[name].runs is None:
            text = f"'{name}' is work of people and has no runs. Note its 'device_hours' instead."
            yield ProgramProblem(f"activities.{name}.runs", text)


def misfits(program: Program, progress: Progress, unread: Collection[str] = ()) -> Iterator[ProgramProblem]:
    """Yield notes that the program does not have, or that are impossible.

    `unread`: dotted keys left out because they could not be read; what depends on them is not reported.
    """
    yield from strangers(program, progress, unread)
    nodes, now = program.nodes(), None if "now" in unread else progress.now
    for name, actual in progress.activities.items():
        if name in nodes:
            yield from _misfits_of(program, name, actual, now)
            if not is_touched(f"activities.{name}.runs", unread):
                yield from _different_sums(name, actual)
    for name, verdicts in progress.verdicts.items():
        if name in program.gates:
            if not is_touched(f"verdicts.{name}", unread):
                yield from _invalid_looks(name, program.gates[name], verdicts)
            yield from _not_over(program, progress, name, now, unread)


def _beyond_measure(key: str, part: object) -> Iterator[ProgramProblem]:
    """Yield numbers that are too large for a program, and days of work beyond any calendar."""
    if isinstance(part, dict | list):
        named = part.items() if isinstance(part, dict) else enumerate(part)
        for name, value in named:
            yield from _beyond_measure(f"{key}.{name}".removeprefix("."), value)
    elif isinstance(part, int | float) and not isinstance(part, bool):
        most = MAX_DAYS if key.rpartition(".")[2] == "days" else MOST
        if abs(part) > most:
            yield ProgramProblem(key, f"expected {most:g} at most (given: {part:g}). Check its unit.")


def refuse(found: Iterable[ProgramProblem]) -> None:
    """Raise one `ConfigError` that lists all problems of a progress."""
    if lines := [f"{problem.key}: {problem.message}" for problem in found]:
        raise ConfigError("progress: " + "\n  ".join(lines))


def _misfits_of(program: Program, name: str, actual: Actual, now: str | None) -> Iterator[ProgramProblem]:
    hour_of, key = program.calendar.hour_of, f"activities.{name}"
    yield from _moments_out_of_order(program, key, actual.started, actual.ended, now)
    is_past = actual.expected_end is not None and now is not None and hour_of(actual.expected_end) <= hour_of(now)
    if is_past:
        text = f"{actual.expected_end} is past ({now}), and it goes on. Say when it is expected now, or nothing."
        yield ProgramProblem(f"{key}.expected_end", text)
    for index, run in enumerate(actual.runs):
        yield from _moments_out_of_order(program, f"{key}.runs.{index}", run.started, run.ended, now)
        if actual.ended is not None and run.ended is None:
            text = f"goes on, and '{name}' has ended ({actual.ended}). Say when the run ended."
            yield ProgramProblem(f"{key}.runs.{index}", text)


def _different_sums(name: str, actual: Actual) -> Iterator[ProgramProblem]:
    held = sum(run.device_hours for run in actual.runs)
    if not actual.runs or actual.device_hours is None:
        return
    if abs(held - actual.device_hours) > 1e-6 * max(held, 1.0):
        text = f"{actual.device_hours:g}, and its runs sum to {held:g}. Leave one of the two out."
        yield ProgramProblem(f"activities.{name}.device_hours", text)


def _moments_out_of_order(
    program: Program, key: str, started: str, ended: str | None, now: str | None
) -> Iterator[ProgramProblem]:
    hour_of = program.calendar.hour_of
    for what, moment in (("started", started), ("ended", ended)):
        if moment is not None and now is not None and hour_of(moment) > hour_of(now):
            yield ProgramProblem(f"{key}.{what}", f"{moment} lies after now ({now}).")
    if ended is not None and hour_of(ended) < hour_of(started):
        yield ProgramProblem(f"{key}.ended", f"{ended} lies before its start ({started}). Swap them.")


def _invalid_looks(name: str, gate: ProgramGate, verdicts: Sequence[Verdict]) -> Iterator[ProgramProblem]:
    key, looks = f"verdicts.{name}", 1 + (gate.again.at_most if gate.again else 0)
    if not verdicts:
        yield ProgramProblem(key, "says nothing. Leave it out until the gate has been held.")
    elif any(verdict != "again" for verdict in verdicts[:-1]):
        text = f"{', then '.join(verdicts)}: it is held once more only after 'again'. Note the one that holds."
        yield ProgramProblem(key, text)
    elif gate.again is None and "again" in verdicts:
        text = "'again', and the gate repeats nothing (it has no 'again'). Note pass, narrow or stop."
        yield ProgramProblem(key, text)
    elif len(verdicts) > looks:
        text = f"{len(verdicts)} verdicts; the gate may be held {looks} times. Leave out those that were not said."
        yield ProgramProblem(key, text)


def _not_over(
    program: Program, progress: Progress, name: str, now: str | None, unread: Collection[str]
) -> Iterator[ProgramProblem]:
    """Yield predecessors of a gate with a verdict that have not ended."""
    hour_of, off = program.calendar.hour_of, called_off(program, progress)
    for dependency in program.gates[name].after:
        before = dependency.name
        actual = progress.activities.get(before)
        if any(is_touched(f"{section}.{before}", unread) for section in ("activities", "events")):
            continue
        if before in program.events:
            came = progress.events.get(before)
            if came is None or (now is not None and hour_of(came) > hour_of(now)):
                text = f"'{before}', which it waits for, has not come (events.{before})."
                yield ProgramProblem(f"verdicts.{name}", f"{text} Say when it came, or leave the verdict out.")
        elif before not in off and (actual is None or (dependency.of == "end" and actual.ended is None)):
            text = f"'{before}', which it judges, is not over (activities.{before}.ended)."
            yield ProgramProblem(f"verdicts.{name}", f"{text} Say when it ended, or leave the verdict out.")


def unawaited(program: Program) -> list[str]:
    """Return activities and gates that the decision does not wait for, directly or indirectly; usually a
    mistake."""
    nodes = program.nodes()
    pending, awaited = [program.decision.decided_by], set[str]()
    while pending:
        name = pending.pop()
        if name in nodes and name not in awaited:
            awaited.add(name)
            pending.extend(dependency.name for dependency in nodes[name].after)
    return [name for name in nodes if name not in awaited]


# Names that lead nowhere

_Reference = tuple[str, str, Collection[str], str]
"""(key, name, allowed names, what these are)."""


def _dangling(program: Program, unread: Collection[str]) -> Iterator[ProgramProblem]:
    references = (_named_by_work, _named_by_gates, _named_by_owners, _named_by_risks)
    for key, name, known, what in itertools.chain.from_iterable(reference(program) for reference in references):
        if name not in known and name not in unread:
            yield ProgramProblem(key, f"'{name}' is no {what}{meant(name, known)}.")


def _named_by_work(program: Program) -> Iterator[_Reference]:
    nodes = program.nodes()
    known = [*nodes, *program.events]
    for node in nodes.values():
        yield f"{node.key}.stage", node.stage, program.stages, "stage of this program"
        for index, dependency in enumerate(node.after):
            key = f"{node.key}.after.{index}"
            yield key, dependency.name, known, "activity, gate or event of this program"
        for where, people in _people_of(node):
            for person in people:
                yield f"{where}.{person}", person, program.team, "role or person of the team"
    yield "decision.decided_by", program.decision.decided_by, nodes, "activity or gate of this program"
    for name, role in program.team.items():
        if role.part_of is not None:
            yield f"team.{name}.part_of", role.part_of, program.team, "role of the team"
    for stage in program.budget.stages:
        yield f"budget.stages.{stage}", stage, program.stages, "stage of this program"


def _people_of(node: Node) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield (key, people) of each alternative."""
    for index, work in enumerate(node.work):
        yield f"{node.key}.people" if node.is_gate else f"{node.key}.work.{index}.people", work.people
    if node.runs:
        yield f"{node.key}.runs.people", node.runs.people


def _named_by_gates(program: Program) -> Iterator[_Reference]:
    runs = [name for name, activity in program.activities.items() if activity.runs]
    for name, gate in program.gates.items():
        key = f"gates.{name}"
        if gate.evidence is not None:
            benchmark = gate.evidence.benchmark
            yield f"{key}.evidence.benchmark", benchmark, program.benchmarks, "benchmark of this program"
            yield f"{key}.evidence.runs", gate.evidence.runs, runs, "activity with runs"
            for field, name in _rule_benchmarks(gate.evidence.rule) if gate.evidence.rule else ():
                kind = "benchmark of this program"
                yield f"{key}.evidence.rule.{field}", name, program.benchmarks, kind
        for field, names in (
            ("narrow.drops", gate.narrow.drops),
            ("again.activities", gate.again.activities if gate.again else ()),
            ("stop_goes_to", gate.stop_goes_to),
        ):
            for index, other in enumerate(names):
                yield f"{key}.{field}.{index}", other, program.activities, "activity"
    if program.pilot is not None:
        yield "pilot.benchmark", program.pilot.benchmark, program.benchmarks, "benchmark"
    watched = [*program.benchmarks, *WATCHED]
    for name, stop in program.stops.items():
        yield f"stops.{name}.watch", stop.watch, watched, "benchmark, nor anything else to watch"


def _rule_benchmarks(rule: GateRule) -> Iterator[tuple[str, str]]:
    """Yield (key, benchmark) of the other clauses of a campaign's rule."""
    yield from (("guardrails", guardrail.benchmark) for guardrail in rule.guardrails)
    yield from (("safety", limit.benchmark) for limit in rule.safety)


def _named_by_owners(program: Program) -> Iterator[_Reference]:
    owners = [(f"stages.{name}.owners", stage.owners) for name, stage in program.stages.items()]
    owners += [(f"{node.key}.owners", node.owners) for node in program.nodes().values() if node.owners]
    named = []
    for key, raci in owners:
        named += [(f"{key}.responsible", raci.responsible), (f"{key}.accountable", raci.accountable)]
        named += [(f"{key}.consulted.{index}", name) for index, name in enumerate(raci.consulted)]
        named += [(f"{key}.informed.{index}", name) for index, name in enumerate(raci.informed)]
    named += [(f"risks.{name}.owner", risk.owner) for name, risk in program.risks.items()]
    named += [(f"stops.{name}.owner", stop.owner) for name, stop in program.stops.items()]
    known = [*program.team, *program.stakeholders]
    for key, name in named:
        yield key, name, known, "member of the team or stakeholder"


def _named_by_risks(program: Program) -> Iterator[_Reference]:
    for name, risk in program.risks.items():
        key, effect = f"risks.{name}.effect", risk.effect
        if isinstance(effect, Late):
            yield f"{key}.what", effect.what, [*program.events, *program.activities], "event or activity"
        elif isinstance(effect, Longer | MoreWork):
            known = [*program.activities, *program.stages, *program.gates]
            for index, what in enumerate(effect.what):
                yield f"{key}.what.{index}", what, known, "activity or stage"
        elif isinstance(effect, BookingOverruns):
            yield f"{key}.booking", effect.booking, program.capacity.bookings, "booking"
        elif isinstance(effect, Away):
            yield f"{key}.role", effect.role, program.team, "role of the team"


# What one part alone shows to be wrong


def _triangles(program: Program) -> Iterator[ProgramProblem]:
    for name, risk in program.risks.items():
        for triangle in ("days", "factor", "fraction", "points"):
            values = list(getattr(risk.effect, triangle, ()))
            if values != sorted(values):
                key = f"risks.{name}.effect.{triangle}"
                yield ProgramProblem(key, f"{values}: expected least, most likely, most.")


def _twice_named(program: Program) -> Iterator[ProgramProblem]:
    seen: dict[str, str] = {}
    for section in ("activities", "gates", "events"):
        for name in getattr(program, section):
            if name in seen:
                yield ProgramProblem(
                    f"{section}.{name}",
                    f"'{name}' also stands in '{seen[name]}'; 'after: [{name}]' could mean either. Rename one.",
                )
            seen[name] = section
    for name in program.stakeholders:
        if name in program.team:
            yield ProgramProblem(f"stakeholders.{name}", f"'{name}' is in the team already. Rename or remove one.")


def _optional_and_needed(program: Program) -> Iterator[ProgramProblem]:
    needed = {program.decision.decided_by: "it makes the decision"}
    for name, gate in program.gates.items():
        if gate.evidence is not None:
            needed[gate.evidence.runs] = f"gate '{name}' judges by its runs"
    for name, activity in program.activities.items():
        if activity.optional and name in needed:
            text = f"the program cannot do without it: {needed[name]}. Remove 'optional'."
            yield ProgramProblem(f"activities.{name}.optional", text)


def _dates(program: Program) -> Iterator[ProgramProblem]:
    calendar, horizon = program.calendar, program.calendar.horizon_h()
    spans = [(f"capacity.bookings.{n}", b.since, b.until) for n, b in program.capacity.bookings.items()]
    for name, role in program.team.items():
        spans += [(f"team.{name}.away.{i}", a.since, a.until) for i, a in enumerate(role.away)]
    for key, since, until in spans:
        if calendar.hour_of(since) >= calendar.hour_of(until):
            yield ProgramProblem(key, f"ends ({until}) before it begins ({since}). Swap them.")
    yield from _dates_out_of_order(program)
    moments = [("decision.by", program.decision.by)]
    moments += [(f"events.{name}.at", event.at) for name, event in program.events.items()]
    for node in program.nodes().values():
        dates = (("not_before", node.not_before), ("due", node.due))
        moments += [(f"{node.key}.{field}", moment) for field, moment in dates if moment]
    for key, moment in moments:
        if not 0 <= calendar.hour_of(moment) <= horizon:
            yield ProgramProblem(
                key,
                f"'{moment}' lies outside the calendar, which runs from {calendar.start} for "
                f"{number_of(calendar.weeks, 'week')}. Move it, or give calendar.weeks more.",
            )


def _dates_out_of_order(program: Program) -> Iterator[ProgramProblem]:
    hour_of, decision = program.calendar.hour_of, program.decision
    for node in program.nodes().values():
        if node.not_before and node.due and hour_of(node.due) <= hour_of(node.not_before):
            yield ProgramProblem(
                f"{node.key}.due",
                f"is due ({node.due}) before it may begin ({node.not_before}). Move one of the two.",
            )
    if decision.review and hour_of(decision.review) < hour_of(decision.by):
        yield ProgramProblem(
            "decision.review",
            f"is presented ({decision.review}) before it must stand ({decision.by}). Move one of the two.",
        )


def unusable_run_counts(program: Program, unread: Collection[str] = ()) -> Iterator[ProgramProblem]:
    """Yield activities whose runs do not divide among a gate's arms, or do not reach its first look."""
    for name, gate in program.gates.items():
        evidence = gate.evidence
        activity = program.activities.get(evidence.runs) if evidence is not None else None
        if evidence is None or activity is None or activity.runs is None:
            continue
        key, count, arms = f"activities.{evidence.runs}.runs.count", activity.runs.count, evidence.arms
        if is_touched(key, unread):
            continue
        least = arms * evidence.least_seeds
        if count % arms or count < least:
            what = "no whole number of seeds" if count % arms else "too few seeds"
            text = f"{number_of(count, 'run')} of {arms} arms: {what} for gate '{name}', which reads them"
            first = "" if evidence.rule is None else f" first at {evidence.least_seeds} of each"
            yield ProgramProblem(key, f"{text}{first}. Give a multiple of {arms}, {least} or more.")


def why_nothing_passes(program: Program) -> Iterator[str]:
    """Yield reasons why gates can never pass, whatever the gain; options may have left them too few runs."""
    yield from (f"{run.key}: {run.message}" for run in unusable_run_counts(program))
    for name, gate in program.gates.items():
        if gate.evidence is not None and gate.evidence.runs not in program.activities:
            yield f"gate '{name}' reads the runs of '{gate.evidence.runs}', which is left out: it says narrow."
        if gate.evidence is not None and gate.evidence.rule is not None:
            yield from _unprovable_rates(program, name, gate.evidence.rule)


def _unprovable_rates(program: Program, gate: str, rule: GateRule) -> Iterator[str]:
    from assay.statistics.failure_rate import trials_needed  # scipy, that few programs need

    for mode in rule.safety:
        items, needed = program.benchmarks[mode.benchmark].items, trials_needed(mode.max_rate)
        if items < needed:
            yield (
                f"gate '{gate}' never passes: {number_of(items, 'item')} of '{mode.benchmark}' without a "
                f"failure do not show a rate of at most {100 * mode.max_rate:g}%. It takes {needed:,} "
                f"(benchmarks.{mode.benchmark}.items)."
            )


def _cycles(program: Program) -> Iterator[ProgramProblem]:
    """Yield one cycle for each set of nodes that wait for one another."""
    nodes = program.nodes()
    over: set[str] = set()
    for name in nodes:
        stack: list[str] = []
        circle = _circle(nodes, name, stack, over)
        # Whoever led to a circle is looked at no more: it would be found again.
        over |= set(stack)
        if circle:
            yield ProgramProblem(
                f"{nodes[circle[0]].key}.after",
                f"a circle: {' waits for '.join(circle)}. Remove one of these from its 'after'.",
            )


def _circle(nodes: Mapping[str, Node], name: str, stack: list[str], over: set[str]) -> list[str]:
    """Return the first cycle reachable from `name`, with its start repeated at the end; `stack` is the path
    to `name`."""
    if name in stack:
        return [*stack[stack.index(name) :], name]
    if name in over or name not in nodes:
        return []
    stack.append(name)
    for dependency in nodes[name].after:
        if circle := _circle(nodes, dependency.name, stack, over):
            return circle
    over.add(stack.pop())
    return []


def _too_few_people(program: Program) -> Iterator[ProgramProblem]:
    for node in program.nodes().values():
        options = [
            [
                (f"{key}.{person}", fte, program.team[person].fte)
                for person, fte in people.items()
                if person in program.team
            ]
            for key, people in _people_of(node)
        ]
        short = [[entry for entry in option if entry[1] > entry[2] + 1e-9] for option in options]
        if short and all(short):
            key, fte, available = short[0][0]
            hint = "Ask for less, over more days." if node.work else "Ask for less."
            yield ProgramProblem(key, f"asks for {fte:g} where the team has {available:g}. {hint}")


def _booked_twice(program: Program) -> Iterator[ProgramProblem]:
    """Yield named people whose activities are fixed by dates to the same days."""
    fixed = []
    for node in program.nodes().values():
        if len(node.work) != 1 or not node.not_before or not node.due:
            continue
        begin, end = (program.calendar.hour_of(moment) for moment in (node.not_before, node.due))
        room = sum(1 for since, until in program.calendar.half_days() if since >= begin and until <= end)
        if room == round(2 * node.work[0].days):
            fixed.append((node, begin, end, node.work[0].people))
    for (node, begin, end, people), (other, since, until, others) in itertools.combinations(fixed, 2):
        for person in sorted(people.keys() & others.keys() & program.team.keys()):
            available = program.team[person].fte
            if begin < until and since < end and people[person] + others[person] > available + 1e-9:
                yield ProgramProblem(
                    f"{other.key}.work",
                    f"'{person}' is booked twice: '{node.name}' takes {people[person]:g} and '{other.name}' "
                    f"{others[person]:g} on the same days, and there is {available:g}. "
                    "Move a date, or name somebody else.",
                )


def _too_few_devices(program: Program) -> Iterator[ProgramProblem]:
    capacity = program.capacity
    free = max(capacity.free_devices(program.calendar))
    rule = capacity.fair_use
    for name, activity in program.activities.items():
        if activity.runs is None:
            continue
        key, modes = f"activities.{name}.runs", activity.runs.all_modes()
        fits = [mode for mode in modes if mode.devices <= free]
        if not fits:
            yield ProgramProblem(
                key,
                f"needs {number_of(modes[0].devices, 'device')}; never more than {free} are free. "
                "Offer a smaller mode.",
            )
        elif rule is not None and rule.segments == "forbidden":
            least = min(fits, key=lambda mode: mode.hours)
            if all(m.hours > rule.max_hours and m.devices > rule.share * capacity.devices for m in fits):
                yield ProgramProblem(
                    key,
                    f"every mode holds more than {rule.share:.0%} of {capacity.devices} devices for more than "
                    f"{rule.max_hours} h (the shortest: {least.devices} devices for {least.hours} h). Offer "
                    f"at most {int(rule.share * capacity.devices)} devices, or let runs give way and go on "
                    "(capacity.fair_use.segments: chained).",
                )


def short_budgets(program: Program) -> Iterator[ProgramProblem]:
    """Yield budgets below the minimum of the runs."""
    least = {
        name: activity.runs.count * min(mode.devices * mode.hours for mode in activity.runs.all_modes())
        for name, activity in program.activities.items()
        if activity.runs
    }
    budget, total = program.budget, sum(least.values())
    plannable = budget.plannable_device_hours()
    if total > plannable + 1e-9:
        largest = sorted(least, key=lambda name: -least[name])[:3]
        reserve = f" less the reserve of {budget.reserve:.0%}" if budget.reserve else ""
        yield ProgramProblem(
            "budget.device_hours",
            f"cannot fit: the runs need at least {total:,} device-hours, {plannable:,.0f} may be planned "
            f"({budget.device_hours:,.0f}{reserve}). Free {total - plannable:,.0f}: the largest are "
            + ", ".join(f"{name} ({least[name]:,})" for name in largest)
            + ".",
        )
    for stage, most in budget.stages.items():
        spent = sum(hours for name, hours in least.items() if program.activities[name].stage == stage)
        if spent > most + 1e-9:
            yield ProgramProblem(
                f"budget.stages.{stage}",
                f"cannot fit: the stage's runs need at least {spent:,} device-hours, {most:,.0f} are given.",
            )

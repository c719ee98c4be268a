"""What is wrong with a program before any schedule is sought: dangling names, circles, the impossible.

Each problem names its key, what was seen and what to do. Whether everything fits together is a question for the
solver (`planning/conflict`); what one part alone shows to be impossible is answered here, at once.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from assay.planning.program.program import Program, meant
from assay.planning.program.risk import Away, BookingOverruns, Late, Longer, MoreWork
from assay.planning.program.work import Node, Owners

WATCHED = ("device_hours", "decision_day", "failure_share", "gain")
"""What a stop condition may watch besides benchmarks."""


class ProgramMistake(NamedTuple):
    """Something wrong with a program."""

    key: str
    """Dotted key of the program."""

    message: str


def problems_of(program: Program) -> Iterator[ProgramMistake]:
    """Everything that is wrong with it; a schedule may be sought only where there is nothing."""
    dangling = [*_dangling_work(program), *_dangling_gates(program), *_dangling_owners(program)]
    dangling += [*_dangling_risks(program), *_twice_named(program)]
    yield from dangling
    yield from _dates(program)
    if dangling:
        return  # what follows reads the names
    yield from _cycles(program)
    yield from _people_that_are_not_there(program)
    yield from _booked_twice(program)
    yield from _devices_that_are_not_there(program)
    yield from _budget(program)


def unawaited(program: Program) -> list[str]:
    """Activities and gates that the decision does not wait for, not even by way of others: seldom meant."""
    nodes = program.nodes()
    pending, awaited = [program.decision.made_by], set[str]()
    while pending:
        name = pending.pop()
        if name in nodes and name not in awaited:
            awaited.add(name)
            pending.extend(dependency.name for dependency in nodes[name].after)
    return [name for name in nodes if name not in awaited]


def _section(program: Program, name: str) -> str:
    return f"activities.{name}" if name in program.activities else f"gates.{name}"


def _unknown(key: str, name: str, known: Iterable[str], what: str) -> Iterator[ProgramMistake]:
    known = list(known)
    if name not in known:
        yield ProgramMistake(key, f"'{name}' is no {what}{meant(name, known)}.")


def _dangling_work(program: Program) -> Iterator[ProgramMistake]:
    nodes = program.nodes()
    for name, node in nodes.items():
        key = _section(program, name)
        yield from _unknown(f"{key}.stage", node.stage, program.stages, "stage of this program")
        for index, dependency in enumerate(node.after):
            known = [*nodes, *program.events]
            yield from _unknown(
                f"{key}.after.{index}", dependency.name, known, "activity, gate or event of this program"
            )
        for where, people in _people_of(program, node):
            for person in people:
                yield from _unknown(f"{where}.{person}", person, program.team, "role or person of the team")
    yield from _unknown("decision.made_by", program.decision.made_by, nodes, "activity or gate of this program")
    for name, role in program.team.items():
        if role.part_of is not None:
            yield from _unknown(f"team.{name}.part_of", role.part_of, program.team, "role of the team")
    for stage in program.budget.stages:
        yield from _unknown(f"budget.stages.{stage}", stage, program.stages, "stage of this program")


def _people_of(program: Program, node: Node) -> Iterator[tuple[str, Collection[str]]]:
    key = _section(program, node.name)
    if node.is_gate:
        yield f"{key}.people", node.work[0].people
        return
    for index, work in enumerate(node.work):
        yield f"{key}.work.{index}.people", work.people
    if node.runs:
        yield f"{key}.runs.people", node.runs.people


def _dangling_gates(program: Program) -> Iterator[ProgramMistake]:
    for name, gate in program.gates.items():
        key = f"gates.{name}"
        if gate.evidence is not None:
            evidence = gate.evidence
            yield from _unknown(
                f"{key}.evidence.benchmark", evidence.benchmark, program.benchmarks, "benchmark of this program"
            )
            runs = [other for other, activity in program.activities.items() if activity.runs]
            yield from _unknown(f"{key}.evidence.runs", evidence.runs, runs, "activity with runs")
        for field, names in (
            ("narrow.drops", gate.narrow.drops),
            ("again.repeats", gate.again.repeats if gate.again else ()),
            ("stop_goes_to", gate.stop_goes_to),
        ):
            for index, other in enumerate(names):
                yield from _unknown(f"{key}.{field}.{index}", other, program.activities, "activity")
    if program.pilot is not None:
        yield from _unknown("pilot.benchmark", program.pilot.benchmark, program.benchmarks, "benchmark")
    for name, stop in program.stops.items():
        known = [*program.benchmarks, *WATCHED]
        yield from _unknown(f"stops.{name}.watch", stop.watch, known, "benchmark, nor anything else to watch")


def _dangling_owners(program: Program) -> Iterator[ProgramMistake]:
    known = [*program.team, *program.stakeholders]

    def check(key: str, owners: Owners) -> Iterator[ProgramMistake]:
        named = [("responsible", owners.responsible), ("accountable", owners.accountable)]
        named += [(f"consulted.{index}", name) for index, name in enumerate(owners.consulted)]
        named += [(f"informed.{index}", name) for index, name in enumerate(owners.informed)]
        for field, name in named:
            yield from _unknown(f"{key}.{field}", name, known, "member of the team or stakeholder")

    for name, stage in program.stages.items():
        yield from check(f"stages.{name}.owners", stage.owners)
    for name in program.nodes():
        item = program.activities[name] if name in program.activities else program.gates[name]
        if item.owners is not None:
            yield from check(f"{_section(program, name)}.owners", item.owners)
    owned = {f"risks.{name}.owner": risk.owner for name, risk in program.risks.items()}
    owned |= {f"stops.{name}.owner": stop.owner for name, stop in program.stops.items()}
    for key, owner in owned.items():
        yield from _unknown(key, owner, known, "member of the team or stakeholder")


def _dangling_risks(program: Program) -> Iterator[ProgramMistake]:
    for name, risk in program.risks.items():
        key, effect = f"risks.{name}.effect", risk.effect
        if isinstance(effect, Late):
            known = [*program.events, *program.activities]
            yield from _unknown(f"{key}.what", effect.what, known, "event or activity")
        elif isinstance(effect, Longer | MoreWork):
            known = [*program.activities, *program.stages, *program.gates]
            for index, what in enumerate(effect.what):
                yield from _unknown(f"{key}.what.{index}", what, known, "activity or stage")
        elif isinstance(effect, BookingOverruns):
            yield from _unknown(f"{key}.booking", effect.booking, program.capacity.bookings, "booking")
        elif isinstance(effect, Away):
            yield from _unknown(f"{key}.role", effect.role, program.team, "role of the team")
        for triangle in ("days", "factor", "fraction", "points"):
            values = getattr(effect, triangle, (0, 0, 0))
            if list(values) != sorted(values):
                yield ProgramMistake(f"{key}.{triangle}", f"{list(values)}: expected least, most likely, most.")


def _twice_named(program: Program) -> Iterator[ProgramMistake]:
    sections = {
        "activities": list(program.activities),
        "gates": list(program.gates),
        "events": list(program.events),
    }
    seen: dict[str, str] = {}
    for section, names in sections.items():
        for name in names:
            if name in seen:
                yield ProgramMistake(
                    f"{section}.{name}",
                    f"'{name}' also stands in '{seen[name]}'; 'after: [{name}]' could mean either. Rename one.",
                )
            seen[name] = section
    for name in program.stakeholders:
        if name in program.team:
            yield ProgramMistake(
                f"stakeholders.{name}", f"'{name}' is in the team already. Rename or remove one."
            )


def _dates(program: Program) -> Iterator[ProgramMistake]:
    calendar, horizon = program.calendar, program.calendar.horizon_h()
    spans = [(f"capacity.bookings.{n}", b.since, b.until) for n, b in program.capacity.bookings.items()]
    for name, role in program.team.items():
        spans += [(f"team.{name}.away.{i}", a.since, a.until) for i, a in enumerate(role.away)]
    for key, since, until in spans:
        if calendar.hour_of(since) >= calendar.hour_of(until):
            yield ProgramMistake(key, f"ends ({until}) before it begins ({since}). Swap them.")
    yield from _dates_out_of_order(program)
    moments = [("decision.by", program.decision.by)]
    moments += [(f"events.{name}.at", event.at) for name, event in program.events.items()]
    for name, node in program.nodes().items():
        key = _section(program, name)
        moments += [(f"{key}.{k}", m) for k, m in (("not_before", node.not_before), ("due", node.due)) if m]
    for key, moment in moments:
        if not 0 <= calendar.hour_of(moment) <= horizon:
            yield ProgramMistake(
                key,
                f"'{moment}' lies outside the calendar, which runs from {calendar.start} for {calendar.weeks} "
                "weeks. Move it, or give calendar.weeks more.",
            )


def _dates_out_of_order(program: Program) -> Iterator[ProgramMistake]:
    hour_of, decision = program.calendar.hour_of, program.decision
    for name, node in program.nodes().items():
        if node.not_before and node.due and hour_of(node.due) <= hour_of(node.not_before):
            yield ProgramMistake(
                f"{_section(program, name)}.due",
                f"is due ({node.due}) before it may begin ({node.not_before}). Move one of the two.",
            )
    if decision.review and hour_of(decision.review) < hour_of(decision.by):
        yield ProgramMistake(
            "decision.review",
            f"is presented ({decision.review}) before it must stand ({decision.by}). Move one of the two.",
        )


def _cycles(program: Program) -> Iterator[ProgramMistake]:
    """One circle for each set of activities and gates that wait for one another."""
    nodes = program.nodes()
    over: set[str] = set()
    for name in nodes:
        stack: list[str] = []
        circle = _circle(nodes, name, stack, over)
        # Whoever led to a circle is looked at no more: it would be found again.
        over |= set(stack)
        if circle:
            yield ProgramMistake(
                f"{_section(program, circle[0])}.after",
                f"a circle: {' waits for '.join(circle)}. Remove one of these from its 'after'.",
            )


def _circle(nodes: Mapping[str, Node], name: str, stack: list[str], over: set[str]) -> list[str]:
    """Of what `name` waits for, the first circle, its beginning once more at its end; `stack` leads there."""
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


def _people_that_are_not_there(program: Program) -> Iterator[ProgramMistake]:
    for name, node in program.nodes().items():
        if node.runs is not None:
            ways = [(f"{_section(program, name)}.runs.people", node.runs.people)]
        else:
            ways = [
                (key, work.people) for (key, _), work in zip(_people_of(program, node), node.work, strict=True)
            ]
        short = [
            (f"{key}.{person}", fte, program.team[person].fte)
            for key, people in ways
            for person, fte in people.items()
            if fte > program.team[person].fte + 1e-9
        ]
        if len({key.rsplit(".", 1)[0] for key, _, _ in short}) == len(ways):
            key, fte, there = short[0]
            cure = "Ask for less, over more days." if node.work else "Ask for less."
            yield ProgramMistake(key, f"asks for {fte:g} where the team has {there:g}. {cure}")


def _booked_twice(program: Program) -> Iterator[ProgramMistake]:
    """Named people whose activities are pinned by dates onto the same days."""
    fixed = []
    for name, node in program.nodes().items():
        if len(node.work) != 1 or not node.not_before or not node.due:
            continue
        begin, end = (program.calendar.hour_of(moment) for moment in (node.not_before, node.due))
        room = sum(1 for since, until in program.calendar.half_days() if since >= begin and until <= end)
        if room == round(2 * node.work[0].days):
            fixed.append((name, begin, end, node.work[0].people))
    for index, (name, begin, end, people) in enumerate(fixed):
        for other, since, until, others in fixed[index + 1 :]:
            for person in people.keys() & others.keys():
                wanted = people[person] + others[person]
                if begin < until and since < end and wanted > program.team[person].fte + 1e-9:
                    yield ProgramMistake(
                        f"{_section(program, other)}.work",
                        f"'{person}' is booked twice: '{name}' takes {people[person]:g} and '{other}' "
                        f"{others[person]:g} on the same days, and there is {program.team[person].fte:g}. "
                        "Move a date, or name somebody else.",
                    )


def _devices_that_are_not_there(program: Program) -> Iterator[ProgramMistake]:
    capacity = program.capacity
    free = max(capacity.free_devices(program.calendar))
    rule = capacity.fair_use
    for name, activity in program.activities.items():
        if activity.runs is None:
            continue
        key, ways = f"activities.{name}.runs", activity.runs.ways()
        fits = [mode for mode in ways if mode.devices <= free]
        if not fits:
            yield ProgramMistake(
                key, f"needs {ways[0].devices} devices; never more than {free} are free. Offer a smaller mode."
            )
        elif rule is not None and rule.segments == "forbidden":
            least = min(fits, key=lambda mode: mode.hours)
            if all(m.hours > rule.max_hours and m.devices > rule.share * capacity.devices for m in fits):
                yield ProgramMistake(
                    key,
                    f"every mode holds more than {rule.share:.0%} of {capacity.devices} devices for more than "
                    f"{rule.max_hours} h (the shortest: {least.devices} devices for {least.hours} h). Offer "
                    f"at most {int(rule.share * capacity.devices)} devices, or let runs give way and go on "
                    "(capacity.fair_use.segments: chained).",
                )


def _budget(program: Program) -> Iterator[ProgramMistake]:
    least = {
        name: activity.runs.count * min(mode.devices * mode.hours for mode in activity.runs.ways())
        for name, activity in program.activities.items()
        if activity.runs
    }
    budget, total = program.budget, sum(least.values())
    plannable = budget.plannable_device_hours()
    if total > plannable + 1e-9:
        largest = sorted(least, key=lambda name: -least[name])[:3]
        reserve = f" less the reserve of {budget.reserve:.0%}" if budget.reserve else ""
        yield ProgramMistake(
            "budget.device_hours",
            f"cannot fit: the runs need at least {total:,} device-hours, {plannable:,.0f} may be planned "
            f"({budget.device_hours:,.0f}{reserve}). Free {total - plannable:,.0f}: the largest are "
            + ", ".join(f"{name} ({least[name]:,})" for name in largest)
            + ".",
        )
    for stage, most in budget.stages.items():
        spent = sum(hours for name, hours in least.items() if program.activities[name].stage == stage)
        if spent > most + 1e-9:
            yield ProgramMistake(
                f"budget.stages.{stage}",
                f"cannot fit: the stage's runs need at least {spent:,} device-hours, {most:,.0f} are given.",
            )

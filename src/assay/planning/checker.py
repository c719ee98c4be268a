"""Checks a plan hour by hour, using only the program and the plan.

It deliberately shares no code with the solver (neither the compiled problem nor its calendar arithmetic), so
that a bug there is found here.
"""

import datetime
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from assay.base.units import number_of
from assay.planning.program.checks import ProgramProblem
from assay.planning.program.plan import Plan, Planned, PlannedRun
from assay.planning.program.program import Program
from assay.planning.program.work import Node


def plan_problems(program: Program, plan: Plan) -> list[ProgramProblem]:
    """Return every rule that the plan breaks, and every summary figure of the plan that is wrong."""
    names, planned = list(program.nodes()), [item.name for item in plan.items]
    if sorted(names) != sorted(planned):
        missing, extra = set(names) - set(planned), set(planned) - set(names)
        return [ProgramProblem("activities", f"missing: {sorted(missing)}, not of the program: {sorted(extra)}")]
    items = {item.name: item for item in plan.items}
    return [
        *_work(program, items),
        *_order(program, items),
        *_dates(program, items),
        *_people(program, items),
        *_devices(program, items),
        *_fair_use(program, items),
        *_money(program, items),
        *_figures(program, plan),
    ]


def _work(program: Program, items: dict[str, Planned]) -> Iterator[ProgramProblem]:
    for name, node in program.nodes().items():
        item = items[name]
        if item.end_h > program.calendar.weeks * 7 * 24:
            yield ProgramProblem("calendar.weeks", f"{name} ends at hour {item.end_h}, behind the calendar")
        if node.runs is None:
            yield from _work_is_done(program, node, item)
        else:
            yield from _runs_are_done(program, node, item)


def _work_is_done(program: Program, node: Node, item: Planned) -> Iterator[ProgramProblem]:
    work = node.work[item.mode]
    if dict(work.people) != dict(item.people):
        yield ProgramProblem(f"{node.name}.people", f"{item.people} where {work.people} is asked")
    hours = [hour for hour in range(item.start_h, item.end_h) if _is_working_hour(program, hour)]
    per_day = program.calendar.working_hours[1] - program.calendar.working_hours[0]
    if len(hours) != work.days * per_day:
        yield ProgramProblem(f"{node.name}.days", f"{len(hours)} working hours planned, {work.days * per_day:g} needed")
    if not hours or hours[0] != item.start_h or hours[-1] != item.end_h - 1:
        yield ProgramProblem(f"{node.name}", "begins or ends while nobody works")
    elif (item.start_h % 24 - program.calendar.working_hours[0]) % (per_day // 2):
        yield ProgramProblem(f"{node.name}", "begins neither in the morning nor after noon")


def _is_working_hour(program: Program, hour: int) -> bool:
    calendar = program.calendar
    moment = datetime.datetime.combine(calendar.start, datetime.time()) + datetime.timedelta(hours=hour)
    names = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    return (
        calendar.working_hours[0] <= moment.hour < calendar.working_hours[1]
        and names[moment.weekday()] in calendar.working_days
        and moment.date() not in calendar.holidays
    )


def _runs_are_done(program: Program, node: Node, item: Planned) -> Iterator[ProgramProblem]:
    assert node.runs is not None
    mode = node.runs.all_modes()[item.mode]
    if dict(node.runs.people) != dict(item.people):
        yield ProgramProblem(f"{node.name}.people", f"{item.people} where {node.runs.people} is asked")
    if len(item.runs) != node.runs.count:
        yield ProgramProblem(
            f"{node.name}.count", f"{number_of(len(item.runs), 'run')} planned, {node.runs.count} needed"
        )
    rule = program.capacity.fair_use
    for run in item.runs:
        if run.devices != mode.devices:
            yield ProgramProblem(f"{node.name}.devices", f"{run.devices} held, the mode says {mode.devices}")
        needed = mode.hours + node.runs.resume_hours * (len(run.holds) - 1)
        held = sum(end - begin for begin, end in run.holds)
        if held != needed:
            yield ProgramProblem(f"{node.name}.hours", f"{held} hours held, {needed} needed")
        gaps = [later[0] - earlier[1] for earlier, later in zip(run.holds, run.holds[1:], strict=False)]
        if gaps and (rule is None or rule.segments != "chained" or min(gaps) < rule.gap_hours):
            yield ProgramProblem("capacity.fair_use.segments", f"{node.name}: gives way for {gaps} hours")
    begin = min((run.holds[0][0] for run in item.runs), default=item.start_h)
    end = max((run.holds[-1][1] for run in item.runs), default=item.end_h)
    if (begin, end) != (item.start_h, item.end_h):
        yield ProgramProblem(node.name, f"said to last {item.start_h}-{item.end_h}, its runs {begin}-{end}")


def _order(program: Program, items: dict[str, Planned]) -> Iterator[ProgramProblem]:
    for name, node in program.nodes().items():
        for dependency in node.after:
            if dependency.name in program.events:
                ready = program.calendar.hour_of(program.events[dependency.name].at)
            else:
                before = items[dependency.name]
                ready = before.start_h if dependency.of == "start" else before.end_h
            if items[name].start_h < ready + dependency.lag_hours:
                yield ProgramProblem(
                    f"{name}.after", f"begins at hour {items[name].start_h}, before {dependency.name} lets it"
                )


def _dates(program: Program, items: dict[str, Planned]) -> Iterator[ProgramProblem]:
    for name, node in program.nodes().items():
        if node.not_before and items[name].start_h < program.calendar.hour_of(node.not_before):
            yield ProgramProblem(f"{name}.not_before", f"begins before {node.not_before}")
        if node.due and items[name].end_h > program.calendar.hour_of(node.due):
            yield ProgramProblem(f"{name}.due", f"ends after {node.due}")


def _people(program: Program, items: dict[str, Planned]) -> Iterator[ProgramProblem]:
    used: dict[str, Counter[int]] = defaultdict(Counter)
    for item in items.values():
        holds = [hold for run in item.runs for hold in run.holds] or [(item.start_h, item.end_h)]
        for person, fte in item.people.items():
            for name in {person, program.team[person].part_of or person}:
                for begin, end in holds:
                    for hour in range(begin, end):
                        used[name][hour] += round(fte * 1000)
    for name, hours in used.items():
        available = _available_people(program, name)
        over = [hour for hour, units in sorted(hours.items()) if units > available.get(hour, 0)]
        if over:
            yield ProgramProblem(
                f"team.{name}",
                f"{hours[over[0]] / 1000:g} needed at hour {over[0]}, {available.get(over[0], 0) / 1000:g} available",
            )


def _left(program: Program, units: int, reductions: Iterable[tuple[str, str, int]]) -> dict[int, int]:
    """Return hour -> units that remain after the reductions (from, until, units)."""
    available = dict.fromkeys(range(program.calendar.weeks * 7 * 24), units)
    for since, until, away in reductions:
        for hour in range(program.calendar.hour_of(since), program.calendar.hour_of(until)):
            if hour in available:
                available[hour] = max(0, available[hour] - away)
    return available


def _available_people(program: Program, name: str) -> dict[int, int]:
    affected = [role for other, role in program.team.items() if name in (other, role.part_of)]
    absences = [
        (absence, role.fte if absence.fte is None else absence.fte) for role in affected for absence in role.away
    ]
    away = [(absence.since, absence.until, round(fte * 1000)) for absence, fte in absences]
    return _left(program, round(program.team[name].fte * 1000), away)


def _available_devices(program: Program) -> dict[int, int]:
    devices, bookings = program.capacity.devices, program.capacity.bookings.values()
    held = [(booking.since, booking.until, math.ceil(booking.share * devices - 1e-9)) for booking in bookings]
    return _left(program, devices, held)


def _devices_held(runs: Iterable[PlannedRun]) -> Counter[int]:
    held: Counter[int] = Counter()
    for run in runs:
        for begin, end in run.holds:
            for hour in range(begin, end):
                held[hour] += run.devices
    return held


def _devices(program: Program, items: dict[str, Planned]) -> Iterator[ProgramProblem]:
    available = _available_devices(program)
    held = _devices_held(run for item in items.values() for run in item.runs)
    for hour, devices in sorted(held.items()):
        if devices > (free := available.get(hour, 0)):
            yield ProgramProblem("capacity.devices", f"{devices} held at hour {hour}, {free} free")
            return


def _fair_use(program: Program, items: dict[str, Planned]) -> Iterator[ProgramProblem]:
    rule = program.capacity.fair_use
    if rule is None:
        return
    free = _available_devices(program)
    for item in items.values():
        jobs = [(run,) for run in item.runs] if rule.job == "run" else [item.runs]
        for held in map(_devices_held, jobs):
            longest = since = 0
            for hour in range(len(free)):
                whole = free[hour] if rule.of == "available" else program.capacity.devices
                since = since + 1 if held[hour] > rule.share * whole + 1e-9 else 0
                longest = max(longest, since)
            if longest > rule.max_hours:
                yield ProgramProblem(
                    "capacity.fair_use",
                    f"{item.name} holds more than {rule.share:.0%} for {longest} h without a break",
                )


def _money(program: Program, items: dict[str, Planned]) -> Iterator[ProgramProblem]:
    spent: Counter[str] = Counter()
    for name, node in program.nodes().items():
        for run in items[name].runs:
            spent[node.stage] += sum(run.devices * (end - begin) for begin, end in run.holds)
    most = program.budget.device_hours * (1 - program.budget.reserve)
    if spent.total() > most + 1e-6:
        yield ProgramProblem("budget.device_hours", f"{spent.total():,} device-hours, {most:,.0f} may be planned")
    for stage, allowed in program.budget.stages.items():
        if spent[stage] > allowed + 1e-6:
            yield ProgramProblem(f"budget.stages.{stage}", f"{spent[stage]:,} device-hours, {allowed:,.0f} given")


def _figures(program: Program, plan: Plan) -> Iterator[ProgramProblem]:
    items = {item.name: item for item in plan.items}
    held = _devices_held(run for item in plan.items for run in item.runs)
    if plan.decision_h != items[program.decision.decided_by].end_h:
        yield ProgramProblem("plan.decision_h", f"says {plan.decision_h}")
    if plan.device_hours != sum(held.values()):
        yield ProgramProblem("plan.device_hours", f"says {plan.device_hours}, its runs hold {sum(held.values())}")
    if plan.peak_devices != max(held.values(), default=0):
        yield ProgramProblem("plan.peak_devices", f"says {plan.peak_devices}")
    if plan.program_sha256 != program.digest():
        yield ProgramProblem("plan.program_sha256", "is a plan of another program")

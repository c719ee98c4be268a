"""Explains the decision date: the critical chain of activities, and the price of each limit.

The chain is read off the schedule, backwards from the decision: an activity waited for whatever ended last
before it could start. Prices come from solving again with each limit slightly relaxed, because a cumulative
resource has no shadow price.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from assay.planning.program.calendar import HOURS_PER_WEEK
from assay.planning.program.plan import Plan, Planned, PlannedRun
from assay.planning.program.program import Program
from assay.planning.schedule import InfeasibleError

Reason = Literal[
    "start",
    "now",
    "after",
    "event",
    "date",
    "people",
    "away",
    "devices",
    "booking",
    "fair use",
    "least peak",
    "least change",
]
"""`now`: after re-planning, it could have started before today. `least peak`, `least change`: it could start
earlier without an objective that ranks below the date."""


class Step(NamedTuple):
    """One link of the critical chain; the chain starts at the decision."""

    name: str
    start_h: int
    end_h: int
    reason: Reason
    """Why it does not start earlier."""

    because: str
    """The activity, event, date, booking or resource that it waits for; empty at the start of the program."""


class Price(NamedTuple):
    """The effect of relaxing (or tightening) a limit."""

    title: str
    decision_change_h: int | None
    """Change of the decision in hours; None if there is no schedule."""

    device_hours_change: int | None


def critical_chain(program: Program, plan: Plan, *, now_h: int | None = None) -> tuple[Step, ...]:
    """Return the chain from the decision back to the start of the program or a fixed date.

    `now_h`: the hour of re-planning; nothing unstarted could start before it.
    """
    items = {item.name: item for item in plan.items}
    steps: list[Step] = []
    name: str | None = program.decision.decided_by
    while name is not None:
        step, name = _step(program, plan, items[name], now_h)
        steps.append(step)
    return tuple(steps)


def _step(program: Program, plan: Plan, item: Planned, now_h: int | None) -> tuple[Step, str | None]:
    items = {planned.name: planned for planned in plan.items}

    def step(reason: Reason, because: str) -> Step:
        return Step(item.name, item.start_h, item.end_h, reason, because)

    ready, what = _ready(program, items, item)
    earliest = _next_start(program, item, ready)
    if item.start_h <= earliest:
        if what in items:
            return step("after", what), what
        return step("event" if what in program.events else "date" if what else "start", what), None
    if now_h is not None and now_h <= item.start_h <= _next_start(program, item, now_h):
        return step("now", ""), None
    # Free to begin, and did not: whoever let go of what it needs, last before it began.
    earlier = [
        (end, other.name, resource)
        for other in items.values()
        for resource in _shared(program, item, other)
        for end in _releases(other)
        if other.name != item.name and earliest < end <= item.start_h
    ]
    held = _held_by_an_aim(program, plan, item, is_replan=now_h is not None)
    if held is None and (booking := _booking_before(program, plan, item)):
        return step("booking", booking), None
    if not earlier:
        without: Reason = "fair use" if item.runs else "away" if _is_missed(program, item) else "people"
        return step(held or without, ""), what if what in items else None
    _, other_name, resource = max(earlier)
    if held is None and resource != "devices":
        return step("people", f"{other_name} ({resource})"), other_name
    return step(held or "devices", other_name), other_name


def _held_by_an_aim(program: Program, plan: Plan, item: Planned, *, is_replan: bool) -> Reason | None:
    """If it could have started earlier, return the objective that delays it; else None."""
    half_h = None if item.runs else _half_before(program, item)
    before_h = item.start_h - 1 if half_h is None else half_h
    if any(_missing(program, plan, item, role, before_h) for role in _roles(program, item)):
        return None
    held = sum(run.devices for planned in plan.items for run in planned.runs if _holds(run, before_h))
    needed = held + (item.runs[0].devices if item.runs else 0)
    if item.runs and needed > program.capacity.free_devices(program.calendar)[before_h]:
        return None
    if item.runs and needed > plan.peak_devices and _is_free_of_the_rule(program, item):
        return "least peak"
    return "least change" if is_replan and (not item.runs or _is_free_of_the_rule(program, item)) else None


def _booking_before(program: Program, plan: Plan, item: Planned) -> str:
    """Return the booking whose end it waited for, if the devices suffice without that booking."""
    if not item.runs:
        return ""
    before_h, calendar = item.start_h - 1, program.calendar
    held = sum(run.devices for planned in plan.items for run in planned.runs if _holds(run, before_h))
    missing = held + item.runs[0].devices - program.capacity.free_devices(calendar)[before_h]
    for name, booking in program.capacity.bookings.items():
        is_last_hour = calendar.hour_of(booking.until) == item.start_h > calendar.hour_of(booking.since)
        if is_last_hour and 0 < missing <= program.capacity.held_by(booking):
            return booking.title or name
    return ""


def _holds(run: PlannedRun, hour: int) -> bool:
    return any(begin <= hour < until for begin, until in run.holds)


def _is_free_of_the_rule(program: Program, item: Planned) -> bool:
    """Return whether the fair-use rule does not restrict its position."""
    rule, run, least = program.capacity.fair_use, item.runs[0], program.capacity.devices
    if rule is None or rule.job == "activity":
        return rule is None
    if rule.of == "available":
        least = min(program.capacity.free_devices(program.calendar))
    is_short = all(until - begin <= rule.max_hours for begin, until in run.holds)
    return is_short or run.devices <= rule.share * least + 1e-9


def _missing(program: Program, plan: Plan, item: Planned, role: str, hour: int) -> bool:
    """Return whether too little of a role or person is available in that hour."""
    available = program.team[role].fte - _away(program, role, hour)
    others = [
        planned for planned in plan.items if planned.name != item.name and planned.start_h <= hour < planned.end_h
    ]
    for other in (*others, item):
        times = sum(_holds(run, hour) for run in other.runs) if other.runs and other is not item else 1
        available -= times * sum(fte for name, fte in other.people.items() if role in program.roles_of(name))
    return available < -1e-9


def _away(program: Program, role: str, hour: int) -> float:
    return sum(
        fte
        for name, since, until, fte in program.absences()
        if role in program.roles_of(name) and since <= hour < until
    )


def _is_missed(program: Program, item: Planned) -> bool:
    """Return whether a person that it needs is absent just before it starts."""
    half_h = _half_before(program, item)
    return half_h is not None and any(_away(program, role, half_h) > 0 for role in _roles(program, item))


def _half_before(program: Program, item: Planned) -> int | None:
    """Return the start of the last half working day before it starts, or None."""
    return max((begin for begin, until in program.calendar.half_days() if until <= item.start_h), default=None)


def _ready(program: Program, items: dict[str, Planned], item: Planned) -> tuple[int, str]:
    """Return the earliest hour allowed by predecessors and dates, and which of them decides it."""
    node = program.nodes()[item.name]
    found = [(0, "")]
    for dependency in node.after:
        if dependency.name in program.events:
            base = program.calendar.hour_of(program.events[dependency.name].at)
        else:
            before = items[dependency.name]
            base = before.start_h if dependency.of == "start" else before.end_h
        found.append((base + dependency.lag_hours, dependency.name))
    if node.not_before:
        found.append((program.calendar.hour_of(node.not_before), node.not_before))
    return max(found)


def _next_start(program: Program, item: Planned, ready: int) -> int:
    if item.runs:
        return ready
    return next((begin for begin, _ in program.calendar.half_days() if begin >= ready), ready)


def _shared(program: Program, one: Planned, other: Planned) -> list[str]:
    if one.runs and other.runs:
        return ["devices"]
    return sorted(_roles(program, one) & _roles(program, other))


def _roles(program: Program, item: Planned) -> set[str]:
    return {role for name in item.people for role in program.roles_of(name)}


def _releases(item: Planned) -> list[int]:
    return [end for run in item.runs for _, end in run.holds] or [item.end_h]


def people_load(program: Program, plan: Plan) -> dict[str, list[tuple[float, float]]]:
    """Return role or person -> (full-time equivalents planned, available) in each week of the plan."""
    num_weeks = -(-max(item.end_h for item in plan.items) // HOURS_PER_WEEK)
    planned = {name: [0.0] * num_weeks for name in program.team}
    available = {name: [0.0] * num_weeks for name in program.team}
    halves = [half for half in program.calendar.half_days() if half[0] < num_weeks * HOURS_PER_WEEK]
    per_week = Counter(begin // HOURS_PER_WEEK for begin, _ in halves)
    for begin, end in halves:
        week = begin // HOURS_PER_WEEK
        for name, role in program.team.items():
            available[name][week] += (role.fte - _away(program, name, begin)) / per_week[week]
        for item in plan.items:
            spans = [hold for run in item.runs for hold in run.holds] or [(item.start_h, item.end_h)]
            times = sum(since < end and until > begin for since, until in spans)
            for name, fte in item.people.items() if times else ():
                for role_name in program.roles_of(name):
                    planned[role_name][week] += times * fte / per_week[week]
    return {name: list(zip(planned[name], available[name], strict=True)) for name in program.team}


def prices(program: Program, earliest: Plan, solve: Callable[[Program], Plan], *, now_h: int = 0) -> tuple[Price, ...]:
    """Solve the program again with each limit slightly relaxed, including limits without effect.

    `solve` returns the earliest plan of a program (of the remaining part if it has started); `earliest` is
    its result for `program` itself. Limits that only concern the time before `now_h` have no price.
    """
    nudges = _nudges(program, now_h)
    return tuple(_price(program, earliest, title, changes, solve) for title, changes in nudges)


def _nudges(program: Program, now_h: int) -> Iterator[tuple[str, dict[str, Any]]]:
    capacity, calendar = program.capacity, program.calendar
    for name, role in program.team.items():
        if role.part_of is None:
            yield f"one more of {role.title or name}", {f"team.{name}.fte": round(role.fte + 1, 2)}
    yield "5% more capacity", {"capacity.devices": math.ceil(capacity.devices * 1.05)}
    for name, booking in capacity.bookings.items():
        if calendar.hour_of(booking.until) > now_h:
            yield f"without: {booking.title or name}", {f"capacity.bookings.{name}": None}
    if capacity.fair_use is not None:
        yield "without the fair-use rule", {"capacity.fair_use": None}
    yield "5% more device-hours", {"budget.device_hours": program.budget.device_hours * 1.05}
    awaited = {name: event for name, event in program.events.items() if calendar.hour_of(event.at) >= now_h}
    for name, event in awaited.items():
        for days, when in ((-3, "three days early"), (3, "three days late")):
            moment = calendar.date_of(max(0, calendar.hour_of(event.at) + 24 * days))
            yield f"{event.title}: {when}", {f"events.{name}.at": moment.isoformat()}


def _price(
    program: Program, earliest: Plan, title: str, changes: dict[str, Any], solve: Callable[[Program], Plan]
) -> Price:
    try:
        changed = solve(program.changed(changes))
    except InfeasibleError:
        return Price(title, None, None)
    later_h = changed.decision_h - earliest.decision_h
    return Price(title, later_h, changed.device_hours - earliest.device_hours)

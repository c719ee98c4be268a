"""Why the decision stands when it does: the chain of what waited for what, and the price of each limit.

The chain is read off the schedule, from the decision backwards: what a thing waited for is whatever ended last
before it could begin. Prices come from solving again with a little more of each limit, since a cumulative
resource has no shadow price that one could read.
"""

import math
from typing import Any, Literal, NamedTuple

from assay.planning.schedule import DEFAULT_EFFORT, Effort, InfeasibleError, schedule
from assay.records.plan import Plan, Planned
from assay.records.program import Program

Reason = Literal["start", "after", "event", "date", "people", "devices", "fair use"]


class Step(NamedTuple):
    """One link of the critical chain, latest first."""

    name: str
    start_h: int
    end_h: int
    reason: Reason
    """Why it does not begin earlier."""

    because: str
    """The activity, event, date or resource that it waits for; empty at the start of the program."""


class Price(NamedTuple):
    """What a little more (or less) of something would do."""

    key: str
    title: str
    decision_h: int | None
    """The decision's hour then; None where there is no schedule then, as in the fields below."""

    device_hours: int | None
    decision_change_h: int | None
    device_hours_change: int | None


def critical_chain(program: Program, plan: Plan) -> tuple[Step, ...]:
    """From the decision back to what nothing holds up but the start of the program, or a date."""
    items = {item.name: item for item in plan.items}
    steps: list[Step] = []
    name: str | None = program.decision.made_by
    while name is not None:
        step, name = _step(program, items, items[name])
        steps.append(step)
    return tuple(steps)


def _step(program: Program, items: dict[str, Planned], item: Planned) -> tuple[Step, str | None]:
    def step(reason: Reason, because: str) -> Step:
        return Step(item.name, item.start_h, item.end_h, reason, because)

    ready, what = _ready(program, items, item)
    earliest = _next_start(program, item, ready)
    if item.start_h <= earliest:
        if what in items:
            return step("after", what), what
        return step("event" if what in program.events else "date" if what else "start", what), None
    # Free to begin, and did not: whoever let go of what it needs, last before it began.
    shared = [(other, resource) for other in items.values() for resource in _shared(program, item, other)]
    earlier = [
        (end, other.name, resource)
        for other, resource in shared
        for end in _releases(other)
        if other.name != item.name and earliest < end <= item.start_h
    ]
    if not earlier:
        return step("fair use" if item.runs else "people", ""), what if what in items else None
    _, other_name, resource = max(earlier)
    if resource == "devices":
        return step("devices", other_name), other_name
    return step("people", f"{other_name} ({resource})"), other_name


def _ready(program: Program, items: dict[str, Planned], item: Planned) -> tuple[int, str]:
    """The hour before which its predecessors and dates do not let it begin, and which of them."""
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
    return {role for name in item.people for role in (name, program.team[name].part_of) if role}


def _releases(item: Planned) -> list[int]:
    return [end for run in item.runs for _, end in run.holds] or [item.end_h]


def prices(program: Program, plan: Plan, *, effort: Effort = DEFAULT_EFFORT) -> tuple[Price, ...]:
    """The program solved again with a little more of each limit; those that change nothing too."""
    return tuple(_price(program, plan, key, title, changes, effort) for key, title, changes in _nudges(program))


def _nudges(program: Program) -> list[tuple[str, str, dict[str, Any]]]:
    capacity, budget = program.capacity, program.budget
    more = math.ceil(capacity.devices * 1.05)
    nudges: list[tuple[str, str, dict[str, Any]]] = [
        (f"team.{name}", f"one more of {role.title or name}", {f"team.{name}.fte": round(role.fte + 1, 2)})
        for name, role in program.team.items()
        if role.part_of is None
    ]
    nudges.append(("capacity.devices", "5% more capacity", {"capacity.devices": more}))
    nudges += [
        (f"capacity.bookings.{name}", f"without: {booking.title or name}", {f"capacity.bookings.{name}": None})
        for name, booking in capacity.bookings.items()
    ]
    if capacity.fair_use is not None:
        nudges.append(("capacity.fair_use", "without the fair-use rule", {"capacity.fair_use": None}))
    more_hours = {"budget.device_hours": budget.device_hours * 1.05}
    nudges.append(("budget.device_hours", "5% more device-hours", more_hours))
    for name, event in program.events.items():
        hour = program.calendar.hour_of(event.at)
        for days, title in ((-3, "three days early"), (3, "three days late")):
            moment = program.calendar.date_of(max(0, hour + 24 * days)).isoformat()
            nudges.append((f"events.{name}.at", f"{event.title}: {title}", {f"events.{name}.at": moment}))
    return nudges


def _price(
    program: Program, plan: Plan, key: str, title: str, changes: dict[str, Any], effort: Effort
) -> Price:
    try:
        changed = schedule(program.changed(changes), aims=("decision_h", "device_hours"), effort=effort)
    except InfeasibleError:
        return Price(key, title, None, None, None, None)
    return Price(
        key,
        title,
        changed.decision_h,
        changed.device_hours,
        changed.decision_h - plan.decision_h,
        changed.device_hours - plan.device_hours,
    )

"""Why nothing fits: the fewest limits that cannot hold together, and what would have to give way.

A deletion filter: limits are left out one after the other, and one whose absence still leaves no schedule is
not to blame. What remains is minimal: without any single one of them there is a schedule of the rest. For each,
the least concession that alone is enough is found by solving again.
"""

import datetime
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ortools.sat.python import cp_model

from assay.planning.heuristic import affordable, first_schedule
from assay.planning.model import Model, build
from assay.planning.problem import DEVICES, FAIR_USE, HOLIDAYS, compile_problem
from assay.planning.program.program import Program
from assay.planning.schedule import DEFAULT_EFFORT, Effort, new_solver

Concession = tuple[dict[str, Any], str]
"""A change of the program, and what is said of it where it is enough."""

WITHOUT_IT = "without it there is a schedule"


class Limit(NamedTuple):
    """Something that could be relaxed."""

    key: str
    """Dotted key of the program."""

    says: str
    """What it demands."""

    cure: Callable[[Effort], str | None] = lambda _: WITHOUT_IT
    """What would be enough, where all is well without it; None where the time did not suffice to tell."""


class Member(NamedTuple):
    """One of the limits that clash."""

    key: str
    """Dotted key of the program."""

    says: str
    """What it demands."""

    cure: str | None
    """What would be enough, all others as they are; None where no concession here alone is."""


class Conflict(NamedTuple):
    """Limits that cannot hold together."""

    members: tuple[Member, ...]
    is_minimal: bool
    """False where some question took longer than was allowed, so that a member may be one too many."""


def find_conflict(program: Program, *, effort: Effort = DEFAULT_EFFORT) -> Conflict | None:
    """A minimal set of limits that clash, the date of the decision among them; None where all can hold."""
    if can_hold(program, (), effort) is not False:
        return None
    relaxed: set[str] = set()
    kept: list[Limit] = []
    is_minimal = True
    for limit in limits_of(program):
        answer = can_hold(program, {*relaxed, limit.key}, effort)
        if answer is False:
            relaxed.add(limit.key)
        else:
            kept.append(limit)
            is_minimal &= answer is not None
    members = (Member(limit.key, limit.says, _cure(program, limit, effort)) for limit in kept)
    return Conflict(tuple(members), is_minimal)


def can_hold(program: Program, relaxed: Collection[str], effort: Effort) -> bool | None:
    """Whether some schedule keeps all limits but `relaxed`, in time for the decision; None: not known."""
    problem = compile_problem(program, relaxed=relaxed, by_the_date=True)
    found = first_schedule(problem, tries=3, seed=effort.seed)
    if found is not None and affordable(problem, found):
        return True
    solver = new_solver(effort)
    status = solver.solve(build(problem).cp)
    if status == cp_model.UNKNOWN:
        return None
    return bool(status in (cp_model.OPTIMAL, cp_model.FEASIBLE))


def limits_of(program: Program) -> Iterator[Limit]:
    """Everything that could be relaxed, those that people give way on first last."""
    yield from _limits_of_capacity(program)
    yield from _limits_of_people(program)
    for name, event in program.events.items():
        says = f"{event.title}: {event.at}"
        yield Limit(f"events.{name}.at", says, partial(_latest_day, program, name))
    for node in program.nodes().values():
        if node.not_before:
            yield Limit(f"{node.key}.not_before", node.not_before)
        if node.due:
            yield _date_limit(program, f"{node.key}.due", node.due, node.name)
    yield from _limits_of_budget(program)
    yield Limit("calendar.weeks", f"{program.calendar.weeks} weeks in all")
    yield _date_limit(program, "decision.by", program.decision.by, program.decision.made_by)


def _limits_of_capacity(program: Program) -> Iterator[Limit]:
    capacity = program.capacity
    more = [math.ceil(capacity.devices * times) for times in (1.1, 1.25, 1.5, 2, 3)]
    larger = [({DEVICES: count}, f"{count} would do") for count in more]
    yield Limit(DEVICES, f"{capacity.devices} devices", partial(_first_that_holds, program, larger))
    for name, booking in capacity.bookings.items():
        key = f"capacity.bookings.{name}"
        says = f"{booking.title or name}: {booking.share:.0%}, {booking.since} until {booking.until}"
        parts = [round(booking.share * part, 3) for part in (0.75, 0.5, 0.25)]
        smaller = [({f"{key}.share": part}, f"a share of {part:.0%} would do") for part in parts]
        yield Limit(key, says, partial(_first_that_holds, program, smaller))
    if (rule := capacity.fair_use) is not None:
        says = f"no job above {rule.share:.0%} of capacity for more than {rule.max_hours} h"
        enough = "enough if runs may give way and go on (segments: chained)"
        chained = [({f"{FAIR_USE}.segments": "chained"}, enough)]
        yield Limit(FAIR_USE, says, partial(_first_that_holds, program, chained))


def _limits_of_people(program: Program) -> Iterator[Limit]:
    for name, role in program.team.items():
        more = [
            ({f"team.{name}.fte": round(role.fte + more, 2)}, f"{more:g} more would do")
            for more in (0.5, 1, 1.5, 2, 3, 4)
        ]
        says = f"{program.title_of(name)} ({role.fte:g})"
        yield Limit(f"team.{name}", says, partial(_first_that_holds, program, more))
    for name, role in program.team.items():
        if role.away:
            spans = ", ".join(f"{absence.since} until {absence.until}" for absence in role.away)
            there = partial(_first_that_holds, program, list(_absence_concessions(program, name)))
            yield Limit(f"team.{name}.away", f"{role.title or name} is away: {spans}", there)
    if days := sorted(day.isoformat() for day in program.calendar.holidays):
        more_days = f" to {days[-1]} ({len(days)} days)" if len(days) > 1 else ""
        works = partial(_first_that_holds, program, _holiday_concessions(days))
        yield Limit(HOLIDAYS, f"nobody works on {days[0]}{more_days}", works)


def _absence_concessions(program: Program, name: str) -> Iterator[Concession]:
    """To be there in one of the times, or in all."""
    key, away = f"team.{name}.away", program.team[name].away
    for absence in away:
        others = [other.model_dump(mode="json") for other in away if other is not absence]
        yield {key: others}, f"being there from {absence.since} until {absence.until} would do"
    yield {key: []}, "being there all the time would do"


def _holiday_concessions(days: list[str]) -> list[Concession]:
    """To work on the first of them: on half of all, or on all."""
    counts = sorted({1, -(-len(days) // 4), -(-len(days) // 2), len(days)})
    return [
        (
            {HOLIDAYS: days[count:]},
            f"working on {days[0]} would do"
            if count == 1
            else f"working from {days[0]} to {days[count - 1]} would do",
        )
        for count in counts
    ]


def _limits_of_budget(program: Program) -> Iterator[Limit]:
    budget, nodes = program.budget, program.nodes().values()
    for stage, most in budget.stages.items():
        key, spenders = f"budget.stages.{stage}", {node.name for node in nodes if node.stage == stage}
        spent = partial(Model.device_hours_of, names=spenders)
        cure = partial(_least, program, key, spent, "{:,} would do".format)
        yield Limit(key, f"{most:,.0f} device-hours", cure)

    def text(least: int) -> str:
        needed = math.ceil(least / (1.0 - budget.reserve) - 1e-9)
        return f"{needed:,} would do" + (" with the same reserve" if budget.reserve else "")

    key = "budget.device_hours"
    says = f"{budget.plannable_device_hours():,.0f} device-hours may be planned"
    yield Limit(key, says, partial(_least, program, key, lambda model: model.device_hours, text))


def _date_limit(program: Program, key: str, says: str, name: str) -> Limit:
    """When an activity or a gate must be over."""

    def end(model: Model) -> Any:
        return model.groups[name].end

    def text(hour: int) -> str:
        return f"{_moment(program, hour)} would do"

    return Limit(key, says, partial(_least, program, key, end, text))


def _cure(program: Program, limit: Limit, effort: Effort) -> str | None:
    return limit.cure(effort) if can_hold(program, {limit.key}, effort) else None


def _first_that_holds(program: Program, concessions: Iterable[Concession], effort: Effort) -> str:
    for changes, text in concessions:
        if can_hold(program.changed(changes), (), effort):
            return text
    return WITHOUT_IT


def _least(
    program: Program,
    key: str,
    expression: Callable[[Model], Any],
    text: Callable[[int], str],
    effort: Effort,
) -> str | None:
    model = build(compile_problem(program, relaxed={key}, by_the_date=True))
    model.cp.minimize(expression(model))
    solver = new_solver(effort)
    if solver.solve(model.cp) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return text(math.ceil(solver.objective_value - 0.5))


def _latest_day(program: Program, event: str, effort: Effort) -> str:
    """The last day on which an event would come in time."""

    def is_too_late(day: int) -> bool:
        date = program.calendar.start + datetime.timedelta(days=day)
        return not can_hold(program.changed({f"events.{event}.at": date.isoformat()}), (), effort)

    if is_too_late(0):
        return WITHOUT_IT
    num_days = program.calendar.hour_of(program.events[event].at) // 24
    latest = bisect_left(range(num_days), True, lo=1, key=is_too_late) - 1
    return f"{_moment(program, latest * 24)} would do"


def _moment(program: Program, hour: int) -> str:
    """The end of the day in which an hour lies: `day 58 (2 March 2027)`."""
    day = max(1, math.ceil(hour / 24))
    date = program.calendar.start + datetime.timedelta(days=day - 1)
    return f"end of day {day} ({date.isoformat()})"

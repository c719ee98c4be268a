"""Why nothing fits: the fewest limits that cannot hold together, and what would have to give way.

A deletion filter: limits are left out one after the other, and one whose absence still leaves no schedule is
not to blame. What remains is minimal: without any single one of them there is a schedule of the rest. For each,
the least concession that alone is enough is found by solving again.
"""

import datetime
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ortools.sat.python import cp_model

from assay.planning.heuristic import affordable, first_schedule
from assay.planning.model import Model, build
from assay.planning.problem import FAIR_USE, HOLIDAYS, Problem, compile_problem, limits_of
from assay.planning.program.program import Program
from assay.planning.schedule import DEFAULT_EFFORT, Effort, new_solver

Concession = tuple[dict[str, Any], str]
"""A change of the program, and what is said of it where it is enough."""


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
    kept: list[str] = []
    is_minimal = True
    for key in limits_of(program):
        answer = can_hold(program, {*relaxed, key}, effort)
        if answer is False:
            relaxed.add(key)
        else:
            kept.append(key)
            is_minimal &= answer is not None
    members = tuple(Member(key, _says(program, key), _cure(program, key, effort)) for key in kept)
    return Conflict(members, is_minimal)


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


def _says(program: Program, key: str) -> str:
    section, _, rest = key.partition(".")
    name, _, field = rest.partition(".")
    if section == "team" and field == "away":
        spans = [f"{absence.since} until {absence.until}" for absence in program.team[name].away]
        return f"{program.team[name].title or name} is away: {', '.join(spans)}"
    if key == HOLIDAYS:
        days = sorted(program.calendar.holidays)
        more = f" to {days[-1]} ({len(days)} days)" if len(days) > 1 else ""
        return f"nobody works on {days[0]}{more}"
    if section == "team":
        return f"{program.team[name].title or name} ({program.team[name].fte:g})"
    if section == "events":
        return f"{program.events[name].title}: {program.events[name].at}"
    if key.startswith("capacity.bookings."):
        booking = program.capacity.bookings[field]
        return f"{booking.title or field}: {booking.share:.0%}, {booking.since} until {booking.until}"
    if key == FAIR_USE:
        rule = program.capacity.fair_use
        assert rule is not None
        return f"no job above {rule.share:.0%} of capacity for more than {rule.max_hours} h"
    if key.startswith("budget.stages."):
        return f"{program.budget.stages[field]:,.0f} device-hours"
    if section in ("activities", "gates"):
        item = program.activities[name] if section == "activities" else program.gates[name]
        return str(getattr(item, field))
    plannable = program.budget.plannable_device_hours()
    return {
        "capacity.devices": f"{program.capacity.devices} devices",
        "budget.device_hours": f"{plannable:,.0f} device-hours may be planned",
        "calendar.weeks": f"{program.calendar.weeks} weeks in all",
        "decision.by": program.decision.by,
    }[key]


def _cure(program: Program, key: str, effort: Effort) -> str | None:
    if can_hold(program, {key}, effort) is not True:
        return None
    section, _, rest = key.partition(".")
    name, _, field = rest.partition(".")
    if key == "decision.by":
        least = _least(program, key, effort, lambda m: m.groups[m.problem.decision].end)
        return None if least is None else f"{_moment(program, least)} would do"
    if section == "budget":
        return _cure_of_budget(program, key, effort)
    if section == "team" and field == "away":
        return _first_that_holds(program, effort, _absence_concessions(program, name))
    if key == HOLIDAYS:
        return _first_that_holds(program, effort, _holiday_concessions(program))
    if section == "team":
        return _first_that_holds(
            program,
            effort,
            [
                ({f"team.{name}.fte": round(program.team[name].fte + more, 2)}, f"{more:g} more would do")
                for more in (0.5, 1, 1.5, 2, 3, 4)
            ],
        )
    if section == "events":
        return _cure_of_event(program, name, effort)
    if field == "due":
        least = _least(program, key, effort, lambda m: m.groups[name].end)
        return None if least is None else f"{_moment(program, least)} would do"
    if section == "capacity":
        return _first_that_holds(program, effort, _capacity_concessions(program, key, field))
    return "without it there is a schedule"


def _absence_concessions(program: Program, name: str) -> list[Concession]:
    """To be there in one of the times, or in all."""
    away = [absence.model_dump(mode="json") for absence in program.team[name].away]
    one: list[Concession] = [
        (
            {f"team.{name}.away": away[:index] + away[index + 1 :]},
            f"being there from {absence['since']} until {absence['until']} would do",
        )
        for index, absence in enumerate(away)
    ]
    return [*one, ({f"team.{name}.away": []}, "being there all the time would do")]


def _holiday_concessions(program: Program) -> list[Concession]:
    """To work on the first of them: on half of all, or on all."""
    days = [day.isoformat() for day in sorted(program.calendar.holidays)]
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


def _capacity_concessions(program: Program, key: str, booking: str) -> list[Concession]:
    if key == FAIR_USE:
        chained: Concession = (
            {f"{FAIR_USE}.segments": "chained"},
            "enough if runs may give way and go on (segments: chained)",
        )
        return [chained, ({FAIR_USE: None}, "without it there is a schedule")]
    if booking and key.startswith("capacity.bookings."):
        share = program.capacity.bookings[booking].share
        parts = [round(share * part, 3) for part in (0.75, 0.5, 0.25)]
        smaller: list[Concession] = [
            ({f"{key}.share": part}, f"a share of {part:.0%} would do") for part in parts
        ]
        return [*smaller, ({key: None}, "without it there is a schedule")]
    devices = program.capacity.devices
    more = [math.ceil(devices * times) for times in (1.1, 1.25, 1.5, 2, 3)]
    return [({"capacity.devices": count}, f"{count} would do") for count in more]


def _first_that_holds(program: Program, effort: Effort, concessions: list[Concession]) -> str | None:
    for changes, text in concessions:
        if can_hold(program.changed(changes), (), effort):
            return text
    return "without it there is a schedule"


def _cure_of_budget(program: Program, key: str, effort: Effort) -> str | None:
    _, _, stage = key.partition("budget.stages.")
    if not stage:
        least = _least(program, key, effort, lambda m: m.device_hours)
        if least is None:
            return None
        needed = math.ceil(least / (1.0 - program.budget.reserve) - 1e-9)
        return f"{needed:,} would do" + (" with the same reserve" if program.budget.reserve else "")
    spenders = {name for name, node in program.nodes().items() if node.stage == stage}
    least = _least(program, key, effort, lambda m: m.device_hours_of(spenders))
    return None if least is None else f"{least:,} would do"


def _cure_of_event(program: Program, name: str, effort: Effort) -> str | None:
    at = program.calendar.hour_of(program.events[name].at)
    too_late, early = at // 24, 0
    if not can_hold(_with_event_on(program, name, 0), (), effort):
        return "without it there is a schedule"
    while too_late - early > 1:
        day = (too_late + early) // 2
        if can_hold(_with_event_on(program, name, day), (), effort):
            early = day
        else:
            too_late = day
    return f"{_moment(program, early * 24)} would do"


def _with_event_on(program: Program, name: str, day: int) -> Program:
    date = program.calendar.start + datetime.timedelta(days=day)
    return program.changed({f"events.{name}.at": date.isoformat()})


def _least(program: Program, key: str, effort: Effort, expression: Callable[[Model], object]) -> int | None:
    problem: Problem = compile_problem(program, relaxed={key}, by_the_date=True)
    model = build(problem)
    model.cp.minimize(expression(model))
    solver = new_solver(effort)
    if solver.solve(model.cp) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    least: int = math.ceil(solver.objective_value - 0.5)
    return least


def _moment(program: Program, hour: int) -> str:
    """The end of the day in which an hour lies: `day 58 (2 March 2027)`."""
    day = max(1, math.ceil(hour / 24))
    date = program.calendar.start + datetime.timedelta(days=day - 1)
    return f"end of day {day} ({date.isoformat()})"

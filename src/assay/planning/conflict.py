"""Finds why no schedule fits: a minimal set of limits that cannot hold together, and changes that suffice.

A deletion filter removes limits one after the other; a limit whose removal still leaves no schedule is not part of
the conflict. The rest is minimal: without any one of its limits there is a schedule. For each limit, solving again
finds the smallest change that alone suffices. If no single change does, there are further conflicts. Then the
smallest sets with a limit of every known conflict are tried, and a set that fails reveals the next conflict
(implicit hitting sets).
"""

import datetime
import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.planning.heuristic import affordable, first_schedule
from assay.planning.model import Model, build
from assay.planning.problem import DEVICES, FAIR_USE, HOLIDAYS, compile_problem
from assay.planning.program.program import Program
from assay.planning.schedule import DEFAULT_EFFORT, Effort, new_solver, was_found

LimitChange = tuple[dict[str, Any], str]
"""(patch of the program, description). An empty patch leaves the limit out."""

WITHOUT_IT = "without it there is a schedule"
LEFT_OUT: LimitChange = ({}, WITHOUT_IT)

MAX_CLASHES = 8
MAX_FIXES = 4
MAX_FIX_SIZE = 4
"""Maximum number of limits in one fix."""
MAX_CANDIDATE_FIXES = 64
"""Maximum number of limit sets tried as fixes."""

FindLimitChange = Callable[[Effort, Collection[str]], LimitChange | None]
"""Find the smallest change of a limit that suffices while the given other limits are left out; None if the
solver ran out of time."""


class Limit(NamedTuple):
    """A limit that could be relaxed."""

    key: str
    """Dotted key of the program."""

    demand: str
    """What it demands, as text."""

    find_limit_change: FindLimitChange = lambda _effort, _relaxed: LEFT_OUT
    """Finds a sufficient change, if leaving the limit out suffices."""


class Member(NamedTuple):
    """A limit in a conflict."""

    key: str
    """Dotted key of the program."""

    demand: str
    """What it demands, as text."""

    fix: str | None
    """A change that suffices with all other limits unchanged; None if changing this limit alone does not."""


FixStep = tuple[str, str]
"""(key, sufficient change as text)."""


class Conflict(NamedTuple):
    """Limits that cannot hold together."""

    members: tuple[Member, ...]
    is_minimal: bool
    """False if the solver ran out of time on some limit, so that a member may be superfluous."""

    others: tuple[tuple[Member, ...], ...] = ()
    """Further conflicts, if no change of a single member suffices."""

    fixes: tuple[tuple[FixStep, ...], ...] = ()
    """The smallest sets of changes that suffice."""

    def keys(self) -> set[str]:
        return {member.key for clash in (self.members, *self.others) for member in clash}


def find_conflict(program: Program, *, effort: Effort = DEFAULT_EFFORT) -> Conflict | None:
    """Return a minimal set of limits that cannot hold together, including the decision date; None if all can
    hold."""
    if can_hold(program, (), effort) is not False:
        return None
    core, is_minimal = _clash(program, frozenset(), effort)
    members = tuple(Member(limit.key, limit.demand, _find_fix(program, limit, effort)) for limit in core)
    if not members or any(member.fix for member in members):
        return Conflict(members, is_minimal)
    others, fixes = _minimal_fixes(program, [limit.key for limit in core], effort)
    return Conflict(members, is_minimal, others, fixes)


def _clash(program: Program, relaxed: frozenset[str], effort: Effort) -> tuple[list[Limit], bool]:
    """Return a minimal conflict among the limits outside `relaxed`, and whether it is certainly minimal."""
    out, core, is_minimal = set(relaxed), list[Limit](), True
    for limit in limits_of(program):
        if limit.key in relaxed:
            continue
        is_feasible = can_hold(program, {*out, limit.key}, effort)
        if is_feasible is False:
            out.add(limit.key)
        else:
            core.append(limit)
            is_minimal &= is_feasible is not None
    return core, is_minimal


def _minimal_fixes(
    program: Program, first: list[str], effort: Effort
) -> tuple[tuple[tuple[Member, ...], ...], tuple[tuple[FixStep, ...], ...]]:
    """Return further conflicts, and the smallest sets of changes that suffice."""
    clashes, others = [first], list[tuple[Member, ...]]()
    fixes: list[tuple[str, ...]] = []
    evaluated: set[tuple[str, ...]] = set()
    while len(fixes) < MAX_FIXES and len(evaluated) < MAX_CANDIDATE_FIXES:
        most = len(fixes[0]) if fixes else MAX_FIX_SIZE
        keys = next((candidate for candidate in _hitting_sets(clashes, most) if candidate not in evaluated), None)
        if keys is None:
            break
        evaluated.add(keys)
        is_feasible = can_hold(program, keys, effort)
        if is_feasible:
            fixes.append(keys)
        elif is_feasible is False and len(clashes) < MAX_CLASHES:
            core, _ = _clash(program, frozenset(keys), effort)
            clashes.append([limit.key for limit in core])
            others.append(tuple(Member(limit.key, limit.demand, None) for limit in core))
    return tuple(others), tuple(tuple(_fix_steps(program, keys, effort)) for keys in fixes)


def _hitting_sets(clashes: Sequence[Sequence[str]], most: int) -> Iterator[tuple[str, ...]]:
    """Yield sets of at most `most` limits with one of every conflict, smallest first, preferring limits that
    people change first."""
    keys = list(dict.fromkeys(key for clash in clashes for key in reversed(clash)))
    for size in range(1, most + 1):
        for chosen in itertools.combinations(keys, size):
            if all(set(chosen) & set(clash) for clash in clashes):
                yield chosen


def _fix_steps(program: Program, keys: Sequence[str], effort: Effort) -> Iterator[FixStep]:
    """Yield a sufficient change of each limit in turn, assuming the changes before it."""
    out = set(keys)
    for key in keys:
        limit = next(candidate for candidate in limits_of(program) if candidate.key == key)
        changes, text = limit.find_limit_change(effort, out - {key}) or LEFT_OUT
        if changes:
            program = program.changed(changes)
            out.remove(key)
        yield key, text


def can_hold(program: Program, relaxed: Collection[str], effort: Effort) -> bool | None:
    """Return whether a schedule keeps all limits but `relaxed` and meets the decision date; None if unknown."""
    problem = compile_problem(program, relaxed=relaxed, by_the_date=True)
    found = first_schedule(problem, tries=3, seed=effort.seed)
    if found is not None and affordable(problem, found):
        return True
    solver = new_solver(effort)
    return was_found(solver.solve(build(problem).cp))


def limits_of(program: Program) -> Iterator[Limit]:
    """Yield every limit that could be relaxed; those that people change first come last."""
    yield from _limits_of_capacity(program)
    yield from _limits_of_people(program)
    for name, event in program.events.items():
        demand = f"{event.title}: {event.at}"
        yield Limit(f"events.{name}.at", demand, partial(_latest_day, program, name))
    for node in program.nodes().values():
        if node.not_before:
            yield Limit(f"{node.key}.not_before", node.not_before)
        if node.due:
            yield _date_limit(program, f"{node.key}.due", node.due, node.name)
    yield from _limits_of_budget(program)
    yield Limit("calendar.weeks", f"{number_of(program.calendar.weeks, 'week')} in all")
    yield _date_limit(program, "decision.by", program.decision.by, program.decision.decided_by)


def _limits_of_capacity(program: Program) -> Iterator[Limit]:
    capacity = program.capacity
    more = [math.ceil(capacity.devices * times) for times in (1.1, 1.25, 1.5, 2, 3)]
    larger = [({DEVICES: count}, f"{count} would do") for count in more]
    yield Limit(DEVICES, number_of(capacity.devices, "device"), partial(_first_feasible, program, larger))
    for name, booking in capacity.bookings.items():
        key = f"capacity.bookings.{name}"
        demand = f"{booking.title or name}: {booking.share:.0%}, {booking.since} until {booking.until}"
        parts = [round(booking.share * part, 3) for part in (0.75, 0.5, 0.25)]
        smaller = [({f"{key}.share": part}, f"a share of {part:.0%} would do") for part in parts]
        yield Limit(key, demand, partial(_first_feasible, program, smaller))
    if (rule := capacity.fair_use) is not None:
        demand = f"no job above {rule.share:.0%} of capacity for more than {rule.max_hours} h"
        enough = "enough if runs may give way and go on (segments: chained)"
        chained = [({f"{FAIR_USE}.segments": "chained"}, enough)]
        yield Limit(FAIR_USE, demand, partial(_first_feasible, program, chained))


def _limits_of_people(program: Program) -> Iterator[Limit]:
    for name, role in program.team.items():
        more = [
            ({f"team.{name}.fte": round(role.fte + more, 2)}, f"{more:g} more would do")
            for more in (0.5, 1, 1.5, 2, 3, 4)
        ]
        demand = f"{program.title_of(name)} ({role.fte:g})"
        yield Limit(f"team.{name}", demand, partial(_first_feasible, program, more))
    for name, role in program.team.items():
        if role.away:
            spans = ", ".join(f"{absence.since} until {absence.until}" for absence in role.away)
            find_limit_change = partial(_first_feasible, program, list(_absence_changes(program, name)))
            yield Limit(f"team.{name}.away", f"{role.title or name} is away: {spans}", find_limit_change)
    if days := sorted(day.isoformat() for day in program.calendar.holidays):
        more_days = f" to {days[-1]} ({len(days)} days)" if len(days) > 1 else ""
        works = partial(_first_feasible, program, _holiday_changes(days))
        yield Limit(HOLIDAYS, f"nobody works on {days[0]}{more_days}", works)


def _absence_changes(program: Program, name: str) -> Iterator[LimitChange]:
    """Yield presence during one absence, or during all."""
    key, away = f"team.{name}.away", program.team[name].away
    for absence in away:
        others = [other.model_dump(mode="json") for other in away if other is not absence]
        yield {key: others}, f"being there from {absence.since} until {absence.until} would do"
    yield {key: []}, "being there all the time would do"


def _holiday_changes(days: list[str]) -> list[LimitChange]:
    """Return work on the first holidays: one, a quarter, half, or all."""
    counts = sorted({1, -(-len(days) // 4), -(-len(days) // 2), len(days)})
    return [
        (
            {HOLIDAYS: days[count:]},
            f"working on {days[0]} would do" if count == 1 else f"working from {days[0]} to {days[count - 1]} would do",
        )
        for count in counts
    ]


def _limits_of_budget(program: Program) -> Iterator[Limit]:
    budget, nodes = program.budget, program.nodes().values()
    for stage, most in budget.stages.items():
        key, spenders = f"budget.stages.{stage}", {node.name for node in nodes if node.stage == stage}
        spent = partial(Model.device_hours_of, names=spenders)
        find_limit_change = partial(_minimum, program, key, spent, partial(_hours_of_stage, key))
        yield Limit(key, f"{most:,.0f} device-hours", find_limit_change)

    def limit_change(least: int) -> LimitChange:
        needed = math.ceil(least / (1.0 - budget.reserve) - 1e-9)
        reserve = " with the same reserve" if budget.reserve else ""
        return {key: needed}, f"{needed:,} would do{reserve}"

    key = "budget.device_hours"
    demand = f"{budget.plannable_device_hours():,.0f} device-hours may be planned"
    yield Limit(key, demand, partial(_minimum, program, key, lambda model: model.device_hours, limit_change))


def _hours_of_stage(key: str, least: int) -> LimitChange:
    return {key: least}, f"{least:,} would do"


def _date_limit(program: Program, key: str, demand: str, name: str) -> Limit:
    def end(model: Model) -> Any:
        return model.groups[name].end

    def limit_change(hour: int) -> LimitChange:
        return {key: _midnight_after(program, hour)}, f"{_moment(program, hour)} would do"

    return Limit(key, demand, partial(_minimum, program, key, end, limit_change))


def _find_fix(program: Program, limit: Limit, effort: Effort) -> str | None:
    if not can_hold(program, {limit.key}, effort):
        return None
    found = limit.find_limit_change(effort, ())
    return None if found is None else found[1]


def _first_feasible(
    program: Program, limit_changes: Iterable[LimitChange], effort: Effort, relaxed: Collection[str]
) -> LimitChange:
    for changes, text in limit_changes:
        if can_hold(program.changed(changes), relaxed, effort):
            return changes, text
    return LEFT_OUT


def _minimum(
    program: Program,
    key: str,
    expression: Callable[[Model], Any],
    limit_change: Callable[[int], LimitChange],
    effort: Effort,
    relaxed: Collection[str],
) -> LimitChange | None:
    model = build(compile_problem(program, relaxed={key, *relaxed}, by_the_date=True))
    model.cp.minimize(expression(model))
    solver = new_solver(effort)
    if not was_found(solver.solve(model.cp)):
        return None
    return limit_change(math.ceil(solver.objective_value - 0.5))


def _latest_day(program: Program, event: str, effort: Effort, relaxed: Collection[str]) -> LimitChange:
    key = f"events.{event}.at"

    def is_too_late(day: int) -> bool:
        date = program.calendar.start + datetime.timedelta(days=day)
        return not can_hold(program.changed({key: date.isoformat()}), relaxed, effort)

    if is_too_late(0):
        return LEFT_OUT
    num_days = program.calendar.hour_of(program.events[event].at) // 24
    latest = bisect_left(range(num_days), True, lo=1, key=is_too_late) - 1
    date = program.calendar.start + datetime.timedelta(days=latest)
    return {key: date.isoformat()}, f"{_moment(program, latest * 24)} would do"


def _midnight_after(program: Program, hour: int) -> str:
    return program.calendar.date_of(24 * max(1, math.ceil(hour / 24))).isoformat()


def _moment(program: Program, hour: int) -> str:
    """Return the end of the day that contains an hour: `end of day 58 (2027-03-02)`."""
    day = max(1, math.ceil(hour / 24))
    date = program.calendar.start + datetime.timedelta(days=day - 1)
    return f"end of day {day} ({date.isoformat()})"


def conflict_error(locate: Callable[[str], str], conflict: Conflict) -> ConfigError:
    """Return an error that lists the conflicting limits, their lines in the file, and possible fixes."""
    minimal = "" if conflict.is_minimal else " (time ran out: one of them may not be to blame)"
    if any(member.fix for member in conflict.members):
        lines = [_member_text(locate, member) for member in conflict.members]
        return ConfigError(
            f"no schedule keeps all limits. These cannot hold together{minimal}; give way on one:\n" + "\n".join(lines)
        )
    lines = [f"no schedule keeps all limits, and giving way on one is not enough{minimal}."]
    for clash, is_further in ((clash, index) for index, clash in enumerate((conflict.members, *conflict.others))):
        lines.append("These cannot hold together either:" if is_further else "These cannot hold together:")
        lines += [f"  {locate(member.key)}: {member.key}: {member.demand}" for member in clash]
    if not conflict.fixes:
        lines.append("No few concessions that were tried are enough: look for what is asked for twice.")
    for number, fix in enumerate(conflict.fixes):
        lines.append("Or all of these:" if number else "Give way on all of these:")
        lines += [f"  {locate(key)}: {key}: {text}" for key, text in fix]
    return ConfigError("\n".join(lines))


def _member_text(locate: Callable[[str], str], member: Member) -> str:
    fix = member.fix or "no concession on this alone is enough"
    return f"  {locate(member.key)}: {member.key}: {member.demand}; {fix}"

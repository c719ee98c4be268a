"""Compiles a program into a scheduling problem: tasks that hold resources, in whole hours.

    program --compile--> tasks, resources, links, spending limits --model--> CP-SAT

Every run of an activity is a task; its runs share one mode. Calendars, the fair-use rule and segments are resolved
here, so that the model has only holds, amounts and hours. A limit that could be relaxed has the dotted key of the
program that it comes from; `compile_problem(program, relaxed={...})` leaves it out, which finds conflicts.

The grid is one hour for devices, half a working day for people. People are held from start to end of their work,
including nights and weekends, when nobody else could use them.
"""

import math
from collections.abc import Collection, Iterator
from itertools import groupby
from typing import NamedTuple

from assay.planning.program.calendar import Capacity, FairUse
from assay.planning.program.program import Program
from assay.planning.program.work import Node, Runs

FTE_UNITS = 20
"""Model units per full-time equivalent."""

DEVICES = "capacity.devices"
"""The resource that runs hold."""


class ExecutionMode(NamedTuple):
    """An execution mode of a group of tasks."""

    choice: int
    """Index of the program's alternative; several modes may share one (whole, or in segments)."""

    holds_h: tuple[int, ...]
    """Hours of each segment; empty for people's work, whose length depends on the calendar."""

    half_days: int
    demands: dict[str, int]
    """Resource -> units held in every segment."""

    device_hours: int
    """Device-hours of one task."""

    gap_h: int = 0
    """Minimal hours between segments."""

    limited: tuple[tuple[int, int, int], ...] = ()
    """(from, until, hours): a hold may extend into this window of scarce capacity by at most these hours."""

    span_h: int | None = None
    """Maximal hours from the group's first start to its last end."""

    def least_h(self) -> int:
        """Return the minimal hours from start to end."""
        if not self.holds_h:
            return self.half_days * 4
        return sum(self.holds_h) + self.gap_h * (len(self.holds_h) - 1)


class Group(NamedTuple):
    """An activity or a gate: equal tasks that share one mode."""

    name: str
    num_tasks: int
    modes: tuple[ExecutionMode, ...]
    earliest_h: int
    latest_h: int
    is_work: bool
    """True: people's work in half days. False: runs in hours."""


class Precedence(NamedTuple):
    """`after` starts at least `lag_h` hours after the end (or start) of `before`."""

    before: str
    after: str
    lag_h: int
    from_start: bool


class Resource(NamedTuple):
    """Units available in every hour, minus reservations."""

    units: int
    reserved: tuple[tuple[int, int, int], ...] = ()
    """(from, until, units)."""


class Problem(NamedTuple):
    """The scheduling problem."""

    groups: dict[str, Group]
    links: tuple[Precedence, ...]
    resources: dict[str, Resource]
    spending: tuple[tuple[str, frozenset[str], int], ...]
    """(key, groups, maximal device-hours)."""

    half_days: tuple[tuple[int, int], ...]
    horizon_h: int
    decision: str


def compile_problem(program: Program, *, relaxed: Collection[str] = (), by_the_date: bool = False) -> Problem:
    """Compile the program without the limits whose keys are in `relaxed`.

    `decision.by` is a limit only with `by_the_date`; otherwise a late schedule is also a solution.
    """
    horizon = _horizon_h(program, relaxed)
    holidays = () if HOLIDAYS in relaxed else program.calendar.holidays
    calendar = program.calendar.model_copy(update={"weeks": horizon // 168, "holidays": holidays})
    capacity = _capacity(program, relaxed)
    resources, arrays = _people(program, relaxed), dict[str, Resource]()
    free = None
    if DEVICES not in relaxed:
        free = capacity.free_devices(calendar)
        held = [(booking.since, booking.until, capacity.held_by(booking)) for booking in capacity.bookings.values()]
        reserved = tuple((calendar.hour_of(since), calendar.hour_of(until), units) for since, until, units in held)
        resources[DEVICES] = Resource(capacity.devices, reserved)
    groups: dict[str, Group] = {}
    links: list[Precedence] = []
    for node in program.nodes().values():
        modes = tuple(_modes(program, node, free, capacity.fair_use))
        groups[node.name] = _group(program, node, modes, horizon, relaxed)
        links += _links(program, node, relaxed)
        for array in (name for mode in modes for name in mode.demands if name.startswith(ARRAY)):
            assert capacity.fair_use is not None
            arrays[array] = Resource(array_units(capacity.fair_use, capacity.devices, free))
    if by_the_date and "decision.by" not in relaxed:
        final_node, latest = program.decision.decided_by, calendar.hour_of(program.decision.by)
        groups[final_node] = groups[final_node]._replace(latest_h=min(latest, groups[final_node].latest_h))
    return Problem(
        groups=groups,
        links=tuple(links),
        resources=resources | arrays,
        spending=tuple(_spending(program, relaxed)),
        half_days=calendar.half_days(),
        horizon_h=horizon,
        decision=program.decision.decided_by,
    )


FAIR_USE = "capacity.fair_use"
HOLIDAYS = "calendar.holidays"
ARRAY = "array:"
"""Prefix of the resource that limits an activity's runs to the fair share."""


def _horizon_h(program: Program, relaxed: Collection[str]) -> int:
    if "calendar.weeks" not in relaxed:
        return program.calendar.horizon_h()
    # Everything one after the other, behind the last date that anything waits for.
    hours = sum(_longest_h(node) for node in program.nodes().values())
    moments = [event.at for event in program.events.values()]
    moments += [booking.until for booking in program.capacity.bookings.values()]
    moments += [absence.until for role in program.team.values() for absence in role.away]
    moments += [node.not_before for node in program.nodes().values() if node.not_before]
    latest = max([0, *(program.calendar.hour_of(moment) for moment in moments)])
    return max(program.calendar.horizon_h(), 168 * math.ceil((hours + latest) / 168 + 1))


def _longest_h(node: Node) -> int:
    lags = sum(max(0, dependency.lag_hours) for dependency in node.after)
    if node.runs is not None:
        return lags + node.runs.count * max(mode.hours for mode in node.runs.all_modes()) * 2
    # Five working days in seven, and as many again for holidays and rounding.
    return lags + math.ceil(max(work.days for work in node.work) * 24 * 7 / 5 * 2) + 72


def _capacity(program: Program, relaxed: Collection[str]) -> Capacity:
    capacity = program.capacity
    bookings = {n: booking for n, booking in capacity.bookings.items() if f"capacity.bookings.{n}" not in relaxed}
    rule = None if FAIR_USE in relaxed else capacity.fair_use
    return capacity.model_copy(update={"bookings": bookings, "fair_use": rule})


def _people(program: Program, relaxed: Collection[str]) -> dict[str, Resource]:
    away: dict[str, list[tuple[int, int, int]]] = {name: [] for name in program.team}
    for person, since, until, fte in program.absences():
        for name in program.roles_of(person) if f"team.{person}.away" not in relaxed else ():
            away[name].append((since, until, _units(fte)))
    return {
        name: Resource(_units(role.fte), tuple(away[name]))
        for name, role in program.team.items()
        if f"team.{name}" not in relaxed
    }


def _units(fte: float) -> int:
    return round(fte * FTE_UNITS)


def _group(
    program: Program, node: Node, modes: tuple[ExecutionMode, ...], horizon: int, relaxed: Collection[str]
) -> Group:
    earliest, latest = 0, horizon
    if node.not_before is not None and f"{node.key}.not_before" not in relaxed:
        earliest = max(earliest, program.calendar.hour_of(node.not_before))
    if node.due is not None and f"{node.key}.due" not in relaxed:
        latest = min(latest, program.calendar.hour_of(node.due))
    count = node.runs.count if node.runs else 1
    return Group(node.name, count, modes, earliest, latest, is_work=node.runs is None)


def _links(program: Program, node: Node, relaxed: Collection[str]) -> Iterator[Precedence]:
    for dependency in node.after:
        if dependency.name not in program.events:
            yield Precedence(dependency.name, node.name, dependency.lag_hours, dependency.of == "start")
        elif f"events.{dependency.name}.at" not in relaxed:
            at = program.calendar.hour_of(program.events[dependency.name].at)
            yield Precedence("", node.name, at + dependency.lag_hours, from_start=True)


def _spending(program: Program, relaxed: Collection[str]) -> Iterator[tuple[str, frozenset[str], int]]:
    nodes = program.nodes().values()
    if "budget.device_hours" not in relaxed:
        whole = frozenset(node.name for node in nodes)
        yield "budget.device_hours", whole, math.floor(program.budget.plannable_device_hours() + 1e-9)
    for stage, device_hours in program.budget.stages.items():
        if f"budget.stages.{stage}" not in relaxed:
            spenders = frozenset(node.name for node in nodes if node.stage == stage)
            yield f"budget.stages.{stage}", spenders, math.floor(device_hours + 1e-9)


def _modes(program: Program, node: Node, free: list[int] | None, rule: FairUse | None) -> Iterator[ExecutionMode]:
    if node.runs is None:
        for index, work in enumerate(node.work):
            demands = people_demands(program, work.people)
            yield ExecutionMode(index, (), round(2 * work.days), demands, 0)
        return
    people = people_demands(program, node.runs.people)
    for index, mode in enumerate(node.runs.all_modes()):
        demands = {DEVICES: mode.devices} | people
        if free is not None and mode.devices > max(free):
            continue
        whole = ExecutionMode(index, (mode.hours,), 0, demands, mode.devices * mode.hours)
        if rule is None or free is None:
            yield whole
        elif rule.job == "activity" and node.runs.count > 1:
            yield from _array_modes(node, whole, free, rule, program.capacity.devices)
        else:
            yield from _run_modes(node.runs, whole, free, rule, program.capacity.devices)


def people_demands(program: Program, people: dict[str, float]) -> dict[str, int]:
    """Return the units of each role and person; a named person also counts against the role."""
    demands: dict[str, int] = {}
    for name, fte in people.items():
        for role in program.roles_of(name):
            demands[role] = demands.get(role, 0) + _units(fte)
    return demands


def _run_modes(runs: Runs, whole: ExecutionMode, free: list[int], rule: FairUse, total: int) -> Iterator[ExecutionMode]:
    """Yield the modes that respect the fair-use rule: whole, whole outside scarce windows, or in segments."""
    hours, devices = whole.holds_h[0], whole.demands[DEVICES]
    scarce = [] if hours <= rule.max_hours else _scarce_windows(devices, free, rule, total)
    scarce = [(begin, end) for begin, end in scarce if end - begin > rule.max_hours]
    if scarce != [(0, len(free))]:
        yield whole._replace(limited=tuple((begin, end, rule.max_hours) for begin, end in scarce))
    if scarce and rule.segments == "chained":
        holds = _segments(hours, rule.max_hours, runs.resume_hours)
        if holds:
            yield whole._replace(holds_h=holds, device_hours=devices * sum(holds), gap_h=rule.gap_hours)


def _scarce_windows(devices: int, free: list[int], rule: FairUse, total: int) -> list[tuple[int, int]]:
    """Return merged windows (from, until) in which these devices exceed the share.

    Hours with fewer free devices than needed count as scarce only between others, because it cannot run
    there.
    """
    of = [total] * len(free) if rule.of == "total" else free
    over = [devices > rule.share * capacity + 1e-9 for capacity in of]
    spans = (list(hours) for is_over, hours in groupby(range(len(over)), over.__getitem__) if is_over)
    return [(hours[0], hours[-1] + 1) for hours in spans]


def _segments(hours: int, most_h: int, resume_h: int) -> tuple[int, ...]:
    """Return holds of at most `most_h` hours that do `hours` of work; each after the first loses `resume_h`."""
    if most_h <= resume_h:
        return ()
    holds, left = [most_h], hours - most_h
    while left > 0:
        holds.append(min(most_h, left + resume_h))
        left -= most_h - resume_h
    return tuple(holds)


def array_units(rule: FairUse, total: int, free: list[int] | None) -> int:
    """Return the devices that all runs of an activity may hold for long, if they count as one job.

    With `of: available`, the scarcest hour with any free device counts, because the array may be anywhere.
    Schedule and simulation both use this.
    """
    least = total if rule.of == "total" or free is None else min([f for f in free if f > 0], default=0)
    return math.floor(rule.share * least + 1e-9)


def _array_modes(
    node: Node, whole: ExecutionMode, free: list[int], rule: FairUse, total: int
) -> Iterator[ExecutionMode]:
    """Yield an activity's runs as one job: together below the share, or all within the limit of hours."""
    devices = whole.demands[DEVICES]
    if devices <= array_units(rule, total, free):
        yield whole._replace(demands=whole.demands | {f"{ARRAY}{node.name}": devices})
    if whole.holds_h[0] <= rule.max_hours:
        yield whole._replace(span_h=rule.max_hours)

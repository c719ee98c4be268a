"""List scheduling: places one group after the other at its earliest time.

`list_schedule` takes a priority order (serial schedule generation scheme). It provides the initial solution
for CP-SAT, and shifts an optimal schedule to the left, so that slack lies after the work.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from assay.planning.problem import ExecutionMode, Group, Problem


class ScheduledGroup(NamedTuple):
    """A scheduled group."""

    mode: int
    """Index into the group's modes."""

    starts: tuple[tuple[int, ...], ...]
    """[task][segment]: start hour."""

    start_h: int
    end_h: int


Schedule = dict[str, ScheduledGroup]


class ResourceProfile:
    """Free units of each resource, by hour."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._free: dict[str, Any] = {}
        for name, resource in problem.resources.items():
            free = np.full(problem.horizon_h, resource.units, dtype=np.int64)
            for since, until, units in resource.reserved:
                free[max(0, since) : max(0, until)] -= units
            self._free[name] = np.maximum(free, 0)
        self._work_starts = np.array([begin for begin, _ in problem.half_days], dtype=np.int64)
        self._work_ends = np.array([end for _, end in problem.half_days], dtype=np.int64)

    def insert(self, group: Group, position: int, earliest_h: int) -> ScheduledGroup | None:
        """Schedule a group's tasks at the earliest time in one of its modes, and reserve its resources; None
        if it does not fit."""
        mode, earliest_h = group.modes[position], max(earliest_h, group.earliest_h)
        starts: list[tuple[int, ...]] = []
        end = 0
        for _ in range(group.num_tasks):
            task = self._work(group, mode, earliest_h) if group.is_work else self._run(group, mode, earliest_h)
            if task is None or (mode.span_h and starts and task[1] - starts[0][0] > mode.span_h):
                self._take(mode, starts, end, -1)
                return None
            starts.append(task[0])
            end = max(end, task[1])
            self._take(mode, starts[-1:], task[1], 1)
            earliest_h = task[0][0]
        return ScheduledGroup(position, tuple(starts), starts[0][0], end)

    def remove(self, group: Group, scheduled: ScheduledGroup) -> None:
        self._take(group.modes[scheduled.mode], scheduled.starts, scheduled.end_h, -1)

    def _take(self, mode: ExecutionMode, tasks: Sequence[tuple[int, ...]], end: int, sign: int) -> None:
        """Reserve (or with sign -1 release) resources; `end` is the end of people's work, whose length
        depends on the calendar."""
        for starts in tasks:
            spans = [(start, start + hours) for start, hours in zip(starts, mode.holds_h, strict=False)]
            for since, until in spans or [(starts[0], end)]:
                for name in mode.demands.keys() & self._free.keys():
                    self._free[name][since:until] -= sign * mode.demands[name]

    def _missing_hours(self, mode: ExecutionMode) -> Any:
        """Return the cumulative count of hours in which some resource is short: [0, ...], of length horizon +
        1."""
        lacks = np.zeros(self._problem.horizon_h, dtype=bool)
        for name, units in mode.demands.items():
            if name in self._free:
                lacks |= self._free[name] < units
        return np.concatenate(([0], np.cumsum(lacks)))

    def _run(self, group: Group, mode: ExecutionMode, earliest_h: int) -> tuple[tuple[int, ...], int] | None:
        missing, starts = self._missing_hours(mode), []
        for hours in mode.holds_h:
            last = group.latest_h - hours
            if last < earliest_h:
                return None
            candidates = np.arange(earliest_h, last + 1)
            fits = missing[candidates + hours] == missing[candidates]
            for since, until, most_h in mode.limited:
                fits &= (candidates + hours <= since + most_h) | (candidates >= until - most_h)
            if not fits.any():
                return None
            starts.append(int(candidates[fits.argmax()]))
            earliest_h = starts[-1] + hours + mode.gap_h
        return tuple(starts), starts[-1] + mode.holds_h[-1]

    def _work(self, group: Group, mode: ExecutionMode, earliest_h: int) -> tuple[tuple[int, ...], int] | None:
        begins = self._work_starts[: len(self._work_starts) - mode.half_days + 1]
        ends = self._work_ends[mode.half_days - 1 :]
        if not len(ends):
            return None
        missing = self._missing_hours(mode)
        fits = (begins >= earliest_h) & (ends <= group.latest_h) & (missing[ends] == missing[begins])
        if not fits.any():
            return None
        first = int(fits.argmax())
        return (int(begins[first]),), int(ends[first])


def list_schedule(
    problem: Problem, priority: Mapping[str, float], *, modes: Mapping[str, int] | None = None
) -> Schedule | None:
    """Schedule every group at its earliest time; among groups with scheduled predecessors, the lowest
    `priority` first.

    A group uses the mode in `modes`, or the mode that ends first (ties: fewest device-hours). Returns None if
    a group does not fit before the horizon. Spending limits are ignored.
    """
    profile, done = ResourceProfile(problem), Schedule()
    for group in map(problem.groups.__getitem__, _topological(problem, priority)):
        earliest = earliest_start(problem, group.name, done)
        candidates: list[ScheduledGroup] = []
        for position in range(len(group.modes)) if modes is None else (modes[group.name],):
            scheduled = profile.insert(group, position, earliest)
            if scheduled is not None:
                profile.remove(group, scheduled)
                candidates.append(scheduled)
        if not candidates:
            return None
        best = min(candidates, key=lambda candidate: (candidate.end_h, group.modes[candidate.mode].device_hours))
        scheduled = profile.insert(group, best.mode, earliest)
        assert scheduled == best, (scheduled, best)
        done[group.name] = best
    return done


def earliest_start(problem: Problem, name: str, done: Schedule) -> int:
    """Return the earliest hour allowed by scheduled predecessors."""
    earliest = 0
    for link in problem.links:
        if link.after == name:
            before = done[link.before] if link.before else None
            base = 0 if before is None else before.start_h if link.from_start else before.end_h
            earliest = max(earliest, base + link.lag_h)
    return earliest


def tails(problem: Problem) -> dict[str, int]:
    """Return for each group the minimal hours from its start to the end of the program; the classical
    priority is its negative."""
    least = {name: min((mode.least_h() for mode in group.modes), default=0) for name, group in problem.groups.items()}
    found: dict[str, int] = {}
    for name in reversed(_topological(problem, dict.fromkeys(problem.groups, 0.0))):
        after = [
            found[link.after] + link.lag_h + (0 if link.from_start else least[name])
            for link in problem.links
            if link.before == name
        ]
        found[name] = max([least[name], *after])
    return found


def first_schedule(problem: Problem, *, tries: int, seed: int) -> Schedule | None:
    """Return the list schedule with the earliest decision among several: priorities by tails, then with
    random changes."""
    rng, base = random.Random(seed), tails(problem)
    found: list[Schedule] = []
    for attempt in range(tries):
        shake = 0.0 if attempt == 0 else 0.3
        priority = {name: -tail * (1.0 + shake * rng.uniform(-1.0, 1.0)) for name, tail in base.items()}
        schedule = list_schedule(problem, priority)
        if schedule is not None and affordable(problem, schedule):
            found.append(schedule)
    return min(found, key=lambda schedule: schedule[problem.decision].end_h, default=None)


def affordable(problem: Problem, schedule: Schedule) -> bool:
    """Return whether the schedule keeps the spending limits."""
    return all(device_hours(problem, schedule, spenders) <= most for _, spenders, most in problem.spending)


def device_hours(problem: Problem, schedule: Schedule, names: Iterable[str]) -> int:
    """Return the device-hours of some groups."""
    groups = ((problem.groups[name], schedule[name]) for name in names)
    return sum(group.num_tasks * group.modes[scheduled.mode].device_hours for group, scheduled in groups)


def _topological(problem: Problem, priority: Mapping[str, float]) -> list[str]:
    waits: dict[str, set[str]] = {name: set() for name in problem.groups}
    for link in problem.links:
        waits[link.after] |= {link.before} - {""}
    return in_order(waits, priority)


def in_order(waits: Mapping[str, Collection[str]], priority: Mapping[str, float]) -> list[str]:
    """Return a topological order: among groups without pending predecessors, the lowest `priority` first
    (ties: in the order of `waits`)."""
    pending, order = sorted(waits, key=priority.__getitem__), dict[str, None]()
    while pending:
        ready = next((name for name in pending if all(before in order for before in waits[name])), None)
        assert ready is not None, f"a cycle among {sorted(pending)}"
        pending.remove(ready)
        order[ready] = None
    return list(order)

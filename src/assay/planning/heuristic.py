"""Schedules made by placing one group after the other at its earliest time: good at once, proof of nothing.

`list_schedule` takes an order and gives every group the first place that is free (serial schedule generation).
It serves twice: its best schedule is where CP-SAT begins, and it moves an optimal schedule's loose ends to the
left, so that slack lies behind the work.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from assay.planning.problem import ExecutionMode, Group, Problem


class ScheduledGroup(NamedTuple):
    """A group on the calendar."""

    mode: int
    """Its position in the group's ways."""

    starts: tuple[tuple[int, ...], ...]
    """For each task, the start of each segment."""

    start_h: int
    end_h: int


Schedule = dict[str, ScheduledGroup]


class ResourceProfile:
    """What is still free, hour by hour."""

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
        """The earliest place of a group in one of its ways; its tasks in turn. Takes what it holds."""
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
        """Give back what a group held."""
        self._take(group.modes[scheduled.mode], scheduled.starts, scheduled.end_h, -1)

    def _take(self, mode: ExecutionMode, tasks: Sequence[tuple[int, ...]], end: int, sign: int) -> None:
        """What some tasks hold; `end` is that of people's work, whose length depends on the calendar."""
        for starts in tasks:
            spans = [(start, start + hours) for start, hours in zip(starts, mode.holds_h, strict=False)]
            for since, until in spans or [(starts[0], end)]:
                for name in mode.demands.keys() & self._free.keys():
                    self._free[name][since:until] -= sign * mode.demands[name]

    def _missing_hours(self, mode: ExecutionMode) -> Any:
        """Cumulative count of the hours in which something is lacking: [0, ...], horizon + 1 long."""
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
    """Every group at its earliest place, least `priority` first among those whose predecessors are placed.

    A group takes the way of `ways`, or the one that ends first (of equals the one with fewest device-hours).
    None where something finds no place before the horizon; limits on spending are not looked at.
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
    """The hour before which its predecessors do not let a group begin."""
    earliest = 0
    for link in problem.links:
        if link.after == name:
            before = done[link.before] if link.before else None
            base = 0 if before is None else before.start_h if link.from_start else before.end_h
            earliest = max(earliest, base + link.lag_h)
    return earliest


def tails(problem: Problem) -> dict[str, int]:
    """For each group, the hours that at least follow its start: the classical priority is minus this."""
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
    """The best of several list schedules by the end of the decision: by tails, then with these shaken."""
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
    """Whether it keeps the limits on spending."""
    return all(device_hours(problem, schedule, spenders) <= most for _, spenders, most in problem.spending)


def device_hours(problem: Problem, schedule: Schedule, names: Iterable[str]) -> int:
    """What some groups spend."""
    groups = ((problem.groups[name], schedule[name]) for name in names)
    return sum(group.num_tasks * group.modes[scheduled.mode].device_hours for group, scheduled in groups)


def _topological(problem: Problem, priority: Mapping[str, float]) -> list[str]:
    waits: dict[str, set[str]] = {name: set() for name in problem.groups}
    for link in problem.links:
        waits[link.after] |= {link.before} - {""}
    return in_order(waits, priority)


def in_order(waits: Mapping[str, Collection[str]], priority: Mapping[str, float]) -> list[str]:
    """Least `priority` first (of equals the first in `waits`) among those that wait for nothing more."""
    pending, order = sorted(waits, key=priority.__getitem__), dict[str, None]()
    while pending:
        ready = next((name for name in pending if all(before in order for before in waits[name])), None)
        assert ready is not None, f"a cycle among {sorted(pending)}"
        pending.remove(ready)
        order[ready] = None
    return list(order)

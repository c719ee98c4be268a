"""A peer of our schedules: CP-SAT between two searches by double justification, for classical projects.

Classical means no calendars and one way each. Push everything to the right in the order of the ends, then
everything to the left in the order of the starts: the schedule never gets longer, and often shorter (Valls,
Ballestín and Quintanilla 2005). Begin anew from the best one's starts, shaken. Easy projects are over here in
milliseconds; of hard ones the last per cent of what CP-SAT found is often still to be had. No program of ours
is classical, and CP-SAT proves those that are shipped in seconds, so this is no part of assay.
"""

import heapq
import random
import time
from typing import Any, NamedTuple

import numpy as np

from assay.planning.heuristic import Schedule, ScheduledGroup
from assay.planning.model import build
from assay.planning.problem import Problem
from assay.planning.program.plan import ObjectiveResult
from assay.planning.schedule import Effort, objective_expression, optimise

SHAKE = 0.01
"""Standard deviation of the noise on starts, as a part of the makespan: tasks change places with their
neighbours in time. Ten times as much forgets the schedule that it began at: hard ones of J120 end 2% longer."""


THREADS = 2
"""Of CP-SAT for each worker: its strategies complement one another, and half of them work on the bound."""


class _Project(NamedTuple):
    """Arrays by task number."""

    hours: list[int]
    needs: Any
    """[task, resource, 1]"""

    capacity: Any
    """[resource]"""

    before: list[list[int]]
    after: list[list[int]]

    def reversed(self) -> "_Project":
        """The same with time running backwards."""
        return self._replace(before=self.after, after=self.before)


def is_classical(problem: Problem) -> bool:
    """Whether it is a resource-constrained project in the textbook's sense, its decision the end of all."""
    groups = problem.groups.values()
    waited_for = {link.before for link in problem.links}
    return (
        all(not r.reserved for r in problem.resources.values())
        and all(not link.lag_h and not link.from_start and link.before for link in problem.links)
        and all(
            group.num_tasks == 1
            and len(group.modes) == 1
            and len(group.modes[0].holds_h) == 1
            and not group.modes[0].limited
            and not group.earliest_h
            and group.latest_h == problem.horizon_h
            for group in groups
        )
        and [name for name in problem.groups if name not in waited_for] == [problem.decision]
    )


def solve_classical(problem: Problem, effort: Effort) -> tuple[Schedule, ObjectiveResult]:
    """CP-SAT, which begins with nothing, between two justified searches: for what is easy, and for the end.

    A hint makes its search worse on hard instances (it stays near the hint). What it has not found in two
    thirds of the time, the steps around its best schedule find sooner.
    """
    began = time.monotonic()
    easy = justified_schedule(problem, seconds=effort.seconds / 50, seed=effort.seed)
    model, bound = build(problem), lower_bound(problem)
    decision = objective_expression(model, "decision_h")
    model.cp.add(decision >= bound)
    if easy[problem.decision].end_h == bound:
        return easy, ObjectiveResult(name="decision_h", value=bound, bound=bound, proved=True)
    share = Effort(0.7 * effort.seconds, THREADS * effort.workers, effort.seed)
    best, result = optimise(model, "decision_h", decision, None, share)
    left = effort.seconds - (time.monotonic() - began)
    if not result.proved and left > 0:
        best = min(best, easy, key=lambda schedule: schedule[problem.decision].end_h)
        best = justified_schedule(problem, seconds=left, seed=effort.seed, start=best)
        value = best[problem.decision].end_h
        result = result.model_copy(update={"value": value, "proved": value <= result.bound})
    return best, result


def justified_schedule(problem: Problem, *, seconds: float, seed: int, start: Schedule | None = None) -> Schedule:
    """The shortest schedule found in `seconds` of search (or at once, where it is as short as can be).

    The search begins at `start`, and never returns a longer one.
    """
    assert is_classical(problem)
    names = list(problem.groups)
    project, rng, since = _project(problem), random.Random(seed), time.monotonic()
    backwards = project.reversed()
    bound = lower_bound(problem)
    tails = _longest_from(project)
    first = [-float(tail) for tail in tails] if start is None else [float(start[n].start_h) for n in names]
    best = _double(project, backwards, _serial(project, first))
    while _makespan(project, best) > bound and time.monotonic() - since < seconds:
        shuffle_radius = SHAKE * _makespan(project, best)
        shaken = _serial(project, [start + rng.gauss(0.0, shuffle_radius) for start in best])
        found = _double(project, backwards, shaken)
        if _makespan(project, found) <= _makespan(project, best):
            best = found
    return {
        name: ScheduledGroup(0, ((start,),), start, start + hours)
        for name, start, hours in zip(names, best, project.hours, strict=True)
    }


def lower_bound(problem: Problem) -> int:
    """Hours that no schedule can do without: the longest path, or the work of the busiest resource."""
    project = _project(problem)
    path = max(_longest_from(project))
    work = (np.array(project.hours)[:, None] * project.needs[:, :, 0]).sum(axis=0)
    busiest: int = np.ceil(work / project.capacity).astype(int).max(initial=0)
    return max(path, int(busiest))


def _project(problem: Problem) -> _Project:
    index = {name: number for number, name in enumerate(problem.groups)}
    resources = list(problem.resources)
    needs = np.zeros((len(index), len(resources), 1), dtype=np.int64)
    before: list[list[int]] = [[] for _ in index]
    after: list[list[int]] = [[] for _ in index]
    for name, group in problem.groups.items():
        for resource, units in group.modes[0].demands.items():
            needs[index[name], resources.index(resource), 0] = units
    for link in problem.links:
        before[index[link.after]].append(index[link.before])
        after[index[link.before]].append(index[link.after])
    hours = [group.modes[0].holds_h[0] for group in problem.groups.values()]
    capacity = np.array([problem.resources[name].units for name in resources], dtype=np.int64)
    return _Project(hours, needs, capacity, before, after)


def _longest_from(project: _Project) -> list[int]:
    """Hours from the start of each task to the end of all, resources aside."""
    found: dict[int, int] = {}

    def longest(task: int) -> int:
        if task not in found:
            found[task] = project.hours[task] + max(map(longest, project.after[task]), default=0)
        return found[task]

    return [longest(task) for task in range(len(project.hours))]


def _serial(project: _Project, priority: list[float]) -> list[int]:
    """Each task at its earliest place, least priority first among those whose predecessors are placed."""
    free = np.repeat(project.capacity[:, None], sum(project.hours) + 1, axis=1)
    waiting = [len(tasks) for tasks in project.before]
    ready = [(priority[task], task) for task, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    starts, ends = [0] * len(waiting), [0] * len(waiting)
    while ready:
        _, task = heapq.heappop(ready)
        earliest = max((ends[other] for other in project.before[task]), default=0)
        hours = project.hours[task]
        start = _first_fit(free, project.needs[task], earliest, hours) if hours else earliest
        if hours:
            free[:, start : start + hours] -= project.needs[task]
        starts[task], ends[task] = start, start + hours
        for other in project.after[task]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (priority[other], other))
    return starts


def _first_fit(free: Any, need: Any, earliest: int, hours: int) -> int:
    lacks = (free[:, earliest:] < need).any(axis=0)
    start = 0
    blocked = np.flatnonzero(lacks)
    for hour in blocked.tolist():
        if hour - start >= hours:
            break
        start = hour + 1
    return earliest + start


def _makespan(project: _Project, starts: list[int]) -> int:
    return max(start + hours for start, hours in zip(starts, project.hours, strict=True))


def _double(project: _Project, backwards: _Project, starts: list[int]) -> list[int]:
    """To the right, then to the left, until that shortens nothing."""
    while True:
        makespan = _makespan(project, starts)
        ends = [-float(start + hours) for start, hours in zip(starts, project.hours, strict=True)]
        mirrored = _serial(backwards, ends)
        length = _makespan(project, mirrored)
        right = [float(length - start - hours) for start, hours in zip(mirrored, project.hours, strict=True)]
        starts = _serial(project, right)
        if _makespan(project, starts) >= makespan:
            return starts

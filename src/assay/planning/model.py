"""The scheduling problem as a CP-SAT model.

A group chooses one mode for all its tasks. A task has a start, an end, and an optional interval for each
segment of each mode. Resources are cumulative constraints over these intervals, with reservations as fixed
intervals. People's work takes its (start, end) from a table of the calendar, so weekends and holidays need no
constraint. Equal tasks start in order, which breaks their symmetry without loss.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from assay.planning.problem import DEVICES, Group, Problem, Resource

IntVar = Any
"""`cp_model.IntVar`; the package has no types."""


class TaskVars(NamedTuple):
    """Variables of one task."""

    start: IntVar
    end: IntVar
    segment_starts: dict[int, tuple[IntVar, ...]]
    """Mode index -> start of each segment."""


class GroupVars(NamedTuple):
    """Variables of one group."""

    chosen: tuple[IntVar, ...]
    """One literal per mode; exactly one is true."""

    start: IntVar
    end: IntVar
    tasks: tuple[TaskVars, ...]


class Model(NamedTuple):
    """The constraints, and the variables from which a solution is read."""

    cp: Any
    problem: Problem
    groups: dict[str, GroupVars]
    device_hours: Any
    peak_devices: IntVar
    """Unbounded until `bound_peak` is called."""

    def device_hours_of(self, names: Collection[str]) -> Any:
        return _device_hours(self.problem, self.groups, names)


Usage = dict[str, list[tuple[Any, int]]]
"""Resource -> [(interval, units)]."""


def build(problem: Problem) -> Model:
    """Build the model without an objective."""
    from ortools.sat.python import cp_model  # it brings pandas along, so only who solves imports it

    cp = cp_model.CpModel()
    usage: Usage = defaultdict(list)
    groups = {name: _group(cp, problem, group, usage) for name, group in problem.groups.items()}
    for link in problem.links:
        after = groups[link.after].start
        if not link.before:
            cp.add(after >= link.lag_h)
        else:
            before = groups[link.before]
            cp.add(after >= (before.start if link.from_start else before.end) + link.lag_h)
    for name, resource in problem.resources.items():
        _hold(cp, usage[name], resource, problem.horizon_h)
    for _, spenders, most in problem.spending:
        cp.add(_device_hours(problem, groups, spenders) <= most)
    device_hours = _device_hours(problem, groups, problem.groups)
    held = sum(units for _, units in usage[DEVICES])
    top = problem.resources[DEVICES].units if DEVICES in problem.resources else held
    peak = cp.new_int_var(0, top, "peak_devices")
    return Model(cp, problem, groups, device_hours, peak)


def bound_peak(model: Model) -> None:
    """Constrain `peak_devices` to at least the devices held in any hour."""
    intervals, units = [], []
    for group, (name, variables) in zip(model.problem.groups.values(), model.groups.items(), strict=True):
        for number, task in enumerate(variables.tasks):
            for position, starts in task.segment_starts.items():
                mode = group.modes[position]
                for index, (start, hours) in enumerate(zip(starts, mode.holds_h, strict=True)):
                    literal, label = variables.chosen[position], f"{name}.{number}.{position}.{index}.peak"
                    intervals.append(model.cp.new_optional_fixed_size_interval_var(start, hours, literal, label))
                    units.append(mode.demands[DEVICES])
    # Devices come in eights: whoever steps by those rules the heights between out at once.
    step = math.gcd(*units) or 1
    steps = model.cp.new_int_var(0, sum(units) // step, "peak_steps")
    model.cp.add(model.peak_devices == step * steps)
    model.cp.add_cumulative(intervals, [unit // step for unit in units], steps)


def _group(cp: Any, problem: Problem, group: Group, usage: Usage) -> GroupVars:
    chosen = tuple(cp.new_bool_var(f"{group.name}.way{position}") for position in range(len(group.modes)))
    cp.add_exactly_one(chosen)
    tasks = tuple(_task(cp, problem, group, number, chosen, usage) for number in range(group.num_tasks))
    for one, other in itertools.pairwise(tasks):
        cp.add(one.start <= other.start)
    if len(tasks) == 1:
        return GroupVars(chosen, tasks[0].start, tasks[0].end, tasks)
    end = cp.new_int_var(group.earliest_h, group.latest_h, f"{group.name}.end")
    cp.add_max_equality(end, [task.end for task in tasks])
    for literal, mode in zip(chosen, group.modes, strict=True):
        if mode.span_h is not None:
            cp.add(end - tasks[0].start <= mode.span_h).only_enforce_if(literal)
        if len(mode.holds_h) == 1:
            # Equal lengths that start in order also end in order.
            cp.add(end == tasks[-1].end).only_enforce_if(literal)
    return GroupVars(chosen, tasks[0].start, end, tasks)


def _task(cp: Any, problem: Problem, group: Group, number: int, chosen: tuple[IntVar, ...], usage: Usage) -> TaskVars:
    label = f"{group.name}.{number}"
    start = cp.new_int_var(group.earliest_h, group.latest_h, f"{label}.start")
    end = cp.new_int_var(group.earliest_h, group.latest_h, f"{label}.end")
    task = TaskVars(start, end, {})
    if group.is_work:
        _add_work(cp, problem, group, label, task, chosen, usage)
    else:
        for position, literal in enumerate(chosen):
            _add_run(cp, group, position, f"{label}.{position}", task, literal, usage)
    return task


def _add_work(
    cp: Any,
    problem: Problem,
    group: Group,
    label: str,
    task: TaskVars,
    chosen: tuple[IntVar, ...],
    usage: Usage,
) -> None:
    start, end = task.start, task.end
    position = cp.new_int_var(0, len(group.modes) - 1, f"{label}.way")
    cp.add(position == sum(index * literal for index, literal in enumerate(chosen)))
    rows = list(_work_rows(problem, group))
    if not rows:
        cp.add_bool_or([])  # no stretch of the calendar is long enough
        return
    cp.add_allowed_assignments([position, start, end], rows)
    hours = cp.new_int_var(0, problem.horizon_h, f"{label}.hours")
    cp.add(hours == end - start)
    for index, (literal, mode) in enumerate(zip(chosen, group.modes, strict=True)):
        interval = cp.new_optional_interval_var(start, hours, end, literal, f"{label}.{index}")
        for resource, units in mode.demands.items():
            usage[resource].append((interval, units))


def _work_rows(problem: Problem, group: Group) -> Iterator[tuple[int, int, int]]:
    """Yield (mode, start, end) for every allowed sequence of half days."""
    half_days = problem.half_days
    for position, mode in enumerate(group.modes):
        for first in range(len(half_days) - mode.half_days + 1):
            start, end = half_days[first][0], half_days[first + mode.half_days - 1][1]
            if start >= group.earliest_h and end <= group.latest_h:
                yield position, start, end


def _add_run(cp: Any, group: Group, position: int, label: str, task: TaskVars, literal: IntVar, usage: Usage) -> None:
    mode, starts = group.modes[position], [task.start]
    for index in range(1, len(mode.holds_h)):
        later = cp.new_int_var(group.earliest_h, group.latest_h, f"{label}.{index}")
        cp.add(later >= starts[-1] + mode.holds_h[index - 1] + mode.gap_h).only_enforce_if(literal)
        starts.append(later)
    cp.add(task.end == starts[-1] + mode.holds_h[-1]).only_enforce_if(literal)
    for index, (begin, hours) in enumerate(zip(starts, mode.holds_h, strict=True)):
        interval = cp.new_optional_fixed_size_interval_var(begin, hours, literal, f"{label}.{index}")
        for resource, units in mode.demands.items():
            usage[resource].append((interval, units))
    # A long hold reaches only so far into hours of scarce capacity, from either side.
    for since, until, most_h in mode.limited:
        before = cp.new_bool_var(f"{label}.before{since}")
        cp.add(task.end <= since + most_h).only_enforce_if(before)
        cp.add(task.start >= until - most_h).only_enforce_if([~before, literal])
    task.segment_starts[position] = tuple(starts)


def _hold(cp: Any, used: list[tuple[Any, int]], resource: Resource, horizon: int) -> None:
    if not used:
        return
    holds = list(used)
    for index, (since, until, held) in enumerate(_never_more_than(resource, horizon)):
        holds.append((cp.new_fixed_size_interval_var(since, until - since, f"reserved{index}"), held))
    cp.add_cumulative(*zip(*holds, strict=True), resource.units)


def _never_more_than(resource: Resource, horizon: int) -> Iterator[tuple[int, int, int]]:
    """Yield the sum of overlapping reservations, limited to the resource's units."""
    moments = [moment for since, until, _ in resource.reserved for moment in (since, until)]
    for since, until in itertools.pairwise(sorted({min(max(moment, 0), horizon) for moment in moments})):
        reserved_units = (units for begin, end, units in resource.reserved if begin <= since and until <= end)
        held = min(resource.units, sum(reserved_units))
        if held:
            yield since, until, held


def _device_hours(problem: Problem, groups: dict[str, GroupVars], names: Collection[str]) -> Any:
    return sum(
        problem.groups[name].num_tasks * mode.device_hours * literal
        for name in problem.groups
        if name in names
        for mode, literal in zip(problem.groups[name].modes, groups[name].chosen, strict=True)
        if mode.device_hours
    )

"""Finds the best schedule of a program: earliest decision, then fewest device-hours, then lowest peak.

The objectives are lexicographic: each is solved with the previous ones fixed at their optimum, so no weights
are needed. The peak is the maximal number of devices in any hour. Finally everything is shifted to the left,
so that slack lies after the work and absorbs delays.
"""

import time
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

from assay.base.errors import ConfigError
from assay.planning.heuristic import Schedule, ScheduledGroup, device_hours, first_schedule, list_schedule
from assay.planning.model import Model, bound_peak, build
from assay.planning.problem import DEVICES, ExecutionMode, Group, Problem, Resource, compile_problem
from assay.planning.program.plan import ObjectiveResult, Plan, Planned, PlannedRun, peak_devices
from assay.planning.program.program import Program

Objective = Literal["decision_h", "device_hours", "peak_devices", "late_h", "changes_h"]
OBJECTIVES: tuple[Objective, ...] = ("decision_h", "device_hours", "peak_devices")


class Effort(NamedTuple):
    """Limits of the solver."""

    seconds: float = 60.0
    """Wall time per objective."""

    workers: int = 1
    """One worker finds the same schedule each time, and is fast on programs of some weeks. Several prove hard
    problems faster, but may return any of several optimal schedules."""
    seed: int = 1


DEFAULT_EFFORT = Effort()


class InfeasibleError(ConfigError):
    """No schedule satisfies all limits; `planning/conflict` finds which ones clash."""


class UndecidedError(ConfigError):
    """The time ran out before a schedule was found or excluded."""


def schedule(
    program: Program, *, objectives: Collection[Objective] = OBJECTIVES, effort: Effort = DEFAULT_EFFORT
) -> Plan:
    """Return the best plan; `objective_results` tells which objectives are proved optimal.

    Raises `InfeasibleError` if there is none. `decision.by` is not a limit here: a late plan is a plan.
    """
    problem = compile_problem(program)
    found, objective_results = solve(problem, objectives=objectives, effort=effort)
    return to_plan(program, problem, found, objective_results)


def solve(
    problem: Problem, *, objectives: Collection[Objective] = OBJECTIVES, effort: Effort = DEFAULT_EFFORT
) -> tuple[Schedule, tuple[ObjectiveResult, ...]]:
    """Return the best schedule and the result of each objective."""
    best = first_schedule(problem, tries=20, seed=effort.seed)
    model, objective_results = build(problem), []
    if best is not None:
        model.cp.add(model.groups[problem.decision].end <= best[problem.decision].end_h)
    for objective in (objective for objective in OBJECTIVES if objective in objectives):
        best, result = optimise(model, objective, objective_expression(model, objective), best, effort)
        objective_results.append(result)
    assert best is not None
    return left_shifted(problem, best, peak="peak_devices" in objectives), tuple(objective_results)


def optimise(
    model: Model, objective: Objective, expression: Any, start: Schedule | None, effort: Effort
) -> tuple[Schedule, ObjectiveResult]:
    """Minimize one expression from an initial schedule, and constrain it to the reached value from then on."""
    if objective == "peak_devices":
        bound_peak(model)
    model.cp.clear_hints()
    if start is not None:
        hint(model, start)
    model.cp.minimize(expression)
    solver = new_solver(effort)
    began = time.monotonic()
    status = solver.solve(model.cp)
    took = time.monotonic() - began
    if (is_feasible := was_found(status)) is False:
        raise InfeasibleError("No schedule satisfies all limits of the program.")
    if not is_feasible:
        if start is not None and objective in OBJECTIVES:
            value = _reached(model.problem, start, objective)
            return start, ObjectiveResult(name=objective, value=value, bound=0, proved=False, solve_s=round(took, 3))
        raise UndecidedError(
            f"No schedule was found within {effort.seconds:g} s, and none was ruled out. Give it more time."
        )
    value = round(solver.objective_value)
    result = ObjectiveResult(
        name=objective,
        value=value,
        bound=min(value, solver.best_objective_bound),
        proved=is_proved(status),
        solve_s=round(took, 3),
    )
    model.cp.add(expression <= value)
    return read(model, solver), result


def _reached(problem: Problem, schedule: Schedule, objective: Objective) -> int:
    if objective == "peak_devices":
        return _peak(problem, schedule)
    if objective == "decision_h":
        return schedule[problem.decision].end_h
    return device_hours(problem, schedule, problem.groups)


def objective_expression(model: Model, objective: Objective) -> Any:
    """Return the expression of a standard objective."""
    if objective == "decision_h":
        return model.groups[model.problem.decision].end
    return model.device_hours if objective == "device_hours" else model.peak_devices


def was_found(status: Any) -> bool | None:
    """Return whether the solver found a schedule; None if it neither found nor excluded one."""
    from ortools.sat.python import cp_model

    # Invalid is a model of what may begin only after it had to be over: its date has passed.
    return None if status == cp_model.UNKNOWN else status in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def is_proved(status: Any) -> bool:
    """Return whether the solution is optimal."""
    from ortools.sat.python import cp_model

    return bool(status == cp_model.OPTIMAL)


def new_solver(effort: Effort) -> Any:
    """Return a solver with these limits."""
    from ortools.sat.python import cp_model  # it brings pandas along, so only who solves imports it

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = effort.workers
    solver.parameters.random_seed = effort.seed
    solver.parameters.max_time_in_seconds = effort.seconds
    return solver


def hint(model: Model, schedule: Schedule) -> None:
    """Give the solver an initial solution."""
    for name, variables in model.groups.items():
        scheduled, group = schedule[name], model.problem.groups[name]
        holds_h = group.modes[scheduled.mode].holds_h
        for position, literal in enumerate(variables.chosen):
            model.cp.add_hint(literal, position == scheduled.mode)
        for task, starts in zip(variables.tasks, scheduled.starts, strict=True):
            model.cp.add_hint(task.start, starts[0])
            model.cp.add_hint(task.end, scheduled.end_h if group.is_work else starts[-1] + holds_h[-1])
            for variable, begin in zip(task.segment_starts.get(scheduled.mode, ())[1:], starts[1:], strict=False):
                model.cp.add_hint(variable, begin)


def read(model: Model, solver: Any) -> Schedule:
    """Read the solution as a schedule."""
    found = Schedule()
    for name, variables in model.groups.items():
        mode = next(index for index, literal in enumerate(variables.chosen) if solver.value(literal))
        starts = tuple(
            tuple(int(solver.value(start)) for start in task.segment_starts.get(mode, (task.start,)))
            for task in variables.tasks
        )
        end = max(int(solver.value(task.end)) for task in variables.tasks)
        found[name] = ScheduledGroup(mode, starts, starts[0][0], end)
    return found


def left_shifted(problem: Problem, found: Schedule, *, peak: bool) -> Schedule:
    """Shift a schedule to the left in the same modes and order, never with a later decision or a higher
    peak."""
    if peak:
        problem = _below_peak(problem, _peak(problem, found))
    order = {name: scheduled.start_h + scheduled.end_h * 1e-6 for name, scheduled in found.items()}
    modes = {name: scheduled.mode for name, scheduled in found.items()}
    earlier = list_schedule(problem, order, modes=modes)
    if earlier is None or earlier[problem.decision].end_h > found[problem.decision].end_h:
        return found
    return earlier


def _below_peak(problem: Problem, peak: int) -> Problem:
    def limited(mode: ExecutionMode) -> ExecutionMode:
        return mode._replace(demands=mode.demands | {"peak": mode.demands.get(DEVICES, 0)})

    groups: dict[str, Group] = {
        name: group if group.is_work else group._replace(modes=tuple(map(limited, group.modes)))
        for name, group in problem.groups.items()
    }
    return problem._replace(groups=groups, resources=problem.resources | {"peak": Resource(peak)})


def _peak(problem: Problem, schedule: Schedule) -> int:
    return peak_devices(run for name, scheduled in schedule.items() for run in _runs(problem.groups[name], scheduled))


def to_plan(
    program: Program, problem: Problem, schedule: Schedule, objective_results: tuple[ObjectiveResult, ...]
) -> Plan:
    """Convert a schedule to a plan of the program."""
    items = [_planned(program, problem.groups[name], scheduled) for name, scheduled in schedule.items()]
    items.sort(key=lambda item: (item.start_h, item.end_h, item.name))
    return Plan(
        program=program.name,
        program_sha256=program.digest(),
        decision_h=schedule[problem.decision].end_h,
        device_hours=sum(item.device_hours() for item in items),
        peak_devices=peak_devices(run for item in items for run in item.runs),
        items=tuple(items),
        objective_results=objective_results,
    )


def _planned(program: Program, group: Group, scheduled: ScheduledGroup) -> Planned:
    mode = group.modes[scheduled.mode]
    node = program.nodes()[group.name]
    return Planned(
        name=group.name,
        mode=mode.choice,
        start_h=scheduled.start_h,
        end_h=scheduled.end_h,
        people=dict(node.runs.people if node.runs else node.work[mode.choice].people),
        runs=_runs(group, scheduled),
    )


def _runs(group: Group, scheduled: ScheduledGroup) -> tuple[PlannedRun, ...]:
    mode = group.modes[scheduled.mode]
    return tuple(
        PlannedRun(
            devices=mode.demands[DEVICES],
            holds=tuple((begin, begin + hours) for begin, hours in zip(starts, mode.holds_h, strict=True)),
        )
        for starts in (() if group.is_work else scheduled.starts)
    )

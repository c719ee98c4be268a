"""Re-plans from today: the past is fixed, and the rest changes as little as possible.

The decision comes no later than necessary. Then the sum of all changes is minimized (hours by which unstarted
activities shift, and half a day for a different mode), then cost and peak. An earlier date alone is no reason
to move people.

Events count at their actual or now expected time. Activities that a gate has called off are left out.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from assay.base.errors import ConfigError
from assay.planning.conflict import limits_of
from assay.planning.heuristic import Schedule, list_schedule
from assay.planning.in_progress import ActivityInProgress, activities_in_progress
from assay.planning.model import GroupVars, Model, build
from assay.planning.problem import DEVICES, Precedence, Problem, Resource, compile_problem, people_demands
from assay.planning.program.checks import misfits, refuse
from assay.planning.program.plan import ObjectiveResult, Plan, Planned, peak_devices
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress, called_off
from assay.planning.schedule import (
    DEFAULT_EFFORT,
    Effort,
    InfeasibleError,
    Objective,
    new_solver,
    objective_expression,
    optimise,
    to_plan,
    was_found,
)

OTHER_MODE_H = 12
"""Cost of a different mode, in hours of shift."""


def replan(program: Program, before: Plan, progress: Progress, *, effort: Effort = DEFAULT_EFFORT) -> Plan:
    """Return the plan from `progress.now` on, including what has started, as it happened.

    Raises `InfeasibleError` if the rest does not fit, and `ConfigError` if plan, progress and program do not
    match.
    """
    refuse(misfits(program, progress))
    as_declared, program = program, known_program(program, progress)
    if before.program != program.name:
        raise ConfigError(f"The plan is one of '{before.program}', the program is '{program.name}'.")
    for name in (name for name in program.nodes() if name not in {item.name for item in before.items}):
        raise ConfigError(f"'{name}' is not in the earlier plan: solve anew instead of planning from it.")
    if program.decision.decided_by in progress.activities:
        raise ConfigError("The decision has been made: there is nothing left to plan.")
    try:
        rest = _plan_remaining(program, before, progress, _change_objectives, effort)
    except InfeasibleError as error:
        raise InfeasibleError(_why_nothing_fits(program, before, progress, effort)) from error
    return rest.model_copy(update={"program_sha256": as_declared.digest()})


def _why_nothing_fits(program: Program, before: Plan, progress: Progress, effort: Effort) -> str:
    """Return the text of an `InfeasibleError`, with the limits whose removal would make the rest fit."""
    now, in_progress = program.calendar.hour_of(progress.now), activities_in_progress(program, before, progress)

    def fits_without(key: str) -> bool:
        problem = compile_problem(program, relaxed=(key,))
        model = build(_remaining_problem(program, problem, in_progress, now))
        return was_found(new_solver(effort).solve(model.cp)) is True

    gone = f"{_spending(in_progress.values()):,} device-hours are spent by what has begun, or still to come of it"
    to_blame = [f"{limit.key} ({limit.demand})" for limit in limits_of(program) if fits_without(limit.key)]
    return f"From {progress.now} on no schedule satisfies all limits; {gone}. " + (
        f"The rest would fit without one of: {'; '.join(to_blame)}. Change it, or correct the notes."
        if to_blame
        else "No single limit is to blame. 'assay plan status' says what is late and what it has spent."
    )


def replan_earliest(known: Program, before: Plan, progress: Progress, *, effort: Effort = DEFAULT_EFFORT) -> Plan:
    """Return the plan with the earliest possible decision, then the fewest device-hours, ignoring how much
    moves.

    `known` is the program as known now (`known_program`), possibly with changed limits. Raises
    `InfeasibleError` if the rest does not fit.
    """
    return _plan_remaining(known, before, progress, _earliest_objectives, effort)


def _plan_remaining(
    program: Program,
    before: Plan,
    progress: Progress,
    objectives: Callable[[Model, Plan], list[tuple[Objective, Any]]],
    effort: Effort,
) -> Plan:
    now, in_progress = program.calendar.hour_of(progress.now), activities_in_progress(program, before, progress)
    problem = _remaining_problem(program, compile_problem(program), in_progress, now)
    model = build(problem)
    objective_results: list[ObjectiveResult] = []
    found = _as_planned(problem, before)
    for objective, expression in objectives(model, before):
        found, result = optimise(model, objective, expression, found, effort)
        objective_results.append(result)
    assert found is not None
    rest = to_plan(program, problem, found, tuple(objective_results))
    items = [*(activity.item for activity in in_progress.values()), *rest.items]
    items.sort(key=lambda item: (item.start_h, item.end_h, item.name))
    return rest.model_copy(
        update={
            "items": tuple(items),
            "device_hours": rest.device_hours + _spending(in_progress.values()),
            "peak_devices": peak_devices(run for item in items for run in item.runs),
        }
    )


def known_program(program: Program, progress: Progress) -> Program:
    """Return the program with its events as they happened, without what gates have called off.

    Raises `ConfigError` if the decision itself is called off, or if a gate asked for repeats, because these
    are not activities of the program.
    """
    for name, verdicts in progress.verdicts.items():
        if verdicts[-1:] == ("again",):
            again = program.gates[name].again
            repeated = ", ".join(again.activities) if again else "nothing"
            raise ConfigError(
                f"progress: '{name}' asked to repeat {repeated}, which no plan can hold. 'assay plan status' "
                "plays the repeats; plan anew once the gate has decided."
            )
    changes: dict[str, Any] = {f"events.{name}.at": moment for name, moment in progress.events.items()}
    off = called_off(program, progress)
    if program.decision.decided_by in off:
        raise ConfigError(
            f"progress: a gate said stop, and '{program.decision.decided_by}', which decides, is not in "
            "its stop_goes_to: there is nothing left to plan."
        )
    if any("stop" in verdicts for verdicts in progress.verdicts.values()):
        # What is done even then waits for nothing that is not done.
        for name in program.activities.keys() - off:
            remaining = [entry for entry in program.activities[name].after if entry.name not in off]
            changes[f"activities.{name}.after"] = [entry.model_dump(mode="json") for entry in remaining]
    nodes = program.nodes()
    return program.changed(changes | {nodes[name].key: None for name in off})


def _as_planned(problem: Problem, before: Plan) -> Schedule | None:
    """Return the remaining groups in their old order and modes, as early as possible, as the initial
    solution."""
    planned = {name: before.item(name) for name in problem.groups}
    choices = {name: [mode.choice for mode in group.modes] for name, group in problem.groups.items()}
    if any(item.mode not in choices[name] for name, item in planned.items()):
        return None
    modes = {name: choices[name].index(item.mode) for name, item in planned.items()}
    return list_schedule(problem, {name: float(item.start_h) for name, item in planned.items()}, modes=modes)


def _remaining_problem(
    program: Program, problem: Problem, in_progress: dict[str, ActivityInProgress], now: int
) -> Problem:
    """Return the problem without what has started, with the remaining resources."""
    groups = {
        name: group._replace(earliest_h=max(group.earliest_h, now))
        for name, group in problem.groups.items()
        if name not in in_progress
    }
    links = []
    for link in problem.links:
        if link.after in in_progress:
            continue
        if link.before in in_progress:
            item = in_progress[link.before].item
            at = (item.start_h if link.from_start else item.end_h) + link.lag_h
            links.append(Precedence("", link.after, at, from_start=True))
        else:
            links.append(link)
    return problem._replace(
        groups=groups,
        links=tuple(links),
        resources=_remaining_resources(program, problem, in_progress, now),
        spending=tuple(
            (
                key,
                names - in_progress.keys(),
                most - _spending(activity for name, activity in in_progress.items() if name in names),
            )
            for key, names, most in problem.spending
        ),
    )


def _remaining_resources(
    program: Program, problem: Problem, in_progress: dict[str, ActivityInProgress], now: int
) -> dict[str, Resource]:
    held: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)  # also of what is no limit just now
    for item in (activity.item for activity in in_progress.values()):
        if item.end_h <= now:
            continue
        for run in item.runs:
            held[DEVICES] += [(max(now, begin), end, run.devices) for begin, end in run.holds if end > now]
        for name, units in people_demands(program, item.people).items():
            held[name].append((now, item.end_h, units * max(1, len(item.runs))))
    return {
        name: resource._replace(reserved=(*resource.reserved, *held[name]))
        for name, resource in problem.resources.items()
    }


def _spending(in_progress: Iterable[ActivityInProgress]) -> int:
    """Return the device-hours that started activities have spent or will spend."""
    return round(sum(activity.spent + activity.to_come for activity in in_progress))


def _earliest_objectives(model: Model, _: Plan) -> list[tuple[Objective, Any]]:
    return [(objective, objective_expression(model, objective)) for objective in ("decision_h", "device_hours")]


def _change_objectives(model: Model, before: Plan) -> list[tuple[Objective, Any]]:
    late = model.cp.new_int_var(0, model.problem.horizon_h, "late")
    model.cp.add(late >= objective_expression(model, "decision_h") - before.decision_h)
    return [
        ("late_h", late),
        ("changes_h", _changes(model, before)),
        *((objective, objective_expression(model, objective)) for objective in ("device_hours", "peak_devices")),
    ]


def _changes(model: Model, before: Plan) -> Any:
    total: Any = 0
    for name, variables in model.groups.items():
        planned, group = before.item(name), model.problem.groups[name]
        shift = model.cp.new_int_var(0, model.problem.horizon_h, f"{name}.shift")
        _bound_absolute(model, shift, variables.start - planned.start_h)
        same = [c for c, mode in zip(variables.chosen, group.modes, strict=True) if mode.choice == planned.mode]
        total += shift + OTHER_MODE_H * (1 - sum(same))
        # In the old way each run is one that was planned: one that wanders off lengthens what it is a run of.
        for position, (literal, mode) in enumerate(zip(variables.chosen, group.modes, strict=True)):
            if mode.choice == planned.mode:
                for start, begin in _starts_as_planned(variables, position, planned):
                    _bound_absolute(model, shift, start - begin, literal)
    return total


def _starts_as_planned(variables: GroupVars, position: int, planned: Planned) -> Iterator[tuple[Any, int]]:
    """Yield each segment's start variable in one mode with its planned hour, equal runs in order."""
    runs = sorted(run.holds for run in planned.runs)
    for task, holds in zip(variables.tasks, runs, strict=False):
        starts = task.segment_starts.get(position, ())
        if len(starts) == len(holds):  # it was cut into as many
            yield from ((start, begin) for start, (begin, _) in zip(starts, holds, strict=True))


def _bound_absolute(model: Model, shift: Any, moved: Any, *only_if: Any) -> None:
    for difference in (moved, -moved):
        model.cp.add(shift >= difference).only_enforce_if(*only_if)

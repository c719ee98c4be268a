"""Solves what-if questions: each is a patch on the program.

The readings of the fair-use rule are also what-ifs: its text leaves open what a job is, of what it may hold
20%, and whether it may continue after a pause.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

from assay.planning.conflict import Conflict, find_conflict
from assay.planning.heuristic import Schedule
from assay.planning.problem import Problem, compile_problem
from assay.planning.program.calendar import FairUse
from assay.planning.program.file import apply_changes
from assay.planning.program.plan import ObjectiveResult, Plan
from assay.planning.program.program import Program
from assay.planning.schedule import DEFAULT_EFFORT, Effort, InfeasibleError, solve, to_plan

AS_PLANNED = "As planned"
"""Title of the unchanged program, the baseline of the comparison."""


class WhatIfResult(NamedTuple):
    """The plan under a changed program."""

    title: str
    program: Program
    plan: Plan | None
    """None if infeasible; then `conflict` has the reason."""

    conflict: Conflict | None

    def is_in_time(self) -> bool:
        by = self.program.calendar.hour_of(self.program.decision.by)
        return self.plan is not None and self.plan.decision_h <= by


class Solver:
    """Solves programs and caches schedules: a change of risks or rates only does not need another solve."""

    def __init__(self, effort: Effort = DEFAULT_EFFORT) -> None:
        self._effort = effort
        self._solved: list[tuple[Problem, Schedule, tuple[ObjectiveResult, ...]]] = []

    def solve_changes(self, program: Program, title: str, changes: Mapping[str, Any]) -> WhatIfResult:
        """Solve the program with a patch. Raises `ConfigError` if the patch makes no valid program."""
        changed = apply_changes(program, changes, source=title)
        try:
            return WhatIfResult(title, changed, self.plan(changed), None)
        except InfeasibleError:
            return WhatIfResult(title, changed, None, find_conflict(changed, effort=self._effort))

    def plan(self, program: Program) -> Plan:
        problem = compile_problem(program)
        for known, found, objective_results in self._solved:
            if known == problem:
                return to_plan(program, problem, found, objective_results)
        found, objective_results = solve(problem, effort=self._effort)
        self._solved.append((problem, found, objective_results))
        return to_plan(program, problem, found, objective_results)


def what_if_results(
    program: Program,
    names: Iterable[str] | None = None,
    *,
    own: Mapping[str, Any] | None = None,
    effort: Effort = DEFAULT_EFFORT,
    solver: Solver | None = None,
) -> tuple[WhatIfResult, ...]:
    """Solve the unchanged program, then its what-ifs by name (default: all) and the caller's own patch.

    `solver` may already have cached schedules.
    """
    questions: list[tuple[str, Mapping[str, Any]]] = [(AS_PLANNED, {})]
    chosen = [program.what_ifs[name] for name in (program.what_ifs if names is None else names)]
    questions += [(what_if.title, what_if.changes) for what_if in chosen]
    if own:
        questions.append((" ".join(f"{key}={value}" for key, value in own.items()), own))
    solver = solver or Solver(effort)
    return tuple(solver.solve_changes(program, title, changes) for title, changes in questions)


def readings(
    program: Program, *, effort: Effort = DEFAULT_EFFORT, solver: Solver | None = None
) -> tuple[WhatIfResult, ...]:
    """Solve every reading of the fair-use rule, the program's own first; empty without such a rule."""
    rule = program.capacity.fair_use
    if rule is None:
        return ()
    fields = {name: get_args(FairUse.model_fields[name].annotation) for name in ("of", "job", "segments")}
    found = [dict(zip(fields, values, strict=True)) for values in itertools.product(*fields.values())]
    declared = {name: getattr(rule, name) for name in fields}
    found.sort(key=lambda reading: reading != declared)
    solver = solver or Solver(effort)
    return tuple(
        solver.solve_changes(
            program,
            _reading_text(rule, reading) + (" (as stated)" if reading == declared else ""),
            {f"capacity.fair_use.{field}": value for field, value in reading.items()},
        )
        for reading in found
    )


def _reading_text(rule: FairUse, reading: Mapping[str, str]) -> str:
    whole = {"total": "all devices", "available": "what is not booked"}[reading["of"]]
    job = {"run": "a job is a run", "activity": "a job is an activity's whole array"}[reading["job"]]
    then = {"forbidden": "no going on after", "chained": "may give way and go on"}[reading["segments"]]
    return f"{rule.share:.0%} of {whole}; {job}; {then}"

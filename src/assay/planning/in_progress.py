"""Decides what has started: its actual hours, its expected end, what it spent and what remains.

Re-planning, forecast, status and burn-down all use this module, so they cannot disagree.

    spent      as noted; the sum of its runs, if these are known; otherwise what was planned until now
    remaining  as noted; otherwise planned minus spent
    end        as noted; otherwise start plus planned duration; if overdue, 5% more than its time so far
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from assay.planning.program.plan import Hold, Plan, Planned, PlannedRun
from assay.planning.program.program import Program
from assay.planning.program.progress import Actual, Progress, RunActual

OVERDUE = 1.05
"""An overdue activity ends after this multiple of its time so far."""


class RunInProgress(NamedTuple):
    """A run of an activity that has started; the run itself may not have started yet."""

    run: PlannedRun
    """With its actual and expected hours."""

    actual: RunActual | None
    """The ledger's record of this run, if it has one."""

    def is_over(self, now_h: int) -> bool:
        return self.run.holds[-1][1] <= now_h if self.actual is None else self.actual.ended is not None

    def held_h(self, now_h: int) -> int:
        return sum(max(0, min(end, now_h) - begin) for begin, end in self.run.holds)

    def left_h(self, now_h: int) -> int:
        """Return the hours in which it is expected to hold its devices from now on."""
        return sum(max(0, end - max(begin, now_h)) for begin, end in self.run.holds)

    def planned(self, now_h: int) -> int:
        return self.run.devices * (self.held_h(now_h) + self.left_h(now_h))


class ActivityInProgress(NamedTuple):
    """An activity or a gate that has started, and may have ended."""

    item: Planned
    """With its actual and expected hours."""

    actual: Actual
    runs: tuple[RunInProgress, ...]
    """In the plan's order; unplanned runs follow."""

    spent: float
    """Device-hours until now."""

    to_come: float
    """Expected device-hours from now on."""

    planned_open: float
    """Planned device-hours of its open runs from start to end. A run with its own record counts with all the
    time that it holds its devices."""

    @property
    def is_noted(self) -> bool:
        """Return whether the spending is known, and not only planned."""
        return bool(self.actual.runs) or self.actual.device_hours is not None

    def spent_on_open_runs(self) -> float:
        return self.spent - sum(run.actual.device_hours for run in self.runs if run.actual and run.actual.ended)

    def open_runs(self) -> list[RunInProgress]:
        return [run for run in self.runs if run.actual is None or run.actual.ended is None]


def activities_in_progress(program: Program, plan: Plan, progress: Progress) -> dict[str, ActivityInProgress]:
    """Return all started activities and gates by name. Raises `KeyError` for names that are not in the plan."""
    now_h = program.calendar.hour_of(progress.now)
    return {
        name: _activity_in_progress(program, plan.item(name), actual, now_h)
        for name, actual in progress.activities.items()
    }


def _activity_in_progress(program: Program, planned: Planned, actual: Actual, now_h: int) -> ActivityInProgress:
    start_h = max(0, program.calendar.hour_of(actual.started))
    if actual.runs and planned.runs:
        runs = tuple(_known_runs(program, planned, actual, start_h, now_h))
        end_h = max(run.run.holds[-1][1] for run in runs)
        end_h = end_h if actual.ended is None else _end_h(program, planned, actual, start_h, now_h)
    else:
        end_h = _end_h(program, planned, actual, start_h, now_h)
        runs = tuple(_moved_runs(planned, start_h, end_h))
    hours = {"start_h": start_h, "end_h": end_h, "runs": tuple(run.run for run in runs)}
    spent = actual.device_hours
    if spent is None and actual.runs:
        spent = sum(run.device_hours for run in actual.runs)
    elif spent is None:
        spent = min(planned.device_hours(), sum(run.run.devices * run.held_h(now_h) for run in runs))
    found = ActivityInProgress(
        planned.model_copy(update=hours), actual, runs, float(spent), 0.0, float(planned.device_hours())
    )
    if actual.runs:
        found = found._replace(planned_open=float(sum(run.planned(now_h) for run in found.open_runs())))
    if actual.ended is not None:
        return found
    if actual.device_hours_to_come is not None:
        return found._replace(to_come=actual.device_hours_to_come)
    return found._replace(to_come=max(0.0, found.planned_open - found.spent_on_open_runs()))


def _end_h(program: Program, planned: Planned, actual: Actual, start_h: int, now_h: int) -> int:
    hour_of = program.calendar.hour_of
    if actual.ended is not None:
        return max(start_h + 1, hour_of(actual.ended))
    if actual.expected_end is not None:
        return max(start_h + 1, now_h, hour_of(actual.expected_end))
    if planned.runs:
        return _not_over(start_h, start_h + planned.end_h - planned.start_h, now_h)
    hours, working = working_hours(program, planned), _working_h(program, start_h, now_h)
    return _end_after_working(program, start_h, hours if working < hours else OVERDUE * working)


def _not_over(start_h: int, end_h: int, now_h: int) -> int:
    return end_h if now_h < end_h else max(now_h + 1, start_h + math.ceil(OVERDUE * (now_h - start_h)))


# Runs


def _moved_runs(planned: Planned, start_h: int, end_h: int) -> Iterator[RunInProgress]:
    """Shift the planned runs with their activity if no run has its own record, and cut or extend them at its
    end."""
    shift = start_h - planned.start_h
    for run in planned.runs:
        is_last = run.holds[-1][1] == planned.end_h
        yield RunInProgress(_with_holds(run, _moved(run.holds, shift, end_h, draw_out=is_last)), None)


def _known_runs(
    program: Program, planned: Planned, actual: Actual, start_h: int, now_h: int
) -> Iterator[RunInProgress]:
    """Yield recorded runs, then the plan's other runs, which start no earlier than now."""
    hour_of = program.calendar.hour_of
    for index, run_actual in enumerate(actual.runs):
        run = planned.runs[index % len(planned.runs)]
        begin_h = max(0, hour_of(run_actual.started))
        shift = begin_h - run.holds[0][0]
        if run_actual.ended is not None:
            holds: tuple[Hold, ...] = ((begin_h, max(begin_h + 1, hour_of(run_actual.ended))),)
        elif actual.expected_end is not None:
            end_h = max(begin_h + 1, now_h, hour_of(actual.expected_end))
            holds = _moved(run.holds, shift, end_h, draw_out=True)
        else:
            end_h = _not_over(begin_h, run.holds[-1][1] + shift, now_h)
            holds = _moved(run.holds, shift, end_h, draw_out=True)
        yield RunInProgress(_with_holds(run, holds), run_actual)
    for run in planned.runs[len(actual.runs) :] if actual.ended is None else ():
        shift = max(start_h - planned.start_h, now_h - run.holds[0][0])
        yield RunInProgress(_with_holds(run, _moved(run.holds, shift, None, draw_out=False)), None)


def _with_holds(run: PlannedRun, holds: tuple[Hold, ...]) -> PlannedRun:
    return run.model_copy(update={"holds": holds})


def _moved(holds: tuple[Hold, ...], shift: int, end_h: int | None, *, draw_out: bool) -> tuple[Hold, ...]:
    """Shift holds, and end them at `end_h`."""
    moved: list[Hold] = [(begin + shift, until + shift) for begin, until in holds]
    if end_h is None:
        return tuple(moved)
    moved = [(begin, min(until, end_h)) for begin, until in moved if begin < end_h]
    if not moved:
        begin = max(0, end_h - 1)
        return ((begin, begin + 1),)
    if draw_out:
        moved[-1] = (moved[-1][0], end_h)
    return tuple(moved)


# People's hours


def working_hours(program: Program, planned: Planned) -> float:
    """Return the planned working hours of an activity or a gate."""
    return program.nodes()[planned.name].work[planned.mode].days * program.calendar.hours_per_day()


def _half_days(program: Program) -> Iterator[Hold]:
    """Yield the calendar's half days, continued beyond its end for overdue work."""
    calendar = program.calendar
    yield from calendar.model_copy(update={"weeks": calendar.weeks + 104}).half_days()


def _working_h(program: Program, start_h: int, until_h: int) -> int:
    spans = ((max(begin, start_h), min(end, until_h)) for begin, end in _half_days(program))
    return sum(max(0, end - begin) for begin, end in spans)


def _end_after_working(program: Program, start_h: int, hours: float) -> int:
    """Return the hour at which `hours` have been worked since `start_h`."""
    last = start_h + 1
    for begin, end in _half_days(program):
        here = end - max(begin, start_h)
        if here > 0:
            last = max(begin, start_h) + min(here, math.ceil(hours))
            hours -= here
            if hours <= 0:
                break
    return last

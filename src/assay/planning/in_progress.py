"""What has begun: as it happened, when it will end, what it has spent and what of it is still to come.

The one place that decides this. Re-planning fixes it so, the forecast plays what is left of it, the status and
the burn-down count it; so they cannot disagree.

    spent      as noted; where its runs are known, theirs; where nobody noted it, what was planned by now
    to come    as noted; else what was planned, less what is spent
    its end    as noted; else as long after its start as was planned; overdue, a twentieth more of its time
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from assay.planning.program.plan import Hold, Plan, Planned, PlannedRun
from assay.planning.program.program import Program
from assay.planning.program.progress import Actual, Progress, RunActual

OVERDUE = 1.05
"""How often what it has taken so far something takes in all that is over its time."""


class RunInProgress(NamedTuple):
    """A run of an activity that has begun; it may itself be still to begin."""

    run: PlannedRun
    """Its hours as they were, and as they are expected."""

    actual: RunActual | None
    """What is known of it by itself."""

    def is_over(self, now_h: int) -> bool:
        """Whether nothing of it is to come."""
        return self.run.holds[-1][1] <= now_h if self.actual is None else self.actual.ended is not None

    def held_h(self, now_h: int) -> int:
        """Hours for which it had held its devices by now."""
        return sum(max(0, min(end, now_h) - begin) for begin, end in self.run.holds)

    def left_h(self, now_h: int) -> int:
        """Hours for which it is expected to hold them from now on."""
        return sum(max(0, end - max(begin, now_h)) for begin, end in self.run.holds)

    def planned(self, now_h: int) -> int:
        """Device-hours from its start to its end."""
        return self.run.devices * (self.held_h(now_h) + self.left_h(now_h))


class ActivityInProgress(NamedTuple):
    """An activity or a gate that has begun."""

    item: Planned
    """Its hours as they were, and as they are expected."""

    actual: Actual
    runs: tuple[RunInProgress, ...]
    """In the plan's order; behind them those that nobody planned."""

    spent: float
    """Device-hours by now."""

    to_come: float
    """Device-hours from now on, as expected."""

    planned_open: float
    """Device-hours of its open runs from start to end: as planned, for what waits has no more work for it; of
    runs that are known by themselves, for all the time that they hold their devices."""

    @property
    def is_noted(self) -> bool:
        """Whether what it spent is known, and not only what was planned by now."""
        return bool(self.actual.runs) or self.actual.device_hours is not None

    def spent_on_open_runs(self) -> float:
        """What was spent, without those runs that are known to be over."""
        return self.spent - sum(run.actual.device_hours for run in self.runs if run.actual and run.actual.ended)

    def open_runs(self) -> list[RunInProgress]:
        """Those that are not known to be over."""
        return [run for run in self.runs if run.actual is None or run.actual.ended is None]


def activities_in_progress(program: Program, plan: Plan, progress: Progress) -> dict[str, ActivityInProgress]:
    """All that the progress tells of, by name. Raises `KeyError` for what the plan does not hold."""
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
    """The plan's runs where none is known by itself: moved with their activity, and cut off or drawn out at its
    end."""
    shift = start_h - planned.start_h
    for run in planned.runs:
        is_last = run.holds[-1][1] == planned.end_h
        yield RunInProgress(_with_holds(run, _moved(run.holds, shift, end_h, draw_out=is_last)), None)


def _known_runs(
    program: Program, planned: Planned, actual: Actual, start_h: int, now_h: int
) -> Iterator[RunInProgress]:
    """The runs that are known, then the plan's others: these begin no earlier than now."""
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
    """Holds that begin so much later, until `end_h`."""
    moved = [(begin + shift, until + shift) for begin, until in holds]
    if end_h is None:
        return tuple(moved)
    holds = [(begin, min(until, end_h)) for begin, until in moved if begin < end_h]
    if not holds:
        begin = max(0, end_h - 1)
        return ((begin, begin + 1),)
    if draw_out:
        holds[-1] = (holds[-1][0], end_h)
    return tuple(holds)


# People's hours


def working_hours(program: Program, planned: Planned) -> float:
    """What people's work, or a gate, was planned to take."""
    return program.nodes()[planned.name].work[planned.mode].days * program.calendar.hours_per_day()


def _half_days(program: Program) -> Iterator[Hold]:
    """As the calendar's, and on behind its end: what is overdue ends some time."""
    calendar = program.calendar
    yield from calendar.model_copy(update={"weeks": calendar.weeks + 104}).half_days()


def _working_h(program: Program, start_h: int, until_h: int) -> int:
    """Working hours between two hours."""
    spans = ((max(begin, start_h), min(end, until_h)) for begin, end in _half_days(program))
    return sum(max(0, end - begin) for begin, end in spans)


def _end_after_working(program: Program, start_h: int, hours: float) -> int:
    """The hour by which so much has been worked since `start_h`."""
    last = start_h + 1
    for begin, end in _half_days(program):
        here = end - max(begin, start_h)
        if here > 0:
            last = max(begin, start_h) + min(here, math.ceil(hours))
            hours -= here
            if hours <= 0:
                break
    return last

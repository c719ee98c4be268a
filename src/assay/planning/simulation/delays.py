"""Finds what is late in a running program and holds other work up, with its cause, owner and new date.

Late is what is in progress or could have begun, and what open work waited for last: an event, or an activity that has
ended. What only waits for something late is a consequence and not listed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from assay.planning.program.plan import Planned
from assay.planning.program.program import Program, ProgramEvent
from assay.planning.program.progress import called_off
from assay.planning.program.risk import Late
from assay.planning.simulation.forecast import LATE_HOURS, ProgramEstimate, overdue_starts

LEAST_DELAY_DAYS = 0.5
"""Smaller delays are not reported."""


class Delay(NamedTuple):
    """Something that is later than planned and holds other work up."""

    name: str
    """The activity, gate or event."""
    title: str
    owner: str
    """The role, person or stakeholder who is responsible for it; for an event, who watches the risk that it is late."""
    cause: str
    planned_h: float
    expected_h: float
    """If it is over: its actual end. Otherwise the median of its end."""
    late_h: float
    """80% of simulations end it by then."""

    def days(self) -> float:
        """Return by how many days it is late."""
        return (self.expected_h - self.planned_h) / 24.0


def delays(found: ProgramEstimate) -> list[Delay]:
    """Return what is late and holds other work up, latest first."""
    program, progress = found.program, found.progress
    last = {last for name in _unstarted(found) if (last := _awaited_last(found, name)) is not None}
    pending = {name for name in program.events if _happened_h(found, name) is None}
    waiting = {dependency.name for name in _unstarted(found) for dependency in program.nodes()[name].after}
    lines = [
        _late_event(found, name, event) for name, event in program.events.items() if name in last | pending & waiting
    ]
    starts = {item.name for item in overdue_starts(found)}
    for item in found.plan.items:
        actual = progress.activities.get(item.name)
        if actual is not None and (actual.ended is None or item.name in last):
            lines.append(_late_activity(found, item))
        elif item.name in starts:
            lines.append(_late_start(found, item))
    return sorted((line for line in lines if line.days() >= LEAST_DELAY_DAYS), key=lambda line: -line.days())


def _unstarted(found: ProgramEstimate) -> Iterator[str]:
    off = called_off(found.program, found.progress)
    yield from (name for name in found.program.nodes() if name not in {*found.progress.activities, *off})


def _happened_h(found: ProgramEstimate, name: str) -> float | None:
    """Return when an event came, or an activity or gate ended; None if it has not by now."""
    progress, hour_of = found.progress, found.program.calendar.hour_of
    moment = progress.events.get(name)
    if (actual := progress.activities.get(name)) is not None:
        moment = actual.ended
    hour = None if moment is None else float(hour_of(moment))
    return hour if hour is not None and hour <= found.now_h else None


def _awaited_last(found: ProgramEstimate, name: str) -> str | None:
    """Return what an activity waited for last; None if it still waits, or waits for nothing."""
    off = called_off(found.program, found.progress)
    names = [entry.name for entry in found.program.nodes()[name].after if entry.name not in off]
    ends = {name: hour for name in names if (hour := _happened_h(found, name)) is not None}
    return max(ends, key=ends.__getitem__) if ends and len(ends) == len(names) else None


def _late_event(found: ProgramEstimate, name: str, event: ProgramEvent) -> Delay:
    program = found.program
    risk = next((r for r in program.risks.values() if isinstance(r.effect, Late) and r.effect.what == name), None)
    first = next(node for node in program.nodes().values() if name in {entry.name for entry in node.after})
    owner = risk.owner if risk is not None else program.owners_of(first.name).responsible
    cause = f"risk: {risk.title[:1].lower()}{risk.title[1:]}" if risk is not None else "outside the program"
    planned_h = float(program.calendar.hour_of(event.at))
    if (noted := found.progress.events.get(name)) is not None:
        at_h = float(program.calendar.hour_of(noted))
        return Delay(name, event.title, owner, cause, planned_h, at_h, at_h)
    return Delay(name, event.title, owner, cause, planned_h, *_forecast_h(found, name, planned_h))


def _late_activity(found: ProgramEstimate, planned: Planned) -> Delay:
    actual = found.progress.activities[planned.name]
    start_delay_h = found.program.calendar.hour_of(actual.started) - planned.start_h
    cause = "takes longer than planned" if actual.ended is None else "took longer than planned"
    if start_delay_h >= LATE_HOURS / 2:
        cause = f"began {start_delay_h / 24:.1f} days late"
    ended_h = _happened_h(found, planned.name)
    ends = (ended_h, ended_h) if ended_h is not None else _forecast_h(found, planned.name, planned.end_h)
    return _of_activity(found, planned, cause, ends)


def _late_start(found: ProgramEstimate, planned: Planned) -> Delay:
    cause, last = "not begun", _awaited_last(found, planned.name)
    if last is not None and (ready_h := _happened_h(found, last)) is not None:
        date = found.program.calendar.date_text(ready_h)
        cause += f"; ready since {date}, after '{_title(found.program, last)}'"
    return _of_activity(found, planned, cause, _forecast_h(found, planned.name, planned.end_h))


def _of_activity(found: ProgramEstimate, planned: Planned, cause: str, ends: tuple[float, float]) -> Delay:
    owner = found.program.owners_of(planned.name).responsible
    return Delay(planned.name, _title(found.program, planned.name), owner, cause, float(planned.end_h), *ends)


def _title(program: Program, name: str) -> str:
    return program.events[name].title if name in program.events else program.nodes()[name].title


def _forecast_h(found: ProgramEstimate, name: str, planned_h: float) -> tuple[float, float]:
    """Return the median and the 80% quantile of an end; the plan's if no simulation has one."""
    _, ends = found.outcome.span_h(name)
    if not ends.size:
        return planned_h, planned_h
    middle, late = np.quantile(ends, (0.5, 0.8)).tolist()
    return middle, late

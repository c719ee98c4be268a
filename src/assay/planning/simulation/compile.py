"""Compiles a program and its schedule into the network that is simulated.

The simulator keeps the mode of each activity and the order in which activities start. Everything else is
simulated. Each run of an activity is a job of its own. A repeat that a gate may ask for is part of the network
and is skipped if not needed. A dependency on a `start`, or with a negative lag, counts from the predecessor's
start, because its end is not known in advance.

    activity x with 2 runs        x#1, x#2 --> x
    gate g that may ask again     g --> (x~1#1, x~1#2 --> x~1) --> g~1 --> successors of g
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, NamedTuple

import numpy as np

from assay.planning.heuristic import in_order
from assay.planning.problem import array_units
from assay.planning.program.program import Program
from assay.planning.program.risk import Away, CapacityLost
from assay.planning.program.work import Dependency, Node, ProgramGate
from assay.planning.simulation.network import (
    Array,
    Network,
    PredecessorLink,
    WorkingTime,
    working_time,
)

DEVICE = "devices"
"""Name of the first resource."""

BOOKING, AWAY, RISK = "booking ", "away ", "risk "
"""Prefixes of a reduction's name, because a booking and a risk may have the same name."""

_YEARS_AHEAD_DAYS = 3 * 365
"""Length of the working calendar; simulated ends may be late."""

Kind = Literal["event", "work", "run", "join", "gate"]


class Slot(NamedTuple):
    """Mode and hours of an activity or a gate in the schedule."""

    mode: int
    """Index of the alternative in the program's order (of `work`, or of `runs.all_modes()`)."""
    start_h: float
    end_h: float


Baseline = Mapping[str, Slot]
"""Every activity and gate of the program, as scheduled."""

_ARRAY = "array of "
"""Prefix of the resource that limits an activity's runs to the fair share."""


class PlannedReduction(NamedTuple):
    """A reduction of capacity."""

    name: str
    """Prefix and name of the booking, person or risk; two reductions may share one."""
    resource: str
    amount: float
    start_h: float
    end_h: float
    """As planned; equal to `start_h` if only a risk causes it."""


class NetworkItem(NamedTuple):
    """One node of the network, and what it stands for."""

    name: str
    node: str
    """The activity, gate or event."""
    stage: str
    """The stage whose budget it uses; empty for events."""
    kind: Kind
    repeat: int
    """0 at first; k after the k-th "again" of a gate."""
    planned_h: float
    """Working hours of people, wall hours of a run; 0 for events and joins."""
    devices: int


@dataclass
class _Spec:
    """A node before the order of nodes is known."""

    item: NetworkItem
    start_h: float
    links: list[tuple[str, float, bool]] = field(default_factory=list)
    people: Mapping[str, float] = field(default_factory=dict)
    not_before_h: float = 0.0
    restart_h: float = 0.0


@dataclass(frozen=True)
class CompiledProgram:
    """A program compiled for simulation."""

    program: Program
    network: Network
    items: tuple[NetworkItem, ...]
    reductions: tuple[PlannedReduction, ...]

    def devices(self) -> Array:
        return np.array([item.devices for item in self.items], float)

    def indices(self, node: str) -> list[int]:
        """Return the indices of an activity, gate or event in the network, followed by its repeats."""
        found = [index for index, item in enumerate(self.items) if item.node == node]
        return sorted(found, key=lambda index: self.items[index].repeat)

    def repeated_nodes(self, gate: str, repeat: int) -> list[int]:
        """Return the indices of what a gate may repeat for the `repeat`-th time, including the gate itself."""
        again = self.program.gates[gate].again
        nodes = {gate, *(again.activities if again else ())}
        return [i for i, item in enumerate(self.items) if item.node in nodes and item.repeat == repeat]

    def reductions_of(self, name: str) -> list[int]:
        """Return the indices of the reductions with that name; a person's leave also reduces the person's
        role."""
        return [index for index, reduction in enumerate(self.reductions) if reduction.name == name]

    def planned_reductions(self) -> tuple[Array, Array]:
        """Return start and end of each reduction, as two columns."""
        start, end = ([getattr(reduction, field) for reduction in self.reductions] for field in ("start_h", "end_h"))
        return np.array(start, float)[:, None], np.array(end, float)[:, None]


def compile_program(program: Program, baseline: Baseline, *, keeps_calendar: bool = False) -> CompiledProgram:
    """Compile a scheduled program. With `keeps_calendar`, nothing starts before its scheduled hour."""
    specs = {spec.item.name: spec for spec in _specs(program, baseline)}
    waits = {name: [before for before, _, _ in spec.links] for name, spec in specs.items()}
    order = in_order(waits, {name: spec.start_h for name, spec in specs.items()})
    position = {name: index for index, name in enumerate(order)}
    arrays = _arrays(program, baseline)
    resources = [DEVICE, *program.team, *arrays]
    units = [program.capacity.devices, *(role.fte for role in program.team.values()), *arrays.values()]
    reductions = tuple(_reductions(program))
    rule = program.capacity.fair_use
    specs_in_order = [specs[name] for name in order]
    network = Network(
        names=tuple(order),
        predecessors=tuple(
            tuple(PredecessorLink(position[name], lag_h, of_start) for name, lag_h, of_start in spec.links)
            for spec in specs_in_order
        ),
        in_working_hours=tuple(spec.item.kind in ("work", "gate") for spec in specs_in_order),
        demand=np.array([_demand(spec, program, resources) for spec in specs_in_order]),
        not_before_h=np.array([_earliest_objectives(spec, keeps_calendar) for spec in specs_in_order]),
        longest_hold_h=np.array([_longest_hold_h(program, baseline, spec.item) for spec in specs_in_order]),
        gap_h=float(rule.gap_hours) if rule else 0.0,
        restart_h=np.array([spec.restart_h for spec in specs_in_order]),
        capacity=np.array(units, float),
        reductions=tuple((resources.index(reduction.resource), reduction.amount) for reduction in reductions),
        working_time=_working_hours(program),
        closing=_closing(program, specs, position),
        decision=position[_last_look(program, program.decision.decided_by)],
    )
    return CompiledProgram(program, network, tuple(spec.item for spec in specs_in_order), reductions)


def _working_hours(program: Program) -> WorkingTime:
    """Return the program's calendar, extended for late ends."""
    calendar = program.calendar
    days = [calendar.works_on(calendar.start + timedelta(days=day)) for day in range(_YEARS_AHEAD_DAYS)]
    first, last = calendar.working_hours
    return working_time(working_days=days, first_h=first, last_h=last)


# The nodes


def _specs(program: Program, baseline: Baseline) -> Iterator[_Spec]:
    for name, event in program.events.items():
        at = float(program.calendar.hour_of(event.at))
        yield _Spec(NetworkItem(name, name, "", "event", 0, 0.0, 0), at, not_before_h=at)
    for node in program.nodes().values():
        links = [_link(program, baseline, dependency) for dependency in node.after]
        yield from _node_specs(program, baseline, node, links, repeat=0)
    for name, gate in program.gates.items():
        if gate.again is not None:
            yield from _repeat_specs(program, baseline, name, gate)


def _node_specs(
    program: Program, baseline: Baseline, node: Node, links: list[tuple[str, float, bool]], *, repeat: int
) -> Iterator[_Spec]:
    planned, name = baseline[node.name], _repeated(node.name, repeat)
    date_h = float(program.calendar.hour_of(node.not_before)) if node.not_before else 0.0
    if node.runs is None:
        work = node.work[planned.mode]
        hours = work.days * program.calendar.hours_per_day()
        kind: Kind = "gate" if node.is_gate else "work"
        item = NetworkItem(name, node.name, node.stage, kind, repeat, hours, 0)
        yield _Spec(item, planned.start_h, links, work.people, date_h)
        return
    mode, runs = node.runs.all_modes()[planned.mode], node.runs
    names = [name] if runs.count == 1 else [f"{name}#{number}" for number in range(1, runs.count + 1)]
    for run_name in names:
        item = NetworkItem(run_name, node.name, node.stage, "run", repeat, float(mode.hours), mode.devices)
        yield _Spec(item, planned.start_h, links, runs.people, date_h, float(runs.resume_hours))
    if runs.count > 1:
        ends = [(run_name, 0.0, False) for run_name in names]
        yield _Spec(NetworkItem(name, node.name, node.stage, "join", repeat, 0.0, 0), planned.end_h, ends)


def _repeat_specs(program: Program, baseline: Baseline, name: str, gate: ProgramGate) -> Iterator[_Spec]:
    """Yield one copy of the repeated nodes for each time that a gate may repeat them."""
    assert gate.again is not None
    nodes = program.nodes()
    again = set(gate.again.activities)
    for repeat in range(1, gate.again.at_most + 1):
        last_look = (_repeated(name, repeat - 1), 0.0, False)
        waits: dict[str, list[tuple[str, float, bool]]] = {}
        for repeated in gate.again.activities:
            inside = [dependency for dependency in nodes[repeated].after if dependency.name in again]
            links = [_link(program, baseline, dependency) for dependency in inside]
            inner = [(_repeated(earlier, repeat), lag_h, of_start) for earlier, lag_h, of_start in links]
            waits[repeated] = inner or [last_look]
        waits[name] = [
            last_look,
            *((_repeated(repeated, repeat), 0.0, False) for repeated in gate.again.activities),
        ]
        for repeated, links in waits.items():
            for spec in _node_specs(program, baseline, nodes[repeated], links, repeat=repeat):
                spec.start_h, spec.not_before_h = baseline[name].end_h, 0.0
                yield spec


def _repeated(name: str, repeat: int) -> str:
    """Return the name of a repeat: `x` and `x#1` become `x~1` and `x~1#1`."""
    activity, run, number = name.partition("#")
    return f"{activity}~{repeat}{run}{number}" if repeat else name


def _last_look(program: Program, name: str) -> str:
    gate = program.gates.get(name)
    return _repeated(name, gate.again.at_most) if gate is not None and gate.again is not None else name


def _link(program: Program, baseline: Baseline, dependency: Dependency) -> tuple[str, float, bool]:
    """Return (item, lag, whether from its start)."""
    name, lag_h = dependency.name, float(dependency.lag_hours)
    if name in program.events:
        return name, lag_h, False
    if dependency.of == "end" and lag_h >= 0:
        return _last_look(program, name), lag_h, False
    if dependency.of == "end":
        # Its end cannot be known beforehand: the overlap is counted from its start, as planned.
        lag_h = max(0.0, baseline[name].end_h - baseline[name].start_h + lag_h)
    activity = program.activities.get(name)
    runs = activity.runs if activity is not None else None
    return (f"{name}#1" if runs is not None and runs.count > 1 else name), lag_h, True


def _demand(spec: _Spec, program: Program, resources: Sequence[str]) -> list[float]:
    held = dict.fromkeys(resources, 0.0)
    held[DEVICE] = float(spec.item.devices)
    for name, fte in spec.people.items():
        for role in program.roles_of(name):
            held[role] += fte
    if (array := _ARRAY + spec.item.node) in held:
        held[array] = float(spec.item.devices)
    return [held[resource] for resource in resources]


def _earliest_objectives(spec: _Spec, keeps_calendar: bool) -> float:
    is_scheduled = keeps_calendar and spec.item.repeat == 0 and spec.item.kind != "join"
    return max(spec.not_before_h, spec.start_h) if is_scheduled else spec.not_before_h


def _closing(program: Program, specs: Mapping[str, _Spec], position: Mapping[str, int]) -> dict[int, frozenset[int]]:
    """Return for each look of each gate the items that run even after a stop."""
    first = [(name, spec.item.node) for name, spec in specs.items() if spec.item.repeat == 0]
    return {
        position[look]: frozenset(
            position[n] for n, node in first if node in program.gates[spec.item.node].stop_goes_to
        )
        for look, spec in specs.items()
        if spec.item.kind == "gate"
    }


# Capacity


def _longest_hold_h(program: Program, baseline: Baseline, item: NetworkItem) -> float:
    """Return how long the fair-use rule lets a run hold its devices; the scarcest planned hour counts."""
    rule, devices = program.capacity.fair_use, program.capacity.devices
    if rule is None or not item.devices:
        return np.inf
    if rule.of == "available":
        slot, free = baseline[item.node], program.capacity.free_devices(program.calendar)
        devices = min(free[int(slot.start_h) : int(slot.end_h) + 1], default=devices)
    return float(rule.max_hours) if item.devices > rule.share * devices + 1e-9 else np.inf


def _arrays(program: Program, baseline: Baseline) -> dict[str, float]:
    """Return the limits of activities whose runs count as one job."""
    rule = program.capacity.fair_use
    if rule is None or rule.job == "run":
        return {}
    units, capacity = {}, program.capacity
    share = array_units(rule, capacity.devices, capacity.free_devices(program.calendar))
    for node in program.nodes().values():
        if node.runs is not None and node.runs.count > 1:
            mode = node.runs.all_modes()[baseline[node.name].mode]
            if mode.hours > rule.max_hours:
                units[_ARRAY + node.name] = float(max(share, mode.devices))
    return units


def _reductions(program: Program) -> Iterator[PlannedReduction]:
    hour_of = program.calendar.hour_of
    for name, booking in program.capacity.bookings.items():
        held = float(program.capacity.held_by(booking))
        yield PlannedReduction(f"{BOOKING}{name}", DEVICE, held, hour_of(booking.since), hour_of(booking.until))
    for name, begin, end, fte in program.absences():
        for resource in program.roles_of(name):
            yield PlannedReduction(f"{AWAY}{name}", resource, fte, begin, end)
    for name, risk in program.risks.items():
        if isinstance(risk.effect, CapacityLost):
            yield PlannedReduction(f"{RISK}{name}", DEVICE, risk.effect.share * program.capacity.devices, 0.0, 0.0)
        elif isinstance(risk.effect, Away):
            for resource in program.roles_of(risk.effect.role):
                yield PlannedReduction(f"{RISK}{name}", resource, risk.effect.fte, 0.0, 0.0)

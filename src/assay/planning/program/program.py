"""A program: everything between a pilot and its decision, in one file.

    people, capacity, budget, dates  --+
    activities and gates             --+-->  planning: schedule, risk, documents
    risks, options, what-ifs         --+

A program declares what must be done and its limits, not when. Unknown names are errors here; `planning` finds out
whether everything fits.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, PositiveFloat, model_validator

from assay.base.config import FrozenConfig
from assay.base.names import meant
from assay.planning.program.calendar import Calendar, Capacity, Moment, Role
from assay.planning.program.risk import Benchmark, Noise, Option, Pilot, Risk, StopCondition, WhatIf
from assay.planning.program.work import Activity, Node, Owners, ProgramGate, Runs, Section, Work
from assay.records.record import Record

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""A word that other parts refer to."""


class ProgramEvent(FrozenConfig):
    """An external event that work waits for."""

    title: str
    at: Moment


class Stakeholder(FrozenConfig):
    """A person outside the team; `NAME: title` is enough."""

    title: str
    wants: str = ""
    """Expectations, for the RACI document."""

    @model_validator(mode="before")
    @classmethod
    def _title_alone(cls, value: Any) -> Any:
        return {"title": value} if isinstance(value, str) else value


class Budget(FrozenConfig):
    """Device-hours that may be spent."""

    device_hours: PositiveFloat
    reserve: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share that the plan leaves unused, for failures and reruns."""

    stages: dict[Name, PositiveFloat] = Field(default_factory=dict)
    """Most device-hours of a stage; others share the whole budget."""

    def plannable_device_hours(self) -> float:
        """Return the device-hours that a plan may use."""
        return self.device_hours * (1.0 - self.reserve)


class Stage(FrozenConfig):
    """A part of the program, with its owners."""

    title: str
    question: str = ""

    owners: Owners


class DecisionPoint(FrozenConfig):
    """What the program is for."""

    decided_by: str
    """The activity or gate whose end is the decision."""

    by: Moment
    """The latest date."""

    review: Moment | None = None
    """For the presentation."""


class Program(Record):
    """Everything that planning starts from."""

    name: Name
    title: str
    calendar: Calendar
    team: dict[Name, Role]

    stakeholders: dict[Name, Stakeholder] = Field(default_factory=dict)

    capacity: Capacity
    budget: Budget
    decision: DecisionPoint
    stages: dict[Name, Stage]
    events: dict[Name, ProgramEvent] = Field(default_factory=dict)
    activities: dict[Name, Activity]
    gates: dict[Name, ProgramGate] = Field(default_factory=dict)
    benchmarks: dict[Name, Benchmark] = Field(default_factory=dict)
    pilot: Pilot | None = None
    stops: dict[Name, StopCondition] = Field(default_factory=dict)
    noise: Noise = Noise()
    risks: dict[Name, Risk] = Field(default_factory=dict)
    options: dict[Name, Option] = Field(default_factory=dict)
    what_ifs: dict[Name, WhatIf] = Field(default_factory=dict)

    def nodes(self) -> dict[str, Node]:
        """Return activities and gates in the file's order."""
        activities = {name: _node("activities", name, a, a.work, a.runs) for name, a in self.activities.items()}
        gates = {
            name: _node("gates", name, gate, (Work(days=gate.days, people=gate.people),), None)
            for name, gate in self.gates.items()
        }
        return activities | gates

    def owners_of(self, name: str) -> Owners:
        """Return the RACI of an activity or a gate: its own, or its stage's."""
        node = self.nodes()[name]
        return node.owners or self.stages[node.stage].owners

    def roles_of(self, name: str) -> tuple[str, ...]:
        """Return the role; for a named person also the role that the person is part of."""
        role = self.team[name].part_of
        return (name,) if role is None else (name, role)

    def absences(self) -> Iterator[tuple[str, int, int, float]]:
        """Yield (role or person, from, until, full-time equivalents) of every absence."""
        for name, role in self.team.items():
            for absence in role.away:
                since, until = self.calendar.hour_of(absence.since), self.calendar.hour_of(absence.until)
                yield name, since, until, role.fte if absence.fte is None else absence.fte

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return this program with a patch (dotted key -> value; None removes the key), validated.

        Successors of a removed activity inherit its predecessors. Raises pydantic's `ValidationError`, or
        `KeyError` if the patch does not fit.
        """
        return type(self).model_validate(self.tree_with(changes))

    def tree_with(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tree of values with a patch, not validated. Raises `KeyError` if a parent key does not
        exist."""
        tree = self.model_dump(mode="json")
        for key, value in changes.items():
            set_key(tree, key, value)
        nodes = self.nodes()
        removed = frozenset(name for name, node in nodes.items() if name not in tree[node.section])
        for name in (name for name in nodes if name in removed):
            _bridge(tree, name, _inherited(name, nodes, removed))
        return tree

    def title_of(self, name: str) -> str:
        """Return the title of a role, person or stakeholder, or the name itself."""
        known = self.team.get(name) or self.stakeholders.get(name)
        return (known.title if known else "") or name

    def with_options(self, names: Iterable[str]) -> Self:
        program = self
        for name in names:
            program = program.changed(self.options[name].changes)
        return program


def set_key(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Set one key of nested mappings, or remove it with None. Raises `KeyError` of that key and the problem
    if a parent is missing."""
    *parents, last = dotted.split(".")
    branch = tree
    for depth, parent in enumerate(parents):
        inner = branch.get(parent)
        if not isinstance(inner, dict):
            absent = ".".join(parents[: depth + 1])
            raise KeyError(dotted, f"there is no '{absent}'{meant(parent, branch)}")
        branch = inner
    if value is None and last not in branch:
        raise KeyError(dotted, f"nothing to remove{meant(last, branch)}")
    if value is None:
        del branch[last]
    else:
        branch[last] = value


def _node(section: Section, name: str, item: Activity | ProgramGate, work: tuple[Work, ...], runs: Runs | None) -> Node:
    shared = (item.title, item.stage, item.after, item.not_before, item.due, item.owners)
    return Node(section, name, work, runs, *shared)


def _inherited(name: str, nodes: Mapping[str, Node], removed: frozenset[str]) -> list[dict[str, Any]]:
    """Return the predecessors of a removed activity; removed predecessors are replaced by theirs."""
    found: list[dict[str, Any]] = []
    for dependency in nodes[name].after:
        is_gone = dependency.name in removed and dependency.name != name
        waits = (
            _inherited(dependency.name, nodes, removed - {name}) if is_gone else [dependency.model_dump(mode="json")]
        )
        found += [entry for entry in waits if entry["name"] not in {known["name"] for known in found}]
    return found


def _bridge(tree: dict[str, Any], removed: str, inherited: Sequence[dict[str, Any]]) -> None:
    """Replace `removed` by its predecessors in every dependency."""
    for section in ("activities", "gates"):
        for item in tree[section].values():
            waits = [_as_dependency(entry) for entry in item.get("after", ())]
            if any(entry["name"] == removed for entry in waits):
                remaining = [entry for entry in waits if entry["name"] != removed]
                have = {entry["name"] for entry in remaining}
                item["after"] = remaining + [entry for entry in inherited if entry["name"] not in have]
    for gate in tree["gates"].values():
        for branch, field in (("narrow", "drops"), ("again", "activities")):
            if gate.get(branch):
                gate[branch][field] = [name for name in gate[branch][field] if name != removed]
        gate["stop_goes_to"] = [name for name in gate.get("stop_goes_to", ()) if name != removed]


def _as_dependency(entry: Any) -> dict[str, Any]:
    return {"name": entry} if isinstance(entry, str) else dict(entry)

"""A schedule without a solver: good enough to compare hundreds of scopes under the simulation.

Each activity is done in the way that ends it soonest among those that cost at most a little more than the
cheapest; whatever has the longest way still to go begins first. The calm replay of that order is the sketch.
The plan that is offered is solved properly afterwards.
"""

from collections.abc import Mapping

from assay.planning.heuristic import in_order
from assay.planning.program.program import Program
from assay.planning.program.work import Node, RunMode
from assay.planning.simulation.compile import Baseline, Slot, simulated
from assay.planning.simulation.outcome import calm_replay

DEARER = 1.031
"""Device-hours, over the cheapest way's, that speed may cost: one doubling of the devices at the usual 3%."""


def sketch(program: Program) -> Baseline:
    """Ways and starts of every activity and gate."""
    nodes = program.nodes()
    ways = {name: _way(program, node) for name, node in nodes.items()}
    lengths = {name: _length_h(program, node, ways[name]) for name, node in nodes.items()}
    to_go = _hours_to_go(nodes, lengths)
    longest = max(to_go.values())
    first = {
        name: Slot(ways[name], longest - to_go[name], longest - to_go[name] + lengths[name]) for name in nodes
    }
    compiled = simulated(program, first)
    calm = calm_replay(compiled)
    found = {}
    for name in nodes:
        own = [index for index in compiled.indices(name) if compiled.items[index].repeat == 0]
        begins = min(calm.start_h[index, 0] for index in own if compiled.items[index].kind != "join")
        found[name] = Slot(ways[name], float(begins), float(max(calm.finish_h[index, 0] for index in own)))
    return found


def _way(program: Program, node: Node) -> int:
    if node.runs is None:
        return min(range(len(node.work)), key=lambda way: (node.work[way].days, way))
    modes, count = node.runs.ways(), node.runs.count
    allowed = [way for way, mode in enumerate(modes) if _is_fair(program, mode)] or [0]
    cheapest = min(modes[way].devices * modes[way].hours for way in allowed)
    bearable = [way for way in allowed if modes[way].devices * modes[way].hours <= DEARER * cheapest]
    return min(bearable, key=lambda way: (_array_h(program, modes[way], count), way))


def _is_fair(program: Program, mode: RunMode) -> bool:
    rule, devices = program.capacity.fair_use, program.capacity.devices
    if mode.devices > devices:
        return False
    return rule is None or mode.hours <= rule.max_hours or mode.devices <= rule.share * devices + 1e-9


def _array_h(program: Program, mode: RunMode, count: int) -> float:
    at_once = max(1, program.capacity.devices // mode.devices)
    return -(-count // at_once) * mode.hours


def _length_h(program: Program, node: Node, way: int) -> float:
    if node.runs is not None:
        return float(_array_h(program, node.runs.ways()[way], node.runs.count))
    a_day = program.calendar.hours_per_day()
    return node.work[way].days * a_day * 168.0 / (len(program.calendar.working_days) * a_day)


def _hours_to_go(nodes: Mapping[str, Node], lengths: Mapping[str, float]) -> dict[str, float]:
    """From each node's start to the end of the longest chain behind it."""
    waits = {name: [each.name for each in node.after if each.name in nodes] for name, node in nodes.items()}
    to_go = dict(lengths)
    for name in reversed(in_order(waits, dict.fromkeys(nodes, 0.0))):
        for before in waits[name]:
            to_go[before] = max(to_go[before], lengths[before] + to_go[name])
    return to_go

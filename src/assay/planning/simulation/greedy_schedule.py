"""A fast greedy schedule, to compare hundreds of scopes under the simulation.

Each activity uses the fastest mode among those that cost at most a little more than the cheapest. The longest
remaining chain has priority. The schedule is the deterministic replay of that order; the offered plan is
later solved properly.
"""

from collections.abc import Mapping

from assay.planning.heuristic import in_order
from assay.planning.program.program import Program
from assay.planning.program.work import Node, RunMode
from assay.planning.simulation.compile import Baseline, Slot, compile_program
from assay.planning.simulation.outcome import baseline_replay

DEARER = 1.031
"""Maximal device-hours of a mode, relative to the cheapest: one doubling of the devices at the usual 3%."""


def greedy_schedule(program: Program) -> Baseline:
    """Return modes and starts of every activity and gate."""
    nodes = program.nodes()
    choices = {name: _mode_index(program, node) for name, node in nodes.items()}
    lengths = {name: _length_h(program, node, choices[name]) for name, node in nodes.items()}
    to_go = _hours_to_go(nodes, lengths)
    longest = max(to_go.values())
    first = {name: Slot(choices[name], longest - to_go[name], longest - to_go[name] + lengths[name]) for name in nodes}
    compiled = compile_program(program, first)
    baseline_replayed = baseline_replay(compiled)
    found = {}
    for name in nodes:
        own = [index for index in compiled.indices(name) if compiled.items[index].repeat == 0]
        begins = min(baseline_replayed.start_h[index, 0] for index in own if compiled.items[index].kind != "join")
        found[name] = Slot(
            choices[name], float(begins), float(max(baseline_replayed.finish_h[index, 0] for index in own))
        )
    return found


def _mode_index(program: Program, node: Node) -> int:
    if node.runs is None:
        return min(range(len(node.work)), key=lambda index: (node.work[index].days, index))
    modes, count = node.runs.all_modes(), node.runs.count
    allowed = [index for index, mode in enumerate(modes) if _is_fair(program, mode)] or [0]
    cheapest = min(modes[index].devices * modes[index].hours for index in allowed)
    bearable = [index for index in allowed if modes[index].devices * modes[index].hours <= DEARER * cheapest]
    return min(bearable, key=lambda index: (_array_h(program, modes[index], count), index))


def _is_fair(program: Program, mode: RunMode) -> bool:
    rule, devices = program.capacity.fair_use, program.capacity.devices
    if mode.devices > devices:
        return False
    return rule is None or mode.hours <= rule.max_hours or mode.devices <= rule.share * devices + 1e-9


def _array_h(program: Program, mode: RunMode, count: int) -> float:
    at_once = max(1, program.capacity.devices // mode.devices)
    return -(-count // at_once) * mode.hours


def _length_h(program: Program, node: Node, index: int) -> float:
    if node.runs is not None:
        return float(_array_h(program, node.runs.all_modes()[index], node.runs.count))
    a_day = program.calendar.hours_per_day()
    return node.work[index].days * a_day * 168.0 / (len(program.calendar.working_days) * a_day)


def _hours_to_go(nodes: Mapping[str, Node], lengths: Mapping[str, float]) -> dict[str, float]:
    """Return the hours from each node's start to the end of the longest chain after it."""
    waits = {
        name: [dependency.name for dependency in node.after if dependency.name in nodes] for name, node in nodes.items()
    }
    to_go = dict(lengths)
    for name in reversed(in_order(waits, dict.fromkeys(nodes, 0.0))):
        for before in waits[name]:
            to_go[before] = max(to_go[before], lengths[before] + to_go[name])
    return to_go

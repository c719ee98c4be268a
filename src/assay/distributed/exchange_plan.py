"""Plans the exchange of gradients: who sends what to whom, and in which order sums are added.

A plan is data, compiled once per attempt from the ranks' blocks of lanes. A buffer is divided into cells; a rank's own
blocks and what it receives are its slots:

    early             all blocks but each rank's largest, in stages as below: they are done first, and are sent
                      while the next ones are computed
    inside a node     each rank gets its part of the buffer of its node's blocks, and adds pairs of siblings
    between nodes     ranks with the same part on their nodes share it, exchange sums, and add
    back              the finished cells are sent the same two ways

in rounds: in each, a rank sends to one peer and receives from one. With all ranks on one node this is the direct
exchange. It sends the bytes of a ring if a rank has one block, and no more than that on the critical path if it has
several. On several nodes, a node sends one sum for each block of the *node*, however many ranks it has.

Floating-point addition is not associative, so the plan is verified: `prove` runs it on symbols, and each sum must be
bracketed like the binary tree over lanes.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from assay.base.shapes import UInt32
from assay.data.loader.lane_shares import LaneBlock, LaneShares, powers_of_two

OWN = 0
"""Slot of a rank's largest block; it receives the sum over all lanes."""


Cells = range
"""Cells of the buffer."""


class Part(NamedTuple):
    """Cells of a slot that are sent to a peer or received from it."""

    peer: int
    slot: int
    cells: Cells


class Addition(NamedTuple):
    """Adds cells of slot `added` to those of slot `into`."""

    into: int
    added: int
    cells: Cells


class ExchangeRound(NamedTuple):
    """What one rank sends and receives at once, and then adds."""

    sends: list[Part]
    receives: list[Part]
    additions: list[Addition]


class RankPlan(NamedTuple):
    """The plan of one rank."""

    blocks: tuple[LaneBlock, ...]
    """[slot]: its blocks of lanes, the largest first; whole buffers."""
    receive_slots: tuple[Cells, ...]
    """Cells of the further slots, which hold received sums."""
    rounds: tuple[ExchangeRound, ...]


class ExchangePlan(NamedTuple):
    """The plans of all ranks."""

    num_lanes: int
    num_cells: int
    ranks: tuple[RankPlan, ...]
    stages: tuple[int, ...]
    """Rounds of each early stage, which run before all others. The last stage needs the blocks in slot 1, the
    one before those in slot 2, and so on; none needs a largest block."""

    @property
    def num_early(self) -> int:
        """Number of rounds that use no rank's largest block."""
        return sum(self.stages)

    def first_slot_done(self, number: int) -> int:
        """Return the first of a rank's slots whose block is done before this round."""
        started = sum(number >= end for end in accumulate(self.stages))
        return len(self.stages) - started


def exchange_plan(shares: LaneShares, *, early: bool = True) -> ExchangePlan:
    """Return the verified plan for these shares.

    With `early`, blocks that are done first are sent first, in stages; a rank with one block sends nothing then.
    """
    planner = _Planner(shares)
    if early:
        planner.reduce_early()
    planner.reduce_inside([OWN] if early else range(shares.num_lanes))
    planner.reduce_between()
    planner.gather_between()
    planner.gather_inside()
    ranks = tuple(
        RankPlan(rank_planner.blocks, tuple(rank_planner.receive_slots), tuple(rank_planner.rounds))
        for rank_planner in planner.rank_planners
    )
    plan = ExchangePlan(shares.num_lanes, planner.num_cells, ranks, tuple(planner.stages))
    prove(plan)
    return plan


def early_positions(shares: LaneShares, rank: int) -> tuple[int, ...]:
    """Return the lane positions at which a rank enters the early stages: after the blocks that it needs.

    A rank with no block to send receives from the others at about the same time.
    """
    blocks = [powers_of_two(load) for load in shares.loads]
    positions, latest = list[int](), shares.loads[rank] - 1
    for slot in range(OWN + 1, max(map(len, blocks))):
        if slot < len(blocks[rank]):
            latest = sum(blocks[rank][slot:])
        else:
            latest = min(latest, max(sum(of_rank[slot:]) for of_rank in blocks))
        positions.append(latest)
    return tuple(reversed(positions))


class _RankPlanner:
    """Builds the plan of one rank."""

    def __init__(self, blocks: tuple[LaneBlock, ...]) -> None:
        self.blocks = blocks
        self.receive_slots: list[Cells] = []
        self.rounds: list[ExchangeRound] = []
        self.sums: dict[Cells, dict[_Node, int]] = {}
        """Cells of this rank -> slot of each sum that it has."""

    def own(self) -> "dict[_Node, int]":
        """Return the sums that the rank starts with."""
        return {_Node(block.first, block.size): slot for slot, block in enumerate(self.blocks)}

    def add_receive_slot(self, cells: Cells) -> int:
        """Add a slot for received cells; return its number."""
        self.receive_slots.append(cells)
        return len(self.blocks) + len(self.receive_slots) - 1

    def join(self, cells: Cells) -> None:
        """Add pairs of siblings in the tree as long as there are any."""
        sums = self.sums[cells]
        while (left := _half_of(sums)) is not None:
            into, added = sorted((sums.pop(left), sums.pop(left.sibling)))
            self.rounds[-1].additions.append(Addition(into, added, cells))
            sums[_Node(left.first, 2 * left.size)] = into


class _Node(NamedTuple):
    """A sum in the binary tree over lanes."""

    first: int
    size: int

    @property
    def is_left(self) -> bool:
        return self.first % (2 * self.size) == 0

    @property
    def sibling(self) -> "_Node":
        return self._replace(first=self.first ^ self.size)


def _half_of(nodes: Collection[_Node]) -> _Node | None:
    """Return a left sibling whose right sibling is also there."""
    return next((node for node in nodes if node.is_left and node.sibling in nodes), None)


def _joined(nodes: Iterable[_Node]) -> set[_Node]:
    """Return the sums that remain when all siblings are added."""
    found = {*nodes}
    while (left := _half_of(found)) is not None:
        found -= {left, left.sibling}
        found.add(_Node(left.first, 2 * left.size))
    return found


class _Planner:
    def __init__(self, shares: LaneShares) -> None:
        self._nodes = nodes = shares.ranks_of_nodes
        self.rank_planners = [_RankPlanner(shares.blocks_of(rank)[::-1]) for rank in range(shares.world_size)]
        self.num_cells = len(nodes) * math.lcm(*map(len, nodes))
        edges = sorted({edge for ranks in nodes for part in self._parts(ranks) for edge in (part.start, part.stop)})
        self._units = [range(*pair) for pair in pairwise(edges)]
        """Cells that have one responsible rank on each node."""
        self._node_sums = [
            _joined(node for rank in ranks for node in self.rank_planners[rank].own()) for ranks in nodes
        ]
        """[node]: the sums that the node computes alone."""
        self.stages: list[int] = []

    def _parts(self, ranks: range) -> list[Cells]:
        """Return the cells of each rank of a node."""
        width = self.num_cells // len(ranks)
        return [range(index * width, (index + 1) * width) for index in range(len(ranks))]

    def _inside(self) -> Iterator[list[tuple[int, int, Cells, Cells]]]:
        """Yield rounds of (sender, receiver, sender's cells, receiver's cells) within nodes."""
        for distance in range(1, max(map(len, self._nodes))):
            self._begin_round()
            yield [
                (ranks[index], ranks[(index + distance) % len(ranks)], part, parts[(index + distance) % len(ranks)])
                for ranks in self._nodes
                if distance < len(ranks)
                for parts in [self._parts(ranks)]
                for index, part in enumerate(parts)
            ]

    def _between(self) -> Iterator[list[tuple[int, int, Cells, Cells]]]:
        """Yield the same for ranks with the same cells on two nodes."""
        num_nodes = len(self._nodes)
        for distance in range(1, num_nodes):
            self._begin_round()
            pairs = [(node, (node + distance) % num_nodes) for node in range(num_nodes)]
            yield [
                (self._holder(a, unit), self._holder(b, unit), self._share(unit, a), self._share(unit, b))
                for a, b in pairs
                for unit in self._units
            ]

    def _begin_round(self) -> None:
        for rank_planner in self.rank_planners:
            rank_planner.rounds.append(ExchangeRound([], [], []))

    def _holder(self, node: int, unit: Cells) -> int:
        """Return the rank of the node that is responsible for these cells."""
        ranks = self._nodes[node]
        return ranks[unit.start * len(ranks) // self.num_cells]

    def _share(self, unit: Cells, node: int) -> Cells:
        """Return the cells of a unit whose sum over all lanes is computed on this node."""
        width = (unit.stop - unit.start) // len(self._nodes)
        return range(unit.start + node * width, unit.start + (node + 1) * width)

    def reduce_early(self) -> None:
        """Plan the early stages: all blocks but each rank's largest."""
        for slot in range(max(len(rank_planner.blocks) for rank_planner in self.rank_planners) - 1, OWN, -1):
            before = len(self.rank_planners[0].rounds)
            self.reduce_inside([slot])
            if self._has_node_sums():
                self.reduce_between()
            self.stages.append(len(self.rank_planners[0].rounds) - before)

    def reduce_inside(self, slots: Collection[int]) -> None:
        """Give each rank its part of its node's blocks in these slots."""
        handed = [
            {node: slot for node, slot in rank_planner.own().items() if slot in slots}
            for rank_planner in self.rank_planners
        ]
        for ranks in self._nodes:
            for rank, part in zip(ranks, self._parts(ranks), strict=True):
                self.rank_planners[rank].sums.setdefault(part, {}).update(handed[rank])
        for pairs in self._inside():
            for sender, receiver, _, cells in pairs:
                self._send_sums(sender, receiver, handed[sender], cells)

    def _has_node_sums(self) -> bool:
        """Return whether a node has a sum that it adds nothing more to alone, if there are other nodes."""
        return len(self._nodes) > 1 and any(
            node_sum in self.rank_planners[rank].sums[part]
            for ranks, node_sums in zip(self._nodes, self._node_sums, strict=True)
            for rank, part in zip(ranks, self._parts(ranks), strict=True)
            for node_sum in node_sums
        )

    def reduce_between(self) -> None:
        """Send each node's sums to the node that computes the sum over all lanes."""
        handed: list[dict[_Node, int]] = [{} for _ in self.rank_planners]
        for number, (ranks, node_sums) in enumerate(zip(self._nodes, self._node_sums, strict=True)):
            for rank, part in zip(ranks, self._parts(ranks), strict=True):
                sums = self.rank_planners[rank].sums
                handed[rank] = {node: sums[part].pop(node) for node in node_sums & sums[part].keys()}
                for unit in self._units:
                    if part.start <= unit.start < part.stop:
                        sums.setdefault(self._share(unit, number), {}).update(handed[rank])
        for pairs in self._between():
            for sender, receiver, _, cells in pairs:
                self._send_sums(sender, receiver, handed[sender], cells)

    def gather_between(self) -> None:
        """Send finished cells to the responsible ranks of other nodes."""
        for pairs in self._between():
            for sender, receiver, cells, _ in pairs:
                self._move(sender, receiver, OWN, OWN, cells)

    def gather_inside(self) -> None:
        """Send finished cells to the other ranks of each node."""
        for pairs in self._inside():
            for sender, receiver, cells, _ in pairs:
                self._move(sender, receiver, OWN, OWN, cells)

    def _send_sums(self, sender: int, receiver: int, sums: dict[_Node, int], cells: Cells) -> None:
        rank_planner = self.rank_planners[receiver]
        for node, slot in list(sums.items()):
            rank_planner.sums[cells][node] = add_receive_slot = rank_planner.add_receive_slot(cells)
            self._move(sender, receiver, slot, add_receive_slot, cells)
        rank_planner.join(cells)

    def _move(self, sender: int, receiver: int, source: int, target: int, cells: Cells) -> None:
        self.rank_planners[sender].rounds[-1].sends.append(Part(receiver, source, cells))
        self.rank_planners[receiver].rounds[-1].receives.append(Part(sender, target, cells))


def prove(plan: ExchangePlan) -> None:
    """Run the plan on symbols; raise `AssertionError` unless each rank ends with the sum of the binary tree.

    A symbol stands for a sum with its brackets; the order of two addends does not matter.
    """
    sum_symbols: dict[tuple[int, int], int] = {}
    leaves = sorted(block for of_rank in plan.ranks for block in of_rank.blocks)
    slots = [_symbols(of_rank, plan, leaves) for of_rank in plan.ranks]
    num_rounds = {len(of_rank.rounds) for of_rank in plan.ranks}
    assert len(num_rounds) == 1, f"ranks take part in {num_rounds} rounds"
    for number, now in enumerate(zip(*(of_rank.rounds for of_rank in plan.ranks), strict=True)):
        first_done = plan.first_slot_done(number)
        for of_rank, its in zip(plan.ranks, now, strict=True):
            undone = _touched(its) & {*range(min(first_done, len(of_rank.blocks)))}
            assert not undone, f"round {number} is early and waits for a block"
        under_way: dict[tuple[int, int], deque[Symbols]] = defaultdict(deque)
        for rank, of_rank in enumerate(now):
            for part in of_rank.sends:
                under_way[rank, part.peer].append(slots[rank][part.slot, _slice(part.cells)].copy())
        for rank, of_rank in enumerate(now):
            for part in of_rank.receives:
                assert under_way[part.peer, rank], f"rank {rank} waits for what is not sent"
                slots[rank][part.slot, _slice(part.cells)] = under_way[part.peer, rank].popleft()
        assert not any(under_way.values()), "what is sent is not received"
        for rank, of_rank in enumerate(now):
            for into, added, cells in of_rank.additions:
                a, b = (slots[rank][into, _slice(cells)], slots[rank][added, _slice(cells)])
                assert a.all() and b.all(), f"rank {rank} adds what it does not have"
                keys = zip(np.minimum(a, b).tolist(), np.maximum(a, b).tolist(), strict=True)
                a[:] = [sum_symbols.setdefault(key, len(leaves) + 1 + len(sum_symbols)) for key in keys]
    expected = _as_drawn(_Node(0, plan.num_lanes), leaves, sum_symbols)
    for rank, symbols in enumerate(slots):
        assert (symbols[OWN] == expected).all(), f"rank {rank} ends with another sum than the tree's"


def _slice(cells: Cells) -> slice:
    return slice(cells.start, cells.stop)


def _touched(done: ExchangeRound) -> set[int]:
    """Return the slots that a rank reads or writes in a round."""
    slots = {part.slot for part in (*done.sends, *done.receives)}
    return slots | {slot for addition in done.additions for slot in (addition.into, addition.added)}


Symbols = UInt32[np.ndarray, "cell"]


def _symbols(of_rank: RankPlan, plan: ExchangePlan, leaves: list[LaneBlock]) -> UInt32[np.ndarray, "slot cell"]:
    """Return the initial symbols: a rank's own blocks; 0 for empty slots."""
    symbols = np.zeros((len(of_rank.blocks) + len(of_rank.receive_slots), plan.num_cells), np.uint32)
    for slot, block in enumerate(of_rank.blocks):
        symbols[slot] = 1 + leaves.index(block)
    return symbols


def _as_drawn(node: _Node, leaves: list[LaneBlock], sum_symbols: dict[tuple[int, int], int]) -> int:
    """Return the symbol of a sum in the tree; 0 if the plan does not compute it."""
    for number, block in enumerate(leaves, 1):
        if (block.first, block.size) == node:
            return number
    assert node.size > 1, f"no rank has lane {node.first}"
    left = _Node(node.first, node.size // 2)
    a, b = sorted(_as_drawn(half, leaves, sum_symbols) for half in (left, left.sibling))
    return sum_symbols.get((a, b), 0)

"""A plan carried out on memory, by ranks that are threads of one process: whatever the nodes, with the bits of
the tree, in as much memory as the plan says."""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
import torch
import torch.distributed as dist

from assay.data.loader.lane_shares import LaneShares
from assay.distributed import exchange as module
from assay.distributed.exchange import Exchange, FlatLayout
from assay.distributed.exchange_plan import exchange_plan

NUM_LANES = 8
TIMEOUT_S = 20.0


class Wires:
    """In the place of `swap`."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], SimpleQueue[torch.Tensor]] = defaultdict(SimpleQueue)

    def __call__(self, sends: Any, receives: Any, group: Any) -> None:
        for peer, tensor in sends:
            self._queues[group.rank(), peer].put(tensor.clone())
        for peer, tensor in receives:
            tensor.copy_(self._queues[peer, group.rank()].get(timeout=TIMEOUT_S))


@pytest.mark.parametrize("nodes", [(1,), (3,), (8,), (2, 2), (1, 3), (2, 3, 1)])
def test_whatever_the_nodes_the_sum_has_the_bits_of_the_tree(
    nodes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = exchange_plan(LaneShares(NUM_LANES, sum(nodes), nodes=nodes))
    a_cell = 5
    lanes = [torch.randn(a_cell * plan.num_cells) * 10.0 ** (lane % 3) for lane in range(NUM_LANES)]
    monkeypatch.setattr(module, "swap", Wires())

    def summed(rank: int) -> tuple[torch.Tensor, int]:
        own = plan.ranks[rank]
        sums = [tree([lanes[lane] for lane in block.lanes]) for block in own.blocks]
        group = dist.ProcessGroup(rank, sum(nodes))  # type: ignore[call-arg]  # of whom the rank alone is asked
        exchange = Exchange(sums[0], plan, group)
        for slot in range(len(plan.stages), 0, -1):
            exchange.begin({slot: sums[slot]} if slot < len(sums) else {})
        exchange.finish({0: sums[0]})
        return sums[0], sum(memory.numel() for slot, (memory, _) in exchange._slots.items() if slot >= len(own.blocks))

    with ThreadPoolExecutor(sum(nodes)) as ranks:
        found = [*ranks.map(summed, range(sum(nodes)))]
    for own, (whole, memory_of_slots) in zip(plan.ranks, found, strict=True):
        assert torch.equal(whole, tree(lanes))
        assert memory_of_slots == sum(cells.stop - cells.start for cells in own.receive_slots) * a_cell


def test_the_error_of_an_early_stage_is_raised_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = exchange_plan(LaneShares(NUM_LANES, 3))
    assert plan.stages
    sums = [torch.zeros(plan.num_cells) for _ in plan.ranks[0].blocks]
    exchange = Exchange(sums[0], plan, dist.ProcessGroup(0, 3))  # type: ignore[call-arg]

    def fails(*_: object) -> None:
        raise ConnectionError("a peer is gone")

    monkeypatch.setattr(module, "swap", fails)
    with pytest.raises(ConnectionError):
        exchange.begin({1: sums[1]})
    monkeypatch.setattr(module, "swap", lambda *_: None)
    with pytest.raises(ConnectionError, match="a peer is gone"):
        exchange.finish({0: sums[0]})


def tree(parts: list[torch.Tensor]) -> torch.Tensor:
    parts = [part.clone() for part in parts]
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def test_a_buffer_that_lies_within_another_is_laid_out_from_its_own_beginning() -> None:
    """Of 2 x 3 numbers, stored by columns, and of 4."""
    memory = torch.arange(100.0)
    buffer = memory[10:20]
    views = [buffer.as_strided((2, 3), (1, 2), 10), buffer.as_strided((4,), (1,), 16)]
    layout = FlatLayout.of(buffer, views, [1, 0])
    laid_out = layout.laid_out([view.clone() for view in reversed(views)])
    assert laid_out.tolist() == buffer.tolist()

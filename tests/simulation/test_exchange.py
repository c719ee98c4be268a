"""The real exchanges of gradients between ranks that are threads of this process, over real gloo connections.

What comes out must have the bits of one sum, bracketed by lane number as `training.parallel.tree` draws it,
whoever held which lanes. One seed decides the gradients; a failure prints it.
"""

import math
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange import sum_over_ranks
from assay.distributed.exchange_plan import exchange_plan
from assay.distributed.sharded_lane_sum import RoundPass, TreeReduceScatter
from assay.distributed.tree import PartialSums

NUM_LANES = 8
SIZES = (1, 2, 7, 64, 1001)
"""Numbers in a gradient: fewer than ranks, odd, even, many."""
Program = Callable[[dist.ProcessGroup, list[Tensor]], Tensor]
"""What a rank makes of its share of the lanes' gradients, together with the others."""


@pytest.fixture(autouse=True)
def ranks_are_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each thread has groups of its own, as each process has elsewhere."""
    monkeypatch.setattr(dist.distributed_c10d, "_world", ThreadLocalWorld())
    torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
    yield
    torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]


def on_ranks(world_size: int, programs: list[Program], steps: list[list[Tensor]]) -> list[list[list[Tensor]]]:
    """Each program on each step's lanes, by `world_size` ranks: results by [program][step][rank]."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    results: list[list[list[Tensor]]] = [[[] for _ in steps] for _ in programs]
    of_rank: dict[int, list[list[Tensor]]] = {}

    def rank_main(rank: int) -> None:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
        group = dist.group.WORLD
        assert group is not None
        of_rank[rank] = [[program(group, [lane.clone() for lane in lanes]) for lanes in steps] for program in programs]
        dist.destroy_process_group()

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for rank in range(world_size):
        for program, of_steps in enumerate(of_rank[rank]):
            for step, result in enumerate(of_steps):
                results[program][step].append(result)
    return results


def own_sum(lanes: list[Tensor]) -> Tensor:
    """The subtree of one rank's lanes."""
    *others, last = lanes
    partial_sums = PartialSums()
    for lane in others:
        partial_sums.add([lane], 1)
    partial_sums.add_to([last], [0], 1)
    return last


def tree_exchange(group: dist.ProcessGroup, lanes: list[Tensor]) -> Tensor:
    """What DDP's hook does with a bucket: a rank's blocks by themselves, then their exchange."""
    shares = LaneShares(NUM_LANES, group.size())
    sums = [own_sum([lanes[lane] for lane in block.lanes]) for block in shares.blocks_of(group.rank())[::-1]]
    sum_over_ranks(sums, exchange_plan(shares), group)
    return sums[0]


def tree_reduce_scatter(group: dist.ProcessGroup, lanes: list[Tensor]) -> Tensor:
    """What FSDP2 does with a layer, padded to a multiple of the ranks, round by round; this rank's chunk."""
    size, rank = group.size(), group.rank()
    shares = LaneShares(NUM_LANES, size, interleaved=True)
    own = shares.of_rank(rank)
    now = [RoundPass(0, [], ends_step=False)]
    exchange = TreeReduceScatter(lambda packed: now[0])
    for number in range(shares.most):
        ends_step = number + 1 == shares.most
        now[0] = RoundPass(0, [int(number < load) for load in shares.loads], ends_step)
        gradient = lanes[own[number]] if number < len(own) else torch.full_like(lanes[0], 1e30)
        padded = torch.cat([gradient, gradient.new_zeros(-len(gradient) % size)])
        chunk = padded.new_empty(len(padded) // size)
        exchange(chunk, padded, group, dist.ReduceOp.SUM)
        padded.fill_(math.nan)
        assert ends_step or not chunk.any()
    return chunk


def passes_of(rank: int) -> int:
    """Micro-batches of the one lane of a rank: 1, 2, 3, 1, ..."""
    return 1 + rank % 3


def in_passes(lane: Tensor, rank: int) -> list[Tensor]:
    """The lane's gradient, micro-batch by micro-batch."""
    return [lane * 3.0**-index for index in range(passes_of(rank))]


def reduce_scatter_in_passes(group: dist.ProcessGroup, lanes: list[Tensor]) -> Tensor:
    """A round in which some lanes take more passes than others, who send what must not count."""
    size, rank = group.size(), group.rank()
    own = in_passes(lanes[rank], rank)
    num_passes = [passes_of(other) for other in range(size)]
    now = [RoundPass(0, num_passes, ends_step=True)]
    exchange = TreeReduceScatter(lambda packed: now[0])
    for number in range(max(num_passes)):
        now[0] = RoundPass(number, num_passes, ends_step=True)
        gradient = own[number] if number < len(own) else torch.full_like(own[0], 1e30)
        padded = torch.cat([gradient, gradient.new_zeros(-len(gradient) % size)])
        chunk = padded.new_empty(len(padded) // size)
        exchange(chunk, padded, group, dist.ReduceOp.SUM)
        assert number + 1 == max(num_passes) or not chunk.any()
    return chunk


def backends_all_reduce(group: dist.ProcessGroup, lanes: list[Tensor]) -> Tensor:
    """Wrong on purpose: adds in an order that depends on the number of ranks."""
    item = NUM_LANES // group.size()
    total = own_sum(lanes[group.rank() * item : (group.rank() + 1) * item])
    dist.all_reduce(total, group=group)
    return total


def as_drawn(parts: list[Tensor]) -> Tensor:
    """Neighbours first, then neighbouring pairs, ..."""
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def gradients(seed: int) -> list[list[Tensor]]:
    """[step][lane]: of very different sizes, so that every other bracketing has other bits."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(size, generator=generator) * 10.0 ** (lane % 5) for lane in range(NUM_LANES)] for size in SIZES
    ]


@pytest.mark.parametrize("world_size", range(1, NUM_LANES + 1))
def test_both_exchanges_give_the_bits_of_the_tree_at_every_world_size(world_size: int) -> None:
    steps = gradients(seed=world_size)
    replicated, sharded = on_ranks(world_size, [tree_exchange, tree_reduce_scatter], steps)
    for lanes, totals, chunks in zip(steps, replicated, sharded, strict=True):
        expected = as_drawn(lanes)
        assert len(totals) == len(chunks) == world_size
        assert all(torch.equal(total, expected) for total in totals)
        assert torch.equal(torch.cat(chunks)[: len(expected)], expected)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_a_lanes_micro_batches_are_added_before_the_lanes_are(world_size: int) -> None:
    steps = gradients(seed=world_size)
    [chunks] = on_ranks(world_size, [reduce_scatter_in_passes], steps)
    for lanes, of_ranks in zip(steps, chunks, strict=True):
        of_lanes = []
        for rank, lane in enumerate(lanes[:world_size]):
            total, *others = in_passes(lane, rank)
            for other in others:
                total = total + other
            of_lanes.append(total)
        assert torch.equal(torch.cat(of_ranks)[: len(lanes[0])], as_drawn(of_lanes))


def test_a_sum_in_the_backends_order_is_found_out() -> None:
    [totals] = on_ranks(8, [backends_all_reduce], gradients(seed=0))
    assert not all(
        torch.equal(total, as_drawn(lanes))
        for lanes, of_ranks in zip(gradients(seed=0), totals, strict=True)
        for total in of_ranks
    )

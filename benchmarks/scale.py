"""The exchange of gradients on slow links, beside the backend's all_reduce: `benchmarks/scale.py [--quick]`.

Each rank is in a network namespace behind a link of 100 Mbit/s each way, so that it is the bytes that take time
and not this machine's memory. Ours and gloo's all_reduce sum the same buffer in turn; a turn takes as long as
its slowest rank.

Then whole steps of 32 lanes that sleep their time, with real sums and exchanges. At sizes that are no power of
two, ranks have several blocks of lanes: how long the busiest waits behind its last lane, beside an all_reduce.
And a slow rank: twice as long a lane on one of four, first with equal shares, then with those that follow from
what each rank took for a lane.

The last line printed is one JSON object: `exchange_vs_all_reduce` is the worst ratio, then that of each size;
`wait_vs_all_reduce` likewise; `slow_rank_gain` is by how much a step is faster.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from assay.data.loader.lane_shares import LaneShares, loads_by_speed
from assay.training.parallel.exchange import sum_over_ranks
from assay.training.parallel.exchange_plan import exchange_plan
from assay.training.parallel.lane_sum import LaneSum
from assay.training.parallel.ranks import Ranks
from network_links import forked_at, linked_nodes, missing
from trainer import describe_machine

RATE, BITS_PER_S = "100mbit", 100e6
NUM_BYTES = 4_000_000
PORT = 29_555
WORLD_SIZES = range(2, 9)
UNEVEN_SIZES = 3, 5, 6, 7
NUM_LANES = 32
WIDTH = 1000
"""Of a layer whose gradient has about `NUM_BYTES`."""
LANE_S = 0.1
SLOW_RANKS, SLOW_LANE_S, SLOWNESS = 4, 0.02, 2
SETTLING = 3
"""Steps after which DDP's buckets are those of the step before, so that sums travel early."""
Exchange = Callable[[torch.Tensor], None]


def seconds(ranks: Ranks, exchange: Exchange) -> float:
    """Of one turn, on the slowest rank."""
    buffer = torch.full((NUM_BYTES // 4,), float(ranks.rank))
    dist.barrier(ranks.control)
    began_s = time.perf_counter()
    exchange(buffer)
    took = torch.tensor([time.perf_counter() - began_s])
    assert buffer[0] == buffer[-1] == sum(range(ranks.world_size))
    dist.all_reduce(took, dist.ReduceOp.MAX, group=ranks.control)
    return took.item()


def measure(world_size: int, rounds: int) -> dict[str, float]:
    """Medians: seconds of ours and of all_reduce."""
    with tempfile.TemporaryDirectory() as folder, linked_nodes(world_size, RATE) as nodes:
        found = Path(folder) / "found.json"

        def be_rank(rank: int) -> None:
            meeting = f"tcp://{nodes[0].address}:{PORT}"
            ranks = Ranks.join(rank=rank, world_size=world_size, rendezvous=meeting, num_threads=1)
            group = ranks.outer
            assert group is not None
            plan = exchange_plan(LaneShares(1 << (world_size - 1).bit_length(), world_size))  # a block each
            contenders: dict[str, Exchange] = {
                "ours": lambda buffer: sum_over_ranks([buffer], plan, group),
                "all_reduce": lambda buffer: dist.all_reduce(buffer, group=group),
            }
            for exchange in contenders.values():  # connections are made at the first use
                seconds(ranks, exchange)
            turns = [{name: seconds(ranks, each) for name, each in contenders.items()} for _ in range(rounds)]
            if rank == 0:
                medians = {name: statistics.median(turn[name] for turn in turns) for name in contenders}
                found.write_text(json.dumps(medians))
            ranks.leave()

        forked_at(nodes, be_rank)
        medians: dict[str, float] = json.loads(found.read_text())
        return medians


class Steps(NamedTuple):
    """Of one rank, or of the slowest."""

    step_s: float
    lane_s: float
    """Of the rank's own work."""
    wait_s: float
    """Behind its last lane."""
    gradient: torch.Tensor


def slept(ranks: Ranks, shares: LaneShares, sleep_s: float, rounds: int, width: int = 8) -> Steps:
    """Steps whose lanes sleep, with a real sum over all of them: medians on this rank."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, width)
    lane_sum = LaneSum(model, ranks, shares)
    lanes = shares.of_rank(ranks.rank)
    steps, own, waits = list[float](), list[float](), list[float]()
    for _ in range(rounds + SETTLING):
        model.zero_grad()
        dist.barrier(ranks.control)
        began_s = time.perf_counter()
        lane_sum.begin_step([1] * len(lanes))
        for position, lane in enumerate(lanes):
            with lane_sum.backward_pass(position, 0):
                rows = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(lane))
                loss = lane_sum.module(rows * 10.0 ** (lane % 5)).square().sum()
                time.sleep(sleep_s)
                loss.backward()
        steps.append(time.perf_counter() - began_s)
        waits.append(lane_sum.step_is_done())
        own.append((steps[-1] - waits[-1]) / len(lanes))
    lane_sum.close()
    assert model.weight.grad is not None
    step_s, lane_s, wait_s = (statistics.median(each[SETTLING:]) for each in (steps, own, waits))
    return Steps(step_s, lane_s, wait_s, model.weight.grad.clone())


def wait_vs_all_reduce(world_size: int, rounds: int) -> float:
    """How long the rank that is last waits for the exchange, over an all_reduce of as much."""
    with tempfile.TemporaryDirectory() as folder, linked_nodes(world_size, RATE) as nodes:
        found = Path(folder) / "found.json"

        def be_rank(rank: int) -> None:
            meeting = f"tcp://{nodes[0].address}:{PORT}"
            ranks = Ranks.join(rank=rank, world_size=world_size, rendezvous=meeting, num_threads=1)
            shares = LaneShares(NUM_LANES, world_size)
            waited = torch.tensor([slept(ranks, shares, LANE_S, rounds, WIDTH).wait_s])
            dist.all_reduce(waited, dist.ReduceOp.MIN, group=ranks.control)
            turns = [seconds(ranks, lambda buffer: dist.all_reduce(buffer)) for _ in range(rounds + 1)]
            if rank == 0:
                found.write_text(json.dumps([waited.item(), statistics.median(turns[1:])]))
            ranks.leave()

        forked_at(nodes, be_rank)
        wait_s, all_reduce_s = json.loads(found.read_text())
        print(f"{world_size:5}  {wait_s:.3f}  {all_reduce_s:10.3f}  {wait_s / all_reduce_s:.2f}")
        return float(wait_s / all_reduce_s)


def slow_rank_gain(rounds: int) -> float:
    """By how much a step is faster when lanes are shared by speed; the bits of the sum have to be the same."""
    with tempfile.TemporaryDirectory() as folder, linked_nodes(SLOW_RANKS, RATE) as nodes:
        found = Path(folder) / "found.json"

        def be_rank(rank: int) -> None:
            meeting = f"tcp://{nodes[0].address}:{PORT}"
            ranks = Ranks.join(rank=rank, world_size=SLOW_RANKS, rendezvous=meeting, num_threads=1)
            sleep_s = SLOW_LANE_S * (SLOWNESS if rank == SLOW_RANKS - 1 else 1)
            equal = slept(ranks, LaneShares(NUM_LANES, SLOW_RANKS), sleep_s, rounds)
            microseconds = ranks.everyones([round(equal.lane_s * 1e6)])
            loads = loads_by_speed([each / 1e6 for [each] in microseconds], NUM_LANES)
            by_speed = slept(ranks, LaneShares(NUM_LANES, SLOW_RANKS, given_loads=loads), sleep_s, rounds)
            assert torch.equal(equal.gradient, by_speed.gradient)
            took = torch.tensor([equal.step_s, by_speed.step_s])
            dist.all_reduce(took, dist.ReduceOp.MAX, group=ranks.control)
            if rank == 0:
                print(f"lanes by speed: {loads}; a step {took[0]:.3f} s with equal shares, {took[1]:.3f} s so")
                found.write_text(json.dumps(took.tolist()))
            ranks.leave()

        forked_at(nodes, be_rank)
        equal_s, by_speed_s = json.loads(found.read_text())
        return float(equal_s / by_speed_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three turns instead of seven")
    options = parser.parse_args()
    if (reason := missing()) is not None:
        sys.exit(f"benchmarks/scale.py: {reason}; run it as root where namespaces can be made")
    describe_machine()
    print(f"{NUM_BYTES / 1e6:g} MB on links of {RATE}, each way; seconds")
    print("ranks  least  ours  all_reduce  ratio")
    ratios = {}
    rounds = 3 if options.quick else 7
    for world_size in WORLD_SIZES:
        took = measure(world_size, rounds)
        least_s = 2 * NUM_BYTES * 8 / BITS_PER_S * (world_size - 1) / world_size
        ratios[f"exchange_vs_all_reduce_{world_size}"] = ratio = took["ours"] / took["all_reduce"]
        print(f"{world_size:5}  {least_s:.3f} {took['ours']:.3f}  {took['all_reduce']:10.3f}  {ratio:.2f}")
    print(f"{NUM_LANES} lanes of {LANE_S:g} s: the wait behind the last one")
    print("ranks  wait  all_reduce  ratio")
    waits = {f"wait_vs_all_reduce_{size}": wait_vs_all_reduce(size, rounds) for size in UNEVEN_SIZES}
    print(f"{NUM_LANES} lanes of {SLOW_LANE_S:g} s on {SLOW_RANKS} ranks, one {SLOWNESS} times as slow")
    figures = {
        "exchange_vs_all_reduce": max(ratios.values()),
        **ratios,
        "wait_vs_all_reduce": max(waits.values()),
        **waits,
        "slow_rank_gain": slow_rank_gain(2 * rounds),
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()

"""The exchange of gradients on slow links, beside the backend's all_reduce: `benchmarks/scale.py [--quick]`.

Each rank is in a network namespace behind a link of 100 Mbit/s each way, so that it is the bytes that take time
and not this machine's memory. Ours and gloo's all_reduce sum the same buffer in turn; a turn takes as long as
its slowest rank.

Then whole steps of 32 lanes that sleep their time, with real sums and exchanges. At sizes that are no power of
two, ranks have several blocks of lanes: how long the busiest waits behind its last lane, beside an all_reduce.
And a slow rank: twice as long a lane on one of four, first with equal shares, then with those that follow from
what each rank took for a lane.

And nodes: what leaves one of 7 nodes of 8 ranks in an exchange, by the plan and as the interfaces count it;
and what a step takes when one of 8 nodes is lost, on a cluster whose lanes sleep (`cluster.py`), against four.

The last line printed is one JSON object: `exchange_vs_all_reduce` is the worst ratio, then that of each size;
`wait_vs_all_reduce` likewise; `slow_rank_gain` and `lost_node_gain` are by how much a step is faster;
`node_bytes_*` are over the bytes of a ring. `--only PART` measures a part.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from assay.data.loader.lane_shares import LaneShares, loads_by_speed
from assay.distributed.exchange import sum_over_ranks
from assay.distributed.exchange_plan import ExchangePlan, exchange_plan
from assay.distributed.lane_sum import LaneSum
from assay.distributed.ranks import Ranks
from cluster import Setting, cluster, described, trained
from harness import describe_machine, options_of, print_result
from network_links import INTERFACE, forked_at, linked_nodes, require_namespaces

RATE, BITS_PER_S = "100mbit", 100e6
NUM_BYTES = 4_000_000
PORT = 29_555
WORLD_SIZES = range(2, 9)
UNEVEN_SIZES = 3, 5, 6, 7
NUM_LANES = 32
WIDTH = 1000
"""Of a layer whose gradient has about `NUM_BYTES`."""
LANE_S = 0.2
LOST_NODE_LANE_S = 0.4
SLOW_RANKS, SLOW_LANE_S, SLOWNESS = 4, 0.02, 2
NODE_SIZES, NODE_LANES, NODE_RATE = (8,) * 7, 256, "1gbit"
NUMBERS_A_CELL = 20_000
CLUSTER_S = 170.0
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
            turns = [{name: seconds(ranks, item) for name, item in contenders.items()} for _ in range(rounds)]
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
    step_s, lane_s, wait_s = (statistics.median(item[SETTLING:]) for item in (steps, own, waits))
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


class SlowRank(NamedTuple):
    """One of the ranks takes longer for a lane."""

    equal_s: float
    """A step with equal shares."""
    by_speed_s: float
    loads: tuple[int, ...]


def slow_rank(rounds: int) -> SlowRank:
    """Steps with equal shares, then with lanes shared by speed; the bits of the sum have to be the same."""
    with tempfile.TemporaryDirectory() as folder, linked_nodes(SLOW_RANKS, RATE) as nodes:
        found = Path(folder) / "found.json"

        def be_rank(rank: int) -> None:
            meeting = f"tcp://{nodes[0].address}:{PORT}"
            ranks = Ranks.join(rank=rank, world_size=SLOW_RANKS, rendezvous=meeting, num_threads=1)
            sleep_s = SLOW_LANE_S * (SLOWNESS if rank == SLOW_RANKS - 1 else 1)
            equal = slept(ranks, LaneShares(NUM_LANES, SLOW_RANKS), sleep_s, rounds)
            microseconds = ranks.all_gather_numbers([round(equal.lane_s * 1e6)])
            loads = loads_by_speed([item / 1e6 for [item] in microseconds], NUM_LANES)
            by_speed = slept(ranks, LaneShares(NUM_LANES, SLOW_RANKS, explicit_loads=loads), sleep_s, rounds)
            assert torch.equal(equal.gradient, by_speed.gradient)
            took = torch.tensor([equal.step_s, by_speed.step_s])
            dist.all_reduce(took, dist.ReduceOp.MAX, group=ranks.control)
            if rank == 0:
                found.write_text(json.dumps([*took.tolist(), loads]))
            ranks.leave()

        forked_at(nodes, be_rank)
        return SlowRank(*json.loads(found.read_text()))


class NodeBytes(NamedTuple):
    """That leave a node in one exchange of 7 nodes of 8 ranks, over those of a ring."""

    mean_plan: float
    """By the plan, over the nodes."""
    most_plan: float
    """Of the node that sends most."""
    flat_plan: float
    """The most, where the plan does not know the nodes."""
    mean_interface: float
    """As the interfaces counted them: headers of packets and acknowledgements included."""
    most_interface: float


def node_bytes() -> NodeBytes:
    """Counted from the plan, and by the nodes' interfaces while 56 processes carry it out."""
    shares = LaneShares(NODE_LANES, sum(NODE_SIZES), nodes=NODE_SIZES)
    plan, flat = exchange_plan(shares), exchange_plan(LaneShares(NODE_LANES, sum(NODE_SIZES)))
    ring = 2 * (len(NODE_SIZES) - 1) / len(NODE_SIZES)
    of_nodes = [sent_by(plan, ranks) / ring for ranks in shares.ranks_of_nodes]
    flat_most = max(sent_by(flat, ranks) for ranks in shares.ranks_of_nodes) / ring
    num_numbers = plan.num_cells * NUMBERS_A_CELL
    counted = [sent / (4 * num_numbers) / ring for sent in sent_by_interfaces(shares, plan, num_numbers)]
    return NodeBytes(statistics.fmean(of_nodes), max(of_nodes), flat_most, statistics.fmean(counted), max(counted))


def sent_by(plan: ExchangePlan, ranks: range) -> float:
    """What leaves a node, in buffers."""
    parts = [part for rank in ranks for created in plan.ranks[rank].rounds for part in created.sends]
    return sum(part.cells.stop - part.cells.start for part in parts if part.peer not in ranks) / plan.num_cells


def sent_by_interfaces(shares: LaneShares, plan: ExchangePlan, num_numbers: int) -> list[int]:
    """Bytes that leave each node in one exchange, between two barriers whose own bytes are taken off."""
    with tempfile.TemporaryDirectory() as folder, linked_nodes(len(shares.nodes), NODE_RATE) as nodes:
        found = Path(folder) / "found.json"
        locations = [node for node, size in zip(nodes, shares.nodes, strict=True) for _ in range(size)]

        def be_rank(rank: int) -> None:
            torch.set_num_threads(1)
            os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
            meeting = f"tcp://{nodes[0].address}:{PORT}"
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=shares.world_size)
            group = dist.group.WORLD
            assert group is not None
            sums = [torch.full((num_numbers,), float(block.size)) for block in shares.blocks_of(rank)[::-1]]
            counts = []
            for exchanges in (1, 0, 1):  # the first makes the connections; the second is a barrier alone
                dist.barrier()
                counts.append([node.sent_bytes() for node in nodes] if rank == 0 else [])
                dist.barrier()
                if exchanges:
                    sum_over_ranks([sum_.clone() for sum_ in sums], plan, group)
                dist.barrier()
                counts.append([node.sent_bytes() for node in nodes] if rank == 0 else [])
            if rank == 0:
                _, _, before, after, began, ended = (torch.tensor(count) for count in counts)
                found.write_text(json.dumps(((ended - began) - (after - before)).tolist()))
            dist.barrier()
            dist.destroy_process_group()

        forked_at(locations, be_rank)
        sent: list[int] = json.loads(found.read_text())
        return sent


class LostNode(NamedTuple):
    """What a step takes once one of 8 nodes is gone."""

    on_7_s: float
    on_4_s: float
    """On 4, which a power of two would leave at work."""


def lost_node(steps: int) -> LostNode:
    """A real cluster loses a node, goes on with those that are left; and one of four nodes, for comparison."""
    setting = Setting(8, 8, lane_s=LOST_NODE_LANE_S, step_time_sd=0.05, rate=RATE, steps=2 * steps, commit_every=steps)
    with cluster(setting) as created:
        created.start()
        created.until(lambda: created.last_commit() >= steps)
        created.nodes[7].kill()
        created.wait(CLUSTER_S)
        attempts = created.attempts()
        assert [attempt.world_size for attempt in attempts] == [8, 7], attempts
        on_7 = created.measured(attempts[-1])
    [on_4] = trained(setting._replace(workers=4, nodes=4, steps=steps, commit_every=10 * steps), timeout_s=CLUSTER_S)
    print(f"{described(on_7)}\n{described(on_4)}")
    return LostNode(on_7.median_step_s, on_4.median_step_s)


def exchange_part(rounds: int) -> dict[str, float]:
    """One block a rank, beside all_reduce."""
    print(f"{NUM_BYTES / 1e6:g} MB on links of {RATE}, each way; seconds")
    print("ranks  least  ours  all_reduce  ratio")
    ratios = {}
    for world_size in WORLD_SIZES:
        took = measure(world_size, rounds)
        least_s = 2 * NUM_BYTES * 8 / BITS_PER_S * (world_size - 1) / world_size
        ratios[f"exchange_vs_all_reduce_{world_size}"] = ratio = took["ours"] / took["all_reduce"]
        print(f"{world_size:5}  {least_s:.3f} {took['ours']:.3f}  {took['all_reduce']:10.3f}  {ratio:.2f}")
    return {"exchange_vs_all_reduce": max(ratios.values()), **ratios}


def wait_part(rounds: int) -> dict[str, float]:
    """Whole steps at sizes that are no power of two."""
    print(f"{NUM_LANES} lanes of {LANE_S:g} s: the wait behind the last one")
    print("ranks  wait  all_reduce  ratio")
    waits = {f"wait_vs_all_reduce_{size}": wait_vs_all_reduce(size, rounds) for size in UNEVEN_SIZES}
    return {"wait_vs_all_reduce": max(waits.values()), **waits}


def slow_rank_part(rounds: int) -> dict[str, float]:
    """One of four ranks at half speed."""
    print(f"{NUM_LANES} lanes of {SLOW_LANE_S:g} s on {SLOW_RANKS} ranks, one {SLOWNESS} times as slow")
    found = slow_rank(2 * rounds)
    print(f"lanes by speed: {found.loads}; a step {found.equal_s:.3f} s equally, {found.by_speed_s:.3f} s so")
    return {"slow_rank_gain": found.equal_s / found.by_speed_s}


def node_bytes_part(_: int) -> dict[str, float]:
    """What leaves a node of eight ranks."""
    print(f"bytes that leave one of {len(NODE_SIZES)} nodes of 8 ranks, {NODE_LANES} lanes, over a ring's")
    found = node_bytes()
    for name, value in found._asdict().items():
        print(f"{name:15} {value:.2f}")
    return {f"node_bytes_{name}": value for name, value in found._asdict().items()}


def lost_node_part(rounds: int) -> dict[str, float]:
    """Seven nodes of eight against four."""
    print(f"one of 8 nodes is lost: {NUM_LANES} lanes of {LOST_NODE_LANE_S:g} s on links of {RATE}")
    found = lost_node(2 * rounds)
    return {"lost_node_gain": found.on_4_s / found.on_7_s}


PARTS: dict[str, Callable[[int], dict[str, float]]] = {
    "exchange": exchange_part,
    "wait": wait_part,
    "slow_rank": slow_rank_part,
    "node_bytes": node_bytes_part,
    "lost_node": lost_node_part,
}


def main() -> None:
    """Measure and print."""
    parser = options_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="three turns instead of seven")
    parser.add_argument("--only", action="append", choices=[*PARTS], help="a part; may be repeated")
    options = parser.parse_args()
    require_namespaces()
    describe_machine()
    rounds = 3 if options.quick else 7
    figures: dict[str, float] = {}
    for name in options.only or PARTS:
        figures |= PARTS[name](rounds)
    print_result(figures, digits=3)


if __name__ == "__main__":
    main()

"""What an exchange takes and how many bytes it moves, against closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange_plan import exchange_plan
from assay.records.throughput import NetworkLink
from assay.throughput.exchange_time import Links, after_rounds, exchange_traffic, sent_bytes

BUFFER = 8_000_000


def links(bytes_per_s: float, latency_s: float = 0.0, between: NetworkLink | None = None) -> Links:
    return Links(NetworkLink(bytes_per_s=bytes_per_s, latency_s=latency_s), between, 1e18)


def took_s(shares: LaneShares, over: Links, num_bytes: float = BUFFER) -> float:
    stages, late = exchange_traffic(exchange_plan(shares), shares)
    ready_s = after_rounds(np.zeros((1, shares.world_size)), stages, num_bytes, over)
    return float(after_rounds(ready_s, late, num_bytes, over).max())


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_one_block_a_rank_takes_the_time_of_a_ring(world_size: int) -> None:
    latency_s, rate = 1e-3, 1e8
    ring_s = 2 * (world_size - 1) * (latency_s + BUFFER / world_size / rate)
    assert took_s(LaneShares(world_size, world_size), links(rate, latency_s)) == pytest.approx(ring_s)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_one_block_a_rank_sends_the_bytes_of_a_ring(world_size: int) -> None:
    shares = LaneShares(32, world_size)
    sent, left = sent_bytes(exchange_plan(shares), shares, [BUFFER])
    assert (sent, left) == (2 * BUFFER * (world_size - 1) // world_size, 0)


def test_what_leaves_a_node_is_what_nodes_of_one_rank_would_send() -> None:
    """Four nodes of eight: one sum a node, as a ring of nodes has it, however many ranks a node has."""
    shares = LaneShares(32, 32, nodes=(8, 8, 8, 8))
    _, left = sent_bytes(exchange_plan(shares), shares, [BUFFER])
    assert left == 2 * BUFFER * 3 // 4


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(0, 1_000_003))
def test_bytes_are_those_of_the_plans_parts_cut_as_an_exchange_cuts_them(world_size: int, numbers: int) -> None:
    shares = LaneShares(16, world_size)
    plan = exchange_plan(shares)
    edges = [cell * numbers // plan.num_cells for cell in range(plan.num_cells + 1)]
    counted = [
        sum(4 * (edges[part.cells.stop] - edges[part.cells.start]) for item in of.rounds for part in item.sends)
        for of in plan.ranks
    ]
    assert sent_bytes(plan, shares, [4 * numbers])[0] == max(counted)


def test_ranks_of_a_node_share_what_leaves_it() -> None:
    """Two nodes of four: four ranks at once send an eighth each, on a link that one alone could fill."""
    between = NetworkLink(bytes_per_s=1e8, latency_s=0.0)
    shares = LaneShares(8, 8, nodes=(4, 4))
    took = took_s(shares, links(1e15, 0.0, between))
    assert took == pytest.approx(2 * BUFFER / 2 / 1e8, rel=1e-4)


def test_a_rank_sends_no_faster_to_another_node_than_within_its_own() -> None:
    shares = LaneShares(2, 2, nodes=(1, 1))
    fast = NetworkLink(bytes_per_s=1e12, latency_s=0.0)
    assert took_s(shares, links(1e8, 0.0, fast)) == pytest.approx(2 * BUFFER / 2 / 1e8)


def test_each_round_between_nodes_waits_for_their_latency() -> None:
    shares = LaneShares(2, 2, nodes=(1, 1))
    between = NetworkLink(bytes_per_s=1e8, latency_s=0.5)
    assert took_s(shares, links(1e15, 0.0, between)) == pytest.approx(2 * (0.5 + BUFFER / 2 / 1e8))


def test_what_is_added_takes_its_time() -> None:
    shares = LaneShares(2, 2)
    slow = Links(NetworkLink(bytes_per_s=1e18, latency_s=0.0), None, 1e8)
    assert took_s(shares, slow) == pytest.approx(BUFFER / 2 / 1e8)


def test_a_rank_that_comes_late_holds_its_partners_up() -> None:
    shares = LaneShares(2, 2)
    _, late = exchange_traffic(exchange_plan(shares), shares)
    done_s = after_rounds(np.array([[0.0, 3.0]]), late, BUFFER, links(BUFFER))
    assert done_s.tolist() == [[pytest.approx(4.0), pytest.approx(4.0)]]

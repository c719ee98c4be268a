"""A plan brackets every sum as the tree over lanes, whoever has which, or it is found out."""

import math
from itertools import pairwise, zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange_plan import ExchangePlan, ExchangeRound, early_positions, exchange_plan, prove


@st.composite
def shares_of_nodes(draw):
    """Any loads of any number of ranks, cut into any nodes."""
    num_lanes = 2 ** draw(st.integers(0, 6))
    world_size = draw(st.integers(1, min(num_lanes, 9)))
    edges = st.sets(st.integers(1, max(1, num_lanes - 1)), min_size=world_size - 1, max_size=world_size - 1)
    loads = tuple(b - a for a, b in pairwise([0, *sorted(draw(edges)), num_lanes]))
    cuts = draw(st.sets(st.integers(1, max(1, world_size - 1)), max_size=min(3, world_size - 1)))
    nodes = tuple(b - a for a, b in pairwise([0, *sorted(cuts), world_size]))
    return LaneShares(num_lanes, world_size, nodes=nodes, explicit_loads=draw(st.sampled_from([None, loads])))


@settings(deadline=None, max_examples=80)
@given(shares_of_nodes())
def test_whatever_the_loads_and_the_nodes_a_plan_is_proved(shares):
    exchange_plan(shares, early=False)
    plan = exchange_plan(shares)
    for rank, of_rank in enumerate(plan.ranks):
        assert sorted(of_rank.blocks) == sorted(shares.blocks_of(rank))
        for result in of_rank.rounds:
            peers = [part.peer for part in result.sends + result.receives]
            assert rank not in peers


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7, 8, 16])
def test_on_one_node_a_rank_has_one_partner_each_way_in_every_round(world_size):
    """But that a rank with too few blocks for an early stage sends nothing in it."""
    for plan in (exchange_plan(LaneShares(32, world_size), early=early) for early in (False, True)):
        slots = [slot for slot in range(len(plan.stages), 0, -1) for _ in range(world_size - 1)]
        for of_rank in plan.ranks:
            assert len(of_rank.rounds) == plan.num_early + 2 * (world_size - 1)
            for result, slot in zip_longest(of_rank.rounds, slots, fillvalue=0):
                sends, receives = ({part.peer for part in parts} for parts in (result.sends, result.receives))
                assert len(sends) == (len(of_rank.blocks) > slot)
                assert len(receives) == 1 or (slot and not receives)


@pytest.mark.parametrize("nodes", [lambda size: (), lambda size: (1,) * size], ids=["one node", "a node each"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6, 7, 8])
def test_of_several_blocks_one_is_waited_for_and_the_others_travel_early(world_size, nodes):
    shares = LaneShares(32, world_size, nodes=nodes(world_size))
    plan = exchange_plan(shares)
    assert plan.stages == (world_size - 1,) * (max(len(of_rank.blocks) for of_rank in plan.ranks) - 1)
    late = plan._replace(ranks=tuple(item._replace(rounds=item.rounds[plan.num_early :]) for item in plan.ranks))
    for rank in range(world_size):
        assert math.isclose(sent(late, rank), 2 * (world_size - 1) / world_size)
    assert exchange_plan(shares, early=False).stages == ()


def test_between_nodes_travels_early_what_a_node_will_add_nothing_to():
    """Nodes of 40 lanes have a sum of 32 and one of 8: that of 8 is made of their ranks' single lanes."""
    nodes = (8,) * 7
    shares = LaneShares(256, 56, nodes=nodes)
    plan, late_only = exchange_plan(shares), exchange_plan(shares, early=False)
    early = plan._replace(ranks=tuple(item._replace(rounds=item.rounds[: plan.num_early]) for item in plan.ranks))
    for ranks in shares.ranks_of_nodes:
        is_larger = sum(shares.loads[rank] for rank in ranks) == 40
        assert math.isclose(leaving(early, ranks), 6 / 7 if is_larger else 0.0, abs_tol=1e-9)
        assert math.isclose(leaving(plan, ranks), leaving(late_only, ranks))


def test_a_node_keeps_early_what_it_will_join_by_itself():
    """Both nodes of 8 lanes have ranks of 5 and 3: their single lanes are a part of the node's one sum."""
    shares = LaneShares(16, 4, nodes=(2, 2), explicit_loads=(5, 3, 5, 3))
    plan = exchange_plan(shares)
    assert plan.stages == (1,)
    assert [leaving(plan, ranks) for ranks in shares.ranks_of_nodes] == [1.0, 1.0]


def test_in_one_stage_a_node_lets_out_what_is_whole_and_keeps_what_is_not():
    """Of 26 lanes it has sums of 16, 8 and 2: that of 2 is early, and so is one half of that of 8."""
    shares = LaneShares(32, 4, nodes=(3, 1), explicit_loads=(12, 4, 10, 6))
    assert [len(shares.blocks_of(rank)) for rank in range(3)] == [2, 1, 2]
    plan = exchange_plan(shares)
    assert len(plan.stages) == 1
    assert leaving(plan, range(3)) == pytest.approx(3 / 2 + 1 / 2)


def test_a_plan_that_needs_a_block_before_it_is_done_fails_its_proof():
    plan = exchange_plan(LaneShares(16, 3))
    with pytest.raises(AssertionError, match="early and waits for a block"):
        prove(plan._replace(stages=(*plan.stages[:-1], plan.stages[-1] + 1)))
    plan = exchange_plan(LaneShares(8, 2, explicit_loads=(1, 7)))
    assert plan.stages == (1, 1)
    with pytest.raises(AssertionError, match="early and waits for a block"):
        prove(plan._replace(stages=(2, 0)))


@settings(deadline=None)
@given(shares_of_nodes())
def test_a_rank_enters_a_stage_once_it_has_its_block_and_no_stage_before_another(shares):
    stages = exchange_plan(shares).stages
    for rank in range(shares.world_size):
        blocks, positions = shares.blocks_of(rank), early_positions(shares, rank)
        assert len(positions) == len(stages) and list(positions) == sorted(positions)
        assert all(0 <= index < shares.loads[rank] for index in positions)
        for before, index in enumerate(reversed(positions)):
            if (result := len(blocks) - 1 - before) > 0:
                assert index == sum(block.size for block in blocks[:result])


def test_a_plan_that_leaves_lanes_out_fails_its_proof():
    with pytest.raises(AssertionError, match="no rank has lane 8"):
        prove(exchange_plan(LaneShares(8, 2))._replace(num_lanes=16))


def test_a_rank_with_nothing_to_send_enters_a_stage_when_the_others_bring_theirs():
    """A rank of five lanes has its single one done after one, one of seven a sum of two after three."""
    assert early_positions(LaneShares(16, 3, explicit_loads=(8, 5, 3)), 0) == (1,)
    assert early_positions(LaneShares(16, 3, explicit_loads=(4, 7, 5)), 0) == (1, 3)
    assert early_positions(LaneShares(16, 3, explicit_loads=(2, 7, 7)), 0) == (1, 1)


def sent(plan: ExchangePlan, rank: int) -> float:
    """In buffers."""
    parts = [part for result in plan.ranks[rank].rounds for part in result.sends]
    return sum(part.cells.stop - part.cells.start for part in parts) / plan.num_cells


@pytest.mark.parametrize("world_size", [2, 3, 5, 6, 7, 8])
def test_what_is_sent_is_a_sum_for_each_block_there_and_one_back(world_size):
    """With one block a rank, the bytes of a ring, which are the least."""
    shares = LaneShares(32, world_size)
    plan = exchange_plan(shares)
    for rank in range(world_size):
        blocks = len(shares.blocks_of(rank))
        assert math.isclose(sent(plan, rank), (blocks + 1) * (world_size - 1) / world_size)


def changed(plan: ExchangePlan, rank: int, number: int, result: ExchangeRound) -> ExchangePlan:
    rounds = list(plan.ranks[rank].rounds)
    rounds[number] = result
    ranks = list(plan.ranks)
    ranks[rank] = ranks[rank]._replace(rounds=tuple(rounds))
    return plan._replace(ranks=tuple(ranks))


def test_a_plan_with_two_additions_swapped_fails_its_proof():
    plan, found = exchange_plan(LaneShares(16, 5), early=False), 0
    for rank, of_rank in enumerate(plan.ranks):
        for number, result in enumerate(of_rank.rounds):
            for i, (a, b) in enumerate(pairwise(result.additions)):
                if a.into in (b.into, b.added):
                    swapped = (*result.additions[:i], b, a, *result.additions[i + 2 :])
                    with pytest.raises(AssertionError, match=r"adds what it does not have|another sum"):
                        prove(changed(plan, rank, number, result._replace(additions=swapped)))
                    found += 1
    assert found >= 4


def test_a_plan_that_sends_another_slot_or_leaves_out_a_message_or_a_sum_fails_its_proof():
    plan = exchange_plan(LaneShares(8, 3), early=False)
    result = plan.ranks[0].rounds[0]
    first, second = result.sends
    crossed = result._replace(sends=[first._replace(slot=second.slot), second._replace(slot=first.slot)])
    with pytest.raises(AssertionError, match=r"another sum|does not have"):
        prove(changed(plan, 0, 0, crossed))
    with pytest.raises(AssertionError, match="waits for what is not sent"):
        prove(changed(plan, 0, 0, result._replace(sends=result.sends[:1])))
    with pytest.raises(AssertionError, match="not received"):
        prove(changed(plan, 0, 0, result._replace(receives=())))
    adds = next(number for number, item in enumerate(plan.ranks[0].rounds) if item.additions)
    without = plan.ranks[0].rounds[adds]._replace(additions=())
    with pytest.raises(AssertionError, match=r"another sum|does not have"):
        prove(changed(plan, 0, adds, without))


def leaving(plan: ExchangePlan, ranks: range) -> float:
    """What goes out of a node, in buffers."""
    parts = [part for rank in ranks for result in plan.ranks[rank].rounds for part in result.sends]
    return sum(part.cells.stop - part.cells.start for part in parts if part.peer not in ranks) / plan.num_cells


def test_seven_nodes_of_eight_send_out_at_most_1_6_times_the_bytes_of_a_ring():
    nodes = (8,) * 7
    by_node, flat = LaneShares(256, 56, nodes=nodes), LaneShares(256, 56)
    loads = [sum(by_node.loads[rank] for rank in ranks) for ranks in by_node.ranks_of_nodes]
    assert sorted(loads) == [32, 32, 32, 40, 40, 40, 40] and max(by_node.loads) == 5
    ring = 2 * 6 / 7
    plans = exchange_plan(by_node), exchange_plan(flat)
    most, most_flat = (max(leaving(plan, ranks) for ranks in by_node.ranks_of_nodes) for plan in plans)
    mean = sum(leaving(plans[0], ranks) for ranks in by_node.ranks_of_nodes) / 7
    assert (mean / ring, most / ring, most_flat / ring) == pytest.approx((1.29, 1.50, 12.0), abs=0.005)


def test_nodes_that_have_equal_blocks_send_out_the_bytes_of_a_ring():
    shares = LaneShares(64, 32, nodes=(8,) * 4)
    assert all(leaving(exchange_plan(shares), ranks) == 2 * 3 / 4 for ranks in shares.ranks_of_nodes)

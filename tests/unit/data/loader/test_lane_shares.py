from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.data.loader.lane_shares import (
    LEAST_GAIN,
    LaneBlock,
    LaneShares,
    equal_loads,
    loads_by_speed,
    next_useful_world_size,
    powers_of_two,
    useful_world_size,
)

lanes_and_ranks = (
    st.integers(0, 6).map(lambda power: 2**power).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))
)


@settings(deadline=None)
@given(lanes_and_ranks, st.booleans())
def test_ranks_share_all_lanes_as_evenly_as_may_be_each_once(sizes, interleaved):
    num_lanes, world_size = sizes
    shares = LaneShares(num_lanes, world_size, interleaved=interleaved)
    of_ranks = [shares.of_rank(rank) for rank in range(world_size)]
    assert tuple(map(len, of_ranks)) == shares.loads
    assert max(shares.loads) == shares.most == -(-num_lanes // world_size)
    assert sorted(lane for lanes in of_ranks for lane in lanes) == list(range(num_lanes))
    if interleaved:
        rounds = [[lanes[k] for lanes in of_ranks if k < len(lanes)] for k in range(shares.most)]
        assert [lane for of_round in rounds for lane in of_round] == list(range(num_lanes))


@st.composite
def loads_of(draw):
    num_lanes = 2 ** draw(st.integers(0, 7))
    cuts = draw(st.sets(st.integers(1, max(1, num_lanes - 1)), max_size=min(12, num_lanes - 1)))
    edges = [0, *sorted(cuts), num_lanes] if num_lanes > 1 else [0, 1]
    return tuple(b - a for a, b in pairwise(edges))


@given(loads_of())
def test_any_loads_are_aligned_blocks_one_for_each_power_of_two_the_largest_worked_on_last(loads):
    shares = LaneShares(sum(loads), len(loads), explicit_loads=loads)
    assert shares.loads == loads
    first = 0
    for block in shares.blocks:
        assert block.first == first and block.first % block.size == 0
        first += block.size
    assert first == sum(loads)
    for rank, load in enumerate(loads):
        own = shares.blocks_of(rank)
        assert [block.size for block in own] == powers_of_two(load)[::-1]
        assert shares.of_rank(rank) == tuple(lane for block in own for lane in block.lanes)


def test_equal_loads_have_the_least_slowest_rank_and_then_the_fewest_blocks():
    def loads_of_sum(num_lanes: int, world_size: int):
        most = -(-num_lanes // world_size)
        for loads in product(range(1, most + 1), repeat=world_size):
            if sum(loads) == num_lanes:
                yield loads

    def num_blocks(loads) -> int:
        return sum(load.bit_count() for load in loads)

    for num_lanes, most_ranks in ((8, 8), (16, 6), (32, 4)):
        for world_size in range(1, most_ranks + 1):
            fewest = min(map(num_blocks, loads_of_sum(num_lanes, world_size)))
            loads = equal_loads(num_lanes, (world_size,))
            assert num_blocks(loads) == fewest and max(loads) == -(-num_lanes // world_size)
            assert sum(loads) == num_lanes and loads == tuple(sorted(loads, reverse=True))


def all_loads(num_lanes: int, world_size: int):
    """All loads that there are."""
    for cuts in combinations(range(1, num_lanes), world_size - 1):
        yield tuple(b - a for a, b in pairwise([0, *cuts, num_lanes]))


@given(
    st.sampled_from([4, 8, 16]),
    st.lists(st.sampled_from([0.3, 0.5, 0.9, 1.0, 1.1, 2.0, 7.0]), min_size=1, max_size=4),
)
def test_loads_by_speed_are_done_soonest_of_all_and_then_have_the_fewest_blocks(num_lanes, lane_s):
    def slowest_s(loads) -> float:
        return max(load * seconds for load, seconds in zip(loads, lane_s, strict=True))

    loads, equal = loads_by_speed(lane_s, num_lanes), equal_loads(num_lanes, (len(lane_s),))
    assert sum(loads) == num_lanes and min(loads) >= 1
    least_s = min(map(slowest_s, all_loads(num_lanes, len(lane_s))))
    if least_s > (1 - LEAST_GAIN) * slowest_s(equal):
        assert loads == equal
        return
    assert slowest_s(loads) <= least_s * (1 + 1e-9)
    blocks = [
        sum(load.bit_count() for load in loads)
        for loads in all_loads(num_lanes, len(lane_s))
        if slowest_s(loads) <= least_s * (1 + 1e-9)
    ]
    assert sum(load.bit_count() for load in loads) == min(blocks)


def test_one_of_four_ranks_at_half_speed_gets_half_the_lanes_and_the_step_is_1_6_times_as_fast():
    loads = loads_by_speed([1.0, 1.0, 1.0, 2.0], 32)
    assert sorted(loads[:3]) == [8, 10, 10] or sorted(loads[:3]) == [9, 9, 10]
    assert max(*loads[:3], 2 * loads[3]) == 10 and 16 / 10 == 1.6


def test_speeds_that_hardly_differ_change_nothing_and_nodes_keep_their_ranks():
    assert loads_by_speed([1.0, 1.02, 0.99, 1.01], 64) == (16,) * 4
    by_node = loads_by_speed([1.0, 1.0, 3.0, 3.0], 16, (2, 2))
    assert sum(by_node) == 16 and by_node == (6, 6, 2, 2)


def test_shares_as_they_were_where_all_are_equal():
    """Runs are gone on with by newer code, and what it logs of a rank's lanes stays comparable."""
    for num_lanes, world_size in ((8, 1), (8, 2), (8, 4), (8, 8), (64, 16)):
        per_rank = num_lanes // world_size
        shares = LaneShares(num_lanes, world_size)
        for rank in range(world_size):
            assert shares.blocks_of(rank) == (LaneBlock(rank * per_rank, per_rank, rank),)
            assert shares.of_rank(rank) == tuple(range(rank * per_rank, (rank + 1) * per_rank))


def test_the_sketch_of_eight_lanes_on_three_ranks():
    blocks, rounds = LaneShares(8, 3), LaneShares(8, 3, interleaved=True)
    assert [sorted(blocks.of_rank(rank)) for rank in range(3)] == [[0, 1, 6], [2, 3, 7], [4, 5]]
    assert [list(rounds.of_rank(rank)) for rank in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_a_rank_alone_has_all_lanes():
    assert LaneShares.alone(8) == LaneShares(8, 1, interleaved=False)
    assert LaneShares.alone(8).of_rank(0) == tuple(range(8))


@pytest.mark.parametrize("world_size", [0, 9, 16])
def test_a_number_of_ranks_that_can_not_share_the_lanes_is_refused_with_those_that_can(world_size):
    with pytest.raises(ConfigError, match=rf"--workers {world_size}.*lanes=8 .*1 to 8"):
        LaneShares(8, world_size)


@pytest.mark.parametrize(
    ("world_size", "useful", "following"), [(1, 1, 2), (3, 3, 4), (4, 4, 8), (5, 4, 8), (7, 4, 8), (8, 8, None)]
)
def test_who_gains_nothing_by_more_ranks_is_told_which_number_would(world_size, useful, following):
    assert useful_world_size(8, world_size) == useful
    assert next_useful_world_size(8, world_size) == following

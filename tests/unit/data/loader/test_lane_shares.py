import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.data.loader.lane_shares import LaneShares, largest_world_size, world_sizes

lanes_and_ranks = st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda powers: powers[1] <= powers[0])


@settings(deadline=None)
@given(lanes_and_ranks, st.booleans())
def test_ranks_share_all_lanes_evenly_each_once(powers, interleaved):
    num_lanes, world_size = (2**power for power in powers)
    shares = LaneShares(num_lanes, world_size, interleaved=interleaved)
    of_ranks = [list(shares.of_rank(rank)) for rank in range(world_size)]
    assert {len(lanes) for lanes in of_ranks} == {num_lanes // world_size}
    assert sorted(lane for lanes in of_ranks for lane in lanes) == list(range(num_lanes))
    order = list(zip(*of_ranks, strict=True)) if interleaved else of_ranks
    assert [lane for lanes in order for lane in lanes] == list(range(num_lanes))


def test_a_rank_alone_has_all_lanes():
    assert LaneShares.alone(8) == LaneShares(8, 1, interleaved=False)
    assert list(LaneShares.alone(8).of_rank(0)) == list(range(8))


@pytest.mark.parametrize("world_size", [0, 3, 16])
def test_a_number_of_ranks_that_can_not_share_the_lanes_is_refused_with_those_that_can(world_size):
    with pytest.raises(ConfigError, match=rf"{world_size}.*lanes=8.*1, 2, 4, 8"):
        LaneShares(8, world_size)


@pytest.mark.parametrize(("most", "largest"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8)])
def test_the_largest_world_is_the_largest_power_of_two(most, largest):
    assert largest_world_size(at_most=most) == largest == world_sizes(most)[-1]

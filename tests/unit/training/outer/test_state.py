"""The fold over outer steps: positions, lanes and clusters, and logs that no cluster wrote."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.errors import DataError
from assay.records.outer import LaneSteps, OuterBegan, OuterPart, OuterStep
from assay.training.outer.state import OuterState, divided

INNER_STEPS, LANE_STEPS = 5, 12
WORKERS = {"a": 1, "b": 1, "c": 2}


def began(**lanes: Sequence[int]) -> OuterBegan:
    return OuterBegan(
        recipe_sha256="", dataset_fingerprint="", inner_steps=INNER_STEPS, lane_steps=LANE_STEPS,
        lanes={cluster: tuple(of_cluster) for cluster, of_cluster in lanes.items()},
    )  # fmt: skip


def state_of(**lanes: Sequence[int]) -> OuterState:
    return OuterState.after_entries([began(**lanes)])


def part_of(state: OuterState, cluster: str) -> OuterPart:
    """Return the part of a cluster that trained as planned."""
    planned = [(lane, *state.planned(lane)) for lane in state.lanes[cluster]]
    lanes = [
        LaneSteps(lane=lane, from_step=start, to_step=end, num_rows=0, rows_digest="0") for lane, start, end in planned
    ]
    return OuterPart(
        outer_step=state.outer_step + 1, cluster=cluster, lanes=tuple(lanes), weight=1, change_sha256="", num_bytes=0,
        weights_digest="", moments_digest="", last_moments_digest="", inner_s=0.0,
    )  # fmt: skip


def step_after(state: OuterState, parts: str, requests: str = "", absent_after: int = 2) -> OuterStep:
    """Return the entry that follows with parts of some clusters."""
    found = [part_of(state, cluster) for cluster in parts]
    return state.next_entry(found, WORKERS, {*requests}, absent_after=absent_after)


def test_lanes_of_named_parts_advance_and_others_stay() -> None:
    state = state_of(a=[0, 1], b=[2, 3])
    after = state.after(step_after(state, "a"))
    assert (after.positions, after.absent, after.outer_step) == ((5, 5, 0, 0), {"b": 1}, 1)
    assert after.schedule_step == 2


def test_an_absent_cluster_loses_its_lanes_and_a_request_returns_some() -> None:
    state = state_of(a=[0, 1], b=[2, 3])
    for _ in range(2):
        state = state.after(step_after(state, "a"))
    assert state.lanes == {"a": (0, 1, 2, 3)}
    state = state.after(step_after(state, "a", requests="b"))
    assert {cluster: len(lanes) for cluster, lanes in state.lanes.items()} == {"a": 2, "b": 2}


def test_a_request_gets_no_lanes_if_there_are_fewer_than_workers() -> None:
    state = state_of(a=[0], b=[1])
    assert state.after(step_after(state, "ab", requests="c")).lanes == {"a": (0,), "b": (1,)}


def test_a_cluster_that_comes_back_in_time_keeps_its_lanes() -> None:
    state = state_of(a=[0, 1], b=[2, 3])
    state = state.after(step_after(state, "a"))
    state = state.after(step_after(state, "ab"))
    assert (state.lanes, state.absent) == ({"a": (0, 1), "b": (2, 3)}, {})


def test_an_outer_step_without_parts_moves_no_lane() -> None:
    state = state_of(a=[0], b=[1])
    for _ in range(3):
        state = state.after(step_after(state, ""))
    assert (state.positions, state.lanes) == ((0, 0), {"a": (0,), "b": (1,)})


def test_an_idle_cluster_gets_a_lane_of_one_that_lags_behind() -> None:
    state = state_of(a=[0, 1], b=[2, 3])
    while state.positions[0] < LANE_STEPS:
        state = state.after(step_after(state, "a" if state.unfinished((0, 1)) else "b", absent_after=99))
    assert state.positions == (12, 12, 0, 0)
    assert all(len(state.unfinished(lanes)) == 1 for lanes in state.lanes.values())


@given(st.lists(st.sampled_from(["", "a", "b", "c", "ab", "ac", "bc", "abc"]), max_size=30), st.integers(4, 9))
def test_every_lane_has_one_cluster_and_ends(presence: list[str], num_lanes: int) -> None:
    state = state_of(**divided(range(num_lanes), WORKERS))
    for present in [*presence, *["abc"] * 40]:
        if state.is_done:
            break
        idle = [cluster for cluster in present if not state.lanes.get(cluster)]
        here = [cluster for cluster in present if cluster in state.expected()]
        state = state.after(step_after(state, "".join(here), requests="".join(idle)))
        assert sorted(lane for lanes in state.lanes.values() for lane in lanes) == list(range(num_lanes))
    assert state.is_done


@given(st.integers(1, 40), st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8), min_size=1))
def test_lanes_are_divided_in_proportion_to_workers(num_lanes: int, workers: Mapping[str, int]) -> None:
    found = divided(range(num_lanes), workers)
    assert [lane for name in sorted(found) for lane in found[name]] == list(range(num_lanes))
    for name, count in workers.items():
        assert abs(len(found[name]) - num_lanes * count / sum(workers.values())) < 1
        assert len(found[name]) >= count or sum(workers.values()) > num_lanes


GOOD = step_after(state_of(a=[0, 1], b=[2, 3]), "ab")


def with_lane(**changes: int) -> OuterStep:
    """Return `GOOD` with another first lane in its first part."""
    first, *others = GOOD.parts
    lanes = (first.lanes[0].model_copy(update=changes), *first.lanes[1:])
    return GOOD.model_copy(update={"parts": (first.model_copy(update={"lanes": lanes}), *others)})


@pytest.mark.parametrize(
    "entry, message",
    [
        (with_lane(from_step=1), "rows would be skipped or repeated"),
        (with_lane(to_step=4), "rows would be skipped or repeated"),
        (with_lane(lane=2), "the lanes of cluster 'a' are those of another cluster or step"),
        (GOOD.model_copy(update={"parts": (GOOD.parts[0], GOOD.parts[0])}), "rows would be skipped or repeated"),
        (GOOD.model_copy(update={"outer_step": 2}), "it is not outer step 1"),
        (began(a=[0]), "it is not outer step 1"),
    ],
)
def test_a_log_that_no_cluster_wrote_is_refused(entry: OuterStep | OuterBegan, message: str) -> None:
    with pytest.raises(DataError, match=message):
        state_of(a=[0, 1], b=[2, 3]).after(entry)


def test_a_log_that_does_not_begin_is_refused() -> None:
    with pytest.raises(DataError, match="does not begin a run"):
        OuterState.after_entries([GOOD])

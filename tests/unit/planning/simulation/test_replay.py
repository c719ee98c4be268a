"""The fast replay of many programs is the plain simulation of each, and keeps the policy's promises."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.planning.simulation.network import Network, PredecessorLink, working_time
from assay.planning.simulation.replay import ReplaySamples, replay

WEEK = working_time(working_days=[day % 7 < 5 for day in range(365)], first_h=9, last_h=17)


def random_network(rng, num_activities=9):
    """Jobs and people's work in any order, some joined, one a gate that may say stop; two cuts."""
    predecessors = tuple(
        tuple(
            PredecessorLink(int(p), float(rng.choice([0, 0, 5.5])), bool(rng.random() < 0.2))
            for p in sorted(rng.choice(index, size=min(index, rng.integers(0, 3)), replace=False))
        )
        for index in range(num_activities)
    )
    is_work = rng.random(num_activities) < 0.4
    demand = np.zeros((num_activities, 3))
    demand[~is_work, 0] = rng.choice([2, 4, 6, 8], (~is_work).sum())
    demand[is_work, 1] = rng.choice([0.5, 1, 2], is_work.sum())
    demand[:, 2] = rng.choice([0, 0, 0.3], num_activities)
    gates = (num_activities // 3, num_activities // 2)
    closing = frozenset({num_activities - 1, num_activities - 2})
    return Network(
        names=tuple(f"a{index}" for index in range(num_activities)),
        predecessors=predecessors,
        in_working_hours=tuple(map(bool, is_work)),
        demand=demand,
        not_before_h=rng.choice([0.0, 0.0, 30.0], num_activities),
        capacity=np.array([8.0, 2.0, 1.0]),
        reductions=((0, 4.0), (0, 8.0), (1, 1.0)),
        working_time=WEEK,
        closing=dict.fromkeys(gates, closing),
        decision=num_activities - 1,
        longest_hold_h=np.where(demand[:, 0] > 6, 12.0, np.inf),
        gap_h=2.0,
        restart_h=rng.choice([0, 0.5], num_activities),
    )


def random_draws(rng, network, num_samples):
    shape = (len(network.names), num_samples)
    reduction_start = rng.uniform(0, 60, (len(network.reductions), num_samples))
    return ReplaySamples(
        duration_h=rng.choice([0.0, 3.0, 7.25, 20.0, 41.0], shape) * rng.lognormal(0, 0.2, shape),
        delay_h=rng.choice([0.0, 0.0, 12.0], shape),
        is_active=rng.random(shape) < 0.9,
        reduction_start_h=reduction_start,
        reduction_end_h=reduction_start + rng.choice([0.0, 20.0], reduction_start.shape),
        is_stop=rng.random(shape) < 0.3,
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_a_replay_is_what_a_plain_simulation_finds_program_by_program(plain_replay, seed):
    rng = np.random.default_rng(seed)
    network = random_network(rng)
    replay_samples = random_draws(rng, network, num_samples=12)
    fast = replay(network, replay_samples)
    for program in range(12):
        slow = plain_replay(network, replay_samples, program)
        for index, name in enumerate(network.names):
            found = (part[index, program] for part in fast)
            expected = [np.nan if item is None else item for item in slow[name]]
            np.testing.assert_allclose(list(found), expected, atol=1e-6, err_msg=f"{name} of program {program}")


def chain(*, demand=(8.0, 8.0), reductions=(), closing=None, longest_hold_h=np.inf):
    """Two jobs on 8 devices, the second after the first."""
    return Network(
        names=("first", "second"),
        predecessors=((), (PredecessorLink(0),)),
        in_working_hours=(False, False),
        demand=np.array([[item] for item in demand]),
        not_before_h=np.zeros(2),
        capacity=np.array([8.0]),
        reductions=reductions,
        working_time=WEEK,
        closing=closing or {},
        decision=1,
        longest_hold_h=np.array([longest_hold_h, np.inf]),
        gap_h=2.0,
        restart_h=np.full(2, 0.5),
    )


def samples(durations, *, reduction=None, is_stop=False):
    duration = np.array(durations, float)[:, None]
    cut_h = np.array([reduction] if reduction else np.zeros((0, 2)), float)
    return ReplaySamples(
        duration_h=duration,
        delay_h=np.zeros_like(duration),
        is_active=np.ones_like(duration, bool),
        reduction_start_h=cut_h[:, :1],
        reduction_end_h=cut_h[:, 1:],
        is_stop=np.full_like(duration, is_stop, bool),
    )


def test_a_job_gives_way_to_a_booking_and_pays_for_its_restart():
    found = replay(chain(reductions=((0, 4.0),)), samples([10, 5], reduction=(6, 20)))
    np.testing.assert_allclose(found.finish_h[:, 0], [20 + 4 + 0.5, 29.5])
    np.testing.assert_allclose(found.held_h[:, 0], [10.5, 5])


def test_a_job_rests_when_it_has_held_more_than_its_share_for_long_enough():
    found = replay(chain(longest_hold_h=8.0), samples([10, 5]))
    np.testing.assert_allclose(found.finish_h[0, 0], 8 + 2 + 2 + 0.5)
    np.testing.assert_allclose(found.held_h[0, 0], 10.5)


def test_a_gate_that_says_stop_calls_the_rest_off():
    found = replay(chain(closing={0: frozenset()}), samples([10, 5], is_stop=True))
    assert found.finish_h[0, 0] == 10
    assert np.isnan(found.finish_h[1, 0])
    assert found.held_h[1, 0] == 0


def test_work_that_people_do_rests_over_the_weekend():
    friday_afternoon = 4 * 24 + 15.0
    assert WEEK.wall(WEEK.working(np.array([friday_afternoon])) + 4)[0] == 7 * 24 + 11


def test_a_job_that_can_never_fit_is_named():
    with pytest.raises(ValueError, match="no room for first"):
        replay(chain(demand=(9.0, 8.0)), samples([1, 1]))

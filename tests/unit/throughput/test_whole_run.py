"""Commits and failures, against the formula and against runs that are simulated."""

import math

import numpy as np
import pytest

from assay.throughput.cluster import Cluster
from assay.throughput.whole_run import (
    InterruptionCosts,
    WholeRun,
    best_interval_s,
    expected_s,
    steps_between_commits,
)
from throughput_calibrations import calibration_of, equal_steps


def test_without_failures_a_run_takes_its_work_and_its_commits() -> None:
    assert expected_s(1_000.0, 100.0, InterruptionCosts(2.0, 30.0, math.inf)) == 1_020.0


def test_with_failures_it_is_dalys_formula() -> None:
    costs = InterruptionCosts(commit_s=5.0, restart_s=60.0, failure_s=3_600.0)
    expected = 3_600 * math.exp(60 / 3_600) * (math.exp(305 / 3_600) - 1) * 10_000 / 300
    assert expected_s(10_000.0, 300.0, costs) == pytest.approx(expected)


def test_rare_failures_lose_half_an_interval_and_a_restart() -> None:
    costs = InterruptionCosts(commit_s=0.0, restart_s=60.0, failure_s=1e6)
    lost_s = expected_s(1e5, 600.0, costs) - 1e5
    assert lost_s == pytest.approx(0.1 * (300 + 60), rel=0.01)


def test_played_runs_take_as_long_as_the_formula_says() -> None:
    costs, work_s, interval_s = InterruptionCosts(3.0, 20.0, 400.0), 3_000.0, 100.0
    rng = np.random.default_rng(0)

    def simulated() -> float:
        at_s, done_s, next_s = 0.0, 0.0, rng.exponential(costs.failure_s)
        while done_s < work_s:
            end_s = at_s + interval_s + costs.commit_s
            if next_s > end_s:
                at_s, done_s = end_s, done_s + interval_s
                continue
            at_s, next_s = next_s, next_s + rng.exponential(costs.failure_s)
            while next_s < at_s + costs.restart_s:  # another during the restart
                at_s, next_s = next_s, next_s + rng.exponential(costs.failure_s)
            at_s += costs.restart_s
        return at_s

    mean_s = float(np.mean([simulated() for _ in range(1_500)]))
    assert mean_s == pytest.approx(expected_s(work_s, interval_s, costs), rel=0.02)


def test_the_best_interval_loses_less_than_half_or_twice_of_it() -> None:
    costs = InterruptionCosts(commit_s=5.0, restart_s=30.0, failure_s=3_600.0)
    best_s = best_interval_s(costs)
    times = [expected_s(1e5, factor * best_s, costs) for factor in (0.5, 1.0, 2.0)]
    assert times[1] < min(times[0], times[2])


def test_evaluations_commit_too_unless_a_commit_falls_there_anyway() -> None:
    calibration = calibration_of(equal_steps(2, 1.0), commit_every=100, evaluate_every=150)
    assert steps_between_commits(calibration) == pytest.approx(60.0)
    assert steps_between_commits(calibration.model_copy(update={"evaluate_every": 200})) == pytest.approx(100.0)


def test_a_commit_waits_for_the_one_before_where_that_takes_longer_than_the_interval() -> None:
    calibration = calibration_of(
        equal_steps(2, 0.5), commit_every=10, commit_held_s=0.5, commit_written_s=14.0, num_steps=100
    )
    whole = WholeRun.of(calibration, Cluster(8), (1,), 2, 1.0)
    assert whole.run_s == pytest.approx(100.0 + 10 * (0.5 + 4.0))


def test_failures_count_by_node() -> None:
    calibration = calibration_of(equal_steps(2, 0.5), num_steps=36_000, restart_s=10.0)
    one, four = (
        WholeRun.of(calibration, Cluster(8, failures_per_node_h=0.1), nodes, 2, 1.0) for nodes in ((8,), (8,) * 4)
    )
    assert four.failures / one.failures == pytest.approx(4.0, rel=0.05)
    assert one.failures == pytest.approx(1.0, rel=0.05)

"""Forecasts a whole run with commits and node failures, by Young's and Daly's formulas.

A commit is written after every `interval_s` seconds of work. A failure costs a restart and the work since the
last durable commit, half an interval on average if failures are rare.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from assay.base.commit_interval import optimal_commit_interval_s
from assay.base.errors import ConfigError
from assay.base.shapes import Float64
from assay.base.units import duration_text, number_of
from assay.records.throughput import ThroughputCalibration, ThroughputTerm
from assay.throughput.cluster import Cluster
from assay.throughput.step_time import MeasuredSteps

PRIOR_FAILURE_S = 3600.0
"""Mean time between failures that `commit_every: auto` assumes for a run without failures."""
NEVER_S = 1e12
"""Stands for infinity in resampled runs."""
MAX_LOST = 700.0
"""If an interval and a restart exceed this many mean times between failures, the run never ends; `exp`
overflows soon after."""


class InterruptionCosts(NamedTuple):
    """Costs of commits and restarts."""

    commit_s: float
    """Seconds that training pauses for one commit."""
    restart_s: float
    """Seconds from a failure to the next step, plus the time until a commit is durable."""
    failure_s: float
    """Mean seconds between failures of any node; infinite if none fails."""


def expected_s(work_s: float, interval_s: float, costs: InterruptionCosts) -> float:
    """Return expected wall seconds for `work_s` seconds of work with a commit after every `interval_s`.

    Failures may also hit commits and restarts: Daly (Future Generation Computer Systems 22, 2006), eq. 20.
    Infinite if an interval is almost never finished.
    """
    commits = work_s / interval_s
    if math.isinf(costs.failure_s):
        return work_s + commits * costs.commit_s
    restart, segment = (seconds / costs.failure_s for seconds in (costs.restart_s, interval_s + costs.commit_s))
    if restart + segment > MAX_LOST:
        return math.inf
    return costs.failure_s * math.exp(restart) * math.expm1(segment) * commits


def best_interval_s(costs: InterruptionCosts) -> float:
    """Return the seconds between commits that minimize the loss, as `trainer.commit_every: auto` does."""
    failure_s = PRIOR_FAILURE_S if math.isinf(costs.failure_s) else costs.failure_s
    return optimal_commit_interval_s(costs.commit_s, failure_s)


def steps_between_commits(calibration: ThroughputCalibration) -> float | None:
    """Return steps between commits, including those made for evaluations; None for `auto`."""
    interval, evaluated = calibration.commit_every, calibration.evaluate_every
    if interval is None:
        return None
    return 1 / (1 / interval + (1 / evaluated if evaluated and evaluated % interval else 0.0))


class WholeRun(NamedTuple):
    """All steps of the recipe on a number of workers."""

    step_s: float
    evaluated_s: float
    """Seconds of all evaluations during the run."""
    interval_s: float
    """Seconds of work between commits."""
    costs: InterruptionCosts
    run_s: float
    """Expected seconds from the command to the end."""

    @classmethod
    def of(
        cls,
        calibration: ThroughputCalibration,
        cluster: Cluster,
        nodes: Sequence[int],
        max_lanes: int,
        step_s: float,
    ) -> "WholeRun":
        """Forecast the run. Raises `ConfigError` if it would never end."""
        failure_s = cluster.between_failures_s(len(nodes))
        restart_s = cluster.restarts_s(calibration) + calibration.commit_written_s
        work_s, costs = (
            calibration.num_steps * step_s,
            InterruptionCosts(calibration.commit_held_s, restart_s, failure_s),
        )
        interval_steps = steps_between_commits(calibration)
        target_s = interval_steps * step_s if interval_steps else max(step_s, best_interval_s(costs))
        interval_s = min(work_s, target_s)
        # The next commit waits until the one before is through.
        held_s = calibration.commit_held_s + max(0.0, calibration.commit_written_s - interval_s)
        costs = costs._replace(commit_s=held_s)
        lane_s = float(MeasuredSteps.of(calibration).lane_s.mean())
        evaluated_s = calibration.evaluated_steps * max_lanes * lane_s
        whole_s = expected_s(work_s + evaluated_s, interval_s, costs)
        if math.isinf(whole_s):
            raise ConfigError(
                f"--failures: on {number_of(len(nodes), 'node')} one fails every {duration_text(failure_s)}, "
                f"and from one commit to the next it is {duration_text(interval_s)}: the run would never end. "
                "Commit more often (trainer.commit_every), or use fewer nodes."
            )
        return cls(step_s, evaluated_s, interval_s, costs, calibration.start_s + whole_s)

    @property
    def failures(self) -> float:
        return self.run_s / self.costs.failure_s

    def terms(self, calibration: ThroughputCalibration) -> dict[ThroughputTerm, float]:
        """Return the seconds per step spent on commits, and on restarts and lost work."""
        work_s = calibration.num_steps * self.step_s + self.evaluated_s
        commits_s = work_s / self.interval_s * self.costs.commit_s
        lost_s = self.run_s - calibration.start_s - work_s - commits_s
        return {
            "commits": commits_s / calibration.num_steps,
            "failures": max(0.0, lost_s / calibration.num_steps),
        }

    def resampled(
        self, calibration: ThroughputCalibration, slower: Float64[np.ndarray, "resample"]
    ) -> Float64[np.ndarray, "resample"]:
        """Return run times if steps take `slower` times as long, with a random number of failures."""
        work_s = (calibration.num_steps * self.step_s + self.evaluated_s) * slower
        expected = np.array(
            [min(NEVER_S, expected_s(seconds, self.interval_s, self.costs)) for seconds in work_s.tolist()]
        )
        if self.failures:
            mean = expected / self.costs.failure_s
            more = np.random.default_rng(2).poisson(mean) - mean
            expected = expected + more * (self.costs.restart_s + self.interval_s / 2)
        total: Float64[np.ndarray, "resample"] = calibration.start_s + expected
        return total

"""Simulates the time of steps on several ranks: each sample is a measured step with its lanes permuted.

    data, rollouts, fixed | lane | lane | ... | last lane     on each rank by itself, for its own lanes
                                 |- early rounds -| |- b0 -|- b1 -|    bucket after bucket, by the rounds of
                                                                       the plan and the links
    a step ends when the last rank finishes and the lane counts have gone around the ring

Lane times are permuted within one measured step. So the lanes of a step with long rows stay together, and the
work of all ranks sums to that step's work.
"""

from typing import NamedTuple

import numpy as np

from assay.base.shapes import Float64, Int64
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange_plan import ExchangePlan, early_positions, exchange_plan
from assay.records.throughput import ThroughputCalibration
from assay.throughput.exchange_time import Links, Rounds, after_rounds, exchange_traffic
from assay.throughput.sharded import round_seconds


class MeasuredSteps(NamedTuple):
    """The steps of a calibration, as arrays."""

    lane_s: Float64[np.ndarray, "step lane"]
    data_s: Float64[np.ndarray, "step"]
    rollout_s: Float64[np.ndarray, "step"]
    fixed_s: Float64[np.ndarray, "step"]

    @classmethod
    def of(cls, calibration: ThroughputCalibration) -> "MeasuredSteps":
        """Build the arrays; the lane that a spot check recomputes is spread over all steps."""
        lane_s = np.array([step.lane_s for step in calibration.steps], np.float64)
        checked_s = lane_s.mean() / calibration.spot_check_every if calibration.spot_check_every else 0.0
        data_s, rollout_s, fixed_s = (
            np.array([getattr(step, name) for step in calibration.steps], np.float64)
            for name in ("data_s", "rollout_s", "fixed_s")
        )
        return cls(lane_s, data_s, rollout_s, fixed_s + checked_s)


class ExchangeSetup(NamedTuple):
    """Inputs of a gradient exchange."""

    shares: LaneShares
    plan: ExchangePlan | None
    """None for a single rank and for sharded weights."""
    early: tuple[Rounds, ...]
    """[stage]: rounds that overlap with backward passes."""
    late: Rounds
    """Rounds after the last backward pass."""
    contention: float
    """Seconds of a lane next to other workers of its node, divided by its seconds alone; 1 if not measured."""

    @classmethod
    def build(cls, calibration: ThroughputCalibration, shares: LaneShares) -> "ExchangeSetup":
        """Build the inputs for ranks with these lanes."""
        two, is_contended = calibration.two_workers, max(shares.nodes or (shares.world_size,)) > 1
        contention = two.contention if two is not None and two.num_nodes == 1 and is_contended else 1.0
        if shares.world_size == 1 or shares.interleaved:
            return cls(shares, None, (), (), contention)
        plan = exchange_plan(shares, early=not calibration.on_cuda)
        return cls(shares, plan, *exchange_traffic(plan, shares), contention)


class StepSamples(NamedTuple):
    """Random samples of measured steps, each with a permutation of its lanes."""

    step: Int64[np.ndarray, "sample"]
    """Index of the measured step."""
    order: Int64[np.ndarray, "sample lane"]
    """Which measured lane stands for each lane."""

    @classmethod
    def generate(cls, num_steps: int, num_lanes: int, *, num_samples: int, rng: np.random.Generator) -> "StepSamples":
        """Return about `num_samples` samples, in which all measured steps are equally frequent."""
        repetitions = -(-num_samples // num_steps)
        step = np.tile(np.arange(num_steps, dtype=np.int64), repetitions)
        lanes = np.tile(np.arange(num_lanes, dtype=np.int64), (len(step), 1))
        return cls(step, rng.permuted(lanes, axis=1))


class SimulatedSteps(NamedTuple):
    """Simulated steps of all ranks, in seconds."""

    step_s: Float64[np.ndarray, "sample"]
    last_rank_s: Float64[np.ndarray, "sample"]
    """When the last rank finished its own work."""
    local_s: Float64[np.ndarray, "sample"]
    """Work of the mean rank; it waits for the rest of the step."""
    max_data_s: Float64[np.ndarray, "sample"]
    """Wait for rows on the rank that waits longest."""
    data_s: Float64[np.ndarray, "sample"]
    """Wait for rows on the mean rank, part of `local_s`."""
    rollout_s: Float64[np.ndarray, "sample"]
    """Rollout generation and grading on the mean rank, part of `local_s`."""


def simulate_steps(
    steps: MeasuredSteps,
    samples: StepSamples,
    setup: ExchangeSetup,
    calibration: ThroughputCalibration,
    links: Links | None,
) -> SimulatedSteps:
    """Simulate steps on several ranks; `links` may be None for a single rank."""
    shares, updates = setup.shares, calibration.updates_per_step
    part = np.array(shares.loads, np.float64) / shares.num_lanes
    lane_s = setup.contention * steps.lane_s[samples.step[:, None], samples.order] / updates
    rollout_s = steps.rollout_s[samples.step, None] * part
    begin_s = rollout_s + steps.fixed_s[samples.step, None]
    busy_s = _step_end_s(begin_s, lane_s, setup, calibration, links)
    data_s = steps.data_s[samples.step, None] * _waiting_share(steps, part, float(busy_s.mean()))
    begin_s = begin_s + data_s
    lanes_of_rank_s = np.stack(
        [lane_s[:, list(shares.of_rank(rank))].sum(axis=1) for rank in range(shares.world_size)], axis=1
    )
    step_s, last_rank_s = (_step_end_s(begin_s, lane_s, setup, calibration, over) for over in (links, None))
    return SimulatedSteps(
        step_s=step_s,
        last_rank_s=last_rank_s,
        local_s=(begin_s + updates * lanes_of_rank_s).mean(axis=1),
        max_data_s=data_s.max(axis=1),
        data_s=data_s.mean(axis=1),
        rollout_s=rollout_s.mean(axis=1),
    )


def _waiting_share(
    steps: MeasuredSteps, part: Float64[np.ndarray, "rank"], busy_s: float
) -> Float64[np.ndarray, "rank"]:
    """Return the share of the single-rank data wait that remains on each rank.

    A loader prefetches while its rank computes and exchanges. If a single rank was loader-bound, reading all
    rows takes as long as its step. A rank then waits only for as long as reading its share takes beyond
    `busy_s`, the rest of its step.
    """
    waited_s = float(steps.data_s.mean())
    if not waited_s:
        return np.zeros_like(part)
    reading_s = waited_s + float((steps.rollout_s + steps.fixed_s + steps.lane_s.sum(axis=1)).mean())
    # Never more than its part, as where lanes are faster beside another rank than alone.
    found: Float64[np.ndarray, "rank"] = np.clip((part * reading_s - busy_s) / waited_s, 0.0, part)
    return found


def _step_end_s(
    begin_s: Float64[np.ndarray, "sample rank"],
    lane_s: Float64[np.ndarray, "sample lane"],
    setup: ExchangeSetup,
    calibration: ThroughputCalibration,
    links: Links | None,
) -> Float64[np.ndarray, "sample"]:
    """Return the seconds of a step; only its first update waits for what precedes the lanes."""
    step_s = _update_end_s(begin_s, lane_s, setup, calibration, links)
    if (further := calibration.updates_per_step - 1) > 0:
        step_s = step_s + further * _update_end_s(np.zeros_like(begin_s), lane_s, setup, calibration, links)
    return step_s


def _update_end_s(
    begin_s: Float64[np.ndarray, "sample rank"],
    lane_s: Float64[np.ndarray, "sample lane"],
    setup: ExchangeSetup,
    calibration: ThroughputCalibration,
    links: Links | None,
) -> Float64[np.ndarray, "sample"]:
    """Return when all ranks have an update's summed gradients and lane counts, if rank r starts its lanes at
    `begin_s[:, r]`. Without links, return when the last rank finishes its lanes."""
    shares = setup.shares
    if shares.interleaved:
        return _sharded_update_end_s(begin_s, lane_s, shares, calibration, links)
    done_s = [
        begin_s[:, rank, None] + np.pad(lane_s[:, list(shares.of_rank(rank))].cumsum(axis=1), ((0, 0), (1, 0)))
        for rank in range(shares.world_size)
    ]
    last_rank_s = np.stack([of_rank[:, -1] for of_rank in done_s], axis=1)
    if setup.plan is None or links is None:
        whole: Float64[np.ndarray, "sample"] = last_rank_s.max(axis=1)
        return whole
    ready_s, positions = begin_s, [early_positions(shares, rank) for rank in range(shares.world_size)]
    for stage, rounds in enumerate(setup.early):
        at_s = np.stack([of_rank[:, at[stage]] for of_rank, at in zip(done_s, positions, strict=True)], axis=1)
        ready_s = np.maximum(ready_s, at_s)
        for bucket in calibration.buckets:
            ready_s = after_rounds(ready_s, rounds, bucket.num_bytes, links)
    for bucket in calibration.buckets:
        ready_s = np.maximum(ready_s, last_rank_s - bucket.before_last_s)
        ready_s = after_rounds(ready_s, setup.late, bucket.num_bytes, links)
    all_s: Float64[np.ndarray, "sample"] = np.maximum(ready_s, last_rank_s).max(axis=1) + ring_latency_s(shares, links)
    return all_s


def _sharded_update_end_s(
    begin_s: Float64[np.ndarray, "sample rank"],
    lane_s: Float64[np.ndarray, "sample lane"],
    shares: LaneShares,
    calibration: ThroughputCalibration,
    links: Links | None,
) -> Float64[np.ndarray, "sample"]:
    """The same for sharded weights: all ranks synchronize in every round of lanes."""
    size = shares.world_size
    done_s: Float64[np.ndarray, "sample"] = begin_s.max(axis=1)
    for first in range(0, shares.num_lanes, size):
        done_s = done_s + lane_s[:, first : first + size].max(axis=1)
    if links is None:
        return done_s
    round_s = round_seconds(shares, [bucket.num_bytes for bucket in calibration.buckets], links)
    return done_s + shares.most * round_s + ring_latency_s(shares, links)


def ring_latency_s(shares: LaneShares, links: Links) -> float:
    """Return the seconds in which the lane counts go around the ring of ranks."""
    latencies = [link.latency_s for link in (links.inside, links.between) if link is not None]
    return (shares.world_size - 1) * max(latencies, default=0.0)

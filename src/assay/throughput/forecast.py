"""Forecasts a recipe on more workers: a pure function of a calibration and a cluster.

measured steps, messages ---> simulated steps of all ranks (`step_time`) ---> a step, its terms, what binds
                         + commits, failures (`whole_run`)               ---> the whole run, device-hours

Intervals have 90% confidence. Measured steps and messages are resampled, with the same samples for every number
of workers. The model itself is assumed to err by `MODEL_ERROR`, more with each doubling beyond what was
measured. The forecast for a single worker is what was measured.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from assay.base.shapes import Float64
from assay.base.units import bytes_text, number_of
from assay.data.loader.lane_shares import LaneShares, next_useful_world_size, useful_world_size
from assay.records.evaluation import Estimate
from assay.records.throughput import (
    ParallelMode,
    SpeedupTarget,
    ThroughputCalibration,
    ThroughputForecast,
    ThroughputTerm,
    WorldSizeForecast,
)
from assay.throughput.cluster import (
    NUM_MESSAGE_RESAMPLES,
    Cluster,
    measured_network,
    resampled_messages,
    resolve_links,
    without_latency,
)
from assay.throughput.exchange_time import sent_bytes
from assay.throughput.sharded import sharded_bytes, sharded_memory
from assay.throughput.step_time import ExchangeSetup, MeasuredSteps, SimulatedSteps, StepSamples, simulate_steps
from assay.throughput.whole_run import WholeRun

TARGET_SPEEDUPS: Mapping[int, float] = {8: 3.5, 32: 10.0}
"""Number of workers -> speedup whose probability is reported."""
CONFIDENCE = 0.9
NUM_SAMPLES = 256
"""Approximate number of simulated steps."""
NUM_RESAMPLES = 1000
MODEL_ERROR = 0.015
"""Standard deviation of the model's error on several workers, as a share of a step. The same is added for
each doubling beyond the measured number of workers."""
SMALL_SHARE = 0.05
"""If all terms except the lanes' own work take at most this share of a step, `lanes` is the binding term."""

ROUNDING = 1e-6
"""Tolerance of a speedup that equals the number of workers, as a share of that number."""


class _SimulatedCluster(NamedTuple):
    """Simulated steps of one number of workers."""

    setup: ExchangeSetup
    steps: SimulatedSteps
    without_latency: SimulatedSteps
    """The same steps with messages that cost only their bytes."""
    step_s: Float64[np.ndarray, "resample step"]
    """[messages as resampled, measured step]: mean seconds over the samples of that step."""


class _Bootstrap(NamedTuple):
    """Bootstrap samples, shared by all numbers of workers so that speedups are paired."""

    message_index: np.ndarray
    counts: np.ndarray
    """[resample, measured step]: how often the step was drawn, divided by the number of steps."""
    model: np.ndarray
    """[resample]: standard normal values of the model's error."""


def forecast(
    calibration: ThroughputCalibration,
    world_sizes: Sequence[int],
    cluster: Cluster,
    *,
    targets: Mapping[int, float] = TARGET_SPEEDUPS,
    parallel: ParallelMode = "ddp",
) -> ThroughputForecast:
    """Forecast each number of workers.

    Raises `ConfigError` if a worker would have no lane, or if a network is needed and unknown.
    """
    shares = [_shares(calibration, size, cluster, parallel) for size in world_sizes]
    bootstrap, alone = (
        _bootstrap(calibration),
        _simulate(calibration, LaneShares.alone(calibration.lanes), cluster),
    )
    sizes, target_probabilities = [], []
    for share in shares:
        simulated = _simulate(calibration, share, cluster)
        speedups = _bootstrap_step_s(alone, bootstrap, 0.0) / _bootstrap_step_s(
            simulated, bootstrap, _error(calibration, share)
        )
        sizes.append(_world_forecast(calibration, share, cluster, simulated, alone, bootstrap))
        if (target_speedup := targets.get(share.world_size)) is not None:
            target_probabilities.append(
                SpeedupTarget(
                    world_size=share.world_size,
                    speedup=target_speedup,
                    probability=float((speedups >= target_speedup).mean()),
                )
            )
    return ThroughputForecast(
        calibration_sha256=calibration.digest(),
        recipe_name=calibration.recipe_name,
        devices_per_node=cluster.devices_per_node,
        inside=cluster.inside or measured_network(calibration.two_workers, num_nodes=1),
        between=cluster.between or measured_network(calibration.two_workers, num_nodes=2),
        failures_per_node_h=cluster.failures_per_node_h,
        restart_s=cluster.restarts_s(calibration),
        parallel=parallel,
        sizes=tuple(sizes),
        targets=tuple(target_probabilities),
        notes=(*_superlinear_notes(calibration, sizes, cluster, shares), *_notes(calibration, shares)),
        advice=(),
    )


def forecast_attempt(calibration: ThroughputCalibration, shares: LaneShares, cluster: Cluster) -> WorldSizeForecast:
    """Forecast one number of workers with the lanes of `shares` instead of those that `cluster` implies."""
    alone = _simulate(calibration, LaneShares.alone(calibration.lanes), cluster)
    simulated = _simulate(calibration, shares, cluster)
    return _world_forecast(calibration, shares, cluster, simulated, alone, _bootstrap(calibration))


def _shares(
    calibration: ThroughputCalibration, world_size: int, cluster: Cluster, parallel: ParallelMode
) -> LaneShares:
    nodes = cluster.nodes(world_size)
    is_sharded = parallel == "fsdp2" and world_size > 1
    return LaneShares(calibration.lanes, world_size, interleaved=is_sharded, nodes=nodes if len(nodes) > 1 else ())


def _simulate(calibration: ThroughputCalibration, shares: LaneShares, cluster: Cluster) -> _SimulatedCluster:
    steps, setup = MeasuredSteps.of(calibration), ExchangeSetup.build(calibration, shares)
    num_steps = len(calibration.steps)
    samples = StepSamples.generate(
        num_steps, calibration.lanes, num_samples=NUM_SAMPLES, rng=np.random.default_rng(shares.world_size)
    )
    nodes = shares.nodes or (shares.world_size,)
    is_alone = shares.world_size == 1
    resamples = [None] if is_alone else resampled_messages(calibration.two_workers)
    links = [
        None if is_alone else resolve_links(cluster, nodes, two=messages, on_cuda=calibration.on_cuda)
        for messages in resamples
    ]
    simulated = [simulate_steps(steps, samples, setup, calibration, link) for link in links]
    bare = None if links[0] is None else without_latency(links[0])
    mean_step_s = np.stack([found.step_s.reshape(-1, num_steps).mean(axis=0) for found in simulated])
    return _SimulatedCluster(setup, simulated[0], simulate_steps(steps, samples, setup, calibration, bare), mean_step_s)


def _bootstrap(calibration: ThroughputCalibration) -> _Bootstrap:
    rng, num_steps = np.random.default_rng(0), len(calibration.steps)
    return _Bootstrap(
        message_index=rng.integers(NUM_MESSAGE_RESAMPLES, size=NUM_RESAMPLES),
        counts=rng.multinomial(num_steps, np.full(num_steps, 1 / num_steps), NUM_RESAMPLES) / num_steps,
        model=rng.standard_normal(NUM_RESAMPLES),
    )


def _error(calibration: ThroughputCalibration, shares: LaneShares) -> float:
    """Return the standard deviation of the model's error, as a share of a step."""
    if shares.world_size == 1:
        return 0.0
    factor = max(1.0, shares.world_size / calibration.largest_measured)
    return MODEL_ERROR * (1 + math.log2(factor))


def _bootstrap_step_s(
    simulated: _SimulatedCluster, bootstrap: _Bootstrap, error: float
) -> Float64[np.ndarray, "resample"]:
    mean_step_s = simulated.step_s[bootstrap.message_index % len(simulated.step_s)]
    found: Float64[np.ndarray, "resample"] = (mean_step_s * bootstrap.counts).sum(axis=1) * np.exp(
        error * bootstrap.model
    )
    return found


def _estimate(value: float, samples: Float64[np.ndarray, "resample"]) -> Estimate:
    low, high = np.quantile(samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Estimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        confidence=CONFIDENCE,
        method=f"resampled steps and messages, {NUM_RESAMPLES:,} times; the model's own error",
    )


def _world_forecast(
    calibration: ThroughputCalibration,
    shares: LaneShares,
    cluster: Cluster,
    simulated: _SimulatedCluster,
    alone: _SimulatedCluster,
    bootstrap: _Bootstrap,
) -> WorldSizeForecast:
    step_s = float(simulated.steps.step_s.mean())
    resampled = _bootstrap_step_s(simulated, bootstrap, _error(calibration, shares))
    speedup = float(alone.steps.step_s.mean()) / step_s
    speedups = _bootstrap_step_s(alone, bootstrap, 0.0) / resampled
    nodes = shares.nodes or (shares.world_size,)
    whole = WholeRun.of(calibration, cluster, nodes, shares.most, step_s)
    runs = whole.resampled(calibration, resampled / step_s)
    terms = {**_terms(calibration, shares, simulated), **whole.terms(calibration)}
    sent = (0, 0)
    if simulated.setup.plan is not None:
        sent = sent_bytes(simulated.setup.plan, shares, [bucket.num_bytes for bucket in calibration.buckets])
    elif shares.interleaved:
        sent = sharded_bytes(shares, calibration.gradient_bytes)
    return WorldSizeForecast(
        world_size=shares.world_size,
        nodes=nodes,
        max_lanes=shares.most,
        step_s=_estimate(step_s, resampled),
        speedup=_estimate(speedup, speedups),
        efficiency=_estimate(speedup / shares.world_size, speedups / shares.world_size),
        terms=terms,
        binds=_binding(terms),
        phases=_phases(calibration, simulated.steps),
        sent_bytes=sent[0],
        inter_node_bytes=sent[1],
        commit_every_steps=whole.interval_s / step_s,
        failures=whole.failures,
        run_s=_estimate(whole.run_s, runs),
        device_hours=_estimate(whole.run_s * shares.world_size / 3600, runs * shares.world_size / 3600),
        extrapolation_factor=shares.world_size / calibration.largest_measured,
    )


def _terms(
    calibration: ThroughputCalibration, shares: LaneShares, simulated: _SimulatedCluster
) -> dict[ThroughputTerm, float]:
    steps, even, most = MeasuredSteps.of(calibration), shares.num_lanes / shares.world_size, shares.most
    lane_s, contention = float(steps.lane_s.mean()), simulated.setup.contention
    found: dict[ThroughputTerm, float] = {
        "lanes": even * lane_s,
        "uneven": (most - even) * lane_s,
        "contention": (contention - 1) * most * lane_s,
        "data": float(simulated.steps.max_data_s.mean()),
        "rollouts": float(steps.rollout_s.mean()) * most / shares.num_lanes,
        "fixed": float(steps.fixed_s.mean()),
    }
    last_rank_s, bare_s = (
        float(simulated.steps.last_rank_s.mean()),
        float(simulated.without_latency.step_s.mean()),
    )
    found["slowest"] = last_rank_s - sum(found.values())
    found["bytes"] = bare_s - last_rank_s
    found["latency"] = float(simulated.steps.step_s.mean()) - bare_s
    return found


def _binding(terms: Mapping[ThroughputTerm, float]) -> ThroughputTerm:
    others = {name: seconds for name, seconds in terms.items() if name != "lanes"}
    if sum(others.values()) <= SMALL_SHARE * sum(terms.values()):
        return "lanes"
    return max(others, key=lambda name: others[name])


def _phases(calibration: ThroughputCalibration, steps: SimulatedSteps) -> dict[str, float]:
    """Return seconds per step by phase, as a run accounts for them."""
    data_s, rollout_s, local_s = (float(seconds.mean()) for seconds in (steps.data_s, steps.rollout_s, steps.local_s))
    measured_s = sum(step.rollout_s for step in calibration.steps)
    reward_s = rollout_s * sum(step.reward_s for step in calibration.steps) / measured_s if measured_s else 0.0
    return {
        "data": data_s,
        "generation": max(0.0, rollout_s - reward_s),
        "reward": reward_s,
        "compute": local_s - data_s - rollout_s,
        "communication": max(0.0, float(steps.step_s.mean()) - local_s),
    }


def _superlinear_notes(
    calibration: ThroughputCalibration,
    sizes: Sequence[WorldSizeForecast],
    cluster: Cluster,
    shares: Sequence[LaneShares],
) -> list[str]:
    """Explain forecasts that are faster than linear, with the speedup that they would have without that
    effect."""
    over = [index for index, size in enumerate(sizes) if size.efficiency.value > 1 + ROUNDING]
    two = calibration.two_workers
    if not over or two is None or two.contention >= 1:
        return []
    uncontended = calibration.model_copy(update={"two_workers": two.model_copy(update={"contention": 1.0})})
    alone_s = float(_simulate(calibration, LaneShares.alone(calibration.lanes), cluster).steps.step_s.mean())
    without = ", ".join(
        f"{alone_s / float(_simulate(uncontended, shares[index], cluster).steps.step_s.mean()):.2f} on "
        f"{sizes[index].world_size}"
        for index in over
    )
    far = ", ".join(f"{sizes[index].speedup.value:.2f} on {sizes[index].world_size}" for index in over)
    return [
        f"the speedup of {far} workers exceeds their number: next to another worker a lane took "
        f"{two.contention:.2f} times as long as alone, which may be caching or the noise of "
        f"{number_of(len(calibration.steps) + two.num_steps, 'step')}. With lanes as fast as alone it is "
        f"{without}"
    ]


def _notes(calibration: ThroughputCalibration, shares: Sequence[LaneShares]) -> list[str]:
    largest, found = calibration.largest_measured, []
    measured = "1 worker" if largest == 1 else "1 and 2 workers"
    factor = [share.world_size for share in shares if share.world_size > largest]
    if factor:
        far = ", ".join(f"{size} are {size / largest:g} times as many" for size in factor)
        found.append(f"measured on {measured}; {far}: larger sizes are extrapolated by the model")
    for share in shares:
        lanes, size = calibration.lanes, share.world_size
        if (fewer := useful_world_size(lanes, size)) < size:
            more = next_useful_world_size(lanes, size)
            hint = f"{more} would be faster, as would more lanes" if more else "only more lanes would be faster"
            found.append(
                f"{size} workers are no faster than {fewer}: of {lanes} lanes the busiest has {share.most} "
                f"either way. {hint}"
            )
        if share.interleaved:
            shard, sums = map(bytes_text, sharded_memory(share, calibration.gradient_bytes))
            found.append(
                f"of {size} workers each holds {shard} of weights, gradients and moments, and up to "
                f"{sums} of lanes' sums, plus activations and one gathered layer"
            )
    return found

"""What a recipe takes on so many workers: a pure function of a calibration and a cluster.

    measured steps, messages ---> drawn steps of all ranks (`step_time`) ---> a step, its terms, what binds
                                             + commits, failures (`whole_run`) ---> the whole run, device-hours

The intervals hold 90% of what may come out: the measured steps and messages are resampled, the same ones for
every number of workers, and the model itself is taken to err by `MODEL_ERROR`, more with each doubling beyond
what was measured. A single worker's forecast is what was measured.
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
    WorldForecast,
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
"""Speedups that are asked for, by number of workers."""
CONFIDENCE = 0.9
NUM_SAMPLES = 256
"""Steps that are played, about."""
NUM_RESAMPLES = 1000
MODEL_ERROR = 0.015
"""A share of a step on several workers; and as much again for each doubling beyond what was measured."""
SMALL_SHARE = 0.05
"""What all that is not the lanes' own work may take of a step before one of it is said to bind."""

ROUNDING = 1e-6
"""A share of the number of workers: a speedup that exceeds it by less is their number."""


class _SimulatedCluster(NamedTuple):
    """A number of workers, played."""

    on: ExchangeSetup
    drawn: SimulatedSteps
    without_latency: SimulatedSteps
    """Likewise where messages cost nothing besides their bytes."""
    step_s: Float64[np.ndarray, "reading step"]
    """[link as read, measured step]: the mean of its draws."""


class _Bootstrap(NamedTuple):
    """The same luck for every number of workers."""

    reading: np.ndarray
    counts: np.ndarray
    """[resample, measured step]: how often, over how many."""
    model: np.ndarray
    """[resample]: a standard normal."""


def forecast(
    calibration: ThroughputCalibration,
    world_sizes: Sequence[int],
    cluster: Cluster,
    *,
    targets: Mapping[int, float] = TARGET_SPEEDUPS,
    parallel: ParallelMode = "ddp",
) -> ThroughputForecast:
    """Raises `ConfigError` for workers without a lane, and where nobody said what lies between them."""
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


def forecast_attempt(calibration: ThroughputCalibration, shares: LaneShares, cluster: Cluster) -> WorldForecast:
    """Likewise of one number of workers, with the lanes that they have; those of `cluster` are not asked."""
    alone = _simulate(calibration, LaneShares.alone(calibration.lanes), cluster)
    simulated = _simulate(calibration, shares, cluster)
    return _world_forecast(calibration, shares, cluster, simulated, alone, _bootstrap(calibration))


def _shares(
    calibration: ThroughputCalibration, world_size: int, cluster: Cluster, parallel: ParallelMode
) -> LaneShares:
    nodes = cluster.nodes(world_size)
    is_sharded = parallel == "fsdp2" and world_size > 1
    return LaneShares(
        calibration.lanes, world_size, interleaved=is_sharded, nodes=nodes if len(nodes) > 1 else ()
    )


def _simulate(calibration: ThroughputCalibration, shares: LaneShares, cluster: Cluster) -> _SimulatedCluster:
    steps, on = MeasuredSteps.of(calibration), ExchangeSetup.on(calibration, shares)
    num_steps = len(calibration.steps)
    draws = StepSamples.made(
        num_steps, calibration.lanes, num_samples=NUM_SAMPLES, rng=np.random.default_rng(shares.world_size)
    )
    nodes = shares.nodes or (shares.world_size,)
    is_alone = shares.world_size == 1
    readings = [None] if is_alone else resampled_messages(calibration.two_workers)
    links = [
        None if is_alone else resolve_links(cluster, nodes, two=reading, on_cuda=calibration.on_cuda)
        for reading in readings
    ]
    drawn = [simulate_steps(steps, draws, on, calibration, link) for link in links]
    bare = None if links[0] is None else without_latency(links[0])
    means = np.stack([each.step_s.reshape(-1, num_steps).mean(axis=0) for each in drawn])
    return _SimulatedCluster(on, drawn[0], simulate_steps(steps, draws, on, calibration, bare), means)


def _bootstrap(calibration: ThroughputCalibration) -> _Bootstrap:
    rng, num_steps = np.random.default_rng(0), len(calibration.steps)
    return _Bootstrap(
        reading=rng.integers(NUM_MESSAGE_RESAMPLES, size=NUM_RESAMPLES),
        counts=rng.multinomial(num_steps, np.full(num_steps, 1 / num_steps), NUM_RESAMPLES) / num_steps,
        model=rng.standard_normal(NUM_RESAMPLES),
    )


def _error(calibration: ThroughputCalibration, shares: LaneShares) -> float:
    """The standard deviation of the model's error, as a share."""
    if shares.world_size == 1:
        return 0.0
    factor = max(1.0, shares.world_size / calibration.largest_measured)
    return MODEL_ERROR * (1 + math.log2(factor))


def _bootstrap_step_s(
    simulated: _SimulatedCluster, bootstrap: _Bootstrap, error: float
) -> Float64[np.ndarray, "resample"]:
    of_reading = simulated.step_s[bootstrap.reading % len(simulated.step_s)]
    found: Float64[np.ndarray, "resample"] = (of_reading * bootstrap.counts).sum(axis=1) * np.exp(
        error * bootstrap.model
    )
    return found


def _estimate(value: float, of: Float64[np.ndarray, "resample"]) -> Estimate:
    low, high = np.quantile(of, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
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
) -> WorldForecast:
    step_s = float(simulated.drawn.step_s.mean())
    resampled = _bootstrap_step_s(simulated, bootstrap, _error(calibration, shares))
    speedup = float(alone.drawn.step_s.mean()) / step_s
    speedups = _bootstrap_step_s(alone, bootstrap, 0.0) / resampled
    nodes = shares.nodes or (shares.world_size,)
    whole = WholeRun.of(calibration, cluster, nodes, shares.most, step_s)
    runs = whole.resampled(calibration, resampled / step_s)
    terms = {**_terms(calibration, shares, simulated), **whole.terms(calibration)}
    sent = (0, 0)
    if simulated.on.plan is not None:
        sent = sent_bytes(simulated.on.plan, shares, [bucket.num_bytes for bucket in calibration.buckets])
    elif shares.interleaved:
        sent = sharded_bytes(shares, calibration.gradient_bytes)
    return WorldForecast(
        world_size=shares.world_size,
        nodes=nodes,
        max_lanes=shares.most,
        step_s=_estimate(step_s, resampled),
        speedup=_estimate(speedup, speedups),
        efficiency=_estimate(speedup / shares.world_size, speedups / shares.world_size),
        terms=terms,
        binds=_binding(terms),
        phases=_phases(simulated.drawn),
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
    lane_s, contention = float(steps.lane_s.mean()), simulated.on.contention
    found: dict[ThroughputTerm, float] = {
        "lanes": even * lane_s,
        "uneven": (most - even) * lane_s,
        "contention": (contention - 1) * most * lane_s,
        "data": float(simulated.drawn.max_data_s.mean()),
        "rollouts": float(steps.rollout_s.mean()) * most / shares.num_lanes,
        "fixed": float(steps.fixed_s.mean()),
    }
    last_rank_s, bare_s = (
        float(simulated.drawn.last_rank_s.mean()),
        float(simulated.without_latency.step_s.mean()),
    )
    found["slowest"] = last_rank_s - sum(found.values())
    found["bytes"] = bare_s - last_rank_s
    found["latency"] = float(simulated.drawn.step_s.mean()) - bare_s
    return found


def _binding(terms: Mapping[ThroughputTerm, float]) -> ThroughputTerm:
    others = {name: seconds for name, seconds in terms.items() if name != "lanes"}
    if sum(others.values()) <= SMALL_SHARE * sum(terms.values()):
        return "lanes"
    return max(others, key=lambda name: others[name])


def _phases(drawn: SimulatedSteps) -> dict[str, float]:
    """As a run accounts for its time."""
    data_s, rollout_s, local_s = (float(each.mean()) for each in (drawn.data_s, drawn.rollout_s, drawn.local_s))
    return {
        "data": data_s,
        "generation": rollout_s,
        "compute": local_s - data_s - rollout_s,
        "communication": max(0.0, float(drawn.step_s.mean()) - local_s),
    }


def _superlinear_notes(
    calibration: ThroughputCalibration,
    sizes: Sequence[WorldForecast],
    cluster: Cluster,
    shares: Sequence[LaneShares],
) -> list[str]:
    """Why some workers are forecast to be faster than their number, and without that; none where none is."""
    over = [place for place, size in enumerate(sizes) if size.efficiency.value > 1 + ROUNDING]
    two = calibration.two_workers
    if not over or two is None or two.contention >= 1:
        return []
    uncontended = calibration.model_copy(update={"two_workers": two.model_copy(update={"contention": 1.0})})
    alone_s = float(_simulate(calibration, LaneShares.alone(calibration.lanes), cluster).drawn.step_s.mean())
    without = ", ".join(
        f"{alone_s / float(_simulate(uncontended, shares[place], cluster).drawn.step_s.mean()):.2f} on "
        f"{sizes[place].world_size}"
        for place in over
    )
    far = ", ".join(f"{sizes[place].speedup.value:.2f} on {sizes[place].world_size}" for place in over)
    return [
        f"a speedup of {far} workers is more than their number, and is no promise: a lane took "
        f"{two.contention:.2f} times as long beside another worker as alone, which may be caches or the noise of "
        f"{number_of(len(calibration.steps) + two.num_steps, 'step')}. With lanes as fast as alone it is "
        f"{without}"
    ]


def _notes(calibration: ThroughputCalibration, shares: Sequence[LaneShares]) -> list[str]:
    largest, found = calibration.largest_measured, []
    measured = "1 worker" if largest == 1 else "1 and 2 workers"
    factor = [share.world_size for share in shares if share.world_size > largest]
    if factor:
        far = ", ".join(f"{size} are {size / largest:g} times as many" for size in factor)
        found.append(f"measured on {measured}; {far}: what lies beyond rests on the model")
    for share in shares:
        lanes, size = calibration.lanes, share.world_size
        if (fewer := useful_world_size(lanes, size)) < size:
            more = next_useful_world_size(lanes, size)
            cure = f"{more} would be faster, as would more lanes" if more else "only more lanes would be faster"
            found.append(
                f"{size} workers are no faster than {fewer}: of {lanes} lanes the busiest has {share.most} "
                f"either way. {cure}"
            )
        if share.interleaved:
            memory = sharded_memory(share, calibration.gradient_bytes)
            found.append(
                f"of {size} workers each holds {bytes_text(memory.shard)} of weights, gradients and moments, and "
                f"up to {bytes_text(memory.sums)} of lanes' sums, beside activations and a layer that is gathered"
            )
    return found

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
    SpeedupGoal,
    ThroughputCalibration,
    ThroughputForecast,
    ThroughputTerm,
    WorldForecast,
)
from assay.throughput.cluster import (
    NUM_READINGS,
    Cluster,
    links_of,
    measured_between,
    readings_of,
    without_latency,
)
from assay.throughput.exchange_time import sent_bytes
from assay.throughput.sharded import sharded_bytes, sharded_room
from assay.throughput.step_time import DealtSteps, DrawnSteps, Exchanged, MeasuredSteps, drawn_steps
from assay.throughput.whole_run import WholeRun

GOALS: Mapping[int, float] = {8: 3.5, 32: 10.0}
"""Speedups that are asked for, by number of workers."""
CONFIDENCE = 0.9
NUM_DRAWS = 256
"""Steps that are played, about."""
RESAMPLES = 1000
MODEL_ERROR = 0.015
"""A share of a step on several workers; and as much again for each doubling beyond what was measured."""
SMALL_SHARE = 0.05
"""What all that is not the lanes' own work may take of a step before one of it is said to bind."""

ROUNDING = 1e-6
"""A share of the number of workers: a speedup that exceeds it by less is their number."""


class _Played(NamedTuple):
    """A number of workers, played."""

    on: Exchanged
    drawn: DrawnSteps
    without_latency: DrawnSteps
    """Likewise where messages cost nothing besides their bytes."""
    step_s: Float64[np.ndarray, "reading step"]
    """[link as read, measured step]: the mean of its draws."""


class _Resampled(NamedTuple):
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
    goals: Mapping[int, float] = GOALS,
    parallel: ParallelMode = "ddp",
) -> ThroughputForecast:
    """Raises `ConfigError` for workers without a lane, and where nobody said what lies between them."""
    shares = [_shares(calibration, size, cluster, parallel) for size in world_sizes]
    luck, alone = _luck(calibration), _played(calibration, LaneShares.alone(calibration.lanes), cluster)
    sizes, reached = [], []
    for share in shares:
        played = _played(calibration, share, cluster)
        speedups = _resampled_steps(alone, luck, 0.0) / _resampled_steps(
            played, luck, _error(calibration, share)
        )
        sizes.append(_world_forecast(calibration, share, cluster, played, alone, luck))
        if (wanted := goals.get(share.world_size)) is not None:
            reached.append(
                SpeedupGoal(
                    world_size=share.world_size, speedup=wanted, probability=float((speedups >= wanted).mean())
                )
            )
    return ThroughputForecast(
        calibration_sha256=calibration.digest(),
        recipe_name=calibration.recipe_name,
        devices_per_node=cluster.devices_per_node,
        inside=cluster.inside or measured_between(calibration.two_workers, num_nodes=1),
        between=cluster.between or measured_between(calibration.two_workers, num_nodes=2),
        failures_per_node_h=cluster.failures_per_node_h,
        restart_s=cluster.restarts_s(calibration),
        parallel=parallel,
        sizes=tuple(sizes),
        goals=tuple(reached),
        remarks=(*_more_than_their_number(calibration, sizes, cluster, shares), *_remarks(calibration, shares)),
        advice=(),
    )


def forecast_attempt(calibration: ThroughputCalibration, shares: LaneShares, cluster: Cluster) -> WorldForecast:
    """Likewise of one number of workers, with the lanes that they have; those of `cluster` are not asked."""
    alone = _played(calibration, LaneShares.alone(calibration.lanes), cluster)
    played = _played(calibration, shares, cluster)
    return _world_forecast(calibration, shares, cluster, played, alone, _luck(calibration))


def _shares(
    calibration: ThroughputCalibration, world_size: int, cluster: Cluster, parallel: ParallelMode
) -> LaneShares:
    nodes = cluster.nodes(world_size)
    is_sharded = parallel == "fsdp2" and world_size > 1
    return LaneShares(
        calibration.lanes, world_size, interleaved=is_sharded, nodes=nodes if len(nodes) > 1 else ()
    )


def _played(calibration: ThroughputCalibration, shares: LaneShares, cluster: Cluster) -> _Played:
    steps, on = MeasuredSteps.of(calibration), Exchanged.on(calibration, shares)
    num_steps = len(calibration.steps)
    draws = DealtSteps.made(
        num_steps, calibration.lanes, num_draws=NUM_DRAWS, rng=np.random.default_rng(shares.world_size)
    )
    nodes = shares.nodes or (shares.world_size,)
    is_alone = shares.world_size == 1
    readings = [None] if is_alone else readings_of(calibration.two_workers)
    links = [
        None if is_alone else links_of(cluster, nodes, two=reading, on_cuda=calibration.on_cuda)
        for reading in readings
    ]
    drawn = [drawn_steps(steps, draws, on, calibration, link) for link in links]
    bare = None if links[0] is None else without_latency(links[0])
    means = np.stack([each.step_s.reshape(-1, num_steps).mean(axis=0) for each in drawn])
    return _Played(on, drawn[0], drawn_steps(steps, draws, on, calibration, bare), means)


def _luck(calibration: ThroughputCalibration) -> _Resampled:
    rng, num_steps = np.random.default_rng(0), len(calibration.steps)
    return _Resampled(
        reading=rng.integers(NUM_READINGS, size=RESAMPLES),
        counts=rng.multinomial(num_steps, np.full(num_steps, 1 / num_steps), RESAMPLES) / num_steps,
        model=rng.standard_normal(RESAMPLES),
    )


def _error(calibration: ThroughputCalibration, shares: LaneShares) -> float:
    """The standard deviation of the model's error, as a share."""
    if shares.world_size == 1:
        return 0.0
    beyond = max(1.0, shares.world_size / calibration.largest_measured)
    return MODEL_ERROR * (1 + math.log2(beyond))


def _resampled_steps(played: _Played, luck: _Resampled, error: float) -> Float64[np.ndarray, "resample"]:
    of_reading = played.step_s[luck.reading % len(played.step_s)]
    found: Float64[np.ndarray, "resample"] = (of_reading * luck.counts).sum(axis=1) * np.exp(error * luck.model)
    return found


def _estimate(value: float, of: Float64[np.ndarray, "resample"]) -> Estimate:
    low, high = np.quantile(of, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Estimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        confidence=CONFIDENCE,
        method=f"resampled steps and messages, {RESAMPLES:,} times; the model's own error",
    )


def _world_forecast(
    calibration: ThroughputCalibration,
    shares: LaneShares,
    cluster: Cluster,
    played: _Played,
    alone: _Played,
    luck: _Resampled,
) -> WorldForecast:
    step_s = float(played.drawn.step_s.mean())
    resampled = _resampled_steps(played, luck, _error(calibration, shares))
    speedup = float(alone.drawn.step_s.mean()) / step_s
    speedups = _resampled_steps(alone, luck, 0.0) / resampled
    nodes = shares.nodes or (shares.world_size,)
    whole = WholeRun.of(calibration, cluster, nodes, shares.most, step_s)
    runs = whole.resampled(calibration, resampled / step_s)
    terms = {**_terms(calibration, shares, played), **whole.terms(calibration)}
    sent = (0, 0)
    if played.on.plan is not None:
        sent = sent_bytes(played.on.plan, shares, [bucket.num_bytes for bucket in calibration.buckets])
    elif shares.interleaved:
        sent = sharded_bytes(shares, calibration.gradient_bytes)
    return WorldForecast(
        world_size=shares.world_size,
        nodes=nodes,
        most_lanes=shares.most,
        step_s=_estimate(step_s, resampled),
        speedup=_estimate(speedup, speedups),
        efficiency=_estimate(speedup / shares.world_size, speedups / shares.world_size),
        terms=terms,
        binds=_binding(terms),
        phases=_phases(played.drawn),
        sent_bytes=sent[0],
        left_node_bytes=sent[1],
        commit_every_steps=whole.interval_s / step_s,
        failures=whole.failures,
        run_s=_estimate(whole.run_s, runs),
        device_hours=_estimate(whole.run_s * shares.world_size / 3600, runs * shares.world_size / 3600),
        times_beyond=shares.world_size / calibration.largest_measured,
    )


def _terms(
    calibration: ThroughputCalibration, shares: LaneShares, played: _Played
) -> dict[ThroughputTerm, float]:
    steps, even, most = MeasuredSteps.of(calibration), shares.num_lanes / shares.world_size, shares.most
    lane_s, crowding = float(steps.lane_s.mean()), played.on.crowding
    found: dict[ThroughputTerm, float] = {
        "lanes": even * lane_s,
        "uneven": (most - even) * lane_s,
        "crowding": (crowding - 1) * most * lane_s,
        "data": float(played.drawn.most_data_s.mean()),
        "rollouts": float(steps.rollout_s.mean()) * most / shares.num_lanes,
        "fixed": float(steps.fixed_s.mean()),
    }
    last_s, bare_s = float(played.drawn.last_s.mean()), float(played.without_latency.step_s.mean())
    found["slowest"] = last_s - sum(found.values())
    found["bytes"] = bare_s - last_s
    found["latency"] = float(played.drawn.step_s.mean()) - bare_s
    return found


def _binding(terms: Mapping[ThroughputTerm, float]) -> ThroughputTerm:
    others = {name: seconds for name, seconds in terms.items() if name != "lanes"}
    if sum(others.values()) <= SMALL_SHARE * sum(terms.values()):
        return "lanes"
    return max(others, key=lambda name: others[name])


def _phases(drawn: DrawnSteps) -> dict[str, float]:
    """As a run accounts for its time."""
    data_s, rollout_s, own_s = (float(each.mean()) for each in (drawn.data_s, drawn.rollout_s, drawn.own_s))
    return {
        "data": data_s,
        "generation": rollout_s,
        "compute": own_s - data_s - rollout_s,
        "communication": max(0.0, float(drawn.step_s.mean()) - own_s),
    }


def _more_than_their_number(
    calibration: ThroughputCalibration,
    sizes: Sequence[WorldForecast],
    cluster: Cluster,
    shares: Sequence[LaneShares],
) -> list[str]:
    """Why some workers are forecast to be faster than their number, and without that; none where none is."""
    over = [place for place, size in enumerate(sizes) if size.efficiency.value > 1 + ROUNDING]
    two = calibration.two_workers
    if not over or two is None or two.crowding >= 1:
        return []
    uncrowded = calibration.model_copy(update={"two_workers": two.model_copy(update={"crowding": 1.0})})
    alone_s = float(_played(calibration, LaneShares.alone(calibration.lanes), cluster).drawn.step_s.mean())
    without = ", ".join(
        f"{alone_s / float(_played(uncrowded, shares[place], cluster).drawn.step_s.mean()):.2f} on "
        f"{sizes[place].world_size}"
        for place in over
    )
    far = ", ".join(f"{sizes[place].speedup.value:.2f} on {sizes[place].world_size}" for place in over)
    return [
        f"a speedup of {far} workers is more than their number, and is no promise: a lane took "
        f"{two.crowding:.2f} times as long beside another worker as alone, which may be caches or the noise of "
        f"{number_of(len(calibration.steps) + two.num_steps, 'step')}. With lanes as fast as alone it is "
        f"{without}"
    ]


def _remarks(calibration: ThroughputCalibration, shares: Sequence[LaneShares]) -> list[str]:
    largest, found = calibration.largest_measured, []
    measured = "1 worker" if largest == 1 else "1 and 2 workers"
    beyond = [share.world_size for share in shares if share.world_size > largest]
    if beyond:
        far = ", ".join(f"{size} are {size / largest:g} times as many" for size in beyond)
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
            room = sharded_room(share, calibration.gradient_bytes)
            found.append(
                f"of {size} workers each holds {bytes_text(room.shard)} of weights, gradients and moments, and "
                f"up to {bytes_text(room.sums)} of lanes' sums, beside activations and a layer that is gathered"
            )
    return found

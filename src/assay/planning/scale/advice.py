"""What would make a recipe faster on so many workers: each change is forecast, and ranked by the time it saves.

A change of lanes, rows or the batch learns something else; a campaign has to say whether it is as good. Times
are for as many rows: a batch twice as large has half the steps.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from assay.data.loader.lane_shares import LaneShares, useful_world_size
from assay.planning.scale.cluster import Cluster, links_of
from assay.planning.scale.forecast import NUM_DRAWS, forecast
from assay.planning.scale.step_time import DealtSteps, MeasuredSteps
from assay.planning.scale.whole_run import WholeRun, best_interval_s, commits_every
from assay.records.scale import ScaleAdvice, ScaleCalibration, TimedStep, WorldForecast

LEAST_GAIN = 0.005
"""A share of the time, or of the device-hours; a change that gains less is not told."""
WAITS_FOR_ROWS = 0.02
"""The share of a step from which more threads of the loader are worth a try."""
SHARDED_TRIPS = 3
"""Times that what a rank has crosses the ranks for each lane: weights forward and backward, then gradients."""


class _Change(NamedTuple):
    """What could be done otherwise."""

    words: str
    overrides: tuple[str, ...]
    changes_learning: bool
    world_size: int
    calibration: ScaleCalibration
    """As it would be, by what was measured."""


def advised(calibration: ScaleCalibration, world_size: int, cluster: Cluster) -> tuple[ScaleAdvice, ...]:
    """Changes that gain time or device-hours, the most time first."""
    [now] = forecast(calibration, [world_size], cluster).sizes
    found = [_worth(now, change, cluster) for change in _changes(calibration, now, cluster)]
    sharded = _sharded(calibration, now, cluster)
    found += [sharded] if sharded is not None else []
    gains = [each for each in found if max(each.time_saved, each.device_hours_saved) >= LEAST_GAIN]
    return tuple(sorted(gains, key=lambda each: (-each.time_saved, -each.device_hours_saved)))


def _worth(now: WorldForecast, change: _Change, cluster: Cluster) -> ScaleAdvice:
    [then] = forecast(change.calibration, [change.world_size], cluster).sizes
    return ScaleAdvice(
        change=change.words,
        overrides=change.overrides,
        world_size=change.world_size,
        time_saved=1 - then.run_s.value / now.run_s.value,
        device_hours_saved=1 - then.device_hours.value / now.device_hours.value,
        changes_learning=change.changes_learning,
    )


def _changes(calibration: ScaleCalibration, now: WorldForecast, cluster: Cluster) -> Iterator[_Change]:
    lanes, batch, size = calibration.lanes, calibration.global_batch_size, now.world_size
    yield _Change(
        "twice the lanes, each with as many rows: half the exchanges, a batch twice as large",
        (f"loader.lanes={2 * lanes}", f"loader.global_batch_size={2 * batch}"),
        True,
        size,
        _with_steps(calibration, _twice_the_lanes, lanes=2 * lanes, fewer_steps=2),
    )
    yield _Change(
        "twice the rows a lane: half the exchanges, a batch twice as large",
        (f"loader.global_batch_size={2 * batch}",),
        True,
        size,
        _with_steps(calibration, _twice_the_rows, lanes=lanes, fewer_steps=2),
    )
    if batch % (2 * lanes) == 0:
        yield _Change(
            "twice the lanes, each with half the rows: they share more evenly",
            (f"loader.lanes={2 * lanes}",),
            True,
            size,
            _with_steps(calibration, _halved_lanes, lanes=2 * lanes, fewer_steps=1),
        )
    if (every := _better_interval(calibration, now, cluster)) is not None:
        yield _Change(
            f"a commit every {every:,} steps",
            (f"trainer.commit_every={every}",),
            False,
            size,
            calibration.model_copy(update={"commit_every": every}),
        )
    if now.terms["data"] > WAITS_FOR_ROWS * now.step_s.value:
        yield _Change(
            "twice the loader's threads, if processors are free: at best half the wait for rows",
            (f"loader.threads={2 * calibration.loader_threads}",),
            False,
            size,
            _with_steps(calibration, _half_the_wait, lanes=lanes, fewer_steps=1),
        )
    for fewer in sorted({useful_world_size(lanes, size), max(1, size // 2)} - {size}):
        yield _Change(f"{fewer} workers", (f"--workers {fewer}",), False, fewer, calibration)


def _better_interval(calibration: ScaleCalibration, now: WorldForecast, cluster: Cluster) -> int | None:
    """Steps between commits that lose the least; None where that is what there is."""
    step_s = now.step_s.value
    whole = WholeRun.of(calibration, cluster, now.nodes, now.most_lanes, step_s)
    every = commits_every(calibration)
    best = max(1, round(best_interval_s(whole.upkeep) / step_s))
    return best if every is not None and best != round(every) and best < calibration.num_steps else None


def _with_steps(
    calibration: ScaleCalibration,
    changed: Callable[[TimedStep, TimedStep], TimedStep],
    *,
    lanes: int,
    fewer_steps: int,
) -> ScaleCalibration:
    """`changed` makes a step of two that were measured."""
    steps = calibration.steps
    pairs = zip(steps, (*steps[1:], steps[0]), strict=True)
    return calibration.model_copy(
        update={
            "steps": tuple(changed(one, other) for one, other in pairs),
            "lanes": lanes,
            "global_batch_size": calibration.global_batch_size * fewer_steps,
            "num_steps": max(1, calibration.num_steps // fewer_steps),
            "evaluated_steps": calibration.evaluated_steps / fewer_steps,
        }
    )


def _twice_the_lanes(one: TimedStep, other: TimedStep) -> TimedStep:
    return TimedStep(
        lane_s=one.lane_s + other.lane_s,
        data_s=one.data_s + other.data_s,
        rollout_s=one.rollout_s + other.rollout_s,
        fixed_s=one.fixed_s,
    )


def _twice_the_rows(one: TimedStep, other: TimedStep) -> TimedStep:
    return TimedStep(
        lane_s=tuple(a + b for a, b in zip(one.lane_s, other.lane_s, strict=True)),
        data_s=one.data_s + other.data_s,
        rollout_s=one.rollout_s + other.rollout_s,
        fixed_s=one.fixed_s,
    )


def _halved_lanes(one: TimedStep, _: TimedStep) -> TimedStep:
    halves = tuple(seconds / 2 for seconds in one.lane_s)
    return one.model_copy(update={"lane_s": halves + halves})


def _half_the_wait(one: TimedStep, _: TimedStep) -> TimedStep:
    return one.model_copy(update={"data_s": one.data_s / 2})


def _sharded(calibration: ScaleCalibration, now: WorldForecast, cluster: Cluster) -> ScaleAdvice | None:
    """Sharded weights: three trips of what a rank has for each lane, none of them hidden behind arithmetic."""
    if now.world_size == 1:
        return None
    links = links_of(cluster, now.nodes, two=calibration.two_workers)
    steps, size = MeasuredSteps.of(calibration), now.world_size
    shares = LaneShares(calibration.lanes, size, interleaved=True)
    chunk = calibration.gradient_bytes / size
    rounds_s = []
    for link, sharing in ((links.inside, 1), (links.between, max(now.nodes) if len(now.nodes) > 1 else 1)):
        if link is not None:
            messages_s = len(calibration.buckets) * link.latency_s
            rounds_s.append(messages_s + sharing * chunk / link.bytes_per_s)
    trip_s = (size - 1) * max(rounds_s)
    # Every round of lanes waits for its slowest.
    order = DealtSteps.made(
        len(steps.lane_s), shares.num_lanes, num_draws=NUM_DRAWS, rng=np.random.default_rng(0)
    )
    dealt_s = steps.lane_s[order.step[:, None], order.order]
    rounds = [dealt_s[:, first : first + size].max(axis=1) for first in range(0, shares.num_lanes, size)]
    crowding = 1 + now.terms["crowding"] / (now.terms["lanes"] + now.terms["uneven"])
    of_lanes = {"lanes", "uneven", "slowest", "crowding", "bytes", "latency"}
    others_s = sum(seconds for name, seconds in now.terms.items() if name not in of_lanes)
    lanes_s = crowding * float(np.sum(rounds, axis=0).mean()) + shares.most * SHARDED_TRIPS * trip_s
    saved = 1 - (lanes_s + others_s) / sum(now.terms.values())
    return ScaleAdvice(
        change="sharded weights, which take less memory; their trips counted in full, none hidden",
        overrides=("--parallel fsdp2",),
        world_size=size,
        time_saved=saved,
        device_hours_saved=saved,
        changes_learning=False,
    )

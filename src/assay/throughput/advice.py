"""Ranks changes of a recipe by the time that they save at one number of workers; each change is forecast.

A change of lanes, rows or batch size changes what is learned, so a campaign has to compare it. Times are for
the same number of rows: twice the batch size means half the steps.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from assay.data.loader.lane_shares import useful_world_size
from assay.records.throughput import (
    ParallelMode,
    ThroughputAdvice,
    ThroughputCalibration,
    TimedStep,
    WorldSizeForecast,
)
from assay.throughput.cluster import Cluster
from assay.throughput.forecast import forecast
from assay.throughput.whole_run import WholeRun, best_interval_s, steps_between_commits

MIN_GAIN = 0.005
"""Changes that save a smaller share of time or device-hours are not reported."""
WAITS_FOR_ROWS = 0.02
"""From this share of a step spent waiting for rows, more loader threads are suggested."""


class _Change(NamedTuple):
    """A possible change."""

    words: str
    overrides: tuple[str, ...]
    changes_learning: bool
    world_size: int
    calibration: ThroughputCalibration
    """The calibration as it would be after the change."""
    parallel: ParallelMode | None = None
    """None: unchanged."""


def advised(
    calibration: ThroughputCalibration, world_size: int, cluster: Cluster, *, parallel: ParallelMode = "ddp"
) -> tuple[ThroughputAdvice, ...]:
    """Return the changes that save time or device-hours, most time first."""
    [now] = forecast(calibration, [world_size], cluster, parallel=parallel).sizes
    changes = [*_changes(calibration, now, cluster), _held_otherwise(calibration, now, parallel)]
    found = [_worth(now, change, cluster, change.parallel or parallel) for change in changes]
    gains = [advice for advice in found if max(advice.time_saved, advice.device_hours_saved) >= MIN_GAIN]
    return tuple(sorted(gains, key=lambda advice: (-advice.time_saved, -advice.device_hours_saved)))


def _worth(now: WorldSizeForecast, change: _Change, cluster: Cluster, parallel: ParallelMode) -> ThroughputAdvice:
    [then] = forecast(change.calibration, [change.world_size], cluster, parallel=parallel).sizes
    return ThroughputAdvice(
        change=change.words,
        overrides=change.overrides,
        world_size=change.world_size,
        time_saved=1 - then.run_s.value / now.run_s.value,
        device_hours_saved=1 - then.device_hours.value / now.device_hours.value,
        changes_learning=change.changes_learning,
    )


def _changes(calibration: ThroughputCalibration, now: WorldSizeForecast, cluster: Cluster) -> Iterator[_Change]:
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
    if (interval := _better_interval(calibration, now, cluster)) is not None:
        yield _Change(
            f"a commit every {interval:,} steps",
            (f"trainer.commit_every={interval}",),
            False,
            size,
            calibration.model_copy(update={"commit_every": interval}),
        )
    if now.terms["data"] > WAITS_FOR_ROWS * now.step_s.value:
        yield _Change(
            "twice the loader's threads, if processors are free: rows in half the time",
            (f"loader.threads={2 * calibration.loader_threads}",),
            False,
            size,
            _with_steps(calibration, _read_twice_as_fast, lanes=lanes, fewer_steps=1),
        )
    for fewer in sorted({useful_world_size(lanes, size), max(1, size // 2)} - {size}):
        yield _Change(f"{fewer} workers", (f"--workers {fewer}",), False, fewer, calibration)


def _held_otherwise(calibration: ThroughputCalibration, now: WorldSizeForecast, parallel: ParallelMode) -> _Change:
    """Switch between replicated and sharded weights."""
    if parallel == "ddp":
        words = "sharded weights, which take less memory; their trips counted in full, none hidden"
        return _Change(words, ("--parallel fsdp2",), False, now.world_size, calibration, "fsdp2")
    words = "whole weights on interval worker, where they fit"
    return _Change(words, ("--parallel ddp",), False, now.world_size, calibration, "ddp")


def _better_interval(calibration: ThroughputCalibration, now: WorldSizeForecast, cluster: Cluster) -> int | None:
    """Return the cheapest number of steps between commits, or None if it is the current one."""
    step_s = now.step_s.value
    whole = WholeRun.of(calibration, cluster, now.nodes, now.max_lanes, step_s)
    interval = steps_between_commits(calibration)
    best = max(1, round(best_interval_s(whole.costs) / step_s))
    return best if interval is not None and best != round(interval) and best < calibration.num_steps else None


def _with_steps(
    calibration: ThroughputCalibration,
    changed: Callable[[TimedStep, TimedStep], TimedStep],
    *,
    lanes: int,
    fewer_steps: int,
) -> ThroughputCalibration:
    """Build the changed calibration; `changed` makes each step from a measured one and its successor."""
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
        reward_s=one.reward_s + other.reward_s,
        fixed_s=one.fixed_s,
    )


def _twice_the_rows(one: TimedStep, other: TimedStep) -> TimedStep:
    return TimedStep(
        lane_s=tuple(a + b for a, b in zip(one.lane_s, other.lane_s, strict=True)),
        data_s=one.data_s + other.data_s,
        rollout_s=one.rollout_s + other.rollout_s,
        reward_s=one.reward_s + other.reward_s,
        fixed_s=one.fixed_s,
    )


def _halved_lanes(one: TimedStep, _: TimedStep) -> TimedStep:
    halves = tuple(seconds / 2 for seconds in one.lane_s)
    return one.model_copy(update={"lane_s": halves + halves})


def _read_twice_as_fast(one: TimedStep, _: TimedStep) -> TimedStep:
    """A single rank that waits for rows has been reading during the whole step."""
    if not one.data_s:
        return one
    lanes_of_rank_s = one.rollout_s + one.fixed_s + sum(one.lane_s)
    return one.model_copy(update={"data_s": max(0.0, (one.data_s - lanes_of_rank_s) / 2)})

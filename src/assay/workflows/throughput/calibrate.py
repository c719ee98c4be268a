"""Calibrates a recipe for throughput forecasts by a short real run.

one worker:    steps, lane by lane; a commit               |  seconds from the command to the first step
two workers:   resume from that commit; their messages     |  seconds from the commit to the first step
loader alone:  rows per second with nothing else to do

The run's folder is removed; the calibration is saved in the home.
"""

import math
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError, TrainingError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import DatasetView, split_view
from assay.data.loader.loader import Loader
from assay.data.loader.order import WindowIndex
from assay.elastic.processor import gpus_here
from assay.records.cursor import Cursor
from assay.records.phase import STEP, Phase
from assay.records.run import Attempt, Run
from assay.records.throughput import GradientBucket, ThroughputCalibration, TimedMessage, TimedStep, TwoWorkers
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.phases import step_seconds
from assay.store.metrics.segment import SegmentData
from assay.store.objects import open_store
from assay.training.recipe import Recipe
from assay.training.trainer.config import TrainerConfig
from assay.workflows.calibration import MEASURING, segment_of, short_run, train_for
from assay.workflows.preview import FORWARD_SHARE, Preview, preview
from assay.workflows.run import check_recipe
from assay.workflows.throughput.saved_calibration import CalibrationKey, calibrated_parts

ENDLESS = 1_000_000
"""Epochs of the measured run, and steps between its commits; the run is stopped from outside."""
MAX_LANE_TIMES = 16_384
"""Upper bound on lane times in a calibration; the newest steps are kept."""
WARMING_STEPS = 2
"""Steps left out: the first one reads the first rows, and gradient buckets are built after it."""
MIN_STEPS = 4
LOADER_S = 5.0
"""Seconds for which the loader alone is measured, at most, unless one step takes longer."""
GENERATION: tuple[Phase, ...] = ("synchronisation", "generation")
REWARD: tuple[Phase, ...] = ("reward",)
POLICY = replace(MEASURING, verify_commits=0, times_lanes=True)


def calibrate_throughput(home: Home, loaded: LoadedConfig, *, seconds: float) -> ThroughputCalibration:
    """Measure `seconds` of steps on one worker, and as many on two if two fit; save and return the
    calibration."""
    recipe, dataset = check_recipe(loaded)
    if recipe.trainer.gradient_sum != "tree":
        raise ConfigError(
            "trainer.gradient_sum=all_reduce: what is forecast is the exchange that gives the same bits at "
            "every world size. Leave the key out."
        )
    key = CalibrationKey.here(recipe, dataset)
    on_cuda = not key.processor.instructions
    endless = {"epochs": ENDLESS, "max_steps": None, "commit_every": ENDLESS, "spot_check_every": None}
    with short_run(loaded, world_size=1, **endless) as run:
        alone = train_for(run, world_size=1, seconds=seconds, policy=POLICY).attempt
        steps, commit = (
            timed_steps(_segment(run, alone), recipe.loader.lanes),
            _commit(run, _segment(run, alone)),
        )
        two, restart_s = None, 0.0
        if _fit_two(recipe, on_cuda=on_cuda):
            two_workers_attempt = train_for(run, world_size=2, seconds=seconds, policy=POLICY).attempt
            two = two_workers(
                [_segment(run, two_workers_attempt, rank) for rank in range(2)],
                _segment(run, alone),
                recipe.loader.lanes,
            )
            restart_s = start_s(_segment(run, two_workers_attempt), two_workers_attempt)
        row_s = loader_row_s(recipe, dataset)
        reading_s = row_s * recipe.loader.global_batch_size
        found = ThroughputCalibration(
            **_facts(recipe, dataset, preview(recipe, dataset, world_size=1)),
            **commit,
            recipe=calibrated_parts(recipe),
            recipe_sha256=key.recipe_sha256,
            code_version=key.code_version,
            processor=key.processor,
            host=socket.gethostname(),
            measured_s=SystemClock().now_s(),
            on_cuda=on_cuda,
            steps=waiting_in_the_long_run(steps, reading_s),
            buckets=buckets_of(_segment(run, alone)),
            loader_row_s=row_s,
            start_s=start_s(_segment(run, alone), alone),
            restart_s=restart_s or start_s(_segment(run, alone), alone),
            two_workers=two,
        )
    path = key.file_in(home)
    open_store(str(path.parent)).put(path.name, found.to_sealed_json().encode())
    return found


def _segment(run: Run, attempt: Attempt, rank: int = 0) -> SegmentData:
    found = segment_of(run, attempt, rank)
    if found is None or found.header is None or len(found.step_ends.at_s) < MIN_STEPS:
        raise TrainingError(
            f"attempt {attempt.attempt} made fewer than {MIN_STEPS} steps: {attempt.reason or 'it ended'}. "
            "Nothing can be forecast from that."
        )
    return found


def _fit_two(recipe: Recipe, *, on_cuda: bool) -> bool:
    """Return whether the machine has two devices (or processors), and the recipe two lanes."""
    if on_cuda:
        return len(gpus_here()) >= 2
    return len(os.sched_getaffinity(0)) >= 2 * recipe.trainer.threads_per_rank and recipe.loader.lanes >= 2


def timed_steps(segment: SegmentData, num_lanes: int) -> tuple[TimedStep, ...]:
    """Return the newest steps of a worker that has all lanes."""
    lane_s = _lane_seconds(segment)
    assert lane_s.shape[1] == num_lanes, f"{lane_s.shape[1]} lanes were timed, {num_lanes} are there"
    whole_s, data_s, generation_s, reward_s = (
        step_seconds(segment, of) for of in (STEP, ("data",), GENERATION, REWARD)
    )
    rollout_s = generation_s + reward_s
    fixed_s = whole_s - data_s - rollout_s - lane_s.sum(axis=1)
    first = max(WARMING_STEPS - 1, len(whole_s) - max(1, MAX_LANE_TIMES // num_lanes))
    return tuple(
        TimedStep(
            lane_s=tuple(max(0.0, round(seconds, 6)) for seconds in lane_s[index].tolist()),
            data_s=float(data_s[index]),
            rollout_s=float(rollout_s[index]),
            reward_s=float(reward_s[index]),
            fixed_s=max(0.0, float(fixed_s[index])),
        )
        for index in range(first, len(whole_s))
    )


def waiting_in_the_long_run(steps: Sequence[TimedStep], reading_s: float) -> tuple[TimedStep, ...]:
    """Set the data wait of all steps to its long-run mean.

    Rows are prefetched by window, and a calibration covers few windows, so it cannot measure stalls directly.
    If reading a step's rows takes `reading_s`, more than the rest of the step, the difference is the wait.
    """
    lanes_of_rank_s = float(np.mean([step.rollout_s + step.fixed_s + sum(step.lane_s) for step in steps]))
    if reading_s <= lanes_of_rank_s:
        return tuple(steps)
    return tuple(step.model_copy(update={"data_s": reading_s - lanes_of_rank_s}) for step in steps)


def _lane_seconds(segment: SegmentData) -> np.ndarray:
    """Return [step, lane], without the first step."""
    names = sorted(name for name in segment.metrics if name.startswith("lane_") and name.endswith("_s"))
    found: np.ndarray = np.stack([segment.metrics[name].values[1:] for name in names], axis=1)
    return found


def buckets_of(segment: SegmentData) -> tuple[GradientBucket, ...]:
    """Return the gradient buckets of the last steps, in exchange order."""
    names = sorted(name for name in segment.metrics if name.startswith("bucket_") and name.endswith("_bytes"))
    last = segment.step_ends.steps[-1]
    found = []
    for name in names:
        sizes, before = segment.metrics[name], segment.metrics[name.replace("_bytes", "_before_last_s")]
        if sizes.steps[-1] == last:  # the first step may have had more
            before_s = float(np.median(before.values[sizes.values == sizes.values[-1]]))
            found.append(GradientBucket(num_bytes=int(sizes.values[-1]), before_last_s=max(0.0, before_s)))
    return tuple(found)


def two_workers(ranks: list[SegmentData], alone: SegmentData, num_lanes: int) -> TwoWorkers:
    """Compare two workers of this machine with one alone."""
    lane_s = sum(float(_lane_seconds(rank)[1:].sum()) for rank in ranks)
    contention = (lane_s / _tokens(ranks[0])) / (float(_lane_seconds(alone)[1:].sum()) / _tokens(alone))
    assert sum(_lane_seconds(rank).shape[1] for rank in ranks) == num_lanes
    whole_s = step_seconds(ranks[0], STEP)[1:]
    spans = {
        what: [(int(span.name.split()[1]), span) for span in ranks[0].spans if span.name.startswith(what)]
        for what in ("swapped ", "added ")
    }
    messages = [
        TimedMessage(num_bytes=num_bytes, seconds=span.ended_s - span.began_s) for num_bytes, span in spans["swapped "]
    ]
    large = max(num_bytes for num_bytes, _ in spans["added "])
    added_s = [span.ended_s - span.began_s for num_bytes, span in spans["added "] if num_bytes == large]
    return TwoWorkers(
        num_nodes=1,
        num_steps=len(whole_s),
        step_s=float(whole_s.mean()),
        contention=contention,
        messages=tuple(messages),
        added_bytes_per_s=large / float(np.median(added_s)),
    )


def _tokens(segment: SegmentData) -> float:
    return float(segment.metrics["tokens"].values[2:].sum())


def start_s(segment: SegmentData, attempt: Attempt) -> float:
    """Return the seconds from the attempt's start to the end of its first step, minus one mean step."""
    assert segment.header is not None, attempt
    first_s = float(segment.header.wall_of(segment.step_ends.at_s)[0])
    return max(0.0, first_s - attempt.started_s - float(np.mean(step_seconds(segment, STEP))))


def _commit(run: Run, segment: SegmentData) -> dict[str, float | int]:
    """Return times and bytes of the last commit."""
    began_s, phases = segment.phase_changes
    entered = [index for index, phase in enumerate(phases) if phase == "checkpoint"][-2:]
    copied_s, written_s = np.diff(began_s[entered[0] : entered[0] + 3]).tolist()
    commit = CommitLog(open_store(run.store_url)).commits()[-1]
    num_bytes = sum(file.num_bytes for file in commit.files)
    return {"commit_held_s": copied_s, "commit_written_s": written_s, "commit_bytes": num_bytes}


def _facts(recipe: Recipe, dataset: Dataset, found: Preview) -> dict[str, object]:
    """Return the fields of a calibration that follow from the recipe."""
    trainer, loader = recipe.trainer, recipe.loader
    in_steps = found.num_evaluations * found.validation_tokens / max(found.num_tokens / found.num_steps, 1)
    return {
        "recipe_name": recipe.name,
        "dataset_fingerprint": dataset.fingerprint,
        "lanes": loader.lanes,
        "global_batch_size": loader.global_batch_size,
        "num_steps": found.num_steps,
        "evaluated_steps": in_steps / found.completions if found.completions else FORWARD_SHARE * in_steps,
        "commit_every": None if trainer.commit_every == "auto" else trainer.commit_every,
        "evaluate_every": trainer.evaluate_every,
        "spot_check_every": spot_check_interval(trainer, found.num_steps),
        "updates_per_step": recipe.method.updates_per_step,
        "loader_threads": loader.threads,
    }


def spot_check_interval(trainer: TrainerConfig, num_steps: int) -> int | None:
    """Return the mean number of steps between spot checks; None if there are none."""
    looked_at = min(num_steps, 10_000)
    due = sum(trainer.is_spot_checked(step) for step in range(1, looked_at + 1))
    return round(looked_at / due) if due else None


def loader_row_s(recipe: Recipe, dataset: Dataset) -> float:
    """Return the seconds per row if rows are only read, over one whole window."""
    view = split_view(dataset, recipe.data.split, "train")
    loader = Loader(view, recipe.loader, tuple(recipe.method.columns))
    window_steps = min(recipe.loader.window_steps, loader.steps_per_epoch)
    took_s, num_rows = list[float](), 0
    for seconds, rows in _read(loader, window_steps):
        took_s.append(seconds)
        num_rows += rows
        if sum(took_s) > LOADER_S:
            break
    window_rows = window_steps * num_rows / len(took_s)
    # The first step comes with all row groups of the stretches that its window shares, where others have rows.
    whole_s = took_s[0] * window_rows / _rows_of_groups(view, loader)
    whole_s += (window_steps - 1) * math.fsum(took_s[1:]) / max(1, len(took_s) - 1)
    return whole_s / max(1.0, window_rows)


def _rows_of_groups(view: DatasetView, loader: Loader) -> int:
    """Return the rows of all row groups that the first window of all lanes reads."""
    segments = {segment for segment, _ in loader.geometry.slices_of_window(0)}
    groups = {
        span.group
        for segment in segments
        for lane in range(loader.config.lanes)
        for span in loader.spans(WindowIndex(0, segment), lane)
    }
    return int(view.num_rows[sorted(groups)].sum())


def _read(loader: Loader, num_steps: int) -> Iterator[tuple[float, int]]:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    shares = loader.shares(Cursor(), range(loader.config.lanes), num_steps)
    try:
        for share in shares:
            yield clock.monotonic_s() - began_s, sum(lane.num_rows for lane in share.lanes)
            began_s = clock.monotonic_s()
    finally:
        shares.close()

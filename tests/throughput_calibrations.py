"""Calibrations as data, for what is forecast from them."""

from collections.abc import Sequence

import numpy as np

from assay.records.processor import Processor
from assay.records.throughput import GradientBucket, ThroughputCalibration, TimedMessage, TimedStep, TwoWorkers

MEGABYTE = 1_000_000


def timed(lane_s: Sequence[Sequence[float]], *, data_s: float = 0.0, fixed_s: float = 0.0) -> tuple[TimedStep, ...]:
    return tuple(
        TimedStep(lane_s=tuple(sequence), data_s=data_s, rollout_s=0.0, fixed_s=fixed_s) for sequence in lane_s
    )


def two(bytes_per_s: float = 1e9, latency_s: float = 0.0, *, num_nodes: int = 1, contention: float = 1.0) -> TwoWorkers:
    """Messages that took exactly that."""
    messages = [TimedMessage(num_bytes=size, seconds=latency_s + size / bytes_per_s) for size in (4_096, 4_194_304)]
    return TwoWorkers(
        num_nodes=num_nodes, num_steps=5, step_s=1.0, contention=contention, messages=tuple(messages),
        added_bytes_per_s=1e15,
    )  # fmt: skip


def calibration_of(steps: tuple[TimedStep, ...], **others: object) -> ThroughputCalibration:
    lanes = len(steps[0].lane_s)
    values: dict[str, object] = {
        "recipe_name": "r", "recipe": {}, "recipe_sha256": "a", "dataset_fingerprint": "d", "code_version": "0",
        "processor": Processor(model="m", instructions="i", torch="2"), "host": "h", "measured_s": 0.0,
        "on_cuda": False, "lanes": lanes, "global_batch_size": 4 * lanes, "num_steps": 1_000,
        "evaluated_steps": 0.0, "commit_every": 100, "evaluate_every": None, "spot_check_every": None,
        "updates_per_step": 1, "steps": steps,
        "buckets": (GradientBucket(num_bytes=8 * MEGABYTE, before_last_s=0.0),),
        "loader_threads": 2, "loader_row_s": 1e-5, "commit_held_s": 0.0, "commit_written_s": 0.0,
        "commit_bytes": 1, "start_s": 0.0, "restart_s": 0.0, "two_workers": two(),
    }  # fmt: skip
    return ThroughputCalibration.model_validate({**values, **others})


def equal_steps(lanes: int, lane_s: float, *, num_steps: int = 8, **others: float) -> tuple[TimedStep, ...]:
    return timed(np.full((num_steps, lanes), lane_s).tolist(), **others)

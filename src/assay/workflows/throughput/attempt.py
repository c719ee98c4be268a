"""Measures an attempt of a run by step and phase, for comparison with a forecast."""

from itertools import groupby
from pathlib import Path

import numpy as np

from assay.base.errors import ConfigError
from assay.data.loader.lane_shares import LaneShares
from assay.records.phase import STEP, Phase
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.metrics.phases import step_seconds
from assay.store.metrics.segment import SegmentData
from assay.throughput.compare import MeasuredAttempt
from assay.training.recipe import recipe_of
from assay.workflows.calibration import segment_of
from assay.workflows.throughput.calibrate import GENERATION, REWARD, WARMING_STEPS, start_s

MIN_STEPS = 5
"""An attempt with fewer steps is not compared."""
PHASES: dict[str, tuple[Phase, ...]] = {
    "data": ("data",),
    "generation": GENERATION,
    "reward": REWARD,
    "compute": ("compute",),
    "communication": ("communication",),
}


def longest_attempt(run: Run) -> MeasuredAttempt:
    """Return the attempt with the most steps. Raises `ConfigError` if none has enough steps and replicated
    weights."""
    found = [(attempt, _segments(run, attempt)) for attempt in saved_attempts(Path(run.run_dir))]
    usable = [(attempt, ranks) for attempt, ranks in found if ranks]
    if not usable:
        raise ConfigError(
            f"run '{run.run_id}' has no attempt of {MIN_STEPS + WARMING_STEPS} steps whose weights are not "
            "sharded and whose records are whole: there is nothing to put a forecast beside."
        )
    attempt, ranks = max(usable, key=lambda candidate: len(candidate[1][0].step_ends.at_s))
    num_lanes, nodes = recipe_of(run).loader.lanes, _nodes(attempt)
    shares = LaneShares(num_lanes, attempt.world_size, nodes=nodes, explicit_loads=attempt.loads)
    whole_s = step_seconds(ranks[0], STEP)[WARMING_STEPS - 1 :]
    held = [seconds for rank in ranks for seconds in _held_for_commits(rank)]
    return MeasuredAttempt(
        run_id=run.run_id,
        attempt=attempt.attempt,
        shares=shares,
        step_s=tuple(whole_s.tolist()),
        phases_s={
            name: float(np.mean([step_seconds(rank, of)[WARMING_STEPS - 1 :].mean() for rank in ranks]))
            for name, of in PHASES.items()
        },
        num_commits=len(held) // len(ranks),
        commit_s=float(np.mean(held)) if held else 0.0,
        start_s=start_s(ranks[0], attempt),
        is_first=attempt.start_step == 0,
    )


def _segments(run: Run, attempt: Attempt) -> list[SegmentData]:
    """Return the metrics of the attempt's ranks, or nothing if they are incomplete or too few."""
    if not attempt.loads or attempt.ended_s is None:
        return []
    ranks = [segment_of(run, attempt, rank) for rank in range(attempt.world_size)]
    whole = [segment for segment in ranks if segment is not None and segment.header is not None]
    num_steps = min((len(segment.step_ends.at_s) for segment in whole), default=0)
    return whole if len(whole) == len(ranks) and num_steps >= MIN_STEPS + WARMING_STEPS else []


def _nodes(attempt: Attempt) -> tuple[int, ...]:
    """Return the ranks per node, or nothing if all ranks are on one node."""
    sizes = tuple(len(list(ranks)) for _, ranks in groupby(attempt.hosts))
    return sizes if len(sizes) > 1 else ()


def _held_for_commits(segment: SegmentData) -> list[float]:
    """Return the seconds of each commit that was followed by another step."""
    began_s, phases = segment.phase_changes
    return [
        float(began_s[index + 1] - began_s[index])
        for index in range(len(phases) - 1)
        if phases[index] == "checkpoint" and phases[index + 1] == "data"
    ]

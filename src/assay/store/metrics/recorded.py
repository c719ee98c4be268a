"""What a run wrote down about its steps, number by number and exact: what a replay is held against.

Read from the segments themselves. Of a step that several attempts made, the last one counts (the others were
rolled back), unless an attempt is asked for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from assay.store.metrics.segment import SegmentData, attempt_and_rank, read_segment, segment_path, segment_paths


class RecordedStep(NamedTuple):
    """One step as rank 0 of an attempt recorded it."""

    attempt: int
    values: dict[str, float]
    lane_digests: dict[int, float]
    """By lane: what a spot check recorded of its gradient, on whichever rank."""


def recorded_steps(run_dir: Path, *, attempt: int | None = None) -> dict[int, RecordedStep]:
    """All steps that are on record, in order; those of one attempt hide the others' where it is named."""
    steps: dict[int, RecordedStep] = {}
    named = sorted(
        {attempt_and_rank(path)[0] for path in segment_paths(run_dir)}, key=lambda number: (number == attempt, number)
    )
    for number in named:
        data = read_segment(segment_path(run_dir, number, 0))
        values_by_step = _values_by_step(data)
        if values_by_step and number != attempt:
            # What the attempts before it made from here on was rolled back.
            steps = {step: recorded for step, recorded in steps.items() if step < min(values_by_step)}
        steps.update({step: RecordedStep(number, values, {}) for step, values in values_by_step.items()})
    for path in segment_paths(run_dir):
        for step, values in _values_by_step(read_segment(path)).items():
            if step in steps and steps[step].attempt == attempt_and_rank(path)[0] and "spot_check_lane" in values:
                steps[step].lane_digests[int(values["spot_check_lane"])] = values["spot_check_digest"]
    return dict(sorted(steps.items()))


def recorded_series(run_dir: Path, is_selected: Callable[[str], bool]) -> dict[str, dict[int, float]]:
    """Metric -> the value of every step that was kept, in order; of one that several attempts made, the last
    one's."""
    series: dict[str, dict[int, float]] = {}
    for attempt in sorted({attempt_and_rank(path)[0] for path in segment_paths(run_dir)}):
        path = segment_path(run_dir, attempt, 0)
        metrics = read_segment(path).metrics if path.is_file() else {}
        if "loss" not in metrics or not len(metrics["loss"].steps):
            continue
        first = int(metrics["loss"].steps[0])
        series = {
            name: {step: value for step, value in values.items() if step < first} for name, values in series.items()
        }
        for name in filter(is_selected, metrics):
            values_by_step = zip(metrics[name].steps.tolist(), metrics[name].values.tolist(), strict=True)
            series.setdefault(name, {}).update(values_by_step)
    return {name: dict(sorted(values.items())) for name, values in series.items()}


def last_step_of(run_dir: Path, attempt: int) -> int | None:
    """The last step that an attempt completed; None where it completed none."""
    path = segment_path(run_dir, attempt, 0)
    if not path.is_file():
        return None
    losses = read_segment(path).metrics.get("loss")
    return int(losses.steps[-1]) if losses is not None and len(losses.steps) else None


def _values_by_step(data: SegmentData) -> dict[int, dict[str, float]]:
    steps: dict[int, dict[str, float]] = {}
    if "loss" not in data.metrics:
        return steps
    values_by_step = set(data.metrics["loss"].steps.tolist())
    for name, points in data.metrics.items():
        for step, value in zip(points.steps.tolist(), points.values.tolist(), strict=True):
            if step in values_by_step:
                steps.setdefault(step, {})[name] = value
    return steps

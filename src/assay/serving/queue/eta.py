"""Estimated finish times of jobs, with the data they are based on.

Estimates use the commit times in the logs and refer to the last step; the evaluation and audit after it are
short.

    launched at step 20 --- commit 40 --- commit 60 --- commit 80      time per step over steps 41 to 80
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.base.units import duration_text
from assay.records.fine_tuning_job import JobCheckpoint, LaunchStarted
from assay.serving.job import JobState


class FinishEstimate(NamedTuple):
    """When a job reaches its last step."""

    finish_s: float | None
    """Unix seconds; None if unknown."""
    basis: str
    """The data used, or why it is unknown."""


class StepTime(NamedTuple):
    """Seconds per step."""

    seconds_per_step: float
    basis: str


def step_time_of(state: JobState) -> StepTime | None:
    """Return the step time of the newest launch with commits."""
    marks: list[tuple[int, float]] = []
    found: StepTime | None = None
    for entry in state.entries:
        if isinstance(entry, LaunchStarted):
            marks = [(entry.step, entry.at_s)]
        elif isinstance(entry, JobCheckpoint) and marks and entry.step > marks[-1][0]:
            marks.append((entry.step, entry.at_s))
            found = _step_time_between(marks)
    return found


def _step_time_between(marks: Sequence[tuple[int, float]]) -> StepTime:
    first, last = marks[1 if len(marks) > 2 else 0], marks[-1]
    seconds = max(0.0, last[1] - first[1]) / (last[0] - first[0])
    start = "" if len(marks) > 2 else ", including startup"
    return StepTime(seconds, f"steps {first[0] + 1} to {last[0]} took {duration_text(seconds)} each{start}")


def estimates(
    at_work: Sequence[JobState], launch_order: Sequence[JobState], *, slots: int, now_s: float
) -> dict[str, FinishEstimate]:
    """Return an estimate per job: running jobs continue at their rate, and freed slots go to jobs in launch
    order."""
    step_times = {state.created.job_id: step_time_of(state) for state in (*at_work, *launch_order)}
    like: dict[tuple[str, str], StepTime] = {}
    for state in (*at_work, *launch_order):
        if (step_time := step_times[state.created.job_id]) is not None:
            words = f"{step_time.basis} of {state.created.job_id}, a job of the same model and method"
            like.setdefault(_kind(state), step_time._replace(basis=words))
    found = {state.created.job_id: _of_running(state, step_times[state.created.job_id], now_s) for state in at_work}
    free_s = _free_moments(found, slots, now_s)
    for state in launch_order:
        found[state.created.job_id] = _of_waiting(state, step_times[state.created.job_id], like, free_s)
    return found


def _of_running(state: JobState, step_time: StepTime | None, now_s: float) -> FinishEstimate:
    if state.is_queued_outside:
        return FinishEstimate(None, "the cluster's scheduler has not started it yet")
    if state.desired_state != "run":
        return FinishEstimate(None, "it commits and stops")
    if step_time is None or state.validated is None:
        return FinishEstimate(None, "it has no commit yet to measure its speed")
    left = state.validated.num_steps - state.last_step
    # Start of the remaining work: the last commit, or a later launch.
    since_s = max(
        [checkpoint.at_s for checkpoint in (*state.checkpoints[-1:], state.launched) if checkpoint is not None]
    )
    return FinishEstimate(max(now_s, since_s + left * step_time.seconds_per_step), step_time.basis)


def _free_moments(running: Mapping[str, FinishEstimate], slots: int, now_s: float) -> list[float | None]:
    """Return when each slot becomes free; None if unknown."""
    finish_times: list[float | None] = [finish_s.finish_s for finish_s in running.values()]
    known = sorted(finish_s for finish_s in finish_times if finish_s is not None)
    unknown: list[float | None] = [None] * (len(finish_times) - len(known))
    moments = [*[now_s] * max(0, slots - len(finish_times)), *known, *unknown]
    # If a worker left, there are more runs than slots; the first runs to end free none.
    return moments[len(moments) - slots :]


def _of_waiting(
    state: JobState, own: StepTime | None, like: Mapping[tuple[str, str], StepTime], free_s: list[float | None]
) -> FinishEstimate:
    assert state.validated is not None
    begins_s = min((moment_s for moment_s in free_s if moment_s is not None), default=None)
    if begins_s is None:
        return FinishEstimate(None, "it is unknown when a slot becomes free")
    step_time = own or like.get(_kind(state))
    slot = free_s.index(begins_s)
    if step_time is None:
        free_s[slot] = None  # so it is unknown when it frees the slot
        return FinishEstimate(None, "no job of its model and method has been measured yet")
    left = state.validated.num_steps - state.last_step
    free_s[slot] = begins_s + left * step_time.seconds_per_step
    return FinishEstimate(free_s[slot], f"{step_time.basis}; jobs before it at their own speed")


def _kind(state: JobState) -> tuple[str, str]:
    return state.created.model, state.created.method

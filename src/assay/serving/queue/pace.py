"""When a job will be done, and what that rests on; or why nobody can know yet.

Only what its log says is used: commits with their moments. So an estimate is of the last step; what follows
it (evaluation, audit) is short, and no step.

    launched at step 20 --- commit 40 --- commit 60 --- commit 80      80 - 40 steps took so long, each
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.base.units import duration_text
from assay.records.fine_tuning_job import JobCheckpoint, LaunchMade
from assay.serving.job import JobState


class FinishEstimate(NamedTuple):
    """When a job reaches its last step."""

    finish_s: float | None
    """Seconds since the Unix epoch; None where it is not known."""
    rests_on: str
    """What it was computed from, or why it is not known."""


class Pace(NamedTuple):
    """How long steps take."""

    seconds_per_step: float
    rests_on: str


def pace_of(state: JobState) -> Pace | None:
    """By the commits of the newest launch that made some."""
    marks: list[tuple[int, float]] = []
    found: Pace | None = None
    for entry in state.entries:
        if isinstance(entry, LaunchMade):
            marks = [(entry.step, entry.at_s)]
        elif isinstance(entry, JobCheckpoint) and marks and entry.step > marks[-1][0]:
            marks.append((entry.step, entry.at_s))
            found = _pace_between(marks)
    return found


def _pace_between(marks: Sequence[tuple[int, float]]) -> Pace:
    first, last = marks[1 if len(marks) > 2 else 0], marks[-1]
    seconds = max(0.0, last[1] - first[1]) / (last[0] - first[0])
    start = "" if len(marks) > 2 else ", its start among them"
    return Pace(seconds, f"steps {first[0] + 1} to {last[0]} took {duration_text(seconds)} each{start}")


def estimates(
    at_work: Sequence[JobState], in_turn: Sequence[JobState], *, places: int, now_s: float
) -> dict[str, FinishEstimate]:
    """By job: those at work go on as they do, and a place that gets free goes to the next in turn."""
    paces = {state.created.job_id: pace_of(state) for state in (*at_work, *in_turn)}
    like: dict[tuple[str, str], Pace] = {}
    for state in (*at_work, *in_turn):
        if (pace := paces[state.created.job_id]) is not None:
            words = f"{pace.rests_on} of {state.created.job_id}, a job of the same model and method"
            like.setdefault(_kind(state), pace._replace(rests_on=words))
    found = {each.created.job_id: _of_running(each, paces[each.created.job_id], now_s) for each in at_work}
    free_s = _free_moments(found, places, now_s)
    for state in in_turn:
        found[state.created.job_id] = _of_waiting(state, paces[state.created.job_id], like, free_s)
    return found


def _of_running(state: JobState, pace: Pace | None, now_s: float) -> FinishEstimate:
    if state.is_queued_outside:
        return FinishEstimate(None, "the cluster's scheduler has not let it run yet")
    if state.wish != "run":
        return FinishEstimate(None, "it commits and leaves")
    if pace is None or state.validated is None:
        return FinishEstimate(None, "it has made no commit yet, by which its pace could be told")
    left = state.validated.num_steps - state.last_step
    # Since when it is at work at what is left: its last commit, or the launch that came after that.
    since_s = max(
        [checkpoint.at_s for checkpoint in (*state.checkpoints[-1:], state.launched) if checkpoint is not None]
    )
    return FinishEstimate(max(now_s, since_s + left * pace.seconds_per_step), pace.rests_on)


def _free_moments(running: Mapping[str, FinishEstimate], places: int, now_s: float) -> list[float | None]:
    """When each place gets free; None where that is not known, which nobody can wait behind."""
    taken: list[float | None] = [each.finish_s for each in running.values()]
    known = sorted(each for each in taken if each is not None)
    unknown: list[float | None] = [None] * (len(taken) - len(known))
    moments = [*[now_s] * max(0, places - len(taken)), *known, *unknown]
    # Where a worker left, there are more runs than places: the first of them to end give none back.
    return moments[len(moments) - places :]


def _of_waiting(
    state: JobState, own: Pace | None, like: Mapping[tuple[str, str], Pace], free_s: list[float | None]
) -> FinishEstimate:
    assert state.validated is not None
    begins_s = min((each for each in free_s if each is not None), default=None)
    if begins_s is None:
        return FinishEstimate(None, "nobody knows yet when a place gets free for it")
    pace = own or like.get(_kind(state))
    place = free_s.index(begins_s)
    if pace is None:
        free_s[place] = None  # nor does anybody know when it gives its place back
        return FinishEstimate(None, "no job of its model and method has shown its pace yet")
    left = state.validated.num_steps - state.last_step
    free_s[place] = begins_s + left * pace.seconds_per_step
    return FinishEstimate(free_s[place], f"{pace.rests_on}; and the jobs before it, at theirs")


def _kind(state: JobState) -> tuple[str, str]:
    return state.created.model, state.created.method

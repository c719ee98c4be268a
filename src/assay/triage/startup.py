"""Measures where the time goes from the request of a run to the end of its first step.

    command       imports and checks of the command                            (first attempt of a launch)
    launch        from the launch's record to the attempt: queue, process      (first attempt of a launch)
    restart       from the end of the previous attempt                         (other attempts)
    process       until the last rank can work: forks, and imports outside the fork server
    imports       of the ranks, as far as the attempt waits for them
    rendezvous    until the ranks have connected
    dataset, model, restore
    evaluation    before the first step
    first_step    until it has ended: first rows, allocations, compilation

Spans are consecutive, so each second is in one span or in none; the latter are `unaccounted`. Ranks end their first
step almost together; the spans of the last one are reported.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from assay.base.errors import ConfigError
from assay.records.launch import Launch
from assay.records.run import Attempt, Run
from assay.records.startup import GrownSpan, SlowestStart, Startup, StartupSpan
from assay.store.attempts import saved_attempts
from assay.store.launches import saved_launches
from assay.store.metrics.segment import SegmentData, read_beginning, segment_paths

SPANS = (
    "command", "launch", "restart", "process", "imports", "rendezvous", "dataset", "model", "restore",
    "evaluation", "first_step",
)  # fmt: skip
MIN_S = 0.5
"""Minimal increase of a span if no interval can be computed."""
CONFIDENCE = 0.95


class FirstStep(NamedTuple):
    """The time of an attempt until the end of its first step."""

    run_id: str
    attempt: int
    rank: int
    total_s: float
    spans: dict[str, float]

    @property
    def unaccounted_s(self) -> float:
        return max(0.0, self.total_s - sum(self.spans.values()))


def startup_of(runs: Sequence[Run], against: Run | None) -> Startup:
    """Summarize the starts of some runs, optionally compared with another run. Raises `ConfigError` if there
    are none."""
    starts, num_left_out = _starts(runs)
    before = [] if against is None else _starts([against])[0]
    if not starts or (against is not None and not before):
        which = "these runs" if not starts or against is None else f"run '{against.run_id}'"
        raise ConfigError(f"no attempt of {which} has ended a step, so there is no startup to look at.")
    slowest = max(starts, key=lambda start: start.total_s)
    whole_s = sum(start.total_s for start in starts)
    found = {name: [start.spans.get(name, 0.0) for start in starts] for name in SPANS}
    return Startup(
        attempts=len(starts),
        total_s=statistics.median(start.total_s for start in starts),
        unaccounted_s=statistics.median(start.unaccounted_s for start in starts),
        spans={
            name: StartupSpan(
                median_s=statistics.median(seconds),
                p90_s=float(np.percentile(seconds, 90)),
                share=sum(seconds) / whole_s if whole_s else 0.0,
            )
            for name, seconds in found.items()
            if any(seconds)
        },
        slowest=SlowestStart(
            run_id=slowest.run_id, attempt=slowest.attempt, rank=slowest.rank, total_s=slowest.total_s
        ),
        against=None if against is None else against.run_id,
        grew=tuple(grown(starts, before)) if before else (),
        left_out=num_left_out,
    )


def grown(after: Sequence[FirstStep], before: Sequence[FirstStep]) -> list[GrownSpan]:
    """Return the spans that take longer than before, largest first, including *unaccounted*."""
    found = [
        _grown(name, *([_seconds(start, name) for start in side] for side in (after, before)))
        for name in (*SPANS, "unaccounted")
    ]
    significant_ones = [span for span in found if (span.seconds >= MIN_S if span.low is None else span.low > 0.0)]
    return sorted(significant_ones, key=lambda span: -span.seconds)


def start_of(
    attempt: Attempt, died_s: float | None, launch: Launch | None, segments: Sequence[SegmentData]
) -> FirstStep | None:
    """Return the spans of one attempt until its first step; None if no rank ended one.

    `died_s`: the end of the previous attempt, None for the first. `launch`: the last launch before it.
    """
    ended = [segment for segment in segments if segment.header is not None and segment.step_ends.steps.size]
    if not ended:
        return None
    last = max(ended, key=_first_step_s)
    if launch is not None and (died_s is None or launch.started_s > died_s):
        began_s = launch.started_s if launch.requested_s is None else min(launch.requested_s, launch.started_s)
        marks = [("command", launch.started_s), ("launch", attempt.started_s)]
    else:
        began_s = attempt.started_s if died_s is None else min(died_s, attempt.started_s)
        marks = [("restart", attempt.started_s)]
    ended_s = max(_first_step_s(last), began_s)
    spans = _between([*marks, *_marks_of(last)], began_s, ended_s)
    assert last.header is not None
    return FirstStep(attempt.run_id, attempt.attempt, last.header.rank, ended_s - began_s, spans)


def _marks_of(segment: SegmentData) -> list[tuple[str, float]]:
    """Return the ends of a rank's own spans, in seconds since the epoch."""
    assert segment.header is not None
    to_wall_s = segment.header.wall_s - segment.header.monotonic_s
    spans = {span.name: span for span in segment.spans}
    marks = []
    if (imports := spans.pop("imports", None)) is not None:
        marks += [("process", imports.began_s + to_wall_s), ("imports", imports.ended_s + to_wall_s)]
    marks += [("process", segment.header.wall_s)]
    marks += [(span.name, span.ended_s + to_wall_s) for span in spans.values()]
    if spans:
        marks += [("evaluation", marks[-1][1] + _evaluated_s(segment)), ("first_step", math.inf)]
    return marks


def _between(marks: Sequence[tuple[str, float]], began_s: float, ended_s: float) -> dict[str, float]:
    """Return name -> seconds of consecutive spans between two moments, given their ends.

    Spans that end before the interval, or lie outside because host clocks disagree, take no time.
    """
    spans: dict[str, float] = {}
    at_s = began_s
    for name, mark_s in marks:
        if (ends_s := min(mark_s, ended_s)) > at_s:
            spans[name] = spans.get(name, 0.0) + ends_s - at_s
            at_s = ends_s
    return spans


def _first_step_s(segment: SegmentData) -> float:
    assert segment.header is not None
    return float(segment.header.wall_of(segment.step_ends.at_s[0]))


def _evaluated_s(segment: SegmentData) -> float:
    changes, first_s = segment.phase_changes, segment.step_ends.at_s[0]
    ends = np.append(changes.at_s[1:], first_s)
    return sum(
        float(min(end, first_s) - at_s)
        for at_s, end, phase in zip(changes.at_s, ends, changes.phases, strict=True)
        if phase == "evaluation" and at_s < first_s
    )


def _starts(runs: Sequence[Run]) -> tuple[list[FirstStep], int]:
    """Return all attempts with a first step, and the number of others."""
    found: list[FirstStep] = []
    num_left_out = 0
    for run in runs:
        segments: dict[int, list[SegmentData]] = {}
        for path in segment_paths(Path(run.run_dir)):
            read = read_beginning(path)
            if read.header is not None:
                segments.setdefault(read.header.attempt, []).append(read)
        launches, died_s = saved_launches(run), None
        for attempt in saved_attempts(Path(run.run_dir)):
            launch = next((launch for launch in launches[::-1] if launch.started_s <= attempt.started_s), None)
            start = start_of(attempt, died_s, launch, segments.get(attempt.attempt, []))
            died_s = attempt.ended_s
            if start is None:
                num_left_out += 1
            else:
                found.append(start)
    return found, num_left_out


def _seconds(start: FirstStep, name: str) -> float:
    return start.unaccounted_s if name == "unaccounted" else start.spans.get(name, 0.0)


def _grown(name: str, after: Sequence[float], before: Sequence[float]) -> GrownSpan:
    """Return the difference of two means with Welch's (1947) interval."""
    seconds = statistics.mean(after) - statistics.mean(before)
    if min(len(after), len(before)) < 2:
        return GrownSpan(span=name, seconds=seconds, low=None, high=None)
    if np.ptp(after) == np.ptp(before) == 0.0:
        return GrownSpan(span=name, seconds=seconds, low=seconds, high=seconds)
    from scipy.stats import ttest_ind  # here, for most questions have nothing to be held against

    low, high = map(float, ttest_ind(after, before, equal_var=False).confidence_interval(CONFIDENCE))
    return GrownSpan(span=name, seconds=seconds, low=low, high=high)

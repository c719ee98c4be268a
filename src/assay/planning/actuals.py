"""Reads what a running program has done and spent from the ledger.

A run belongs to an activity by its id (`Runs.ids`). Its attempts record start, end and held devices. People's
work, gates and events leave no trace in the ledger, so they are in a notes file of the same form.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.planning.program.program import Program
from assay.planning.program.progress import Actual, Progress, RunActual
from assay.records.goodput import ProgramGoodput
from assay.records.run import Attempt, PhaseSeconds
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger
from assay.store.settings import NO_SETTINGS, Settings

FAILED = ("failed", "killed")
"""Outcomes of an attempt that ended early. An attempt that still "runs" although another followed was killed
together with its supervisor, and also counts."""


class ProgramClock(NamedTuple):
    """Conversion between the program's hours and seconds since the epoch."""

    start_s: float
    """Seconds since the epoch at the program's first midnight."""
    hour_s: float = 3600.0
    """Seconds of one program hour; less than 3600 for a program in miniature, in tests."""

    def hour(self, at_s: float) -> float:
        """Return the hours since the program's start."""
        return (at_s - self.start_s) / self.hour_s

    def last_hour_s(self, at_s: float) -> float:
        """Return the end of the last whole hour; the program's "now"."""
        return self.start_s + self.hour_s * math.floor(self.hour(at_s) + 1e-6)

    def moment(self, program: Program, at_s: float) -> str:
        """Return the moment as the program's calendar writes it, rounded to whole hours."""
        return program.calendar.date_of(round(self.hour(at_s))).isoformat()


def clock_of(program: Program, *, hour_s: float = 3600.0) -> ProgramClock:
    """Return the clock of the program's calendar, in local time."""
    return ProgramClock(program.calendar.date_of(0).timestamp(), hour_s)


class Spend(NamedTuple):
    """Device-hours that an activity held between two hours of the program."""

    activity: str
    start_h: float
    end_h: float
    device_hours: float


def progress_of(
    program: Program, ledger: Ledger, *, clock: ProgramClock, now_s: float, notes: Progress
) -> tuple[Progress, list[Spend]]:
    """Return the program's state now, and what its runs spent and when.

    `notes` provide people's work, gates and events, and what is expected of runs; for past runs the ledger
    takes precedence. Only what happened by the last whole hour before `now_s` counts. Raises `ConfigError` if
    a run matches two activities.
    """
    now_s = clock.last_hour_s(now_s)
    now = clock.moment(program, now_s)
    activities, spends = dict(notes.activities), list[Spend]()
    for activity, ids in run_ids_by_activity(program, ledger).items():
        runs: list[RunActual] = []
        for run_id in ids:
            attempts, phases = _by_then(ledger.attempts(run_id), ledger.phase_seconds(run_id), now_s=now_s)
            if not attempts:
                continue
            held = list(held_spans(attempts, phases, now_s=now_s))
            spends += [
                Spend(activity, clock.hour(start_s), clock.hour(until_s), spent_s / clock.hour_s)
                for start_s, until_s, spent_s in held
            ]
            held_s = sum(spent_s for _, _, spent_s in held)
            runs.append(_run(program, run_id, attempts, phases, held_s, clock))
        if runs:
            activities[activity] = _actual(program, activity, runs, activities.get(activity))
    progress = notes.model_copy(update={"now": now, "activities": activities})
    return progress, sorted(spends, key=lambda spend: spend.start_h)


def goodput_of_program(program: Program, ledger: Ledger, settings: Settings = NO_SETTINGS) -> ProgramGoodput:
    """Return the device time of all runs of the program, in total and by activity.

    Raises `ConfigError` if a run matches two activities.
    """
    runs = {run.run_id: run for run in ledger.runs()}
    owned = {
        activity: [runs[run_id] for run_id in run_ids]
        for activity, run_ids in run_ids_by_activity(program, ledger).items()
    }
    return ProgramGoodput(
        program=program.name,
        program_sha256=program.digest(),
        together=goodput_of(ledger, [run for runs in owned.values() for run in runs], settings),
        by_activity={activity: goodput_of(ledger, runs, settings) for activity, runs in owned.items()},
    )


def run_ids_by_activity(program: Program, ledger: Ledger) -> dict[str, list[str]]:
    """Return the run ids of each activity, newest first. Raises `ConfigError` if a run matches two
    activities."""
    patterns = {
        name: activity.runs.ids or f"{name.replace('_', '-')}-*"
        for name, activity in program.activities.items()
        if activity.runs is not None
    }
    found: dict[str, list[str]] = {name: [] for name in patterns}
    for run in ledger.runs():
        owners = [name for name, pattern in patterns.items() if fnmatchcase(run.run_id, pattern)]
        if len(owners) > 1:
            gate_results = " and ".join(f"'{name}' ({patterns[name]})" for name in owners)
            raise ConfigError(f"run '{run.run_id}' belongs to {gate_results}. Make activities.*.runs.ids narrower.")
        if owners:
            found[owners[0]].append(run.run_id)
    return found


def _run(
    program: Program,
    run_id: str,
    attempts: Sequence[Attempt],
    phases: Sequence[PhaseSeconds],
    held_s: float,
    clock: ProgramClock,
) -> RunActual:
    is_over = attempts[-1].outcome == "succeeded" and attempts[-1].ended_s is not None
    ended_s = attempts[-1].ended_s if is_over else None
    return RunActual(
        run_id=run_id,
        started=clock.moment(program, attempts[0].started_s),
        ended=None if ended_s is None else clock.moment(program, ended_s),
        device_hours=held_s / clock.hour_s,
        device_hours_lost=sum(phase.seconds.get("lost", 0.0) for phase in phases) / clock.hour_s,
        device_hours_by_phase=_by_phase(phases, held_s, clock),
        num_attempts=len(attempts),
        num_failed=sum(
            attempt.outcome in FAILED or (attempt.outcome == "running" and attempt is not attempts[-1])
            for attempt in attempts
        ),
    )


def _by_phase(phases: Sequence[PhaseSeconds], held_s: float, clock: ProgramClock) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for phase_seconds in phases:
        for phase, spent_s in phase_seconds.seconds.items():
            seconds[phase] += spent_s
    unreported_s = held_s - sum(seconds.values())
    if unreported_s > clock.hour_s * 1e-6:
        seconds["unreported"] = unreported_s
    return {phase: spent_s / clock.hour_s for phase, spent_s in seconds.items()}


def _by_then(
    attempts: Sequence[Attempt], phases: Sequence[PhaseSeconds], *, now_s: float
) -> tuple[list[Attempt], list[PhaseSeconds]]:
    """Return the state as visible at `now_s`: attempts that ended later are still running."""
    in_progress = [attempt for attempt in attempts if attempt.started_s <= now_s]
    seen = [
        attempt.model_copy(update={"ended_s": None, "outcome": "running"})
        if attempt.ended_s is not None and attempt.ended_s > now_s
        else attempt
        for attempt in in_progress
    ]
    reported = {
        attempt.attempt for attempt, then in zip(in_progress, seen, strict=True) if attempt.outcome == then.outcome
    }
    return seen, [phase for phase in phases if phase.attempt in reported]


def held_spans(
    attempts: Sequence[Attempt], phases: Sequence[PhaseSeconds], *, now_s: float
) -> Iterator[tuple[float, float, float]]:
    """Yield (from, until, device-seconds) of each attempt; by the clock if its ranks have not reported."""
    reported: dict[int, float] = {}
    for phase in phases:
        reported[phase.attempt] = reported.get(phase.attempt, 0.0) + phase.held_s
    next_starts = [*(attempt.started_s for attempt in attempts[1:]), now_s]
    for attempt, following_s in zip(attempts, next_starts, strict=True):
        until = attempt.ended_s if attempt.ended_s is not None else following_s
        by_clock = attempt.world_size * max(0.0, until - attempt.started_s)
        yield attempt.started_s, until, reported.get(attempt.attempt, by_clock)


def _actual(program: Program, activity: str, runs: list[RunActual], noted: Actual | None) -> Actual:
    """An activity ends when as many of its runs have ended as it declares; until then the noted end counts."""
    hour_of, declared_runs = program.calendar.hour_of, program.activities[activity].runs
    assert declared_runs is not None
    runs = sorted(runs, key=lambda run: hour_of(run.started))
    ends = [run.ended for run in runs if run.ended is not None]
    is_over = len(ends) >= declared_runs.count and len(ends) == len(runs)
    last = max(ends, key=hour_of) if is_over else None
    return Actual(
        started=runs[0].started,
        ended=last,
        expected_end=None if is_over or noted is None else noted.expected_end,
        device_hours=sum(run.device_hours for run in runs),
        device_hours_to_come=None if is_over or noted is None else noted.device_hours_to_come,
        runs=tuple(runs),
    )

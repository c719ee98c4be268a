"""Where a device's time went: every moment between its being taken and its being given back is in one phase.

    taken      phase("data")  phase("compute")   ...    last frame            given back
      | startup   | data         | compute  ...            | as it was            |

Work that no commit kept is `lost`: the phases of steps (see `STEP`) behind the committed one, and the
evaluations and checkpoints made for such steps. Inner steps that no outer step names are `late`, which a later attempt
may find out. Nanoseconds are counted in integers, so that the phases sum to the held time exactly.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from assay.base.shapes import Float64
from assay.records.phase import STEP, WAITING, Phase
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.metrics.segment import Position, SegmentData, read_segment, segment_path

_OWN_WORK: frozenset[Phase] = frozenset(STEP) - frozenset(WAITING)
_UPKEEP: frozenset[Phase] = frozenset({"checkpoint", "evaluation"})
NOTHING_LOST = 2**62
"""Committed step of an attempt without a recorded end: all of its work may be kept."""
MAX_RUNNING = 4096
"""Ranks whose sums are remembered while they write."""


def rank_phase_seconds(run: Run, attempt: Attempt, rank: int, *, held_to_s: float, committed_step: int) -> PhaseSeconds:
    """What a rank cost from the attempt's start until `held_to_s` (since the epoch), by its segment."""
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    spent = device_nanoseconds(
        read_segment(path) if path.exists() else None,
        held_from_s=attempt.started_s,
        held_to_s=held_to_s,
        committed_step=committed_step,
        stalled_s=attempt.stalled_s,
        late_steps=_late_steps(run, attempt.attempt),
    )
    return _record(run, attempt, rank, held_to_s, spent)


def running_phase_seconds(run: Run, attempt: Attempt, rank: int, *, held_to_s: float) -> PhaseSeconds:
    """What a rank cost so far if all its steps are kept. Later calls in this process read only what is new."""
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    if attempt.stalled_s or run.cluster_of is not None or not path.exists():
        return rank_phase_seconds(run, attempt, rank, held_to_s=held_to_s, committed_step=NOTHING_LOST)
    key = (path, path.stat().st_ino, attempt.started_s)
    with _lock:
        found = _running.setdefault(key, RunningPhases(path, attempt.started_s))
        _running.move_to_end(key)
        while len(_running) > MAX_RUNNING:
            _running.popitem(last=False)
    return _record(run, attempt, rank, held_to_s, found.nanoseconds(held_to_s))


def _record(run: Run, attempt: Attempt, rank: int, held_to_s: float, spent: dict[Phase, int]) -> PhaseSeconds:
    return PhaseSeconds(
        run_id=run.run_id,
        attempt=attempt.attempt,
        rank=rank,
        held_s=max(0.0, held_to_s - attempt.started_s),
        seconds={phase: nanoseconds / 1e9 for phase, nanoseconds in spent.items()},
    )


def device_nanoseconds(
    segment: SegmentData | None,
    *,
    held_from_s: float,
    held_to_s: float,
    committed_step: int,
    stalled_s: float = 0.0,
    late_steps: Collection[int] = (),
) -> dict[Phase, int]:
    """By phase, of the device that was held in [held_from_s, held_to_s) (seconds since the epoch).

    `committed_step` is the attempt's last commit, or the step it began from; the last `stalled_s` seconds were a
    hang. Where a rank was gone before it wrote anything (`segment` is None), all was startup.
    """
    held_from, held_to = _nanoseconds(held_from_s), max(_nanoseconds(held_from_s), _nanoseconds(held_to_s))
    moments: list[int] = [held_from]
    phases: list[Phase] = ["startup"]
    if segment is not None and segment.header is not None:
        changes = segment.phase_changes
        wall_s = segment.header.wall_of(changes.at_s)
        moments += [min(max(_nanoseconds(at_s), held_from), held_to) for at_s in wall_s.tolist()]
        phases += _without_rolled_back(segment, committed_step, late_steps)
    if stalled_s:
        stalled_from = max(held_from, held_to - _nanoseconds(stalled_s))
        moments = [*(min(moment, stalled_from) for moment in moments), stalled_from]
        phases.append("stalled")
    spent: dict[Phase, int] = {}
    _add(spent, phases, [*moments, held_to])
    return spent


def _add(spent: dict[Phase, int], phases: Sequence[Phase], moments: Sequence[int]) -> None:
    """Add the time of phases: each begins at its moment and ends at the next one."""
    for phase, begins, ends in zip(phases, moments, moments[1:], strict=False):
        if ends > begins:
            spent[phase] = spent.get(phase, 0) + ends - begins


class _PhaseChange(NamedTuple):
    moment: int
    """Nanoseconds since the epoch."""
    at_s: float
    """On the host's monotonic clock."""
    phase: Phase


class RunningPhases:
    """`device_nanoseconds` of a segment that grows, if all its steps are kept: each call reads what was appended."""

    def __init__(self, path: Path, held_from_s: float) -> None:
        self._path = path
        self._held_from = _nanoseconds(held_from_s)
        self._lock = threading.Lock()
        self._forget()

    def nanoseconds(self, held_to_s: float) -> dict[Phase, int]:
        """Return the time by phase until `held_to_s` (since the epoch)."""
        held_to = max(self._held_from, _nanoseconds(held_to_s))
        with self._lock:
            if held_to < self._open[0].moment:
                self._forget()
            self._read()
            self._close(held_to)
            spent = dict(self._spent)
            phases = [
                "lost" if change.phase in STEP and change.at_s >= self._step_ended_s else change.phase
                for change in self._open
            ]
            _add(spent, phases, [*(min(change.moment, held_to) for change in self._open), held_to])
        return spent

    def _forget(self) -> None:
        self._position = Position()
        self._step_ended_s = -np.inf
        self._spent: dict[Phase, int] = {}
        self._open = [_PhaseChange(self._held_from, -np.inf, "startup")]
        """Changes whose time is not in `_spent`, since the step may not have ended."""

    def _read(self) -> None:
        segment = read_segment(self._path, self._position)
        if self._position.header not in (None, segment.header):
            self._forget()
            segment = read_segment(self._path)
        if segment.header is None:
            return
        self._position = segment.next
        self._step_ended_s = np.max(segment.step_ends.at_s, initial=self._step_ended_s)
        at_s, phases = segment.phase_changes
        moments = [max(_nanoseconds(wall_s), self._held_from) for wall_s in segment.header.wall_of(at_s).tolist()]
        self._open += map(_PhaseChange, moments, at_s.tolist(), phases)

    def _close(self, held_to: int) -> None:
        """Sum up what no later step changes."""
        num_closed = 0
        for change, following in pairwise(self._open):
            if change.at_s >= self._step_ended_s or following.moment > held_to:
                break
            num_closed += 1
        closed, self._open = self._open[: num_closed + 1], self._open[num_closed:]
        _add(self._spent, [change.phase for change in closed], [change.moment for change in closed])


_running: OrderedDict[tuple[Path, int, float], RunningPhases] = OrderedDict()
_lock = threading.Lock()


def own_step_seconds(segment: SegmentData) -> Float64[np.ndarray, "step"]:
    """What each step but the first took of a rank's own work: without waiting for others, commits, evaluations.

    A collective makes every rank's step as long as the slowest one's; this tells them apart.
    """
    return step_seconds(segment, _OWN_WORK)


def step_seconds(segment: SegmentData, of: Collection[Phase]) -> Float64[np.ndarray, "step"]:
    """What each step but the first took of these phases; a step lasts from the end of the one before."""
    began_s, phases = segment.phase_changes
    if not len(began_s):
        return np.empty(0)
    is_own = np.array([phase in of for phase in phases], np.float64)
    worked_s = np.concatenate(([0.0], np.cumsum(np.diff(began_s) * is_own[:-1])))
    # [change of phase]: so far. An evaluation is logged once more under the step whose weights it is of.
    _, first = np.unique(segment.step_ends.steps, return_index=True)
    ended_s = segment.step_ends.at_s[first]
    last = np.maximum(np.searchsorted(began_s, ended_s, side="right") - 1, 0)
    until_s = worked_s[last] + np.maximum(ended_s - began_s[last], 0.0) * is_own[last]
    own_s: Float64[np.ndarray, "step"] = np.diff(until_s)
    return own_s


def _late_steps(run: Run, attempt: int) -> set[int]:
    """Return the inner steps whose part no outer step names, as this attempt and later ones found out."""
    if run.cluster_of is None:
        return set()
    every, first = run.recipe["outer"]["every"], segment_path(Path(run.run_dir), attempt, 0)
    paths = [path for path in first.parents[1].glob(f"*/{first.name}") if path >= first]
    found = [points for path in paths if (points := read_segment(path).metrics.get("late_steps")) is not None]
    outer_steps = [step for points in found for step in points.steps[points.values > 0].tolist()]
    return {step for outer_step in outer_steps for step in range(outer_step - every, outer_step)}


def _without_rolled_back(segment: SegmentData, committed_step: int, late_steps: Collection[int]) -> list[Phase]:
    """The phases as entered, but `lost` or `late` where the work was for a step that was not kept."""
    steps, ended_at_s, _ = segment.step_ends
    committed_until_s = np.max(ended_at_s[steps <= committed_step], initial=-np.inf)
    # A commit is made, and its weights are evaluated, while its step is the last one; once a further step has
    # ended, checkpoints and evaluations are that step's.
    upkeep_until_s = np.min(ended_at_s[steps > committed_step], initial=np.inf)
    is_late = np.append(np.isin(steps, [*late_steps]), False)
    next_end = np.searchsorted(ended_at_s, segment.phase_changes.at_s, side="right")
    return [
        "lost"
        if (phase in STEP and at_s >= committed_until_s) or (phase in _UPKEEP and at_s >= upkeep_until_s)
        else "late"
        if phase in STEP and is_late[end]
        else phase
        for at_s, phase, end in zip(*segment.phase_changes, next_end.tolist(), strict=True)
    ]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)

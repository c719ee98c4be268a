"""Where a device's time went: every moment between its being taken and its being given back is in one phase.

    taken      phase("data")  phase("compute")   ...    last frame            given back
      | startup   | data         | compute  ...            | as it was            |

Work that no commit kept is `lost`: the phases of steps (see `STEP`) behind the committed one, and the
evaluations and checkpoints made for such steps. Nanoseconds are counted in integers, so that the phases sum to
the held time exactly.
"""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from assay.base.shapes import Float64
from assay.records.phase import STEP, WAITING, Phase
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.metrics.segment import SegmentData, read_segment, segment_path

_OWN_WORK: frozenset[Phase] = frozenset(STEP) - frozenset(WAITING)
_UPKEEP: frozenset[Phase] = frozenset({"checkpoint", "evaluation"})


def rank_phase_seconds(run: Run, attempt: Attempt, rank: int, *, held_to_s: float, committed_step: int) -> PhaseSeconds:
    """What a rank cost from the attempt's start until `held_to_s` (since the epoch), by its segment."""
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    spent = device_nanoseconds(
        read_segment(path) if path.exists() else None,
        held_from_s=attempt.started_s,
        held_to_s=held_to_s,
        committed_step=committed_step,
        stalled_s=attempt.stalled_s,
    )
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
) -> dict[Phase, int]:
    """By phase, of the device that was held in [held_from_s, held_to_s) (seconds since the epoch).

    The sum is the held time to the nanosecond. `committed_step` is the attempt's last commit, or the step it
    began from; the last `stalled_s` seconds were a hang. Where a rank was gone before it wrote anything
    (`segment` is None), all was startup. Phases in which no time was spent are left out.
    """
    held_from, held_to = _nanoseconds(held_from_s), max(_nanoseconds(held_from_s), _nanoseconds(held_to_s))
    moments: list[int] = [held_from]
    phases: list[Phase] = ["startup"]
    if segment is not None and segment.header is not None:
        changes = segment.phase_changes
        wall_s = segment.header.wall_of(changes.at_s)
        moments += [min(max(_nanoseconds(at_s), held_from), held_to) for at_s in wall_s.tolist()]
        phases += _without_rolled_back(segment, committed_step)
    if stalled_s:
        stalled_from = max(held_from, held_to - _nanoseconds(stalled_s))
        moments = [*(min(moment, stalled_from) for moment in moments), stalled_from]
        phases.append("stalled")
    spent: dict[Phase, int] = {}
    for phase, begins, ends in zip(phases, moments, [*moments[1:], held_to], strict=True):
        if ends > begins:
            spent[phase] = spent.get(phase, 0) + ends - begins
    return spent


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


def _without_rolled_back(segment: SegmentData, committed_step: int) -> list[Phase]:
    """The phases as entered, but `lost` where the work was for a step that was not committed."""
    steps, ended_at_s, _ = segment.step_ends
    committed_until_s = np.max(ended_at_s[steps <= committed_step], initial=-np.inf)
    # A commit is made, and its weights are evaluated, while its step is the last one; once a further step has
    # ended, checkpoints and evaluations are that step's.
    upkeep_until_s = np.min(ended_at_s[steps > committed_step], initial=np.inf)
    return [
        "lost"
        if (phase in STEP and at_s >= committed_until_s) or (phase in _UPKEEP and at_s >= upkeep_until_s)
        else phase
        for at_s, phase in zip(*segment.phase_changes, strict=True)
    ]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)

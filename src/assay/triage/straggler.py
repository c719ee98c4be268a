"""Finds a slow rank during a run.

Collectives hide it, because every rank's step takes as long as the slowest. So only the time before a rank
enters the exchange counts, in windows of steps, compared with the median of the other ranks. A rank with more
lanes works longer without being slow, so its time per lane must also be high.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from assay.store.heartbeat import Beat

WINDOW_STEPS = 10
SLOW_FACTOR = 1.3
"""Own work per step relative to the median of the other ranks."""
SLOW_WINDOWS = 2
"""Consecutive slow windows before a rank is named; a single one may be temporary."""


class Straggler(NamedTuple):
    """A slow rank."""

    rank: int
    step: int
    own_s: float
    """Seconds of own work per step."""
    others_s: float
    """Median of the other ranks."""


class StragglerWatch:
    """Watches the heartbeats of one attempt, and names each slow rank once."""

    def __init__(self, loads: Sequence[int]) -> None:
        self._loads = loads
        self._window_began: list[Beat] | None = None
        self._slow_windows = [0] * len(loads)
        self._named: set[int] = set()

    def look(self, beats: Sequence[Beat]) -> Straggler | None:
        if len(beats) < 2 or min(beat.at_s for beat in beats) == 0:
            return None
        if self._window_began is None:
            self._window_began = list(beats)
            return None
        began, step = self._window_began, min(beat.step for beat in beats)
        if step - max(beat.step for beat in began) < WINDOW_STEPS:
            return None
        self._window_began = list(beats)
        own = [(now.own_s - then.own_s) / (now.step - then.step) for then, now in zip(began, beats, strict=True)]
        return self._judge(own, step)

    def _judge(self, own: Sequence[float], step: int) -> Straggler | None:
        found = None
        of_lanes = [seconds / load for seconds, load in zip(own, self._loads, strict=True)]
        for rank, seconds in enumerate(own):
            others_s = _median_of_others(own, rank)
            is_slow = seconds > SLOW_FACTOR * others_s
            is_slow &= of_lanes[rank] > SLOW_FACTOR * _median_of_others(of_lanes, rank)
            self._slow_windows[rank] = self._slow_windows[rank] + 1 if is_slow else 0
            if self._slow_windows[rank] >= SLOW_WINDOWS and rank not in self._named:
                self._named.add(rank)
                found = Straggler(rank, step, seconds, others_s)
        return found


def _median_of_others(numbers: Sequence[float], rank: int) -> float:
    return statistics.median([*numbers[:rank], *numbers[rank + 1 :]])

"""Decides whether a run commits and restarts to use nodes that have joined.

A restart pays if the busiest rank would get fewer lanes, and the time saved until the last step exceeds the cost. The
cost is estimated as `MARGIN` times the startup time of this attempt: one startup, plus as much again for the commit.
"""

from collections.abc import Sequence

from assay.records.run import Attempt
from assay.store.heartbeat import Beat

LEAST_STEPS = 5
"""Minimum steps to estimate the step time."""
MARGIN = 2.0
"""Required saving, as a multiple of the startup time."""


class RegroupWatch:
    """Estimates the startup and step times of an attempt from its heartbeats."""

    def __init__(self, attempt: Attempt, *, num_lanes: int, num_steps: int, began_s: float) -> None:
        """`num_steps`: steps of the whole run."""
        self._attempt = attempt
        self._num_lanes = num_lanes
        self._num_steps = num_steps
        self._began_s = began_s
        self._first: tuple[int, float] | None = None
        self._now: tuple[int, float] = attempt.start_step, began_s

    def look(self, beats: Sequence[Beat], now_s: float) -> None:
        """Note the step that all ranks have reached."""
        step = min(beat.step for beat in beats)
        self._now = step, now_s
        if self._first is None and step > self._attempt.start_step:
            self._first = step, now_s

    def pays(self, world_size: int) -> bool:
        """Return whether a restart with `world_size` ranks pays."""
        if self._first is None:
            return False
        (first, first_s), (step, now_s) = self._first, self._now
        if step - first < LEAST_STEPS:
            return False
        most_now, most_then = (-(-self._num_lanes // size) for size in (self._attempt.world_size, world_size))
        left_s = (self._num_steps - step) * (now_s - first_s) / (step - first)
        return left_s * (1 - most_then / most_now) > MARGIN * (first_s - self._began_s)

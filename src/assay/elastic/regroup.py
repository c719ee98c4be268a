"""Whether a run stops at a commit to go on with nodes that have come, or leaves them outside for now.

It pays where the rank with the most lanes would have fewer, and the time that saves until the last step is more
than what a restart takes: as long as this attempt took from its beginning to its first step, and a commit, for
which as much again is set aside.
"""

from collections.abc import Sequence

from assay.records.run import Attempt
from assay.store.heartbeat import Beat

LEAST_STEPS = 5
"""Fewer do not tell how long one takes."""
MARGIN = 2.0
"""What has to be saved, in restarts."""


class RegroupWatch:
    """Looks at the heartbeats of one attempt, and so knows what its steps and its start take."""

    def __init__(self, attempt: Attempt, *, num_lanes: int, num_steps: int, began_s: float) -> None:
        """`num_steps`: of the whole run."""
        self._attempt = attempt
        self._num_lanes = num_lanes
        self._num_steps = num_steps
        self._began_s = began_s
        self._first: tuple[int, float] | None = None
        self._now: tuple[int, float] = attempt.start_step, began_s

    def look(self, beats: Sequence[Beat], now_s: float) -> None:
        """Note how far all ranks are."""
        step = min(beat.step for beat in beats)
        self._now = step, now_s
        if self._first is None and step > self._attempt.start_step:
            self._first = step, now_s

    def pays(self, world_size: int) -> bool:
        """Whether to go on with so many ranks."""
        if self._first is None:
            return False
        (first, first_s), (step, now_s) = self._first, self._now
        if step - first < LEAST_STEPS:
            return False
        most_now, most_then = (-(-self._num_lanes // size) for size in (self._attempt.world_size, world_size))
        left_s = (self._num_steps - step) * (now_s - first_s) / (step - first)
        return left_s * (1 - most_then / most_now) > MARGIN * (first_s - self._began_s)

"""Work that a worker leaves to others for a while, because something is not installed here."""

from collections.abc import Callable

from assay.base.clock import Clock

LEFT_S = 60.0
"""Then it is tried here again."""


class DeferredWork:
    """Jobs, eval runs and batches by id."""

    def __init__(self, clock: Clock, notify: Callable[[str], None]) -> None:
        self._clock = clock
        self._notify = notify
        self._until_s: dict[str, float] = {}

    def __contains__(self, work_id: str) -> bool:
        now_s = self._clock.monotonic_s()
        return self._until_s.get(work_id, now_s) > now_s

    def leave(self, work_id: str, lack: Exception) -> None:
        """Defer a piece of work and report why."""
        self._until_s[work_id] = self._clock.monotonic_s() + LEFT_S
        self._notify(f"{work_id} is left to other workers for {LEFT_S:.0f} s: {lack}")

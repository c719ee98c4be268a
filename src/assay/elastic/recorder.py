"""Records the progress of a rank: metrics and phases to its segment, the latest state to the heartbeat page.

Every phase change passes through here, so a fault plan can strike at any (step, phase) of a rank.
"""

from collections.abc import Callable, Mapping

from assay.base.clock import Clock
from assay.records.phase import STEP, WAITING, Phase
from assay.store.heartbeat import Beat, Heartbeats
from assay.store.metrics.segment import SegmentWriter

Moment = Callable[[int, Phase], None]
"""Called with the step in progress and the phase that begins."""

_OWN_WORK = frozenset(STEP) - frozenset(WAITING)


class RankRecorder:
    """One rank's segment and its line of the heartbeat page."""

    def __init__(
        self,
        segment: SegmentWriter,
        heartbeats: Heartbeats,
        rank: int,
        clock: Clock,
        *,
        start_step: int,
        at_moment: Moment = lambda step, phase: None,
    ) -> None:
        self._segment = segment
        self._heartbeats = heartbeats
        self._rank = rank
        self._clock = clock
        self._at_moment = at_moment
        self._beat = Beat(start_step, "startup", clock.monotonic_s(), 0.0, 0.0)
        self._step_began_s: float | None = None
        self.parts: dict[str, float] = {}
        """Seconds that each part of the startup took."""
        self._part_began_s = clock.monotonic_s()

    def phase(self, name: Phase) -> None:
        """Record that the rank enters a phase."""
        now_s = self._clock.monotonic_s()
        own_s = self._beat.own_s
        if self._beat.phase in _OWN_WORK:
            own_s += now_s - self._beat.at_s
        self._note(self._beat._replace(phase=name, at_s=now_s, own_s=own_s))
        self._segment.phase(name)
        self._at_moment(self._beat.step + 1, name)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step; the first call for a step marks it as done."""
        if step > self._beat.step:
            now_s = self._clock.monotonic_s()
            longest_s = self._beat.longest_step_s
            if self._step_began_s is not None:
                longest_s = max(longest_s, now_s - self._step_began_s)
            self._step_began_s = now_s
            self._note(self._beat._replace(step=step, longest_step_s=longest_s))
        self._segment.log(step, values)

    def part(self, name: str) -> None:
        """Record that a part of the startup ends now; it began when the previous part ended."""
        now_s = self._clock.monotonic_s()
        self._segment.span(name, self._part_began_s, now_s)
        self.parts[name] = now_s - self._part_began_s
        self._part_began_s = now_s

    def event(self, text: str) -> None:
        self._segment.event(text)

    def span(self, name: str, began_s: float, ended_s: float) -> None:
        self._segment.span(name, began_s, ended_s)

    def sync(self) -> None:
        self._segment.sync()

    def close(self) -> None:
        self._segment.close()
        self._heartbeats.close()

    def _note(self, beat: Beat) -> None:
        self._beat = beat
        self._heartbeats.beat(self._rank, beat)

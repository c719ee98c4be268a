"""A follower's side of a run on several nodes: it starts the ranks that the leader assigns to it.

It watches its ranks and forwards their heartbeats. If the link to the leader breaks or falls silent, it kills its
ranks, because only a leader begins attempts.
"""

import multiprocessing
import signal
import socket
from collections.abc import Callable
from typing import Literal

from assay.base.clock import Clock
from assay.base.code_version import code_version
from assay.base.errors import TrainingError
from assay.data.loader.lane_shares import LaneShares
from assay.elastic.environment import environment_here
from assay.elastic.nodes.connection import (
    STOPPED_EARLY,
    Beats,
    Ended,
    Exit,
    Hello,
    Link,
    LinkLost,
    Message,
    Notice,
    ProcessState,
    Signal,
    Start,
    TakeStacks,
)
from assay.elastic.processes import RankProcesses
from assay.elastic.processor import processor_here
from assay.elastic.supervisor import POLL_S
from assay.records.rank_device import RankDevice
from assay.records.run import Run
from assay.training.recipe import recipe_of

BEATS_S = 1.0
"""Seconds between the heartbeats that a follower forwards."""

SILENT_S = 10.0
"""A leader that shows no sign of life for this long counts as gone."""

Departure = Literal["finished", "left", "no leader"]
"""Why a follower stopped following: the run is finished, this node leaves it, or its leader is gone."""


class Follower:
    """Follows one leader, over an open link."""

    def __init__(
        self,
        run: Run,
        link: Link,
        leader_host: str,
        *,
        node: int | None,
        context: multiprocessing.context.ForkServerContext,
        clock: Clock,
    ) -> None:
        """`leader_host`: where the leader answered. `node`: this node's index; None if it is lent."""
        self._run = run
        self._link = link
        self._leader_host = leader_host
        self._node = node
        self._clock = clock
        self._context = context
        self._next_beats_s = 0.0
        self._reported_devices: tuple[RankDevice, ...] = ()
        self._ranks: RankProcesses | None = None
        self._has_ended = False
        self._stop_requested = False
        self._has_announced = False
        self._heard_s = clock.monotonic_s()
        self.candidates: tuple[int, ...] = ()
        """Indices of the nodes that may lead after this leader."""
        self.reason = ""
        """Why the leader made this node leave; empty if this node asked for it."""

    def follow(self, waits: Callable[[], None]) -> Departure:
        """Follow the leader until the run is over, this node is dismissed, or the leader is gone.

        `waits` is called once the leader has been told of this node. Raises `TrainingError` with the leader's exit
        code if the run failed, or if the leader rejects this node.
        """
        try:
            self._introduce()
            waits()
            while not isinstance(message := self._next_message(), Exit):
                self._obey(message)
        except LinkLost:
            return "no leader"
        finally:
            self._stop_ranks()
            self._link.close()
        if message.exit_code not in (0, STOPPED_EARLY):
            error = TrainingError(f"run {self._run.run_id}: {message.reason}")
            error.exit_code = message.exit_code
            raise error
        self.reason = message.reason
        return "left" if message.exit_code else "finished"

    def request_stop(self) -> None:
        """Make the ranks commit and exit. A signal handler may call this."""
        self._stop_requested = True
        if self._ranks is not None:
            self._ranks.signal(signal.SIGTERM)

    def _introduce(self) -> None:
        self._link.send(
            Hello(
                node=self._node,
                host=socket.gethostname(),
                processor=processor_here(),
                code_version=code_version(),
                environment=environment_here(),
            )
        )

    def _next_message(self) -> Message:
        while True:
            self._announce_departure()
            is_busy = self._ranks is not None and not self._has_ended
            if (message := self._link.receive(0.0 if is_busy else POLL_S)) is not None:
                self._heard_s = self._clock.monotonic_s()
                return message
            if self._clock.monotonic_s() > self._heard_s + SILENT_S:
                raise LinkLost(f"no sign of life for {SILENT_S:.0f} s")
            if is_busy:
                self._watch_ranks()

    def _announce_departure(self) -> None:
        """Send `leave` after SIGTERM. The signal handler must not: it may interrupt another message."""
        if self._stop_requested and not self._has_announced:
            self._has_announced = True
            self._link.send(Notice(type="leave"))

    def _watch_ranks(self) -> None:
        assert self._ranks is not None
        self._ranks.wait_for_news(POLL_S)
        now_s, devices = self._clock.monotonic_s(), tuple(self._ranks.devices())
        # Send new devices at once, so that the leader knows the device of a rank that dies early.
        if now_s >= self._next_beats_s or devices != self._reported_devices:
            self._next_beats_s, self._reported_devices = now_s + BEATS_S, devices
            beats = tuple(beat._replace(at_s=now_s - beat.at_s) if beat.at_s else None for beat in self._ranks.beats())
            self._link.send(Beats(beats=beats, devices=devices))
        if (end := self._ranks.end()) is not None:
            self._has_ended = True
            self._announce_departure()  # first, so that the leader knows why the ranks ended
            self._link.send(Ended(end=end))

    def _obey(self, message: Message) -> None:
        if isinstance(message, Start):
            self._start(message)
        elif isinstance(message, Signal):
            if self._ranks is not None:
                self._ranks.signal(message.number)
        elif isinstance(message, TakeStacks):
            state = self._ranks.take_stacks(message.rank) if self._ranks else ""
            self._link.send(ProcessState(state=state))
        elif message.type == "stop":
            self._stop_ranks()
            self._link.send(Notice(type="stopped"))

    def _start(self, message: Start) -> None:
        ranks = range(message.first_rank, message.first_rank + message.num_ranks)
        attempt = message.orders.attempt
        LaneShares(
            recipe_of(self._run).loader.lanes, attempt.world_size
        )  # raises `ConfigError` for more ranks than lanes
        is_ours = attempt.run_id == self._run.run_id and ranks.stop <= attempt.world_size
        if not is_ours or sum(message.orders.nodes or (attempt.world_size,)) != attempt.world_size:
            raise TrainingError(
                f"run {self._run.run_id}: its leader asked for {ranks} of run '{attempt.run_id}', which is invalid."
            )
        self.candidates = message.nodes
        rendezvous = f"tcp://{self._leader_host}:{message.rendezvous_port}"
        self._ranks = RankProcesses(self._context, self._run, message.orders, ranks, rendezvous)
        self._has_ended, self._reported_devices = False, ()
        if self._stop_requested:
            self._ranks.signal(signal.SIGTERM)

    def _stop_ranks(self) -> None:
        if self._ranks is not None:
            self._ranks.stop()
            self._ranks = None

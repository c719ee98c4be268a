"""A node of a run: it follows the leader that it finds, or becomes the leader.

    finished? --> a leader answers? --> none lives, and it is this node's turn? --> lead
        ^                | follow it                                                 |
        +----------------+--- the leader is gone, or another one leads --------------+

A leader is looked for where the run's folder names one, then at the address that the node was started with. If none
answers, and the named one no longer renews its file, nodes take turns: the lowest index that is left leads first, so
that two rarely do. If two do, the fence of the commit log leaves one. A node that sees the file renewed, but cannot
reach the leader, waits: it would take the run away from nodes that can. No clocks are compared: a renewal is a change.
Any node that was started with the whole command may lead; a lent node knows only the run.
"""

import hashlib
import math
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError
from assay.elastic.fork_server import fork_context
from assay.elastic.nodes.connection import HostSilent, Link, LinkLost, connect_link, link_key
from assay.elastic.nodes.follower import Departure, Follower
from assay.elastic.nodes.group import COME_OVER_S, FIRST_PORT, NUM_PORTS, NodeGroup
from assay.elastic.nodes.server import LEADER_FILE, LeaderAddress, last_renewal, read_leader
from assay.records.run import Run
from assay.store.commit_log import CommitLog

RETRY_S = 0.2
"""Seconds between looks for a leader."""
TURN_S = 1.0
"""Seconds that the second node waits for the first one to lead; the wait of the n-th grows with the root of n, so
that the last of 64 waits for 8 s."""
REPLY_S = 5.0
"""Seconds that a leader gets to answer. A machine that lives refuses at once."""
STILL_S = 6.0
"""Seconds without a renewal after which a named leader counts as gone, if its machine answers, but no leader there."""
LATE_S = 40.0
"""The same if its machine is silent: the network may be split, and renewals may show half a minute late on a network
file system."""
FENCED_S = 10.0
"""Seconds that a node waits longer than its turn after another one has fenced it, or if it could not reach a leader
that lived: the others know better who leads."""
LENT_S = 60.0
"""Seconds that a lent node looks for a leader."""

Role = Literal["leads", "finished", "left"]
"""What a node does after it has followed: it leads, or it exits because the run is finished or it was asked to."""


class RunNode:
    """Follows leaders, and tells its caller when to lead."""

    def __init__(
        self,
        run: Run,
        *,
        index: int | None,
        address: str | None = None,
        leader: str | None = None,
        is_finished: Callable[[], bool] = lambda: False,
        notify: Callable[[str], None] = lambda text: None,
        clock: Clock | None = None,
    ) -> None:
        """Handle SIGTERM from now on.

        `index`: None for a lent node. `address`: where other nodes reach this one; by default found out.
        `leader`: HOST or HOST:PORT where a leader may be before the run's folder names one.
        """
        self._run = run
        self._index = index
        self._leader_host, self._port = _host_and_port(run.run_id, leader)
        self._bind = address or ""
        self._host = _resolvable(address) if address else own_address(self._leader_host)
        self._is_finished = is_finished
        self._notify = notify
        self._clock = clock or SystemClock()
        link_key(Path(run.run_dir))  # raises before anything is started
        self._context = fork_context()
        self._follower: Follower | None = None
        self._stop_requested = False
        self._others: tuple[int, ...] = ()
        """The nodes that may lead after the last leader, this one included; empty if it told none."""
        self._extra_s = self._still_s = self._silent_since_s = 0.0
        self._silence = ""
        """Why this node has found no leader where the run's folder names one."""
        self._seen: tuple[LeaderAddress | None, int | None] | None = None
        """The leader that the run's folder named at the last look, and its last renewal; None after it answered."""
        self._lives = False
        """Whether it has renewed its file since."""
        self._may_have_finished = True
        """Whether a leader has gone since this node asked."""
        self._last_text = ""
        signal.signal(signal.SIGTERM, self._request_stop)

    def next_role(self, waits: Callable[[], None] = lambda: None) -> Role:
        """Follow leaders until this node is to lead, or may exit.

        Before `leads` is returned, SIGTERM is blocked: the supervisor unblocks it once it handles it. `waits` is
        called whenever a leader has been told of this node. Raises the errors of `Follower.follow`.
        """
        self._silent_since_s, self._may_have_finished = self._clock.monotonic_s(), True
        while not self._stop_requested:
            if self._may_have_finished and self._is_finished():
                return "finished"
            self._may_have_finished = False
            if (found := self._find_leader()) is not None:
                if (departure := self._follow(*found, waits)) != "no leader":
                    return departure
                self._silent_since_s, self._may_have_finished = self._clock.monotonic_s(), True
            elif self._clock.monotonic_s() >= self._silent_since_s + self._turn_s():
                return self._take_turn()
            self._clock.sleep_s(RETRY_S)
        return "left"

    def _take_turn(self) -> Role:
        if self._is_finished():
            return "finished"
        if self._index is None:
            self._notify_once(f"no leader answered for {LENT_S:.0f} s{self._silence}. Join again when it is led.")
            return "left"
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if self._stop_requested:
            return "left"
        self._notify_once(f"node {self._index} leads, at {self._host}{self._silence}")
        return "leads"

    @contextmanager
    def leading(self, log: CommitLog, *, ranks_per_node: int, quiet_s: float) -> Iterator[NodeGroup]:
        """Accept nodes during the body; `quiet_s`: see `NodeGroup`."""
        assert self._index is not None, "a lent node never leads"
        group = NodeGroup(
            self._run,
            log,
            host=self._host,
            bind=self._bind,
            node=self._index,
            port=self._port,
            ranks_per_node=ranks_per_node,
            clock=self._clock,
            expected=frozenset(self._others) - {self._index} if self._others else None,
            quiet_s=COME_OVER_S if self._others else quiet_s,
        )
        with closing(group):
            yield group

    def was_fenced(self) -> None:
        """Note that another node leads, so that this one looks for it before it leads again."""
        self._others, self._extra_s = (), FENCED_S
        self._notify_once(f"another node leads, and node {self._index} follows it")

    def _find_leader(self) -> tuple[Link, str] | None:
        """Return a link to a leader that answers, and its host."""
        key = link_key(Path(self._run.run_dir))  # a launcher that starts the run replaces it
        known = read_leader(Path(self._run.run_dir))
        named = [(known.host, known.port)] if known else []
        if self._leader_host and (self._leader_host, self._port) not in named:
            named.append((self._leader_host, self._port))
        error: LinkLost | None = None
        for host, port in named:
            try:
                link = connect_link(host, port, key, timeout_s=REPLY_S)
            except LinkLost as refused:
                error = error or refused
            else:
                self._seen = None
                return link, host
        self._heed_silence(known, error)
        return None

    def _heed_silence(self, known: LeaderAddress | None, error: LinkLost | None) -> None:
        """Let turns begin once the leader that the run's folder names has not renewed its file for long enough."""
        self._still_s, self._silence = 0.0, ""
        if known is not None:
            self._still_s = LATE_S if isinstance(error, HostSilent) else STILL_S
            self._silence = f"; the leader named before, at {known.host}:{known.port}, does not answer: {error}"
        seen = (known, last_renewal(Path(self._run.run_dir)))
        if seen == self._seen:
            return
        did_live, self._lives = self._lives, bool(known and self._seen and known == self._seen[0])
        self._seen, self._silent_since_s, self._may_have_finished = seen, self._clock.monotonic_s(), known is None
        if known is not None and self._lives and not did_live:
            self._extra_s = FENCED_S
            self._notify_once(
                f"this node cannot reach the leader at {known.host}:{known.port} ({error}), which lives: it renews "
                f"{LEADER_FILE}. This node waits until it can, or until the leader is gone. Open the network between "
                "them, or start the leader's node with an --address that others reach."
            )

    def _notify_once(self, text: str) -> None:
        """Notify, unless it was the last thing said: a leader may drop this node again and again."""
        if text != self._last_text:
            self._last_text = text
            self._notify(f"run {self._run.run_id}: {text}")

    def _follow(self, link: Link, host: str, waits: Callable[[], None]) -> Departure:
        self._follower = Follower(self._run, link, host, node=self._index, context=self._context, clock=self._clock)
        if self._stop_requested:  # it came before there was a follower to pass it on to
            self._follower.request_stop()
        try:
            departure = self._follower.follow(waits)
            reason = self._follower.reason
        finally:
            self._others, self._extra_s = self._follower.candidates, 0.0
            self._follower = None
        if reason:
            self._notify_once(f"this node leaves: {reason}")
        if departure == "no leader":
            self._notify_once(f"the leader at {host} is gone; the ranks of this node were stopped")
        return departure

    def _turn_s(self) -> float:
        """Return how long to look for a leader before this node leads."""
        if self._index is None:
            return LENT_S
        position = self._others.index(self._index) if self._index in self._others else self._index
        return TURN_S * math.sqrt(position) + self._extra_s + self._still_s

    def _request_stop(self, *_: object) -> None:
        self._stop_requested = True
        if self._follower is not None:
            self._follower.request_stop()


def own_address(towards: str | None) -> str:
    """Return the IPv4 address of this machine on its way to a host, or to the network by default."""
    for host in (towards, "192.0.2.1"):  # a documentation address: only its route counts
        if host:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect((host, 9))  # sends nothing
                    address: str = probe.getsockname()[0]
                except OSError:
                    continue
                return address
    return "127.0.0.1"


def _resolvable(address: str) -> str:
    """Return the address of `--address`; raises `ConfigError` if it names nothing: ranks could not meet there."""
    try:
        socket.getaddrinfo(address, None, socket.AF_INET)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) != socket.EAI_AGAIN:  # the name server may respond later
            raise ConfigError(
                f"--address {address}: this name has no IPv4 address here ({error}). Give the address at which other "
                "nodes reach this one, or leave it out."
            ) from error
    return address


def _host_and_port(run_id: str, leader: str | None) -> tuple[str | None, int]:
    """Return the host of `--lead`, and the port that all nodes of the run try first."""
    host, _, port = (leader or "").partition(":")
    derived = FIRST_PORT + int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % NUM_PORTS
    text = port or os.environ.get("ASSAY_LINK_PORT") or str(derived)
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ConfigError(f"port {text!r} of --lead or ASSAY_LINK_PORT: expected a number below 65536.")
    return host or None, int(text)

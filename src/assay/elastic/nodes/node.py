"""A node of a run: it follows the leader that it finds, or becomes the leader.

    finished? --> a leader answers? --> wait for this node's turn --> lead
        ^                | follow it                                   |
        +----------------+--- the leader is gone, or another one leads-+

A leader is looked for where the run's folder names one, then at the address that the node was started with. If none
answers, nodes take turns: the lowest index that is left leads first, so that two rarely do. If two do, the fence of
the commit log leaves one. Any node that was started with the whole command may lead; a lent node knows only the run.
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
from assay.elastic.nodes.connection import Link, LinkLost, connect_link, link_key
from assay.elastic.nodes.follower import Departure, Follower
from assay.elastic.nodes.group import COME_OVER_S, FIRST_PORT, NUM_PORTS, REPLY_S, NodeGroup
from assay.elastic.nodes.server import read_leader
from assay.records.run import Run
from assay.store.commit_log import CommitLog

RETRY_S = 0.2
"""Seconds between looks for a leader."""
TURN_S = 1.0
"""Seconds that the second node waits for the first one to lead; the wait of the n-th grows with the root of n, so
that the last of 64 waits for 8 s."""
FENCED_S = 10.0
"""Seconds that a fenced leader waits longer than its turn, so that it finds the leader that fenced it."""
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
        self._extra_s = 0.0
        self._unreachable = ""
        """Why this node has found no leader where the run's folder names one."""
        signal.signal(signal.SIGTERM, self._request_stop)

    def next_role(self, waits: Callable[[], None] = lambda: None) -> Role:
        """Follow leaders until this node is to lead, or may exit.

        Before `leads` is returned, SIGTERM is blocked: the supervisor unblocks it once it handles it. `waits` is
        called whenever a leader has been told of this node. Raises the errors of `Follower.follow`.
        """
        since_s = self._clock.monotonic_s()
        must_check = True
        while not self._stop_requested:
            if must_check and self._is_finished():
                return "finished"
            must_check = False
            if (found := self._find_leader()) is not None:
                self._unreachable = ""
                if (departure := self._follow(*found, waits)) != "no leader":
                    return departure
                since_s, must_check = self._clock.monotonic_s(), True
            elif self._clock.monotonic_s() < since_s + self._turn_s():
                self._clock.sleep_s(RETRY_S)
            elif self._index is None:
                self._notify(
                    f"run {self._run.run_id}: no leader answered for {LENT_S:.0f} s. Join again when it is led."
                )
                return "left"
            else:
                return self._leads()
        return "left"

    def _leads(self) -> Role:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if self._stop_requested:
            return "left"
        self._notify(f"run {self._run.run_id}: node {self._index} leads, at {self._host}{self._unreachable}")
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
        self._notify(f"run {self._run.run_id}: another node leads, and node {self._index} follows it")

    def _find_leader(self) -> tuple[Link, str] | None:
        """Return a link to a leader that answers, and its host."""
        key = link_key(Path(self._run.run_dir))  # a launcher that starts the run replaces it
        known = read_leader(Path(self._run.run_dir))
        named = [(known.host, known.port)] if known else []
        if self._leader_host and (self._leader_host, self._port) not in named:
            named.append((self._leader_host, self._port))
        for host, port in named:
            try:
                return connect_link(host, port, key, timeout_s=REPLY_S), host
            except LinkLost as error:
                if known is not None and host == known.host:
                    self._unreachable = f"; the leader named before, at {host}:{port}, does not answer: {error}"
        return None

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
            self._notify(f"run {self._run.run_id}: this node leaves: {reason}")
        if departure == "no leader":
            self._notify(f"run {self._run.run_id}: the leader at {host} is gone; the ranks of this node were stopped")
        return departure

    def _turn_s(self) -> float:
        """Return how long to look for a leader before this node leads."""
        if self._index is None:
            return LENT_S
        position = self._others.index(self._index) if self._index in self._others else self._index
        return TURN_S * math.sqrt(position) + self._extra_s

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

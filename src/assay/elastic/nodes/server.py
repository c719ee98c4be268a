"""The leader's server: it accepts the nodes of the allocation at the start, and lent nodes at any time.

    'assay train' on a node of the allocation --+                +--> gathered: the run begins when all are there
                                                +-- NodeServer --+
    'assay train join' on any machine, at any time ---+                +--> waits until the next attempt admits it

The server listens as long as the run is led; its address is in the run's folder, which all nodes see. A client
that does not know the key, or sends nothing, blocks nobody: each connection is greeted in its own thread.
"""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from assay.base.clock import Clock
from assay.base.errors import ConfigError, TrainingError
from assay.elastic.nodes.connection import Dismiss, Hello, Link, LinkLost, accept_link
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor

LEADER_FILE = "lead.json"
"""File in the run's folder with the leader's address, while a run on several nodes is led."""

ACCEPT_S = 0.1
"""Seconds between checks whether the server was closed."""

MESSAGES_AT_ONCE = 1000
"""Messages handled per poll; more than a correct node sends in between."""

INTRODUCTION_S = 300.0
"""Seconds an authenticated node gets to send its `Hello`."""


class Peer(NamedTuple):
    """A follower, as the leader knows it."""

    link: Link
    host: str
    processor: Processor
    code_version: str
    environment: NodeEnvironment
    node: int | None = None
    """Its number in the allocation; None if it is lent."""


class LeaderAddress(BaseModel):
    """The address where the leader of a run accepts nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: PositiveInt
    ranks_per_node: PositiveInt
    """Maximum ranks of one node."""


class NodeServer:
    """Accepts connections and authenticates nodes in background threads."""

    def __init__(self, port: int, key: bytes) -> None:
        """`port`: 0 picks a free port."""
        self._listener = _listen(port)
        self._key = key
        self._arrivals: queue.SimpleQueue[Peer] = queue.SimpleQueue()
        self._is_open = True
        self._accept_thread = threading.Thread(target=self._accept_loop, name="node-server", daemon=True)
        self._accept_thread.start()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        port: int = self._listener.getsockname()[1]
        return port

    def next_peer(self, timeout_s: float = 0.0) -> Peer | None:
        """Return the next node that has connected, or None."""
        try:
            return self._arrivals.get(timeout=timeout_s) if timeout_s else self._arrivals.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop accepting connections."""
        self._is_open = False
        self._accept_thread.join()  # a blocked `accept` would keep the port in use
        self._listener.close()

    def _accept_loop(self) -> None:
        self._listener.settimeout(ACCEPT_S)
        while self._is_open:
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # out of file descriptors, e.g. because of a port scan
                time.sleep(ACCEPT_S)
                continue
            threading.Thread(target=self._greet, args=(accepted,), daemon=True).start()

    def _greet(self, accepted: socket.socket) -> None:
        link = accept_link(accepted, self._key)
        hello = link.first(INTRODUCTION_S) if link else None
        if link is not None and isinstance(hello, Hello):
            about = (hello.host, hello.processor, hello.code_version, hello.environment, hello.node)
            self._arrivals.put(Peer(link, *about))
        elif link is not None:
            link.close()


def gather(
    server: NodeServer, num_followers: int, clock: Clock, timeout_s: float
) -> tuple[dict[int, Peer], list[Peer]]:
    """Wait until every follower has connected; return them by number, and the other nodes that have connected."""
    peers: dict[int, Peer] = {}
    others: list[Peer] = []
    deadline_s = clock.monotonic_s() + timeout_s
    while len(peers) < num_followers:
        peer = server.next_peer(ACCEPT_S)
        if peer is not None and peer.node is not None and peer.node <= num_followers:
            peers[peer.node] = peer
        elif peer is not None:
            others.append(peer)
        elif clock.monotonic_s() > deadline_s:
            _refuse(set(range(1, num_followers + 1)) - set(peers), timeout_s)
    return peers, others


class WaitingPeers:
    """Nodes that have connected and wait for the next attempt."""

    def __init__(self, server: NodeServer, refusal: Callable[[Peer], str | None], first: list[Peer]) -> None:
        """`refusal` returns why a node cannot be admitted; None if it can."""
        self._server = server
        self._refusal = refusal
        self._waiting: list[Peer] = []
        for peer in first:
            self._screen(peer)

    def waiting(self) -> list[Peer]:
        """Return the nodes that can be admitted now, without those that are gone or were asked to stop."""
        while (peer := self._server.next_peer()) is not None:
            self._screen(peer)
        self._waiting = [peer for peer in self._waiting if stays(peer)]
        return self._waiting

    def admit(self) -> list[Peer]:
        """Return the waiting nodes and forget them: the caller owns them now."""
        admitted, self._waiting = self.waiting(), []
        return admitted

    def _screen(self, peer: Peer) -> None:
        if (refused := self._refusal(peer)) is None:
            self._waiting.append(peer)
        else:
            dismiss(peer, refused=refused)


def dismiss(peer: Peer, *, refused: str = "") -> None:
    """Tell a node to exit and close its link; `refused`: why it cannot be admitted."""
    with contextlib.suppress(LinkLost):
        peer.link.send(Dismiss(refused=refused))
    peer.link.close()


def stays(peer: Peer) -> bool:
    """Return whether an idle node is still connected; dismiss it if it was asked to stop."""
    try:
        for _ in range(MESSAGES_AT_ONCE):
            if (message := peer.link.receive(0.0)) is None:
                break
            if message.type == "leave":
                dismiss(peer)
                return False
    except LinkLost:
        peer.link.close()
        return False
    return True


def leader_address(run_dir: Path) -> LeaderAddress:
    """Return the address where a run accepts nodes; raises `ConfigError` if it accepts none."""
    try:
        return LeaderAddress.model_validate_json((run_dir / LEADER_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"run '{run_dir.name}' accepts no nodes now: its folder has no {LEADER_FILE}, which exists only while a "
            "supervisor leads the run on several nodes (--on slurm --nodes 2, or --on allocation)."
        ) from error


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("", port))
    except OSError as error:
        raise TrainingError(
            f"port {port} of node 0, where the other nodes' supervisors connect: {error}. Set another port for all "
            "nodes with ASSAY_LINK_PORT."
        ) from error


def _refuse(missing: set[int], timeout_s: float) -> NoReturn:
    names = ", ".join(map(str, sorted(missing)))
    raise TrainingError(
        f"node {names} did not connect within {timeout_s:.0f} s. Read its part of the job's log: its supervisor "
        "must start there, see the run's folder, and reach node 0."
    )

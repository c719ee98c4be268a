"""Who comes to the lead of a run: at the start the nodes of its allocation, later whoever lends one more.

    'assay train' on a node of the allocation --+            +--> gathered: a run begins when all are there
                                                +-- door ----+
    'assay join' on any machine, at any time ---+            +--> waits outside until an attempt lets it in

The door is open as long as the run is led; where it is stands in the run's folder, which all nodes see. A
stranger who does not know the key, or says nothing, holds nobody up.
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
from assay.elastic.nodes.connection import Dismiss, Hello, Leave, Link, LinkLost, accept_link
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor

LEADER_FILE = "lead.json"
"""In the run's folder while it is led on an allocation."""

ACCEPT_S = 0.1
"""From one look at what the door has to do to the next."""

MESSAGES_AT_ONCE = 1000
"""More than a node has to say between two looks at it."""

INTRODUCTION_S = 300.0
"""How long one who knows the key may take to say who it is."""


class Peer(NamedTuple):
    """A follower, as the lead knows it."""

    link: Link
    host: str
    processor: Processor
    code_version: str
    environment: NodeEnvironment
    node: int | None = None
    """Its number in the allocation; None of one that was lent."""


class LeaderAddress(BaseModel):
    """Where a run's lead takes nodes in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: PositiveInt
    ranks_per_node: PositiveInt
    """That a node gets, at most."""


class NodeServer:
    """Accepts and greets, in threads of its own."""

    def __init__(self, port: int, key: bytes) -> None:
        """`port`: 0 for any that is free."""
        self._listener = _listen(port)
        self._key = key
        self._come: queue.SimpleQueue[Peer] = queue.SimpleQueue()
        self._is_open = True
        self._keeper = threading.Thread(target=self._keep, name="door of the lead", daemon=True)
        self._keeper.start()

    @property
    def port(self) -> int:
        """Where it is."""
        port: int = self._listener.getsockname()[1]
        return port

    def come(self, timeout_s: float = 0.0) -> Peer | None:
        """The next one who has come since it was asked last."""
        try:
            return self._come.get(timeout=timeout_s) if timeout_s else self._come.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Nobody comes any more."""
        self._is_open = False
        self._keeper.join()  # who waits for a connection keeps the port
        self._listener.close()

    def _keep(self) -> None:
        self._listener.settimeout(ACCEPT_S)
        while self._is_open:
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # strangers hold all the connections that this process may have, for a while
                time.sleep(ACCEPT_S)
                continue
            threading.Thread(target=self._greet, args=(accepted,), daemon=True).start()

    def _greet(self, accepted: socket.socket) -> None:
        link = accept_link(accepted, self._key)
        hello = link.first(INTRODUCTION_S) if link else None
        if link is not None and isinstance(hello, Hello):
            about = (hello.host, hello.processor, hello.code_version, hello.environment, hello.node)
            self._come.put(Peer(link, *about))
        elif link is not None:
            link.close()


def gather(
    server: NodeServer, num_followers: int, clock: Clock, timeout_s: float
) -> tuple[dict[int, Peer], list[Peer]]:
    """Wait until every follower has said which node it is; these by number, then others that have come."""
    peers: dict[int, Peer] = {}
    others: list[Peer] = []
    deadline_s = clock.monotonic_s() + timeout_s
    while len(peers) < num_followers:
        peer = server.come(ACCEPT_S)
        if peer is not None and peer.node is not None and peer.node <= num_followers:
            peers[peer.node] = peer
        elif peer is not None:
            others.append(peer)
        elif clock.monotonic_s() > deadline_s:
            _refuse(set(range(1, num_followers + 1)) - set(peers), timeout_s)
    return peers, others


class Outside:
    """Those who have come and are not let in yet."""

    def __init__(self, server: NodeServer, refusal: Callable[[Peer], str | None], first: list[Peer]) -> None:
        """`refusal`: why one cannot be taken in; None where it can."""
        self._server = server
        self._refusal = refusal
        self._waiting: list[Peer] = []
        for peer in first:
            self._screen(peer)

    def waiting(self) -> list[Peer]:
        """Those who can be let in now; who was asked to leave meanwhile, or is gone, is not among them."""
        while (peer := self._server.come()) is not None:
            self._screen(peer)
        self._waiting = [peer for peer in self._waiting if stays(peer)]
        return self._waiting

    def let_in(self) -> list[Peer]:
        """They are not outside any more."""
        come, self._waiting = self.waiting(), []
        return come

    def _screen(self, peer: Peer) -> None:
        if (refused := self._refusal(peer)) is None:
            self._waiting.append(peer)
        else:
            dismiss(peer, refused=refused)


def dismiss(peer: Peer, *, refused: str = "") -> None:
    """Let a node go, the others go on; `refused`: why it cannot be taken in."""
    with contextlib.suppress(LinkLost):
        peer.link.send(Dismiss(refused=refused))
    peer.link.close()


def stays(peer: Peer) -> bool:
    """Whether a node that has nothing to do is still there; who was asked to stop is let go."""
    try:
        for _ in range(MESSAGES_AT_ONCE):
            if (message := peer.link.receive(0.0)) is None:
                break
            if isinstance(message, Leave):
                dismiss(peer)
                return False
    except LinkLost:
        peer.link.close()
        return False
    return True


def leader_address(run_dir: Path) -> LeaderAddress:
    """Where a run takes nodes in; `ConfigError` where it does not."""
    try:
        return LeaderAddress.model_validate_json((run_dir / LEADER_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"run '{run_dir.name}' takes in no nodes now: its folder has no {LEADER_FILE}, as it has while a "
            "supervisor leads it on several nodes (--on slurm --nodes 2, or --on allocation)."
        ) from error


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("", port))
    except OSError as error:
        raise TrainingError(
            f"port {port} of node 0, where the other nodes' supervisors come: {error}. Choose another for all "
            "nodes with ASSAY_LINK_PORT."
        ) from error


def _refuse(missing: set[int], timeout_s: float) -> NoReturn:
    names = ", ".join(map(str, sorted(missing)))
    raise TrainingError(
        f"node {names} did not come within {timeout_s:.0f} s. Read its part of the job's log: its supervisor "
        "must start there, see the run's folder, and reach node 0."
    )

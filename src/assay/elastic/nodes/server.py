"""The leader's server: it accepts nodes at any time, and shows them that the leader lives.

    'assay train --on nodes' ------------------+
                                               +-- NodeServer --> waits until the next attempt admits it
    'assay train join' on any other machine ---+        |
                                                        +-- `alive` to each of them about once a second

The server listens as long as the run is led; its address is in the run's folder, which all nodes see. The leader
renews that file once a second, so that a node that cannot reach it sees that it lives. A client that does not know
the key, or sends nothing, blocks nobody: each connection is greeted in its own thread.
"""

import contextlib
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from assay.base.errors import AssayError, ConfigError
from assay.elastic.nodes.connection import Exit, Hello, Link, LinkLost, Port, accept_link
from assay.store.objects import open_store

LEADER_FILE = "lead.json"
"""File in the run's folder with the leader's address, while a run on several nodes is led."""

ACCEPT_S = 0.1
"""Seconds between checks whether the server was closed."""

ALIVE_S = 1.0
"""Seconds between two signs of life, to each node and in the run's folder."""

MESSAGES_AT_ONCE = 1000
"""Messages handled per poll; more than a correct node sends in between."""

INTRODUCTION_S = 300.0
"""Seconds an authenticated node gets to send its `Hello`."""


class Peer(NamedTuple):
    """A follower, as the leader knows it."""

    link: Link
    hello: Hello

    @property
    def node(self) -> int | None:
        return self.hello.node

    @property
    def name(self) -> str:
        return "a lent node" if self.node is None else f"node {self.node}"

    def __str__(self) -> str:
        return f"{self.name} ({self.hello.host})"


class LeaderAddress(BaseModel):
    """The address where the leader of a run accepts nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: Port
    ranks_per_node: PositiveInt
    """Maximum ranks of one node."""


class LeaderFile:
    """The file that names the leader, renewed while its process runs."""

    def __init__(self, run_dir: Path, address: LeaderAddress) -> None:
        self._run_dir = run_dir
        self.address = address
        self._is_over = threading.Event()
        self.write()
        # In a thread of its own: if the file system hangs, nodes still hear that the leader lives.
        threading.Thread(target=self._renew, name="leader-file", daemon=True).start()

    def write(self) -> None:
        open_store(str(self._run_dir)).put(LEADER_FILE, self.address.model_dump_json().encode())

    def read(self) -> LeaderAddress | None:
        return read_leader(self._run_dir)

    def remove(self) -> None:
        """Stop renewing the file, and remove it unless it names another leader."""
        self._is_over.set()
        if self.read() == self.address:
            (self._run_dir / LEADER_FILE).unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._is_over.wait(ALIVE_S):
            with contextlib.suppress(OSError):
                if self.read() == self.address:
                    os.utime(self._run_dir / LEADER_FILE)  # not written again: NFS shows a new file late


class NodeServer:
    """Accepts connections and authenticates nodes in background threads."""

    def __init__(self, host: str, port: int, read_key: Callable[[], bytes]) -> None:
        """Listen on `port`, or on a free port if it is taken; on `host`, if that is an address of this machine.

        `read_key` is called for each connection: a launcher may replace the key of a run that is led.
        """
        self._listener = _listen(host, port)
        self._read_key = read_key
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._links_lock = threading.Lock()
        self._next_alive_s = 0.0
        self._arrivals: queue.SimpleQueue[Peer] = queue.SimpleQueue()
        self._is_open = True
        self._accept_thread = threading.Thread(target=self._accept_loop, name="node-server", daemon=True)
        self._accept_thread.start()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        port: int = self._listener.getsockname()[1]
        return port

    def next_peer(self) -> Peer | None:
        """Return the next node that has connected, or None."""
        try:
            return self._arrivals.get_nowait()
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
            self._show_life()
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # out of file descriptors, e.g. because of a port scan
                time.sleep(ACCEPT_S)
                continue
            threading.Thread(target=self._greet, args=(accepted,), daemon=True).start()

    def _show_life(self) -> None:
        if (now_s := time.monotonic()) < self._next_alive_s:
            return
        self._next_alive_s = now_s + ALIVE_S
        with self._links_lock:
            links = list(self._links)
        for link in links:
            try:
                link.send_alive()
            except LinkLost:  # its reader notices as well
                with self._links_lock:
                    self._links.discard(link)

    def _greet(self, accepted: socket.socket) -> None:
        try:
            link = accept_link(accepted, self._read_key())
        except AssayError:  # the key cannot be read now
            accepted.close()
            return
        hello = link.first(INTRODUCTION_S) if link else None
        if link is not None and isinstance(hello, Hello) and self._is_open:
            with self._links_lock:
                self._links.add(link)
            self._arrivals.put(Peer(link, hello))
        elif link is not None:
            link.close()


def dismiss(peer: Peer, message: Exit) -> None:
    """Tell a node to exit, and close its link."""
    with contextlib.suppress(LinkLost):
        peer.link.send(message)
    peer.link.close()


def stays(peer: Peer) -> bool:
    """Return whether an idle node is still connected; dismiss it if it was asked to stop."""
    try:
        for _ in range(MESSAGES_AT_ONCE):
            if (message := peer.link.receive(0.0)) is None:
                break
            if message.type == "leave":
                dismiss(peer, Exit())
                return False
    except LinkLost:
        peer.link.close()
        return False
    return True


def read_leader(run_dir: Path) -> LeaderAddress | None:
    """Return the address where a run accepts nodes; None if none is known."""
    try:
        return LeaderAddress.model_validate_json((run_dir / LEADER_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def last_renewal(run_dir: Path) -> int | None:
    """Return a number that changes whenever the leader renews its file; None without a file.

    The file is opened because NFS then asks its server; the cached time may be half a minute old.
    """
    try:
        with (run_dir / LEADER_FILE).open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def leader_address(run_dir: Path) -> LeaderAddress:
    """Return the address where a run accepts nodes; raises `ConfigError` if it accepts none."""
    if (address := read_leader(run_dir)) is None:
        raise ConfigError(
            f"run '{run_dir.name}' accepts no nodes now: its folder has no {LEADER_FILE}, which exists only while a "
            "supervisor leads the run on several nodes (--on slurm --nodes 2, or --on nodes)."
        )
    return address


def _listen(host: str, port: int) -> socket.socket:
    """A host that is not an address of this machine (a load balancer's, say) leads here somehow: accept all."""
    for address in [(host, port), (host, 0), ("", port)]:
        with contextlib.suppress(OSError):
            return socket.create_server(address)
    return socket.create_server(("", 0))

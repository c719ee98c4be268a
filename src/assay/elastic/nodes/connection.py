"""The connection between the supervisors of a run: JSON messages over one TCP connection per follower.

    follower                         leader
       | -- Hello(node) ---------------> |
       | <-- Start(orders, ranks, ...)   |   fork this share of the ranks
       | -- Beats(...) ----------------> |   heartbeats of the ranks, about once a second
       | <-- alive --------------------- |   about once a second
       | <-- Signal(15) ---------------- |   forward it to the ranks
       | -- Ended(outcome, failure) ---> |   how the ranks ended
       | <-- stop ---------------------- |   kill the ranks that are left
       | -- stopped -------------------> |
       | -- leave ---------------------> |   this node got SIGTERM: commit, then continue without it
       | <-- Exit(code) ---------------- |   this node leaves, or the run is over on all nodes

A connection is used instead of files in the run's folder because its end shows that a node is gone, and because a
network file system may show a new file half a minute late. Every message carries an HMAC that proves two things:
its sender can read the key in the run's folder (owner-only), and it is the next message in order. Messages are
data, never code. Invalid bytes end the link, so an attacker can at most end the run; no read blocks on the rest of
a message.
"""

import hmac
import os
import secrets
import select
import signal
import socket
import struct
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter

from assay.base.errors import ConfigError, StoreError
from assay.elastic.task import AttemptEnd, Orders
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor
from assay.records.rank_device import RankDevice
from assay.store.heartbeat import Beat

STOPPED_EARLY = 75
"""Exit code of a node that leaves a run that goes on, or can go on (EX_TEMPFAIL)."""
KEY_FILE = "link.key"
KEY_BYTES = 64
INTRODUCE_S = 10.0
"""Seconds the other end gets to prove that it knows the key."""
SEND_S = 60.0
"""Seconds a send may block because the other end does not read."""
MAX_MESSAGE_BYTES = 16 << 20
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A node that lost power is detected after 10 + 3 * 5 seconds."""
UNACKNOWLEDGED_S = 25
"""The same limit for a link with sent messages under way, on which TCP sends no keepalives."""
Port = Annotated[int, Field(gt=0, lt=1 << 16)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hello(_Message):
    """A follower introduces itself."""

    type: Literal["hello"] = "hello"
    node: NonNegativeInt | None
    """Its index; None if it is lent to the run."""
    host: str
    """Name of the follower's machine."""
    processor: Processor
    code_version: str
    """The follower's version of assay."""
    environment: NodeEnvironment


class Start(_Message):
    """Makes the follower start a share of an attempt's ranks."""

    type: Literal["start"] = "start"
    orders: Orders
    first_rank: NonNegativeInt
    num_ranks: PositiveInt
    rendezvous_port: Port
    """Port on the leader's host where the ranks meet."""
    nodes: tuple[NonNegativeInt, ...]
    """Indices of all followers that may lead: if the leader dies, the first of them that is left takes over."""


class Beats(_Message):
    """Heartbeats of a follower's ranks, in order. `at_s` is the age in seconds, because clocks differ."""

    type: Literal["beats"] = "beats"
    beats: tuple[Beat | None, ...]
    """None before a rank's first heartbeat."""
    devices: tuple[RankDevice, ...]
    """Device of each rank, as far as reported."""


class TakeStacks(_Message):
    """Makes all ranks write their stacks."""

    type: Literal["take_stacks"] = "take_stacks"
    rank: NonNegativeInt
    """The rank whose process state is requested."""


class ProcessState(_Message):
    """The kernel's state of the requested rank's process; empty from nodes without that rank."""

    type: Literal["process_state"] = "process_state"
    state: str


class Signal(_Message):
    """Sends a signal to every running rank."""

    type: Literal["signal"] = "signal"
    number: Annotated[PositiveInt, Field(lt=signal.NSIG)]


class Notice(_Message):
    """A message without contents.

    From the leader: `stop` makes the follower kill its ranks, `alive` says that the leader's process runs. From a
    follower: `stopped` says that none of its ranks is left, `leave` that it was asked to stop.
    """

    type: Literal["stop", "stopped", "leave", "alive"]


class Exit(_Message):
    """Makes the follower exit, with 0 because the run is finished, with 75 because it leaves, or for a reason."""

    type: Literal["exit"] = "exit"
    exit_code: Annotated[int, Field(ge=0, lt=256)] = STOPPED_EARLY
    reason: str = ""


class Ended(_Message):
    """How a follower's ranks ended."""

    type: Literal["ended"] = "ended"
    end: AttemptEnd


Message = Hello | Start | Beats | TakeStacks | ProcessState | Signal | Notice | Exit | Ended
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


class LinkLost(Exception):  # noqa: N818
    """Raised if the other end is gone, unauthenticated, or violates the protocol."""


class HostSilent(LinkLost):
    """Raised if nothing answers at an address, not even to refuse: its machine is gone, or the network is split."""


_SIZE = struct.Struct("!I")
_PROOF_BYTES = 32


class Link:
    """One end of a connection: messages as frames of size, proof and text."""

    def __init__(self, connected: socket.socket, key: bytes, *, leads: bool, introduce_s: float = INTRODUCE_S) -> None:
        """Let both ends prove within `introduce_s` that they know the key; raises `LinkLost`.

        Session keys are derived from nonces of both ends, so recorded messages cannot be replayed.
        """
        self._socket = connected
        self._arrived = bytearray()
        self._num_sent = self._num_received = 0
        self._sending = threading.Lock()  # the server's thread sends `alive` between the messages
        own_nonce = secrets.token_bytes(_PROOF_BYTES)
        deadline_s = time.monotonic() + introduce_s
        try:
            connected.settimeout(introduce_s)
            connected.sendall(own_nonce)
            peer_nonce = self._first_bytes(_PROOF_BYTES)
            nonces = own_nonce + peer_nonce if leads else peer_nonce + own_nonce
            self._sends, self._receives = (
                hmac.digest(key, nonces + end, "sha256")
                for end in ((b"lead", b"node") if leads else (b"node", b"lead"))
            )
            self._put(b"")
            connected.settimeout(max(0.1, deadline_s - time.monotonic()))
            self._arrived += self._first_bytes(_SIZE.size + _PROOF_BYTES)
            if self._frame() is None:
                raise LinkLost("the first frame was incomplete")
            connected.settimeout(SEND_S)
        except (OSError, LinkLost) as error:
            connected.close()
            raise LinkLost(str(error)) from error

    def send(self, message: Message) -> None:
        """Send a message; raises `LinkLost`."""
        try:
            self._put(message.model_dump_json().encode())
        except OSError as error:
            raise LinkLost(str(error)) from error

    def send_alive(self) -> None:
        """Send `alive`, unless the other end does not read or another message is being sent; raises `LinkLost`."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            writable = select.poll()
            writable.register(self._socket, select.POLLOUT)
            if writable.poll(0):
                self._put_locked(Notice(type="alive").model_dump_json().encode())
        except (OSError, ValueError) as error:  # `ValueError`: the socket was closed
            raise LinkLost(str(error)) from error
        finally:
            self._sending.release()

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message, or None if no whole one arrives in time; raises `LinkLost`."""
        try:
            data = self._frame()
            if data is None and self._listen(timeout_s):
                data = self._frame()
            return None if data is None else _MESSAGE.validate_json(data)
        except OSError as error:
            raise LinkLost(str(error)) from error
        except ValueError as error:
            raise LinkLost(f"it sent an invalid message: {str(error).splitlines()[0]}") from error

    def first(self, timeout_s: float) -> Message | None:
        """Return the first message; None if the other end disconnects or sends nothing for `timeout_s`."""
        try:
            while (message := self.receive(0.0)) is None and self._listen(timeout_s):
                pass
        except (LinkLost, OSError):
            return None
        return message

    def close(self) -> None:
        self._socket.close()

    __del__ = close  # the other end must notice when this one drops the link

    def _put(self, data: bytes) -> None:
        with self._sending:
            self._put_locked(data)

    def _put_locked(self, data: bytes) -> None:
        proof = _proof(self._sends, self._num_sent, data)
        self._num_sent += 1
        self._socket.sendall(_SIZE.pack(len(data)) + proof + data)

    def _frame(self) -> bytes | None:
        """Return the payload of the next frame, or None if it is incomplete."""
        if len(self._arrived) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._arrived)
        if size > MAX_MESSAGE_BYTES:
            raise LinkLost(f"it announced a message of {size} bytes")
        begin = _SIZE.size + _PROOF_BYTES
        if len(self._arrived) < begin + size:
            return None
        proof, data = bytes(self._arrived[_SIZE.size : begin]), bytes(self._arrived[begin : begin + size])
        del self._arrived[: begin + size]
        if not hmac.compare_digest(proof, _proof(self._receives, self._num_received, data)):
            raise LinkLost("it does not know the key of this run (digest of a message)")
        self._num_received += 1
        return data

    def _listen(self, timeout_s: float) -> bool:
        """Read what arrives within the timeout; return whether anything did."""
        if not wait([self._socket], timeout_s):
            return False
        self._arrived += self._first_bytes(1 << 20, whole=False)
        return True

    def _first_bytes(self, count: int, *, whole: bool = True) -> bytes:
        data = b""
        while len(data) < count and (whole or not data):
            block = self._socket.recv(count - len(data))
            if not block:
                raise LinkLost("closed")
            data += block
        return data


def _proof(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + data, "sha256")


def accept_link(accepted: socket.socket, key: bytes) -> Link | None:
    """Return the leader's end of a connection; None if the other end did not prove that it knows the key."""
    try:
        return Link(_with_keepalive(accepted), key, leads=True)
    except (LinkLost, OSError):
        return None


def connect_link(host: str, port: int, key: bytes, *, timeout_s: float) -> Link:
    """Return a follower's end of a connection; raises `LinkLost` if no leader of the run answers there in time.

    Raises `HostSilent` if nothing does.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        connected = _with_keepalive(socket.create_connection((host, port), timeout=timeout_s))
    except ConnectionRefusedError as error:
        raise LinkLost(str(error)) from error
    except (OSError, UnicodeError) as error:  # `UnicodeError`: not a host name
        raise HostSilent(str(error)) from error
    return Link(connected, key, leads=False, introduce_s=max(0.1, deadline_s - time.monotonic()))


def link_key(run_dir: Path, *, fresh: bool = False) -> bytes:
    """Return the secret that a run's nodes share. The first caller creates it, readable by its owner only.

    `fresh`: replace an existing key, because a key that was copied with the folder may be known to others.
    """
    path = run_dir / KEY_FILE
    try:
        if fresh or not path.exists():
            _write_key(path, replaces=fresh)
        key = path.read_bytes()
    except OSError as error:
        kind = ConfigError if isinstance(error, PermissionError) else StoreError
        raise kind(
            f"{path}: the key of the run's nodes cannot be read or written: {error.strerror}. All nodes run as the "
            "user who started the run, and see its folder."
        ) from error
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path}: the key of the run's nodes is damaged. Stop all nodes of the run, and remove it.")
    return key


def _write_key(path: Path, *, replaces: bool) -> None:
    draft = path.with_name(f".{KEY_FILE}-{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(KEY_BYTES // 2))
    if replaces:
        draft.replace(path)
        return
    try:
        os.link(draft, path)  # like a rename, but the first one wins
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _with_keepalive(connected: socket.socket) -> socket.socket:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_S * 1000)
    for name, value in KEEPALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connected

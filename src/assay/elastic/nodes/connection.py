"""The line between the supervisors of a run's nodes: small JSON messages over one TCP connection per follower.

    follower                         lead (node 0)
       | -- Hello(node) ---------------> |
       | <-- Start(orders, ranks, ...)   |   fork that share of the ranks
       | -- Beats(...) ----------------> |   their signs of life, about once a second
       | <-- Signal(15) ---------------- |   pass it on to them
       | -- Ended(outcome, failure) ---> |   how they ended
       | <-- Stop ---------------------- |   make sure that none is left
       | -- Stopped -------------------> |
       | -- Leave ---------------------> |   this node was asked to stop: commit, and go on without it
       | <-- Dismiss ------------------- |   so it may leave
       | <-- Bye ----------------------- |   no more attempts

and where the lead leaves and another node leads on (see `handover`): Lead, Leads, Follow.

A connection rather than files in the run's folder: its end tells that a node is gone, and a network file
system may show a new file half a minute late. Every message carries a proof that its sender can read the run's
folder (a key in it, readable by its owner only) and that it is the next one; none is code. Whatever else comes,
in whatever pieces, ends the link, and with it at most the run: nobody waits for the rest of a message.
"""

import hmac
import os
import secrets
import signal
import socket
import struct
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter

from assay.base.clock import Clock
from assay.base.errors import TrainingError
from assay.elastic.task import AttemptEnd, Orders
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor
from assay.records.rank_device import RankDevice
from assay.store.heartbeat import Beat

KEY_FILE = "link.key"
RETRY_S = 0.2
INTRODUCE_S = 10.0
"""How long the other end may take to prove that it knows the key."""
SEND_S = 60.0
"""How long it may take to make room for a message."""
MAX_MESSAGE_BYTES = 16 << 20
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A node that lost its power is noticed after 10 + 3 * 5 seconds."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hello(_Message):
    """A follower is there."""

    type: Literal["hello"] = "hello"
    node: PositiveInt | None
    """Its number in the allocation; None of one that is lent to the run."""
    host: str
    """Name of its machine."""
    processor: Processor
    code_version: str
    """The version of assay that it has."""
    environment: NodeEnvironment


class Start(_Message):
    """Start a share of an attempt's ranks."""

    type: Literal["start"] = "start"
    orders: Orders
    first_rank: NonNegativeInt
    num_ranks: PositiveInt
    rendezvous: str


class Beats(_Message):
    """Signs of life of a follower's ranks, in order. `at_s` is how long ago: clocks of machines differ."""

    type: Literal["beats"] = "beats"
    beats: tuple[Beat | None, ...]
    """None before the first sign."""
    devices: tuple[RankDevice, ...]
    """What each computes on, as far as it has said."""


class TakeStacks(_Message):
    """Have all ranks write their stacks."""

    type: Literal["take_stacks"] = "take_stacks"
    rank: NonNegativeInt
    """Whose process state is asked for."""


class ProcessState(_Message):
    """What the kernel says of it; empty on the nodes that do not have it."""

    type: Literal["process_state"] = "process_state"
    state: str


class Signal(_Message):
    """Send a signal to every rank that runs."""

    type: Literal["signal"] = "signal"
    number: Annotated[PositiveInt, Field(lt=signal.NSIG)]


class Stop(_Message):
    """Make sure that no rank is left."""

    type: Literal["stop"] = "stop"


class Leave(_Message):
    """The follower was asked to stop, and it alone as far as it knows."""

    type: Literal["leave"] = "leave"


class Dismiss(_Message):
    """The follower may leave, and the others go on."""

    type: Literal["dismiss"] = "dismiss"
    refused: str = ""
    """Why it cannot be taken in, where it was not."""


class BecomeLeader(_Message):
    """Open a door of your own: this lead leaves."""

    type: Literal["become_leader"] = "become_leader"
    host: str
    """As others reach the node that is told so."""
    others: tuple[PositiveInt, ...]
    """Numbers of the nodes of the allocation that will come."""
    num_lent: NonNegativeInt
    """Other nodes that will."""


class LeaderReady(_Message):
    """It is open."""

    type: Literal["leader_ready"] = "leader_ready"
    port: PositiveInt


class Follow(_Message):
    """Go there: that node leads from now on. Said to itself, too."""

    type: Literal["follow"] = "follow"
    host: str
    port: PositiveInt


class Finished(_Message):
    """There will be no more attempts."""

    type: Literal["finished"] = "finished"


class Ended(_Message):
    """How a follower's ranks ended."""

    type: Literal["ended"] = "ended"
    end: AttemptEnd


class Stopped(_Message):
    """No rank of the follower is left."""

    type: Literal["stopped"] = "stopped"


Message = (
    Hello
    | Start
    | Beats
    | TakeStacks
    | ProcessState
    | Signal
    | Stop
    | Leave
    | Dismiss
    | BecomeLeader
    | LeaderReady
    | Follow
    | Finished
    | Ended
    | Stopped
)
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


class LinkLost(Exception):  # noqa: N818
    """The other end is gone, or is nobody to talk to."""


_SIZE = struct.Struct("!I")
_PROOF_BYTES = 32


class Link:
    """One end of a connection: messages as frames of size, proof and text."""

    def __init__(self, connected: socket.socket, key: bytes, *, leads: bool) -> None:
        """Have both ends prove that they know the key; raises `LinkLost`.

        The proofs of one connection are worth nothing on another: they rest on what both ends drew for it.
        """
        self._socket = connected
        self._arrived = bytearray()
        self._num_sent = self._num_received = 0
        own_nonce = secrets.token_bytes(_PROOF_BYTES)
        try:
            connected.settimeout(INTRODUCE_S)
            connected.sendall(own_nonce)
            peer_nonce = self._first_bytes(_PROOF_BYTES)
            nonces = own_nonce + peer_nonce if leads else peer_nonce + own_nonce
            self._sends, self._receives = (
                hmac.digest(key, nonces + end, "sha256")
                for end in ((b"lead", b"node") if leads else (b"node", b"lead"))
            )
            self._put(b"")
            self._arrived += self._first_bytes(_SIZE.size + _PROOF_BYTES)
            if self._frame() is None:
                raise LinkLost("it did not introduce itself")
            connected.settimeout(SEND_S)
        except (OSError, LinkLost) as error:
            connected.close()
            raise LinkLost(str(error)) from error

    def send(self, message: Message) -> None:
        """Pass a message on; raises `LinkLost`."""
        try:
            self._put(message.model_dump_json().encode())
        except OSError as error:
            raise LinkLost(str(error)) from error

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, or None if none is there whole in time; raises `LinkLost`."""
        try:
            data = self._frame()
            if data is None and self._listen(timeout_s):
                data = self._frame()
            return None if data is None else _MESSAGE.validate_json(data)
        except OSError as error:
            raise LinkLost(str(error)) from error
        except ValueError as error:
            raise LinkLost(f"it said what is no message: {str(error).splitlines()[0]}") from error

    def first(self, timeout_s: float) -> Message | None:
        """The first message; None also where the other end went away or fell silent instead."""
        try:
            while (message := self.receive(0.0)) is None and self._listen(timeout_s):
                pass
        except (LinkLost, OSError):
            return None
        return message

    @property
    def peer_host(self) -> str:
        """The other end's address; raises `LinkLost`."""
        try:
            address: str = self._socket.getpeername()[0]
        except OSError as error:
            raise LinkLost(str(error)) from error
        return address

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()

    __del__ = close  # a link that nobody holds is over

    def _put(self, data: bytes) -> None:
        proof = _proof(self._sends, self._num_sent, data)
        self._num_sent += 1
        self._socket.sendall(_SIZE.pack(len(data)) + proof + data)

    def _frame(self) -> bytes | None:
        """The text of the next frame, if it is there whole."""
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
        """Take what is there, or comes in time; False where nothing came."""
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
    """The lead's end, once the other has proved that it knows the key; None if it could not."""
    try:
        return Link(_with_keepalive(accepted), key, leads=True)
    except (LinkLost, OSError):
        return None


def connect_link(host: str, port: int, key: bytes, clock: Clock, *, timeout_s: float) -> Link:
    """A follower's end; tries until the lead listens."""
    deadline_s = clock.monotonic_s() + timeout_s
    while True:
        try:
            return Link(_with_keepalive(socket.create_connection((host, port), timeout=timeout_s)), key, leads=False)
        except (LinkLost, OSError) as error:
            if clock.monotonic_s() > deadline_s:
                raise TrainingError(
                    f"{host}:{port}: node 0 did not answer within {timeout_s:.0f} s ({error}). Does its "
                    "supervisor run, do both see the same run folder, does the network let the port through?"
                ) from error
            clock.sleep_s(RETRY_S)


def link_key(run_dir: Path, *, anew: bool = False) -> bytes:
    """The secret that a run's nodes share; made by whoever asks first, readable by its owner only.

    `anew`: whatever is there may have come with the folder, and then somebody else knows it.
    """
    path = run_dir / KEY_FILE
    if anew:
        path.unlink(missing_ok=True)
    if not path.exists():
        draft = run_dir / f".{KEY_FILE}-{secrets.token_hex(8)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        try:
            os.link(draft, path)  # like a rename, but the first one wins
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_bytes()


def _with_keepalive(connected: socket.socket) -> socket.socket:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connected

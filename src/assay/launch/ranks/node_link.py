"""The line between the supervisors of a run's nodes: small JSON messages over one TCP connection per follower.

    follower                         lead (node 0)
       | -- Hello(node) ---------------> |
       | <-- Start(orders, ranks, ...)   |   fork that share of the ranks
       | -- Beats(...) ----------------> |   their signs of life, about once a second
       | <-- Signal(15) ---------------- |   pass it on to them
       | -- Ended(outcome, failure) ---> |   how they ended
       | <-- Stop ---------------------- |   make sure that none is left
       | -- Stopped -------------------> |
       | <-- Bye ----------------------- |   no more attempts

A connection rather than files in the run's folder: its end tells that a node is gone, and a network file
system may show a new file half a minute late. Both ends prove that they can read the run's folder (a key in
it, readable by its owner only) before a message is believed, and no message is code.
"""

import os
import secrets
import socket
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter

from assay.base.clock import Clock
from assay.base.errors import TrainingError
from assay.launch.ranks.task import AttemptEnd, Orders
from assay.store.heartbeat import Beat

KEY_FILE = "link.key"
RETRY_S = 0.2
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A node that lost its power is noticed after 10 + 3 * 5 seconds."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hello(_Message):
    """A follower is there."""

    type: Literal["hello"] = "hello"
    node: PositiveInt
    host: str
    """Name of its machine."""


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
    devices: tuple[str, ...]
    """Empty for a rank that has not said yet."""


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
    number: PositiveInt


class Stop(_Message):
    """Make sure that no rank is left."""

    type: Literal["stop"] = "stop"


class Bye(_Message):
    """There will be no more attempts."""

    type: Literal["bye"] = "bye"


class Ended(_Message):
    """How a follower's ranks ended."""

    type: Literal["ended"] = "ended"
    end: AttemptEnd


class Stopped(_Message):
    """No rank of the follower is left."""

    type: Literal["stopped"] = "stopped"


Message = Hello | Start | Beats | TakeStacks | ProcessState | Signal | Stop | Bye | Ended | Stopped
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


class LinkLost(Exception):  # noqa: N818
    """The other end is gone."""


class Link:
    """One end of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: Message) -> None:
        """Pass a message on; raises `LinkLost`."""
        try:
            self._connection.send_bytes(message.model_dump_json().encode())
        except OSError as error:
            raise LinkLost(str(error)) from error

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, or None if none came in time; raises `LinkLost`."""
        try:
            if not self._connection.poll(timeout_s):
                return None
            return _MESSAGE.validate_json(self._connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise LinkLost(str(error) or "closed") from error

    def first(self, timeout_s: float) -> Message | None:
        """The first message; None also where the other end went away instead."""
        try:
            return self.receive(timeout_s)
        except LinkLost:
            return None

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def accept_link(accepted: socket.socket, key: bytes) -> Link | None:
    """The lead's end, once the other has proved that it knows the key; None if it could not."""
    try:
        return _introduced(accepted, key, deliver_challenge, answer_challenge)
    except (AuthenticationError, OSError, EOFError):
        return None


def connect_link(host: str, port: int, key: bytes, clock: Clock, *, timeout_s: float) -> Link:
    """A follower's end; tries until the lead listens."""
    deadline_s = clock.monotonic_s() + timeout_s
    while True:
        try:
            connected = socket.create_connection((host, port), timeout=timeout_s)
            return _introduced(connected, key, answer_challenge, deliver_challenge)
        except (AuthenticationError, OSError, EOFError) as error:
            if clock.monotonic_s() > deadline_s:
                raise TrainingError(
                    f"{host}:{port}: node 0 did not answer within {timeout_s:.0f} s ({error}). Does its "
                    "supervisor run, do both see the same run folder, does the network let the port through?"
                ) from error
            clock.sleep_s(RETRY_S)


def link_key(run_dir: Path) -> bytes:
    """The secret that a run's nodes share; made by whoever asks first, readable by its owner only."""
    path = run_dir / KEY_FILE
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


def _introduced(connected: socket.socket, key: bytes, *steps: Callable[[Connection, bytes], None]) -> Link:
    """Each end proves in its turn that it knows the key."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection = Connection(connected.detach())
    try:
        for step in steps:
            step(connection, key)
    except BaseException:
        connection.close()
        raise
    return Link(connection)

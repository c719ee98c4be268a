"""Time and count limits for the server's connections.

    head       HEAD_S from its first byte, or from the connection's start
    body       MIN_BYTES_S, averaged over windows of WINDOW_S in which the server reads
    response   likewise, over windows in which there is data for the client to read

Uvicorn limits only idle connections. Here each connection is checked once a second. At the connection limit, the
longest idle connection is closed for a new one, first from the address with most of them, so clients that connect and
send nothing cannot lock others out.
"""

import asyncio
import json
import logging
import math
import resource
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.serving.api_error import ApiError
from assay.serving.http.log_limit import LimitedLogHandler

HEAD_S = 10.0
WINDOW_S = 20.0
MIN_BYTES_S = 512
LINGER_S = 5.0
"""How long the rest of an unwanted body is read."""
MAX_CONNECTIONS = 4096
RESERVED_FILES = 256
"""File descriptors for the store, graders and engines, and for connections that are not counted yet."""
ACCEPTED_AT_ONCE = 64
_LISTENING = 1024
"""Connections that the kernel queues until they are accepted."""
_PEER_LEFT = (7, 8)
"""TCP_CLOSE and TCP_CLOSE_WAIT of `tcp_info`."""
_log = logging.getLogger("assay.serving")


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**20


def max_connections(file_limit: int) -> int:
    """Return the connection limit; each connection may also need an open file."""
    return max(16, min(MAX_CONNECTIONS, (file_limit - RESERVED_FILES) // 2))


class ConnectionTable:
    """Connections of a server by address."""

    def __init__(self, most: int) -> None:
        """Allow `most` connections, and half as many per address."""
        self._most = most
        self._open: defaultdict[str, set[TimedProtocol]] = defaultdict(set)
        self._idle: defaultdict[str, dict[TimedProtocol, None]] = defaultdict(dict)
        """Connections without a complete request, oldest first."""

    def admit(self, connection: "TimedProtocol") -> bool:
        """Count a new connection, closing an idle one if necessary. Return False if there is none to close."""
        address = connection.address
        is_crowded = len(self._open[address]) >= max(1, self._most // 2)
        if is_crowded or sum(map(len, self._open.values())) >= self._most:
            idle = self._idle[address] if is_crowded else max(self._idle.values(), key=len)
            if not idle:
                return False
            _log.warning("too many connections: closing the one that was idle longest")
            victim = next(iter(idle))
            self.leave(victim)
            victim.abort()
        self._open[address].add(connection)
        self._idle[address][connection] = None
        return True

    def note(self, connection: "TimedProtocol", *, is_idle: bool) -> None:
        """Record whether a connection is idle."""
        if not is_idle:
            self._idle[connection.address].pop(connection, None)
        elif connection in self._open[connection.address]:
            self._idle[connection.address].setdefault(connection, None)

    def leave(self, connection: "TimedProtocol") -> None:
        """Remove a connection; no-op if it was not admitted."""
        address = connection.address
        self._open[address].discard(connection)
        self._idle[address].pop(connection, None)
        if not self._open[address]:
            del self._open[address], self._idle[address]


class _TcpInfo(NamedTuple):
    """Kernel counters of a connection, because sent bytes may sit in kernel buffers for long."""

    has_peer_left: bool
    num_acked: float
    num_received: float

    @classmethod
    def of(cls, connection: socket.socket) -> Self:
        """Read the counters. On other systems than Linux they are NaN, so no client counts as slow."""
        if sys.platform != "linux":
            return cls(has_peer_left=False, num_acked=math.nan, num_received=math.nan)
        found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        return cls(found[0] in _PEER_LEFT, *struct.unpack_from("=QQ", found, 120))


class _TransferRate:
    """Checks that one direction of a connection keeps `MIN_BYTES_S`."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._bytes_then = 0.0

    def is_too_slow(self, now_s: float, num_bytes: float, *, is_expected: bool) -> bool:
        """`num_bytes`: total so far. `is_expected`: whether it is the client's turn to send or to read."""
        if not is_expected or self._since_s is None:
            self._since_s, self._bytes_then = now_s if is_expected else None, num_bytes
            return False
        if now_s - self._since_s < WINDOW_S:
            return False
        is_slow = num_bytes - self._bytes_then < WINDOW_S * MIN_BYTES_S
        self._since_s, self._bytes_then = now_s, num_bytes
        return is_slow


class TimedProtocol(H11Protocol):
    """A connection that is checked once a second."""

    def __init__(self, *args: Any, table: ConnectionTable, **named: Any) -> None:
        super().__init__(*args, **named)
        self.address = ""
        self._table = table
        self._reading, self._writing = _TransferRate(), _TransferRate()
        self._head_since_s: float | None = self.loop.time()
        """None while a request is processed, and until the next one starts."""
        self._response_done_s = 0.0

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.address = "" if self.client is None else self.client[0]
        if not self._table.admit(self):
            _log.warning("too many concurrent requests: closing a new connection from %s", self.address)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._table.leave(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_answering and self._head_since_s is None:
            self._head_since_s = self.loop.time()
        super().data_received(data)
        self._note_state()

    def on_response_complete(self) -> None:
        self._head_since_s, self._response_done_s = None, self.loop.time()
        super().on_response_complete()
        self._note_state()

    def send_400_response(self, msg: str) -> None:
        self.refuse(ApiError(msg, code="invalid_http"))

    def abort(self) -> None:
        """Close at once, dropping unsent data."""
        self.transport.abort()

    def refuse(self, error: ApiError) -> None:
        """Send an error outside of any route and close."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        body = json.dumps(error.envelope()).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        response = h11.Response(status_code=error.status, headers=headers)
        try:
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # a response was started already
            self.abort()
        self.transport.close()

    def check(self, now_s: float) -> None:
        """Close the connection if its client is too slow or gone."""
        kernel = _TcpInfo.of(self.transport.get_extra_info("socket"))
        is_writing = self.transport.get_write_buffer_size() > 0
        if self._writing.is_too_slow(now_s, kernel.num_acked, is_expected=is_writing):
            _log.warning("closing a connection: the client read less than %d bytes per second", MIN_BYTES_S)
            self.abort()
            return
        has_body_left = self.conn.their_state is h11.SEND_BODY
        if self._is_answering:
            is_expected = has_body_left and not self.flow.read_paused
            if self._reading.is_too_slow(now_s, kernel.num_received, is_expected=is_expected):
                self._time_out(f"The body arrived at less than {MIN_BYTES_S} bytes per second.")
            elif kernel.has_peer_left:  # asyncio does not notice while unread data is buffered
                self.abort()
        elif has_body_left:
            if now_s - self._response_done_s > LINGER_S:
                self.abort()
        elif self._head_since_s is not None and now_s - self._head_since_s > HEAD_S:
            self._time_out(f"The request's head was not complete within {HEAD_S:g} s.")

    def _time_out(self, message: str) -> None:
        _log.warning("closing a connection: %s", message)
        self.refuse(ApiError(f"{message} Send it again.", status=408, code="request_timeout"))

    def _note_state(self) -> None:
        if self._is_answering:
            self._head_since_s = None
        self._table.note(self, is_idle=not self._is_answering)


class TimedServer(uvicorn.Server):
    """Uvicorn with time limits for clients."""

    def __init__(self, app: Any, log: LimitedLogHandler, on_stop: Callable[[], None] = lambda: None) -> None:
        """`on_stop` is called when the server begins to stop: it ends responses that would go on for ever."""
        table = ConnectionTable(max_connections(raise_file_limit()))
        config = uvicorn.Config(
            app,
            http=partial(TimedProtocol, table=table),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=ACCEPTED_AT_ONCE,
            callback_notify=self._check_connections,
            timeout_notify=0,
        )
        super().__init__(config)
        self._log = log
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_LISTENING)  # asyncio's backlog also sets how many it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)

    async def _check_connections(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for connection in [*self.server_state.connections]:
            assert isinstance(connection, TimedProtocol)
            try:
                connection.check(now_s)
            except Exception as error:  # the other connections must still be checked
                _log.error("closing a connection that could not be checked", exc_info=error)
                connection.abort()
        self._log.write_counts()

"""Wires between real processes and real servers, that fail as a plan says: to an HTTP server, such as an S3
endpoint or ours, and to PostgreSQL.

    refused    nothing listens, and what was connected is cut
    hang       nobody answers; at the end of it the connections are cut
    error      the server is overloaded (S3 says 503; a database cuts the connection before it acts)
    lost       it happens, but the connection is cut before the answer
    late       the connection is cut at once; it happens after the next request      HTTP only
    twice      it happens twice; the second answer is the one that comes             HTTP only
    truncated  half of the answer comes, then the connection is cut
    slow       the answer takes a while
    throttled  bytes come at a hundredth of the usual speed                          HTTP only
    torn       half of the request's body comes, then both connections are cut       HTTP only
    left       all of the request comes, then both are cut: nobody waits             HTTP only
    closed     the whole answer comes, then the connection is cut                    HTTP only

A strike has the number of the request (to a database: of the message) at which it begins, and seconds in which
every further one fares the same; none means that only this one does.
"""

import http.client
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler
from math import inf
from typing import Literal, NamedTuple, Self

Trouble = Literal[
    "refused", "hang", "error", "lost", "late", "twice", "truncated", "slow", "throttled",
    "torn", "left", "closed",
]  # fmt: skip
OUTAGES: tuple[Trouble, ...] = ("refused", "hang", "error", "throttled")
LIES: tuple[Trouble, ...] = ("lost", "late", "twice", "truncated", "slow")
CUTS: tuple[Trouble, ...] = ("torn", "left", "lost", "truncated", "closed")
"""From the earliest to the latest at which a request and its answer can be cut."""
OF_DATABASE: tuple[Trouble, ...] = ("refused", "hang", "error", "lost", "truncated", "slow")
SLOW_S = 1.0
THROTTLED_BYTES_PER_S = 100e3
_BLOCK = 1 << 18


class Strike(NamedTuple):
    """One trouble: when it begins, and for how long."""

    at: int
    trouble: Trouble
    lasts_s: float = 0.0


def random_strikes(rng: random.Random, troubles: Sequence[Trouble], *, within: int) -> list[Strike]:
    """One to three; what can last does so for up to 4 s."""
    drawn = [rng.choice(troubles) for _ in range(rng.randint(1, 3))]
    return [
        Strike(rng.randrange(within), trouble, rng.uniform(0.3, 4.0) if trouble in OUTAGES else 0.0)
        for trouble in drawn
    ]


class Line:
    """What bytes share: each waits for its turn."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0

    def carry(self, num_bytes: int) -> None:
        """Return when so many bytes are through."""
        with self._lock:
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s) + num_bytes / self.bytes_per_s
            wait_s = self._free_s - now_s
        time.sleep(wait_s)


class Wire:
    """Listens on a port of its own, and strikes as planned; `_serve` is what else it does with a connection."""

    def __init__(self, strikes: Iterable[Strike] = ()) -> None:
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        self._outage: tuple[Trouble, float] | None = None
        self.strike(strikes)
        self._listener = _bound(0)
        self.port: int = self._listener.getsockname()[1]
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.heal()
        self._is_closed = True
        self._cut_all()

    def strike(self, strikes: Iterable[Strike]) -> None:
        """From now on, by this plan: the next request is number 0."""
        with self._lock:
            self._strikes = {item.at: item for item in strikes}
            self.num_requests = 0

    def heal(self) -> None:
        """Nothing is wrong any more."""
        with self._lock:
            self._strikes, self._outage = {}, None

    def trouble_now(self) -> Trouble | None:
        """How the outage that lasts goes, if any."""
        outage = self._outage
        return outage[0] if outage is not None and time.monotonic() < outage[1] else None

    def next_trouble(self) -> Trouble | None:
        """Of one more request."""
        with self._lock:
            strike = self._strikes.get(self.num_requests)
            self.num_requests += 1
            if strike is None:
                return self.trouble_now()
            if strike.lasts_s:
                self._outage = strike.trouble, time.monotonic() + strike.lasts_s
        if strike.trouble == "refused":
            self._cut_all()
        return strike.trouble

    def wait_out(self) -> None:
        """Until the outage is over."""
        while self.trouble_now() is not None:
            time.sleep(0.05)

    def _accept(self) -> None:
        while not self._is_closed:
            if self.trouble_now() == "refused":
                self._listener.close()
                self._listener = _bound(self.port)  # bound and not listening: refused, and the port stays ours
                self.wait_out()
                self._listener.listen(64)
            with suppress(TimeoutError):
                connection, _ = self._listener.accept()
                connection.settimeout(None)
                threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
        self._listener.close()

    def _attend(self, connection: socket.socket) -> None:
        self._connections.add(connection)
        try:
            with connection, suppress(OSError):
                self._serve(connection)
        finally:
            self._connections.discard(connection)

    def _serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def _cut_all(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.settimeout(0.05)
    return listener


class _Response(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    data: bytes


class HttpWire(Wire):
    """To an HTTP server, request by request."""

    def __init__(self, server: str, strikes: Iterable[Strike] = (), *, bytes_per_s: float = inf) -> None:
        """`server`: its URL. `bytes_per_s`: of all connections together, there and back."""
        self._server = server.removeprefix("http://")
        self._line = Line(bytes_per_s)
        self._throttled = Line(THROTTLED_BYTES_PER_S)
        self._late: list[Callable[[], object]] = []
        super().__init__(strikes)
        self.url = f"http://127.0.0.1:{self.port}"

    def carry(self, num_bytes: int) -> None:
        """Return when the line has carried so many bytes."""
        (self._throttled if self.trouble_now() == "throttled" else self._line).carry(num_bytes)

    def trouble_of(self, headers: "Message[str, str]") -> Trouble | None:
        """Of a request that has come."""
        return self.next_trouble()

    def forward(self, method: str, path: str, headers: "Message[str, str]", body: bytes) -> _Response:
        """The server's own answer."""
        with self._sent(method, path, headers, body) as connection:
            response = connection.getresponse()
            return _Response(response.status, response.getheaders(), response.read())

    def leave(self, method: str, path: str, headers: "Message[str, str]", body: bytes) -> None:
        """Send a request, or the beginning of its body, and be gone."""
        with self._sent(method, path, headers, body):
            pass

    @contextmanager
    def _sent(
        self, method: str, path: str, headers: "Message[str, str]", body: bytes
    ) -> Iterator[http.client.HTTPConnection]:
        with closing(http.client.HTTPConnection(self._server, timeout=300)) as connection:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            yield connection

    def take_late(self) -> list[Callable[[], object]]:
        """What was to happen after the next request."""
        late, self._late = self._late, []
        return late

    def put_late(self, call: Callable[[], object]) -> None:
        """Let it happen after the next request."""
        self._late.append(call)

    def _serve(self, connection: socket.socket) -> None:
        _Exchange(connection, ("127.0.0.1", 0), self)  # type: ignore[arg-type]


class _Exchange(BaseHTTPRequestHandler):
    """One client's requests, one after the other."""

    protocol_version = "HTTP/1.1"
    server: HttpWire  # type: ignore[assignment]

    def _pass_on(self) -> None:
        body = self._read(int(self.headers.get("Content-Length", 0)))
        trouble, late = self.server.trouble_of(self.headers), self.server.take_late()
        request = (self.command, self.path, self.headers)
        try:
            if trouble in ("torn", "left"):
                self.close_connection = True
                self.server.leave(*request, body[: len(body) // 2] if trouble == "torn" else body)
            else:
                self._in_trouble(trouble, lambda: self.server.forward(*request, body))
        finally:
            for item in late:
                item()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

    def _in_trouble(self, trouble: Trouble | None, call: Callable[[], _Response]) -> None:
        self.close_connection = trouble in ("refused", "hang", "lost", "late", "truncated", "closed")
        if trouble == "refused":
            return
        if trouble == "hang":
            self.server.wait_out()
            return
        if trouble == "late":
            self.server.put_late(call)
            return
        if trouble == "error":
            self._send_response(_Response(503, [("Content-Type", "text/plain")], b"SlowDown"))
            return
        if trouble == "slow":
            time.sleep(SLOW_S)
        if trouble == "twice":
            call()
        response = call()
        if trouble == "truncated":
            self._send_response(response, num_bytes=len(response.data) // 2)
        elif trouble != "lost":
            self._send_response(response)

    def _send_response(self, reply: _Response, num_bytes: int | None = None) -> None:
        """Or its first `num_bytes`."""
        data = reply.data if num_bytes is None else reply.data[:num_bytes]
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        events = {name.lower(): value for name, value in reply.headers}.get("content-length", "0")
        self.send_header("Content-Length", events if self.command == "HEAD" else str(len(reply.data)))
        self.end_headers()
        for begin in range(0, len(data), _BLOCK):
            block = data[begin : begin + _BLOCK]
            self.server.carry(len(block))
            self.wfile.write(block)

    def _read(self, num_bytes: int) -> bytes:
        body = bytearray()
        while len(body) < num_bytes:
            block = self.rfile.read(min(_BLOCK, num_bytes - len(body)))
            if not block:
                raise ConnectionResetError
            self.server.carry(len(block))
            body += block
        return bytes(body)

    def log_message(self, format: str, *values: object) -> None: ...


class DatabaseWire(Wire):
    """To a server on a Unix socket, message by message."""

    def __init__(self, path: str, strikes: Iterable[Strike] = ()) -> None:
        self._path = path
        super().__init__(strikes)

    def _serve(self, connection: socket.socket) -> None:
        responses: list[Trouble | None] = [None]
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(self._path)
            back = threading.Thread(target=self._carry_back, args=(server, connection, responses), daemon=True)
            back.start()
            try:
                self._carry_forth(connection, server, responses)
            finally:  # also where the client was killed: its transaction must not outlive it
                for item in (connection, server):
                    with suppress(OSError):
                        item.shutdown(socket.SHUT_RDWR)
                back.join()

    def _carry_forth(
        self, connection: socket.socket, server: socket.socket, current_trouble: list[Trouble | None]
    ) -> None:
        while message := connection.recv(_BLOCK):
            trouble = self.next_trouble()
            current_trouble[0] = trouble
            if trouble == "hang":
                self.wait_out()
            if trouble in ("refused", "error", "hang"):
                break
            if trouble == "slow":
                time.sleep(SLOW_S)
            server.sendall(message)

    def _carry_back(
        self, server: socket.socket, connection: socket.socket, current_trouble: list[Trouble | None]
    ) -> None:
        with suppress(OSError):
            while response := server.recv(_BLOCK):
                if self.trouble_now() == "hang":
                    self.wait_out()
                if current_trouble[0] == "truncated":
                    connection.sendall(response[: len(response) // 2])
                if current_trouble[0] in ("truncated", "lost"):
                    break
                connection.sendall(response)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

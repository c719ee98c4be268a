"""Real connections to a real server with short time limits; the application is a few lines."""

import json
import logging
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from assay.serving.http import connections
from assay.serving.http.connections import TimedServer, max_connections, raise_file_limit
from assay.serving.http.log_limit import LimitedLogHandler

MOST = 24
HEAD = b"POST /%s HTTP/1.1\r\nHost: h\r\n"


class Echo:
    """Reads a body and says how long it was; `/hold` holds on until its client hangs up; `/large` says much."""

    def __init__(self) -> None:
        self.num_holding = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/unread":
            await self.response(send, b"no")
            return
        length = 0
        while True:
            message = await receive()
            length += len(message.get("body", b""))
            if message["type"] == "http.disconnect":
                return
            if not message["more_body"]:
                break
        if scope["path"] == "/hold":
            self.num_holding += 1
            while (await receive())["type"] != "http.disconnect":
                pass
            self.num_holding -= 1
            return
        await self.response(send, b"x" * (32 << 20) if scope["path"] == "/large" else b"%d" % length)

    async def response(self, send, body: bytes) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Served:
    """A server in a thread."""

    def __init__(self) -> None:
        self.app = Echo()
        self.server = TimedServer(self.app, LimitedLogHandler())
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        self.clients: list[socket.socket] = []

    def connect(self, first: bytes = b"", **options: int) -> socket.socket:
        found = socket.socket()
        self.clients.append(found)
        for name, value in options.items():
            found.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        found.settimeout(8.0)
        found.connect(self.listener.getsockname())
        found.sendall(first)
        return found

    def wait_for(self, is_so) -> None:
        until_s = time.monotonic() + 8.0
        while not is_so():
            assert time.monotonic() < until_s
            time.sleep(0.02)


@pytest.fixture
def served(monkeypatch) -> Iterator[Served]:
    for name, value in {"HEAD_S": 0.5, "WINDOW_S": 1.0, "LINGER_S": 0.5}.items():
        monkeypatch.setattr(connections, name, value)
    monkeypatch.setattr(connections, "max_connections", lambda _: MOST)
    logging.getLogger("assay.serving").addHandler(ignoring := logging.NullHandler())
    found = Served()
    yield found
    logging.getLogger("assay.serving").removeHandler(ignoring)
    found.server.should_exit = found.server.force_exit = True
    found.thread.join()
    for item in (found.listener, *found.clients):
        item.close()


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    found = b""
    with suppress(ConnectionResetError):
        while block := connection.recv(1 << 16):
            found += block
    return found


def test_clients_that_take_too_long_are_told_and_closed_and_those_that_go_on_are_not(served: Served) -> None:
    nothing = served.connect()
    half_a_head = served.connect(HEAD % b"")
    no_body = served.connect(HEAD % b"" + b"Content-Length: 9\r\n\r\n")
    dribbling = served.connect(HEAD % b"" + b"Transfer-Encoding: chunked\r\n\r\n")
    steady = served.connect(HEAD % b"" + b"Content-Length: 4000\r\n\r\n")
    unwanted = served.connect(HEAD % b"unread" + b"Content-Length: 9000\r\n\r\n")
    not_reading = served.connect(HEAD % b"large" + b"Content-Length: 0\r\n\r\n", SO_RCVBUF=4096)
    for _ in range(16):
        steady.sendall(b"x" * 250)
        with suppress(OSError):
            dribbling.sendall(b"1\r\nx\r\n")
        with suppress(OSError):
            unwanted.sendall(b"x")
        time.sleep(0.2)
    assert b"HTTP/1.1 200" in steady.recv(4096)
    for late in (nothing, half_a_head, no_body, dribbling):
        head, _, body = all_of(late).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408") and json.loads(body)["error"]["code"] == "request_timeout"
    began_s = time.monotonic()
    all_of(unwanted)
    assert time.monotonic() - began_s < 1.0  # closed by now, though more of its body came all the time
    assert len(all_of(not_reading)) < 32 << 20
    served.wait_for(lambda: len(served.server.server_state.connections) <= 1)


def test_a_client_that_reads_slowly_but_steadily_gets_all_of_a_long_response(served: Served) -> None:
    slow = served.connect(HEAD % b"large" + b"Content-Length: 0\r\n\r\n")
    found = 0
    for _ in range(30):  # much slower than the kernel's buffers empty for the server to write on
        found += len(slow.recv(50_000))
        time.sleep(0.1)
    slow.sendall(HEAD % b"unread" + b"Connection: close\r\n\r\n")
    assert found + len(all_of(slow)) > 32 << 20


def test_a_client_that_hangs_up_is_noticed_also_behind_more_that_it_had_sent(served: Served) -> None:
    request = HEAD % b"hold" + b"Content-Length: 0\r\n\r\n"
    one, several = served.connect(request), served.connect(request)
    served.wait_for(lambda: served.app.num_holding == 2)
    for _ in range(3):  # nobody reads on behind a request that waits
        several.sendall(request)
        time.sleep(0.1)
    one.close()
    several.close()
    served.wait_for(lambda: served.app.num_holding == 0)


def test_idle_connections_leave_for_new_ones_and_those_with_a_request_do_not(served: Served) -> None:
    holding = [served.connect(HEAD % b"hold" + b"Content-Length: 0\r\n\r\n") for _ in range(MOST // 2 - 2)]
    served.wait_for(lambda: served.app.num_holding == len(holding))
    idle = [served.connect() for _ in range(20)]
    asking = served.connect(HEAD % b"" + b"Content-Length: 2\r\n\r\nhi")
    assert b"HTTP/1.1 200" in asking.recv(4096)
    assert served.app.num_holding == len(holding)
    assert all_of(idle[0]) == b""
    for _ in range(2):
        served.connect(HEAD % b"hold" + b"Content-Length: 0\r\n\r\n")
    served.wait_for(lambda: served.app.num_holding == MOST // 2)
    assert all_of(served.connect()) == b""  # an address has half of all, and all of these are at work


def test_what_is_no_http_is_a_400_in_the_apis_words(served: Served) -> None:
    head, _, body = all_of(served.connect(b"nonsense\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and json.loads(body)["error"]["code"] == "invalid_http"


def test_the_limit_of_files_is_raised_and_some_are_kept_for_the_store() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert raise_file_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [max_connections(limit) for limit in (100, 1024, 1 << 20)] == [16, 384, 4096]

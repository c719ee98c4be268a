"""A proxy that loses, repeats and delays messages between a client and a server.

before     the request does not reach the server; the client gets 503
within     the server's response breaks off in the middle of its body
after      the server's response is lost; the client gets 503
doubled    the server gets the request twice at the same time
delayed    the request reaches the server after those sent later
NAME       the callback of this name, such as a restart of the server, runs while the request is under way, or once the
           server has acknowledged it and the client has not received that yet

While nothing listens at the server's address, requests wait in the proxy, as they do in a load balancer. So the errors
that a client gets are those of the server itself.
"""

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import uvicorn

from assay.base.errors import AssayError

MESSAGES = ("before", "within", "after", "doubled", "delayed")
DELAY_S = 0.4
AWAY_S, AWAY_POLL_S = 60.0, 0.05
"""How long requests wait for a server that does not listen."""
DATUMS_IN_CHUNK = 2
"""Sequences in a part of a batch."""
_DROPPED = (b"host", b"connection", b"content-length", b"transfer-encoding", b"accept-encoding")
Send = Callable[[dict[str, Any]], Awaitable[None]]


class RequestFault(NamedTuple):
    """What happens to one request."""

    kind: str
    path: str
    """Last part of the address: `optim_step`."""
    number: int = 2
    """Which request to this address, from 1; repeats of the client count."""
    is_acknowledged: bool = False
    """A callback runs once the server has responded, instead of while the request is under way."""


class FaultProxy:
    """An ASGI application before a server."""

    def __init__(self, url: str, callbacks: Mapping[str, Callable[[], None]]) -> None:
        self._waiting: dict[tuple[str, int], RequestFault] = {}
        self._url = url
        self._callbacks = callbacks
        self.num_requests = Counter[str]()
        """Requests since `begin`, by the last part of their address."""
        self.failure: AssayError | None = None
        """What a callback raised."""

    def begin(self, faults: Sequence[RequestFault], *, is_parallel: bool = True) -> None:
        """Count requests from here on. `is_parallel`: a client may send the chunks of a batch at the same time."""
        self._is_parallel = is_parallel
        self._waiting = {(fault.path, fault.number): fault for fault in faults}
        self.num_requests.clear()
        self.failure = None

    @property
    def missed(self) -> list[RequestFault]:
        """Faults whose requests did not come."""
        return [*self._waiting.values()]

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body, is_more = b"", True
        while is_more:
            message = await receive()
            body, is_more = body + message.get("body", b""), message.get("more_body", False)
        name = scope["path"].rpartition("/")[2]
        self.num_requests[name] += 1
        fault = self._waiting.pop((name, self.num_requests[name]), None)
        kind = "" if fault is None else fault.kind
        if kind == "before":
            await _respond(send, 503, [], b"{}")
            return
        response = await self._forward(scope, body, fault)
        if kind == "after":
            await _respond(send, 503, [], b"{}")
            return
        is_config = scope["path"].endswith("client/config") and response.status_code == 200
        content = self._with_small_chunks(response.content) if is_config else response.content
        headers = [pair for pair in response.headers.raw if pair[0].lower() not in (*_DROPPED, b"content-encoding")]
        await _respond(send, response.status_code, headers, content, is_cut=kind == "within")

    async def _live(self, receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as self._client:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _forward(self, scope: dict[str, Any], body: bytes, fault: RequestFault | None) -> httpx.Response:
        kind = "" if fault is None else fault.kind
        if kind == "delayed":
            await asyncio.sleep(DELAY_S)
        sending = [self._request(scope, body) for _ in range(2 if kind == "doubled" else 1)]
        if fault is None or kind not in self._callbacks:
            return (await asyncio.gather(*sending))[0]
        called = asyncio.to_thread(self._call, kind)
        if fault.is_acknowledged:
            response = await sending[0]
            await called
        else:
            response, _ = await asyncio.gather(sending[0], called)
        return response

    async def _request(self, scope: dict[str, Any], body: bytes) -> httpx.Response:
        headers = [pair for pair in scope["headers"] if pair[0] not in _DROPPED]
        query = scope["query_string"].decode()
        address = f"{self._url}{scope['raw_path'].decode()}{'?' if query else ''}{query}"
        deadline_s = time.monotonic() + AWAY_S
        while True:
            try:
                return await self._client.request(scope["method"], address, headers=headers, content=body)
            except httpx.TransportError as error:
                if not isinstance(error, httpx.ConnectError) or self.failure or time.monotonic() > deadline_s:
                    return httpx.Response(503, content=json.dumps({"error": str(error)}).encode())
            await asyncio.sleep(AWAY_POLL_S)

    def _with_small_chunks(self, config: bytes) -> bytes:
        tree = {**json.loads(config), "fwdbwd_max_chunk_len": DATUMS_IN_CHUNK}
        return json.dumps(tree if self._is_parallel else {**tree, "parallel_fwdbwd_chunks": False}).encode()

    def _call(self, kind: str) -> None:
        try:
            self._callbacks[kind]()
        except AssayError as error:
            self.failure = error


async def _respond(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, is_cut: bool = False
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body[: len(body) // 2] if is_cut else body, "more_body": is_cut})
    if is_cut:
        raise ConnectionError("the response breaks off here")


@contextmanager
def proxy_before(url: str, callbacks: Mapping[str, Callable[[], None]]) -> Iterator[tuple[FaultProxy, str]]:
    """Run a proxy before a server; yield it with its address."""
    proxy = FaultProxy(url, callbacks)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(proxy, log_level="critical", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield proxy, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

"""What every request passes: it gets an id, and shows that its client may ask.

From the first key on, every request brings one, and its project is that in which everything is looked up. A
server without keys answers on loopback only, and only to those who name it so: a page of the web that has its
own name resolve to this machine (DNS rebinding) sends that name as the Host, and is refused.
"""

import json
import secrets
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.base.errors import StoreError
from assay.serving.keys import KeyShelf
from assay.serving.openai.place import ASKER, DEFAULT_PROJECT, PROJECT
from assay.serving.refusal import RefusedError, busy, store_in_trouble

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
ADMIN_PATH = "/v1/organization"
"""Below it, projects and keys are looked at and changed: by admin keys alone, which open nothing else."""
_LOOKS = ("GET", "HEAD")
"""What a key that may only read can ask."""
MAX_REQUESTS_OF_KEY = 512
"""At a time: a key that has many under way leaves connections to others."""
MAX_HEADERS = 100
MAX_HEADER_BYTES = 1 << 14
"""The length of all together, which h11 limits only where they come in several pieces."""
_ONCE = frozenset(
    b"authorization content-encoding content-type host idempotency-key if-range openai-organization "
    b"openai-project range x-stainless-retry-count".split()
)
"""Headers that decide what is done: two of a kind would leave it open which of them counts."""


class Door:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, keys: KeyShelf) -> None:
        self._app = app
        self._keys = keys
        self._num_under_way = Counter[str]()
        """By the id of the key."""
        self._threads = anyio.CapacityLimiter(8)
        """For keys alone: a wrong one is refused however much is under way."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            headers = _headers_of(scope)
            project, asker = await anyio.to_thread.run_sync(self._asker, scope, headers, limiter=self._threads)
            if asker and self._num_under_way[asker] >= MAX_REQUESTS_OF_KEY:
                raise busy(f"{MAX_REQUESTS_OF_KEY} requests of this key are under way.", "too_many_requests")
        except RefusedError as error:
            await _refuse(error, send_with_id)
            return
        except StoreError as error:
            await _refuse(store_in_trouble(error), send_with_id)
            return
        self._num_under_way[asker] += 1
        try:
            await self._app({**scope, PROJECT: project, ASKER: asker}, receive, send_with_id)
        finally:
            self._num_under_way[asker] -= 1
            if not self._num_under_way[asker]:
                del self._num_under_way[asker]

    def _asker(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[str, str]:
        """Project and key of the client, who may ask; `RefusedError` says why he may not."""
        is_admins = scope["path"].startswith(f"{ADMIN_PATH}/")
        if not self._keys.are_there():
            _check_host(headers)
            if is_admins:
                raise RefusedError(
                    "Without keys there is nobody who may. 'assay key create --admin' makes a key that may.",
                    status=403,
                    code="admin_key_required",
                )
            return DEFAULT_PROJECT, ""
        kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        key = self._keys.opening(secret.strip()) if kind.lower() == "bearer" else None
        if key is None:
            raise RefusedError(
                "This key opens nothing: it is missing, wrong, revoked or expired. 'assay key create' makes "
                "one; send it as 'Authorization: Bearer KEY'.",
                status=401,
                code="invalid_api_key",
            )
        needed = "admin" if is_admins else "read" if scope["method"] in _LOOKS else "write"
        if needed not in key.scopes:
            raise RefusedError(
                f"This key may only {' and '.join(key.scopes)}; this needs one that may {needed}.",
                status=403,
                code="insufficient_permissions",
            )
        return key.project, key.key_id


def _headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The headers of a request; `RefusedError` where they leave open what is asked for."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(map(len, chain(*headers))) > MAX_HEADER_BYTES:
        raise RefusedError(
            f"The request has more than {MAX_HEADERS} headers, or {MAX_HEADER_BYTES:,} bytes of them.",
            status=431,
            code="too_many_headers",
        )
    twice = [
        name.decode("latin-1")
        for name, count in Counter(name for name, _ in headers).items()
        if count > 1 and name in _ONCE
    ]
    if twice:
        raise RefusedError(f"The header '{twice[0]}' stands twice. Send it once.", code="duplicate_header")
    found = dict(headers)
    if b"transfer-encoding" in found and b"content-length" in found:
        raise RefusedError(
            "A Content-Length and a Transfer-Encoding leave open where the request ends. Send one of them.",
            code="ambiguous_length",
            headers={"connection": "close"},
        )
    return found


def _check_host(headers: Mapping[bytes, bytes]) -> None:
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name not in LOOPBACK_NAMES:
        raise RefusedError(
            f"This server has no keys, so it answers on this machine only, and not as {host!r:.120}. Use "
            "http://127.0.0.1, or make a key: 'assay key create'.",
            status=403,
            code="host_not_allowed",
        )


async def _refuse(error: RefusedError, send: Send) -> None:
    body: Any = json.dumps(error.envelope()).encode()
    named = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""What every request passes: it gets an id, and says whom it means to talk to.

A server without keys answers on loopback only, and only to those who name it so: a page of the web that has
its own name resolve to this machine (DNS rebinding) sends that name as the Host, and is refused.
"""

import json
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.serving.refusal import RefusedError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Door:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

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
            _check_host(dict(scope["headers"]))
        except RefusedError as error:
            await _refuse(error, send_with_id)
            return
        await self._app(scope, receive, send_with_id)


def _check_host(headers: Mapping[bytes, bytes]) -> None:
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name not in LOOPBACK_NAMES:
        raise RefusedError(
            f"This server has no keys, so it answers on this machine only, and not as {host!r:.120}. Use "
            "http://127.0.0.1.",
            status=403,
            code="host_not_allowed",
        )


async def _refuse(error: RefusedError, send: Send) -> None:
    body: Any = json.dumps(error.envelope()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

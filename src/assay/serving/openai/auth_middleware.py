"""Middleware of every request: sets a request id, validates headers and authenticates the API key.

Once a key exists, every request needs one, and resources are looked up in the key's project. A server without keys only
accepts loopback host names. This stops DNS rebinding, where a web page's name resolves to this machine.
"""

import json
import secrets
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.base.errors import ConfigError, StoreError
from assay.base.json_log import log_fields
from assay.serving.api_error import ApiError, busy, store_in_trouble
from assay.serving.keys import KeyRepository
from assay.serving.openai.app_state import DEFAULT_PROJECT, KEY_ID, PROJECT

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
ADMIN_PATH = "/v1/organization"
"""Routes below it need an admin key, which otherwise opens only `METRICS_PATH`."""
METRICS_PATH = "/metrics"
"""It shows sums over all projects, so a key of one project does not open it."""
_LOOKS = ("GET", "HEAD")
"""Methods that a read-only key may use."""
MAX_REQUESTS_OF_KEY = 512
"""Concurrent requests per key, so that other keys get connections."""
TINKER_PREFIX = "tml-"
"""The Tinker SDK accepts only keys that begin with it."""
MAX_HEADERS = 100
MAX_HEADER_BYTES = 1 << 14
"""Total length of headers; h11 limits it only if they arrive in several pieces."""
_ONCE = frozenset(
    b"authorization content-encoding content-type host idempotency-key if-range openai-organization "
    b"openai-project range x-api-key x-stainless-retry-count".split()
)
"""Headers that must not be repeated, because it would be ambiguous which value counts."""


class AuthMiddleware:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, keys: KeyRepository) -> None:
        self._app = app
        self._keys = keys
        self._num_under_way = Counter[str]()
        """By key id."""
        self._threads = anyio.CapacityLimiter(8)
        """Separate threads, so that invalid keys are rejected quickly under load."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            headers = checked_headers(scope)
            project, asker = await anyio.to_thread.run_sync(self._authenticate, scope, headers, limiter=self._threads)
            if asker and self._num_under_way[asker] >= MAX_REQUESTS_OF_KEY:
                raise busy(f"{MAX_REQUESTS_OF_KEY} requests of this key are under way.", "too_many_requests")
        except ApiError as error:
            await _refuse(error, send_with_id)
            return
        except StoreError as error:
            await _refuse(store_in_trouble(error), send_with_id)
            return
        self._num_under_way[asker] += 1
        scope.update({PROJECT: project, KEY_ID: asker})
        try:
            with log_fields(request=request_id):
                await self._app(scope, receive, send_with_id)
        finally:
            self._num_under_way[asker] -= 1
            if not self._num_under_way[asker]:
                del self._num_under_way[asker]

    def _authenticate(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[str, str]:
        """Return project and key id of the request. Raises `ApiError`."""
        is_admins = scope["path"].startswith(f"{ADMIN_PATH}/")
        if not self._keys.any_exist():
            check_loopback(headers)
            if is_admins:
                raise ApiError(
                    "This route requires an admin key. Create one with 'assay serve key create --admin'.",
                    status=403,
                    code="admin_key_required",
                )
            return DEFAULT_PROJECT, ""
        key = self._keys.opening(secret_of(headers))
        if key is None:
            raise ApiError(
                "The API key is missing, invalid, revoked or expired. Create one with 'assay serve key create' "
                "and send it as 'Authorization: Bearer KEY'.",
                status=401,
                code="invalid_api_key",
            )
        needed = "admin" if is_admins else "read" if scope["method"] in _LOOKS else "write"
        allowed = {"metrics", "admin"} if scope["path"] == METRICS_PATH else {needed}
        if not allowed & {*key.scopes}:
            raise ApiError(
                f"This key has the scopes {' and '.join(key.scopes)}, but the request requires "
                f"{' or '.join(sorted(allowed))}.",
                status=403,
                code="insufficient_permissions",
            )
        return key.project, key.key_id


def secret_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the secret of a request: the bearer token, or X-API-Key with the prefix of the Tinker SDK."""
    kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    return headers.get(b"x-api-key", b"").decode("latin-1").strip().removeprefix(TINKER_PREFIX)


def checked_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers. Raises `ApiError` if they are too large or ambiguous."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(map(len, chain(*headers))) > MAX_HEADER_BYTES:
        raise ApiError(
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
        raise ApiError(f"The header '{twice[0]}' occurs more than once. Send it once.", code="duplicate_header")
    found = dict(headers)
    if b"transfer-encoding" in found and b"content-length" in found:
        raise ApiError(
            "The request has both Content-Length and Transfer-Encoding, so its end is ambiguous. Send one of them.",
            code="ambiguous_length",
            headers={"connection": "close"},
        )
    return found


def check_loopback(headers: Mapping[bytes, bytes]) -> None:
    """Raise `ApiError` for a host name that is not of this machine."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name not in LOOPBACK_NAMES:
        raise ApiError(
            f"This server has no API keys, so it only accepts loopback host names, not {host!r:.120}. Use "
            "http://127.0.0.1, or create a key: 'assay serve key create'.",
            status=403,
            code="host_not_allowed",
        )


def check_address(host: str, keys: KeyRepository, *, of: str) -> None:
    """Raise `ConfigError` if others could reach a server without keys. `of`: the option that named the address."""
    if host not in LOOPBACK_NAMES and not keys.any_exist():
        raise ConfigError(
            f"{of} {host}: a server without API keys may only listen on loopback. Create a key ('assay serve key "
            "create'), or use 127.0.0.1 and connect through ssh -L."
        )


async def _refuse(error: ApiError, send: Send) -> None:
    body: Any = json.dumps(error.envelope()).encode()
    named = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

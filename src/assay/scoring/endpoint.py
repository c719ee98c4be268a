"""HTTP requests for JSON with the standard library alone.

Transient errors (408, 409, 429, 5xx, no connection) are retried with exponential backoff; other 4xx errors are
not. Every request has a time limit.
"""

import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Any

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError
from assay.base.parsing.nesting import parse_json
from assay.scoring.sampler import SamplerError, SamplerErrorKind

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
FIRST_PAUSE_S = 0.5
MAX_BYTES = 64 << 20
"""Maximum size of a response."""


class Endpoint:
    """A base URL for requests; the API key is $OPENAI_API_KEY, if it needs one."""

    def __init__(
        self, base_url: str, *, timeout_s: float = 60.0, max_retries: int = 4, clock: Clock | None = None
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"'{base_url}' is not an endpoint. Write its URL, e.g. http://localhost:8000/v1.")
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._clock = clock or SystemClock()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request(path, json.dumps(body).encode())

    def get(self, path: str) -> Any:
        return self._request(path, None)

    def _request(self, path: str, data: bytes | None) -> Any:
        request = urllib.request.Request(
            self.base_url + path,
            data=data,
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}",
            },
        )
        for attempt in range(self._max_retries):
            try:
                return self._fetch(request)
            except SamplerError as error:
                if error.kind == "request":
                    raise
            self._clock.sleep_s(FIRST_PAUSE_S * 2**attempt)
        return self._fetch(request)

    def _fetch(self, request: urllib.request.Request) -> Any:
        where, data = request.full_url, b""
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                data = self._body(response) or b"null"  # vLLM confirms a command with an empty body
            return parse_json(data)
        except urllib.error.HTTPError as error:
            with error:
                body_text = error.read()[:300].decode(errors="replace")
            kind: SamplerErrorKind = "server" if error.code in RETRIED else "request"
            raise SamplerError(kind, f"{where} answered {error.code}: {body_text}") from error
        except TimeoutError as error:
            raise SamplerError("timeout", f"{where} did not answer in {self._timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise SamplerError("server", f"{where} cannot be reached or read: {error}") from error
        except ValueError as error:
            raise SamplerError("server", f"{where} did not answer in JSON ({error}): {data!r:.120}") from error

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        """Read the whole body within the time limit, which urllib applies to single packets only."""
        end_s, data = self._clock.monotonic_s() + self._timeout_s, bytearray()
        while part := response.read1(1 << 16):
            data += part
            if len(data) > MAX_BYTES:
                raise ValueError(f"it is longer than {MAX_BYTES >> 20} MiB")
            if self._clock.monotonic_s() > end_s:
                raise TimeoutError
        if response.length:
            raise http.client.IncompleteRead(bytes(data), response.length)
        return bytes(data)

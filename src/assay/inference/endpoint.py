"""OpenAI-compatible endpoints over HTTP, with the standard library alone.

Transient errors (408, 409, 429, 5xx, no connection) are retried with exponential backoff; other 4xx errors are
not. Every request has a time limit. Completions are parsed in the forms that various endpoints return: `content` may be
text, a list of typed parts, or null; reasoning is dropped. If nothing was completed, the endpoint failed and not the
model: a `SamplerError` is raised instead of returning an empty text that a grader would score.
"""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError
from assay.base.parsing.nesting import parse_json
from assay.inference.protocol import (
    CUT_REASONS,
    Completion,
    Engine,
    Message,
    SamplerError,
    SamplerErrorKind,
    SamplingParams,
)

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
FIRST_PAUSE_S = 0.5
MAX_BYTES = 64 << 20
"""Maximum size of a response."""
_TEXT_PARTS = frozenset({"text", "output_text"})
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text"})
_ERROR_REASONS = frozenset({"error", "abort", "insufficient_system_resource"})
"""Finish reasons of OpenRouter, vLLM and DeepSeek for an aborted completion."""
_FILTER_REASONS = frozenset(
    {"content_filter", "content_filtered", "safety", "recitation", "blocklist", "prohibited_content", "spii"}
    | {"guardrail_intervened", "refusal", "sensitive"}
)
"""Finish reasons of OpenAI, Gemini, Bedrock, Anthropic and GLM for a withheld completion."""
_NATURAL_ENDS = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "unknown"})
"""Finish reasons with which an empty text is a valid completion: the model ended its turn at once."""


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


class HttpEngine(Engine):
    """`POST {base_url}/chat/completions` and `/embeddings`."""

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        timeout_s: float = 60.0,
        max_retries: int = 4,
        concurrency: int = 8,
        clock: Clock | None = None,
    ) -> None:
        self._endpoint = Endpoint(base_url, timeout_s=timeout_s, max_retries=max_retries, clock=clock)
        self.name = model
        self._concurrency = concurrency

    def generate(self, prompts: Sequence[Sequence[Message]], params: SamplingParams) -> list[Completion | SamplerError]:
        """Return one completion for each conversation, with `concurrency` requests at a time."""
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="sampling") as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, params), prompts))

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        response = self._endpoint.post("/embeddings", {"model": self.name, "input": list(texts)})
        try:
            rows = sorted(response["data"], key=lambda row: row["index"])
            return [[float(value) for value in row["embedding"]] for row in rows]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SamplerError(
                "server", f"{self._endpoint.base_url}: not a list of embeddings: {response!r:.200}"
            ) from error

    def _complete(self, prompt: Sequence[Message], params: SamplingParams) -> Completion | SamplerError:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(prompt),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": params.max_tokens,
        }
        if params.seed is not None:
            body["seed"] = params.seed
        if params.top_k is not None:
            body["top_k"] = params.top_k  # an extension of vLLM and others
        if params.stop:
            body["stop"] = list(params.stop)
        try:
            return read_completion(self._endpoint.post("/chat/completions", body))
        except SamplerError as error:
            return error


def read_completion(response: Any) -> Completion:
    """Parse the first choice of a chat or text completion. Raises `SamplerError`."""
    whole = response if isinstance(response, Mapping) else {}
    choices = whole.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    if error := whole.get("error") or choice.get("error"):
        raise SamplerError("server", f"an error instead of a completion: {error!r:.200}")
    message = choice.get("message", {"content": choice["text"]} if "text" in choice else None)
    if not isinstance(message, Mapping):
        raise SamplerError("server", f"not a chat completion: {response!r:.200}")
    reason = choice.get("finish_reason")
    reason = reason.lower() if isinstance(reason, str) and reason else "unknown"
    text, usage = _text_of(message), whole.get("usage")
    _check_completed(text, reason, message)
    counts = [usage.get(f"{kind}_tokens") if isinstance(usage, Mapping) else 0 for kind in ("prompt", "completion")]
    return Completion(
        # JSON may contain lone surrogates, which UTF-8 files cannot.
        (text or "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"),
        "length" if reason in CUT_REASONS else reason,
        *(count if isinstance(count, int) and count >= 0 else 0 for count in counts),
    )


def _text_of(message: Mapping[str, Any]) -> str | None:
    content, refusal, texts = message.get("content"), message.get("refusal"), list[str]()
    for part in content if isinstance(content, list) else [] if content is None else [content]:
        kind = str(part.get("type")) if isinstance(part, Mapping) else ""
        text = part if isinstance(part, str) else part.get("text") if kind in _TEXT_PARTS else None
        if isinstance(text, str):
            texts.append(text)
        elif kind == "refusal":
            refusal = refusal or part
        elif kind not in _REASONING_PARTS:
            raise SamplerError("server", f"a completion with a part that is no text: {part!r:.200}")
    if refusal:
        raise SamplerError("refusal", f"the model refused: {refusal!r:.200}")
    return "".join(texts) if texts else None


def _check_completed(text: str | None, reason: str, message: Mapping[str, Any]) -> None:
    if reason in _FILTER_REASONS:
        raise SamplerError("refusal", f"the endpoint's filter withheld the completion ({reason})")
    if reason in _ERROR_REASONS:
        raise SamplerError("server", f"the endpoint broke off the completion (finish_reason: {reason})")
    if text is not None and text.strip():
        return
    if message.get("tool_calls") or message.get("function_call"):
        raise SamplerError("server", "the model called tools instead of answering in text")
    if reason in CUT_REASONS:
        why = "all of max_tokens was spent before any text (on reasoning?). Raise sampling.max_tokens"
        raise SamplerError("server", why)
    is_spoken = text is not None and reason in _NATURAL_ENDS
    if not is_spoken or message.get("reasoning_content") or message.get("reasoning"):
        raise SamplerError("server", f"a completion without text (finish_reason: {reason})")

"""An OpenAI-compatible endpoint as a sampler and embedder, by the standard library alone.

Answers that may pass (408, 409, 429, 5xx, no connection) are asked for again, with a pause that doubles; a 4xx
is the asker's mistake and is not. A request has a time limit, so one lost answer cannot hold a benchmark up.
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError
from assay.scoring.sampler import Completion, Message, SamplerError, SamplerErrorKind, Sampling

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
FIRST_PAUSE_S = 0.5


class HttpSampler:
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
        """The key is $OPENAI_API_KEY, where the endpoint wants one."""
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"'{base_url}' is no endpoint. Write its URL, e.g. http://localhost:8000/v1.")
        self.name = model
        self._base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._concurrency = concurrency
        self._clock = clock or SystemClock()

    def sample(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling
    ) -> list[Completion | SamplerError]:
        """One completion for each conversation, `concurrency` of them asked for at a time."""
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="sampling") as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, sampling), prompts))

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text; raises `SamplerError`."""
        answer = self._post("/embeddings", {"model": self.name, "input": list(texts)})
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            return [[float(value) for value in row["embedding"]] for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise SamplerError(
                "server", f"{self._base_url}: not a list of embeddings: {answer!r:.200}"
            ) from error

    def _complete(self, prompt: Sequence[Message], sampling: Sampling) -> Completion | SamplerError:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(prompt),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.top_k is not None:
            body["top_k"] = sampling.top_k  # not OpenAI's own: vLLM and others know it
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        try:
            return self._completion_of(self._post("/chat/completions", body))
        except SamplerError as error:
            return error

    def _completion_of(self, answer: Any) -> Completion:
        try:
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            message = choice["message"]
            if message.get("refusal"):
                raise SamplerError("refusal", f"the model refused: {message['refusal']!r:.200}")
            return Completion(
                text=message["content"] or "",
                finish_reason=choice.get("finish_reason") or "stop",
                prompt_tokens=int(usage.get("prompt_tokens", 0)),
                completion_tokens=int(usage.get("completion_tokens", 0)),
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise SamplerError("server", f"{self._base_url}: not a chat completion: {answer!r:.200}") from error

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._base_url + path,
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}",
            },
        )
        for attempt in range(self._max_retries):
            try:
                return self._answer(request)
            except SamplerError as error:
                if error.kind == "request":
                    raise
            self._clock.sleep_s(FIRST_PAUSE_S * 2**attempt)
        return self._answer(request)

    def _answer(self, request: urllib.request.Request) -> Any:
        where = request.full_url
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                said = error.read()[:300].decode(errors="replace")
            kind: SamplerErrorKind = "server" if error.code in RETRIED else "request"
            raise SamplerError(kind, f"{where} answered {error.code}: {said}") from error
        except TimeoutError as error:
            raise SamplerError("timeout", f"{where} did not answer in {self._timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            raise SamplerError("server", f"{where} cannot be reached or read: {error}") from error

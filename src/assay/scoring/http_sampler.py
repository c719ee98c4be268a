"""An OpenAI-compatible endpoint as a sampler and embedder (see `endpoint` for retries)."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.base.clock import Clock
from assay.scoring.chat_completion import read_completion
from assay.scoring.endpoint import Endpoint
from assay.scoring.sampler import Completion, Message, SamplerError, Sampling


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
        self._endpoint = Endpoint(base_url, timeout_s=timeout_s, max_retries=max_retries, clock=clock)
        self.name = model
        self._concurrency = concurrency

    def sample(self, prompts: Sequence[Sequence[Message]], sampling: Sampling) -> list[Completion | SamplerError]:
        """Return one completion for each conversation, with `concurrency` requests at a time."""
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="sampling") as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, sampling), prompts))

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        response = self._endpoint.post("/embeddings", {"model": self.name, "input": list(texts)})
        try:
            rows = sorted(response["data"], key=lambda row: row["index"])
            return [[float(value) for value in row["embedding"]] for row in rows]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SamplerError(
                "server", f"{self._endpoint.base_url}: not a list of embeddings: {response!r:.200}"
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
            body["top_k"] = sampling.top_k  # an extension of vLLM and others
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        try:
            return read_completion(self._endpoint.post("/chat/completions", body))
        except SamplerError as error:
            return error

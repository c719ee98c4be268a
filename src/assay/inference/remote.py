"""An engine in another process: tokens in and out of an OpenAI-compatible `/completions`, as in vLLM.

    folder of weights --> engine --reports their digest--> completions of each group --reports it again--> rollouts

Its completions cannot be reproduced here, so the caller stores them. The weights' digest is checked before and after
the completions; that the engine samples as configured shows in its logprobs. The module imports no torch.
"""

import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.base.clock import Clock, SystemClock
from assay.base.errors import AssayError, ConfigError
from assay.base.shapes import Int64
from assay.inference.endpoint import Endpoint
from assay.inference.protocol import SamplerError, SamplingParams
from assay.inference.remote_config import RemoteSampler
from assay.inference.rollout import GenerationCancelledError, Rollout

HOW = "docs/generation.md describes how to start it"
POLL_S = 0.2
_LOADING = "loading"
"""The digest that the engine reports while weights are replaced."""
_WHOLE = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
"""Without these, the engine would use `generation_config.json`; the trainer needs the whole distribution."""


class EngineError(AssayError):
    """The remote engine's completions cannot be trained on."""


class EngineAwayError(AssayError):
    """The remote engine does not respond; it may respond later."""

    exit_code = 75


class PromptGroup(NamedTuple):
    """A prompt with the number of its completions."""

    row_id: int
    tokens: Sequence[int] | Int64[np.ndarray, "token"]
    size: int
    key: int
    """Seed of the samples, as far as the engine is deterministic."""


class RemoteEngine:
    """One engine, used by one rank."""

    def __init__(
        self,
        config: RemoteSampler,
        sampling: SamplingParams,
        *,
        ends: Collection[int],
        clock: Clock | None = None,
    ) -> None:
        """`ends` are end tokens."""
        self._config = config
        self._sampling = sampling
        self._ends = frozenset(ends)
        self._clock = clock or SystemClock()
        options: dict[str, Any] = {"timeout_s": config.timeout_s, "max_retries": config.max_retries}
        self._api = Endpoint(config.url, **options, clock=self._clock)
        # vLLM's endpoints for trainers are not below /v1.
        self._control = Endpoint(self._api.base_url.removesuffix("/v1"), **options, clock=self._clock)
        self._where = f"method.sampler.url={config.url}"

    def check(self, longest: int) -> None:
        """Raise `ConfigError` if the engine cannot be used, before the run is created.

        `longest` is the largest number of tokens of a prompt with its completion.
        """
        served = self._call(lambda: self._api.get("/models"))
        listed = served.get("data") if isinstance(served, dict) else None
        rows = listed if isinstance(listed, list) else []
        models = {str(row.get("id")): row for row in rows if isinstance(row, dict)}
        if self._config.model not in models:
            raise ConfigError(
                f"method.sampler.model={self._config.model}: {self._where} serves "
                f"{', '.join(map(str, models)) or 'no model'}."
            )
        room = models[self._config.model].get("max_model_len")
        if isinstance(room, int) and room < longest:
            raise ConfigError(
                f"{self._where}: it takes {room:,} tokens, but the longest prompt with a completion of "
                f"method.sampling.max_tokens has {longest:,}. Start it with --max-model-len {longest}."
            )
        try:
            self.named()
            self._rollouts(PromptGroup(0, [0], 1, 0), self._sampling.model_copy(update={"max_tokens": 1}))
        except EngineError as error:
            raise ConfigError(str(error)) from error

    def named(self) -> str:
        """Return the digest of the weights that the engine reports."""
        try:
            found = self._call(lambda: self._control.get("/weight_info"))
            return str(found["weight_version"])
        except (EngineError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self._where}: it does not report its weights (GET /weight_info), so the weights behind "
                f"its completions are unknown. {HOW}."
            ) from error

    def load(self, digest: str, folder: Path) -> None:
        """Make the engine load the weights of a folder, unless it has them."""
        if self.named() == digest:
            return
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._post("/update_weight_version", {"new_version": _LOADING})
        self._post("/collective_rpc", reload)
        self._post("/reset_prefix_cache", {})
        self._post("/update_weight_version", {"new_version": digest})
        self.check_weights(digest, "after it was asked to load them")

    def await_weights(self, digest: str) -> None:
        """Wait until the engine has the weights that another rank makes it load."""
        until_s = self._clock.monotonic_s() + self._config.timeout_s
        while self.named() != digest and self._clock.monotonic_s() < until_s:
            self._clock.sleep_s(POLL_S)
        self.check_weights(digest, f"after {self._config.timeout_s:g} s")

    def check_weights(self, digest: str, when: str) -> None:
        """Raise `EngineError` if the engine has other weights."""
        if (named := self.named()) != digest:
            raise EngineError(
                f"{self._where}: it has other weights: expected digest {digest[:12]}…, but {when} it "
                f"reports {named[:12]}…. Its completions were not used, and commits are intact. "
                f"Does it see method.sampler.folder={self._config.folder}, and does another run use it? {HOW}."
            )

    def generate(
        self,
        groups: Sequence[PromptGroup],
        digest: str,
        keep: Callable[[PromptGroup, list[Rollout]], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> dict[int, list[Rollout]]:
        """Return row id -> rollouts; each group is passed to `keep` once its weights are verified."""

        def generate_group(group: PromptGroup) -> tuple[int, list[Rollout]]:
            if is_stopping():
                raise GenerationCancelledError
            rollouts = self._rollouts(group, self._sampling)
            self.check_weights(digest, "after its completions")
            keep(group, rollouts)
            return group.row_id, rollouts

        self.check_weights(digest, "before generation")
        pool = ThreadPoolExecutor(self._config.concurrency, thread_name_prefix="engine")
        try:
            return dict(pool.map(generate_group, groups))
        finally:
            pool.shutdown(cancel_futures=True)

    def _rollouts(self, group: PromptGroup, sampling: SamplingParams) -> list[Rollout]:
        tokens = [int(token) for token in group.tokens]
        body = {
            "model": self._config.model,
            "prompt": tokens,
            "n": group.size,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            **_WHOLE,
            "frequency_penalty": 0.0,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(self._ends),
            "seed": group.key % 2**31,
            "logprobs": 1,
            "return_token_ids": True,
        }
        response = self._call(lambda: self._api.post("/completions", body))
        try:
            choices = sorted(response["choices"], key=lambda choice: int(choice["index"]))
            found = [self._rollout(choice, sampling) for choice in choices]
            prompt_ids = [choice.get("prompt_token_ids") or tokens for choice in choices]
            model = response.get("model", self._config.model)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise EngineError(
                f"{self._where}: its response has no tokens with logprobs (token_ids, logprobs), which training needs: "
                f"{response!r:.200}. {HOW}."
            ) from error
        if len(found) != group.size or prompt_ids != [tokens] * group.size or model != self._config.model:
            raise EngineError(
                f"{self._where}: it returned {len(found)} completions of '{model}', not {group.size} of "
                f"'{self._config.model}' to the prompt that was sent; is it vLLM 0.10.2 or newer? {HOW}."
            )
        return found

    def _rollout(self, choice: dict[str, Any], sampling: SamplingParams) -> Rollout:
        tokens = np.array([int(token) for token in choice["token_ids"]], np.int64)
        logprobs = np.array([float(logprob) for logprob in choice["logprobs"]["token_logprobs"]], np.float32)
        reason, num = choice["finish_reason"], len(tokens)
        if num != len(logprobs) or not all(math.isfinite(prob) and prob < 1e-3 for prob in logprobs):
            raise ValueError("logprobs are missing, not finite or of other tokens")
        is_cut = reason == "length" and num == sampling.max_tokens
        if is_cut:
            return Rollout(tokens, logprobs, "length")
        if num and reason == "stop" and (sampling.stop or tokens[-1] in self._ends or not self._ends):
            return Rollout(tokens, logprobs, "stop")
        last = f", the last of which is {tokens[-1]}" if num else ""
        raise EngineError(
            f"{self._where}: a completion ended ('{reason}') after {num:,} of {sampling.max_tokens:,} tokens"
            f"{last}. method.model ends completions with {sorted(self._ends)}. Do prompt and completion fit "
            "(--max-model-len), and is the model of the same family?"
        )

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self._call(lambda: self._control.post(path, body))

    def _call(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except SamplerError as error:
            if error.kind == "request":
                raise EngineError(f"{self._where}: {error}. {HOW}.") from error
            raise EngineAwayError(
                f"{self._where}: the engine does not respond: {error}. Commits are intact. Start the "
                f"engine ({HOW}), then run the same command again."
            ) from error

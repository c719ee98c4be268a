"""An engine in another process: tokens in and out of an OpenAI-compatible `/completions`, as in vLLM.

    folder of weights --> engine --reports their digest--> completions of each group --reports it again--> rollouts

Its completions cannot be reproduced here, so the caller stores them. The weights' digest is checked before and after
the completions; that the engine samples as configured shows in its logprobs. The module imports no torch.
"""

import math
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from assay.base.clock import Clock, SystemClock
from assay.base.config import FrozenConfig
from assay.base.errors import AssayError, ConfigError
from assay.inference.endpoint import Endpoint
from assay.inference.protocol import SamplerError, SamplingParams
from assay.inference.rollout import GenerationCancelledError, Prompt, Rollout

HOW = "docs/generation.md describes how to start it"
POLL_S = 0.2
_LOADING = "loading"
"""The digest that the engine reports while weights are replaced."""
_WHOLE = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
"""Without these, the engine would use `generation_config.json`; the trainer needs the whole distribution."""


class LogprobGap(FrozenConfig):
    """How far the log-probabilities of engine and trainer may differ for the same tokens and weights."""

    bound: PositiveFloat = 0.05
    """Nats per token. In bfloat16, implementations differ by thousandths; other temperatures or weights by tenths.
    """

    on_excess: Literal["refuse", "truncate"] = "refuse"
    """`refuse`: if the step's mean exceeds the bound, the run stops without the update. `truncate`: each token
    beyond it is weighted by min(trainer / engine, `max_weight`) (Ionides 2008, J. Comput. Graph. Stat. 17(2)).
    """

    max_weight: float = Field(default=2.0, ge=1.0)
    """Largest weight of `truncate`."""


class LocalSampler(FrozenConfig):
    """The training process."""

    type: Literal["local"] = "local"


class RemoteSampler(FrozenConfig):
    """An OpenAI-compatible engine that takes and returns tokens: vLLM (docs/generation.md)."""

    also_called: ClassVar = {"base_url": "url", "endpoint": "url"}

    type: Literal["remote"]

    url: str
    """E.g. `http://engine:8000/v1`; its key, if it needs one, is $OPENAI_API_KEY."""

    model: str
    """Name at the engine."""

    folder: str
    """Hands each step's weights over: an existing folder of this run alone, with the same absolute path on both
    sides.
    """

    logprob_gap: LogprobGap = LogprobGap()
    """Allowed disagreement."""

    concurrency: PositiveInt = 64
    """Groups in flight per rank."""

    timeout_s: PositiveFloat = 600.0
    """Longest wait for one completion, and for weights to load."""

    max_retries: NonNegativeInt = 6
    """Retries of a request that got 408, 409, 429, 5xx or no response: after 0.5 s, 1 s, 2 s, ..."""

    @model_validator(mode="after")
    def _can_be_reached(self) -> "RemoteSampler":
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: '{self.url}' is none. Write e.g. http://localhost:8000/v1")
        if not Path(self.folder).is_absolute():
            raise ValueError(f"folder: '{self.folder}' is not absolute, so the engine would look elsewhere")
        return self


class EngineError(AssayError):
    """The remote engine's completions cannot be trained on."""


class EngineAwayError(AssayError):
    """The remote engine does not respond; it may respond later."""

    exit_code = 75


class RemoteEngine:
    """One engine, used by one rank."""

    def __init__(
        self,
        config: RemoteSampler,
        params: SamplingParams,
        *,
        group_size: int,
        ends: Collection[int],
        clock: Clock | None = None,
    ) -> None:
        """`group_size` completions are generated for each prompt; `ends` are end tokens."""
        self._config = config
        self._params = params
        self._size = group_size
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
            self._rollouts(Prompt([0], 0), self._params.model_copy(update={"max_tokens": 1}), 1)
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

    def forget(self) -> None:
        """Make an engine that is refused report no digest, so that the next attempt hands the weights over again."""
        with suppress(EngineError, EngineAwayError):
            self._post("/update_weight_version", {"new_version": _LOADING})

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
        prompts: Mapping[int, Prompt],
        digest: str,
        keep: Callable[[int, list[Rollout]], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> dict[int, list[Rollout]]:
        """Return row id -> rollouts; each group is passed to `keep` once its weights are verified.

        A prompt's key seeds its samples, as far as the engine is deterministic.
        """

        def generate_group(row_id: int) -> tuple[int, list[Rollout]]:
            if is_stopping():
                raise GenerationCancelledError
            rollouts = self._rollouts(prompts[row_id], self._params, self._size)
            self.check_weights(digest, "after its completions")
            keep(row_id, rollouts)
            return row_id, rollouts

        self.check_weights(digest, "before generation")
        pool = ThreadPoolExecutor(self._config.concurrency, thread_name_prefix="engine")
        try:
            return dict(pool.map(generate_group, prompts))
        finally:
            pool.shutdown(cancel_futures=True)

    def _rollouts(self, prompt: Prompt, params: SamplingParams, num: int) -> list[Rollout]:
        tokens = [int(token) for token in prompt.tokens]
        body = {
            "model": self._config.model,
            "prompt": tokens,
            "n": num,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            **_WHOLE,
            "frequency_penalty": 0.0,
            "stop": list(params.stop),
            "stop_token_ids": sorted(self._ends),
            "seed": prompt.key % 2**31,
            "logprobs": 1,
            "return_token_ids": True,
        }
        response = self._call(lambda: self._api.post("/completions", body))
        try:
            choices = sorted(response["choices"], key=lambda choice: int(choice["index"]))
            found = [self._rollout(choice, params) for choice in choices]
            prompt_ids = [choice.get("prompt_token_ids") or tokens for choice in choices]
            model = response.get("model", self._config.model)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise EngineError(
                f"{self._where}: its response has no tokens with logprobs (token_ids, logprobs), which training needs: "
                f"{response!r:.200}. {HOW}."
            ) from error
        if len(found) != num or prompt_ids != [tokens] * num or model != self._config.model:
            raise EngineError(
                f"{self._where}: it returned {len(found)} completions of '{model}', not {num} of "
                f"'{self._config.model}' to the prompt that was sent; is it vLLM 0.10.2 or newer? {HOW}."
            )
        return found

    def _rollout(self, choice: dict[str, Any], params: SamplingParams) -> Rollout:
        tokens = np.array([int(token) for token in choice["token_ids"]], np.int64)
        logprobs = np.array([float(logprob) for logprob in choice["logprobs"]["token_logprobs"]], np.float32)
        reason, num = choice["finish_reason"], len(tokens)
        if num != len(logprobs) or not all(math.isfinite(prob) and prob < 1e-3 for prob in logprobs):
            raise ValueError("logprobs are missing, not finite or of other tokens")
        is_cut = reason == "length" and num == params.max_tokens
        if is_cut:
            return Rollout(tokens, logprobs, "length")
        if num and reason == "stop" and (params.stop or tokens[-1] in self._ends or not self._ends):
            return Rollout(tokens, logprobs, "stop")
        last = f", the last of which is {tokens[-1]}" if num else ""
        raise EngineError(
            f"{self._where}: a completion ended ('{reason}') after {num:,} of {params.max_tokens:,} tokens"
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

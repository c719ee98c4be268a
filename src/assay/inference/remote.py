"""An engine of another process: tokens in and out of an OpenAI-compatible `/completions`, as vLLM has it.

    folder of weights --> engine --names their digest--> answers to each group --names it again--> rollouts

What it answers cannot be made again here, so it is kept by whoever asks. Of whose weights the answers are is
asked before and after them; that the engine draws as it was told shows in how likely it finds its tokens.
Knows no torch.
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
from assay.inference.remote_config import RemoteSampler
from assay.inference.rollout import GenerationCancelledError, Rollout
from assay.scoring.endpoint import Endpoint
from assay.scoring.sampler import SamplerError, Sampling

HOW = "docs/generation.md says how it is started"
POLL_S = 0.2
_LOADING = "loading"
"""What the engine names while its weights are replaced: those of nobody."""
_WHOLE = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
"""Else an engine takes what `generation_config.json` says; the trainer computes the whole distribution."""


class EngineError(AssayError):
    """What a remote engine answers cannot be learned from."""


class EngineAwayError(AssayError):
    """A remote engine that does not answer, and may again."""

    exit_code = 75


class PromptGroup(NamedTuple):
    """A prompt that is to be answered several times."""

    row_id: int
    tokens: Sequence[int] | Int64[np.ndarray, "token"]
    size: int
    key: int
    """Names what is drawn, as far as the engine can repeat a draw."""


class RemoteEngine:
    """One engine, as one rank sees it."""

    def __init__(
        self,
        config: RemoteSampler,
        sampling: Sampling,
        *,
        ends: Collection[int],
        clock: Clock | None = None,
    ) -> None:
        """`ends` are tokens that end a completion."""
        self._config = config
        self._sampling = sampling
        self._ends = frozenset(ends)
        self._clock = clock or SystemClock()
        options: dict[str, Any] = {"timeout_s": config.timeout_s, "max_retries": config.max_retries}
        self._api = Endpoint(config.url, **options, clock=self._clock)
        # What vLLM adds to the API for trainers is not below its version.
        self._control = Endpoint(self._api.base_url.removesuffix("/v1"), **options, clock=self._clock)
        self._where = f"method.sampler.url={config.url}"

    def check(self, longest: int) -> None:
        """Refuse an engine that could not be learned from, before there is a run.

        `longest` is the most tokens that a prompt has with its completion.
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
        """The digest of the weights that the engine says it has."""
        try:
            found = self._call(lambda: self._control.get("/weight_info"))
            return str(found["weight_version"])
        except (EngineError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self._where}: it does not name its weights (GET /weight_info): nobody would know of whose "
                f"weights its answers are. {HOW}."
            ) from error

    def load(self, digest: str, folder: Path) -> None:
        """Have the weights in a folder loaded, if they are not those that it has."""
        if self.named() == digest:
            return
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._post("/update_weight_version", {"new_version": _LOADING})
        self._post("/collective_rpc", reload)
        self._post("/reset_prefix_cache", {})
        self._post("/update_weight_version", {"new_version": digest})
        self.check_weights(digest, "after it was told to load them")

    def await_weights(self, digest: str) -> None:
        """Return when the engine has weights that another rank has it load."""
        until_s = self._clock.monotonic_s() + self._config.timeout_s
        while self.named() != digest and self._clock.monotonic_s() < until_s:
            self._clock.sleep_s(POLL_S)
        self.check_weights(digest, f"after {self._config.timeout_s:g} s")

    def check_weights(self, digest: str, when: str) -> None:
        """Raise where the weights are not those."""
        if (named := self.named()) != digest:
            raise EngineError(
                f"{self._where}: it has other weights: they are to have digest {digest[:12]}…, and {when} it "
                f"names {named[:12]}…. Its answers were not learned from, and what is committed is intact. "
                f"Does it see method.sampler.folder={self._config.folder}, and does another run use it? {HOW}."
            )

    def generate(
        self,
        groups: Sequence[PromptGroup],
        digest: str,
        keep: Callable[[PromptGroup, list[Rollout]], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> dict[int, list[Rollout]]:
        """Row -> its answers, each group `keep`t as soon as it is there and known to be of those weights."""

        def generate_group(group: PromptGroup) -> tuple[int, list[Rollout]]:
            if is_stopping():
                raise GenerationCancelledError
            rollouts = self._rollouts(group, self._sampling)
            self.check_weights(digest, "behind its answers")
            keep(group, rollouts)
            return group.row_id, rollouts

        self.check_weights(digest, "before it is asked")
        pool = ThreadPoolExecutor(self._config.concurrency, thread_name_prefix="engine")
        try:
            return dict(pool.map(generate_group, groups))
        finally:
            pool.shutdown(cancel_futures=True)

    def _rollouts(self, group: PromptGroup, sampling: Sampling) -> list[Rollout]:
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
        generate = self._call(lambda: self._api.post("/completions", body))
        try:
            choices = sorted(generate["choices"], key=lambda choice: int(choice["index"]))
            found = [self._rollout(choice, sampling) for choice in choices]
            prompt_ids = [choice.get("prompt_token_ids") or tokens for choice in choices]
            model = generate.get("model", self._config.model)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise EngineError(
                f"{self._where}: its answer has no tokens with their log-probabilities (token_ids, logprobs), "
                f"and words cannot be learned from: {generate!r:.200}. {HOW}."
            ) from error
        if len(found) != group.size or prompt_ids != [tokens] * group.size or model != self._config.model:
            raise EngineError(
                f"{self._where}: not {group.size} answers of '{self._config.model}' to the prompt that was "
                f"sent, but {len(found)} of '{model}'; is it vLLM 0.10.2 or newer? {HOW}."
            )
        return found

    def _rollout(self, choice: dict[str, Any], sampling: Sampling) -> Rollout:
        tokens = np.array([int(token) for token in choice["token_ids"]], np.int64)
        logprobs = np.array([float(logprob) for logprob in choice["logprobs"]["token_logprobs"]], np.float32)
        reason, num = choice["finish_reason"], len(tokens)
        if num != len(logprobs) or not all(math.isfinite(prob) and prob < 1e-3 for prob in logprobs):
            raise ValueError("log-probabilities that are none, or of other tokens")
        is_cut = reason == "length" and num == sampling.max_tokens
        if is_cut:
            return Rollout(tokens, logprobs, "length")
        if num and reason == "stop" and (sampling.stop or tokens[-1] in self._ends or not self._ends):
            return Rollout(tokens, logprobs, "stop")
        last = f", the last of which is {tokens[-1]}" if num else ""
        raise EngineError(
            f"{self._where}: an answer ended ('{reason}') behind {num:,} of {sampling.max_tokens:,} tokens"
            f"{last}. method.model ends answers with {sorted(self._ends)}. Is there room for prompt and answer "
            "(--max-model-len), and is the model of the same family?"
        )

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self._call(lambda: self._control.post(path, body))

    def _call(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except SamplerError as error:
            if error.kind == "request":
                raise EngineError(f"{self._where}: {error}. {HOW}.") from error
            raise EngineAwayError(
                f"{self._where}: the engine does not answer: {error}. What is committed is intact. Start the "
                f"engine ({HOW}), then give the same command again."
            ) from error

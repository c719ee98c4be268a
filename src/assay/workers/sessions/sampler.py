"""Executes the requests of a session's samplers: completions and logprobs of prompts.

Requests are independent of each other, so those with the same weights and settings are generated together. A
completion is a function of the weights, the prompt, the seed and its number: without a seed, of the numbers of sampler,
request and completion. So a request that is executed again gives the same completions.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from assay.base.digest import canonical_json
from assay.base.errors import DataError
from assay.base.seeds import derive_key
from assay.data.dataset.tokens import end_tokens, load_tokenizer
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import Prompt, Rollout
from assay.records.session import SessionSampler
from assay.serving.sessions.request_log import RequestId, Result, TargetId, waiting_samples
from assay.serving.sessions.sessions import SessionRepository, read_checkpoint_path
from assay.serving.tinker import results
from assay.serving.tinker.bodies import Sample, SamplingSettings, read_request
from assay.training.sessions.bases import FrozenBases
from assay.training.sessions.sampling import SamplingModel
from assay.workers.sessions.base import SessionBase, base_of, base_of_model
from assay.workers.sessions.weights import KEEP, ModelStates, StateKind

MAX_MODELS = 2
"""Models that only sample, in memory at once; weights of one base and adapter shape share one."""
MAX_COMPLETIONS = 64
"""Completions that are generated together, unless one request has more."""


class _Weights(NamedTuple):
    """What a sampler samples from."""

    base: SessionBase
    model: TargetId | None
    """None: the base model's own weights."""
    kind: StateKind
    number: int


class _Waiting(NamedTuple):
    request: RequestId
    sample: Sample
    weights: _Weights


class SamplerExecutor:
    """All samplers of the sessions of this process."""

    def __init__(self, sessions: SessionRepository, bases: FrozenBases) -> None:
        self._sessions = sessions
        self._bases = bases
        self._models: OrderedDict[str, SamplingModel] = OrderedDict()
        """Least recently used first."""
        self._loaded: dict[str, tuple[str, StateKind, int]] = {}

    def execute_waiting(self, session_id: str) -> bool:
        """Execute some requests of a session; return whether there were any that could be executed."""
        together = self._next_together(session_id)
        if not together:
            return False
        model = self._model_of(together[0].weights)
        accepted = [waiting for waiting in together if self._is_accepted(waiting, model)]
        try:
            found = self._results(accepted, model)
        except Exception:  # some requests must not stop the others
            logging.getLogger("assay.sessions").exception("error in samples of %s", session_id)
            found = [Result.of_error("Internal error while the prompt was sampled.", "server")] * len(accepted)
        for waiting, result in zip(accepted, found, strict=True):
            self._put(waiting.request, result)
        return True

    def _next_together(self, session_id: str) -> list[_Waiting]:
        """Return the first requests that can be executed with the same weights and settings."""
        together, num_completions = list[_Waiting](), 0
        for request in sorted(waiting_samples(self._sessions.store, session_id)):
            log = self._sessions.requests(request.target)
            found = log.request(request.seq_id)
            if found is None or log.has_result(request.seq_id):
                continue
            sample = read_request(found)
            if together and _settings_of(sample) != _settings_of(together[0].sample):
                continue
            if together and request.target != together[0].request.target:
                continue
            try:
                weights = together[0].weights if together else self._weights_of(request.target)
            except DataError as error:
                self._put(request, Result.of_error(str(error), "user"))
                continue
            if weights is None:
                continue
            num_completions += sample.num_samples
            if together and num_completions > MAX_COMPLETIONS:
                break
            together.append(_Waiting(request, sample, weights))
        return together

    def _weights_of(self, target: TargetId) -> _Weights | None:
        """Return the weights of a sampler; None if they are not saved yet. Raises `DataError` if they were deleted."""
        sampler = self._sessions.sampler(target.session_id, target.number)
        if sampler is None:
            return None
        if sampler.base is not None:
            return _Weights(base_of(sampler.base, name=sampler.base_model), None, "sampler", 0)
        model, kind, number = self._saved(target, sampler)
        state = self._sessions.state(model.session_id)
        assert state is not None, f"{target} was created from it"
        states = ModelStates(self._sessions.store, model)
        if states.has(kind, number):
            if kind == "captured":
                states.note_use(number)
            return _Weights(base_of_model(state.models[model.number]), model, kind, number)
        if self._sessions.requests(model).has_result(number):
            raise DataError(
                f"{target}: its weights are gone: {KEEP['captured']} other samplers were captured or sampled from "
                "since, or its request failed. Save weights under a name to sample from them at any time."
            )
        return None

    def _saved(self, target: TargetId, sampler: SessionSampler) -> tuple[TargetId, StateKind, int]:
        """Return where a sampler's weights are stored."""
        if sampler.path is None:
            assert sampler.model_index is not None and sampler.seq_id is not None, sampler
            return TargetId(target.session_id, "train", sampler.model_index), "captured", sampler.seq_id
        path = read_checkpoint_path(sampler.path)
        assert path is not None, f"{sampler.path} was checked"
        state = self._sessions.state(path.model.session_id)
        saved = None if state is None else state.checkpoint(path)
        if saved is None:
            raise DataError(f"model_path: the weights at {path} were deleted.")
        return path.model, path.checkpoint_type, saved.seq_id

    def _model_of(self, weights: _Weights) -> SamplingModel:
        """Return a model with these weights."""
        base = weights.base
        has_own_weights = weights.model is not None and base.config.model.lora is None
        key = canonical_json([base.config.model_dump(mode="json"), base.tokenizer, base.seed, has_own_weights])
        model = self._models.pop(key, None)
        if model is None:
            model = SamplingModel(
                base.config,
                load_tokenizer(base.tokenizer),
                ends=end_tokens(base.tokenizer),
                seed=base.seed,
                device=self._bases.device,
                precision=base.recipe.trainer.precision,
                base=None if has_own_weights else self._bases.network(base.config, seed=base.recipe.seed),
            )
            self._loaded.pop(key, None)
        self._models[key] = model
        if len(self._models) > MAX_MODELS:
            self._models.popitem(last=False)
        weights_key = (str(weights.model), weights.kind, weights.number)
        if self._loaded.get(key) != weights_key:
            model.load(self._stored(weights))
            self._loaded[key] = weights_key
        return model

    def _stored(self, weights: _Weights) -> bytes | None:
        if weights.model is None:
            return None
        state = ModelStates(self._sessions.store, weights.model).get(weights.kind, weights.number)
        assert state is not None, f"{weights.model} saved them"
        return state.data

    def _is_accepted(self, waiting: _Waiting, model: SamplingModel) -> bool:
        """Return whether a prompt fits the model; otherwise the error is its result."""
        tokens = waiting.sample.prompt_tokens()
        try:
            model.check_prompt(tokens, max_tokens=_max_tokens(waiting.sample, model))
        except DataError as error:
            self._put(waiting.request, Result.of_error(str(error), "user"))
            return False
        return True

    def _results(self, accepted: Sequence[_Waiting], model: SamplingModel) -> list[Result]:
        """Return the result of each request."""
        rollouts, found = self._rollouts(accepted, model), list[Result]()
        for waiting in accepted:
            own, rollouts = rollouts[: waiting.sample.num_samples], rollouts[waiting.sample.num_samples :]
            found.append(self._result_of(waiting.sample, own, model))
        return found

    def _rollouts(self, accepted: Sequence[_Waiting], model: SamplingModel) -> list[Rollout]:
        """Return the completions of all requests, in order."""
        if not accepted:
            return []
        settings = accepted[0].sample.sampling_params
        stops, ends = _stops_of(settings)
        params = SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k if settings.top_k > 0 else None,
            max_tokens=max(_max_tokens(waiting.sample, model) for waiting in accepted),
            stop=stops,
        )
        prompts = [
            Prompt(waiting.sample.prompt_tokens(), self._key(waiting, number))
            for waiting in accepted
            for number in range(waiting.sample.num_samples)
        ]
        return model.sample(prompts, params, ends=ends)

    def _key(self, waiting: _Waiting, number: int) -> int:
        """Return the random key of a completion."""
        seed = waiting.sample.sampling_params.seed
        if seed is not None:
            return derive_key(seed, "sample", " ".join(map(str, waiting.sample.prompt_tokens())), number)
        request = waiting.request
        return derive_key(waiting.weights.base.recipe.seed, "sample", request.target.number, request.seq_id, number)

    def _result_of(self, sample: Sample, rollouts: Sequence[Rollout], model: SamplingModel) -> Result:
        completions = [
            results.SampledSequence(rollout.tokens.tolist(), rollout.logprobs.tolist(), rollout.reason == "stop")
            for rollout in rollouts
        ]
        if not sample.prompt_logprobs and not sample.topk_prompt_logprobs:
            return results.samples(completions)
        logprobs, top = model.prompt_logprobs(sample.prompt_tokens(), sample.topk_prompt_logprobs)
        return results.samples(
            completions,
            prompt_logprobs=logprobs.tolist() if sample.prompt_logprobs else None,
            top_prompt_logprobs=top,
        )

    def _put(self, request: RequestId, result: Result) -> None:
        self._sessions.requests(request.target).put_result(request.seq_id, result)


def _settings_of(sample: Sample) -> tuple[SamplingSettings, int | None]:
    """Return what requests must share to be generated together: all but the seed, and the length if it is open."""
    settings = sample.sampling_params
    num_tokens = len(sample.prompt_tokens()) if settings.max_tokens is None else None
    return settings.model_copy(update={"seed": None}), num_tokens


def _max_tokens(sample: Sample, model: SamplingModel) -> int:
    """Return the longest completion: what is requested, or what the context leaves."""
    room = model.window_tokens - len(sample.prompt_tokens())
    return sample.sampling_params.max_tokens or max(1, room)


def _stops_of(settings: SamplingSettings) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Return stop strings, and the end tokens that replace the model's own; None: its own."""
    if settings.stop is None:
        return (), None
    if isinstance(settings.stop, str):
        return (settings.stop,), ()
    strings = tuple(stop for stop in settings.stop if isinstance(stop, str))
    return strings, tuple(stop for stop in settings.stop if isinstance(stop, int))

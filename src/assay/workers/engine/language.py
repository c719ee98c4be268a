"""Engine of a language model: completions, prompt scores, embeddings and tokenization."""

import secrets
from collections.abc import Sequence

from assay.base.errors import DataError
from assay.base.seeds import derive_key
from assay.inference.local.local_model import LocalModel
from assay.inference.protocol import (
    Embedded,
    EmbedRequest,
    EngineRequest,
    GenerateRequest,
    PromptInput,
    PromptsRead,
    Ready,
    Scored,
    ScoreRequest,
    Tokenized,
    TokenizeRequest,
    TokenLogprob,
)
from assay.inference.rollout import Prompt
from assay.workers.engine.requests import (
    IsStopping,
    RequestRejectedError,
    Send,
    check_length,
    resident_bytes,
    unsupported,
)


class LanguageEngine:
    """Serves a `LocalModel`."""

    def __init__(self, model: LocalModel, digest: str) -> None:
        self._model = model
        self._digest = digest
        self._num_entries = int(model.network.get_output_embeddings().weight.shape[0])

    @property
    def ready(self) -> Ready:
        """What the model is."""
        model, name = self._model, self._model.tokenizer.id_to_token
        return Ready(
            kind="language_model",
            digest=self._digest,
            window_tokens=model.window_tokens,
            start_token=name(model.begin[0]) if model.begin else None,
            end_token=name(model.ends[0]) if model.ends else None,
            template=None if model.template is None else model.template.source,
            resident_bytes=resident_bytes(),
        )

    def handle(self, request: EngineRequest, send: Send, is_stopping: IsStopping) -> None:
        """Send all responses of a request.

        Raises `GenerationCancelledError` if `is_stopping` becomes true, `RequestRejectedError` for invalid requests.
        """
        match request:
            case GenerateRequest():
                self._generate(request, send, is_stopping)
            case ScoreRequest(of="tokens"):
                send(Scored(prompts=tuple(self._scored(prompt, request.top_logprobs) for prompt in request.prompts)))
            case EmbedRequest():
                tokens = [self._tokens(prompt) for prompt in request.prompts]
                for prompt in tokens:
                    check_length(len(prompt), self._model.window_tokens, param="input", of="An input")
                vectors = tuple(tuple(self._model.vector(prompt)) for prompt in tokens)
                send(Embedded(vectors=vectors, num_tokens=sum(map(len, tokens))))
            case TokenizeRequest():
                send(self._tokenized(request))
            case _:
                raise unsupported(request, self.ready)

    def _generate(self, request: GenerateRequest, send: Send, is_stopping: IsStopping) -> None:
        of_prompts = list(map(self._tokens, request.prompts))
        longest, window = max(map(len, of_prompts)), self._model.window_tokens
        params, max_tokens = request.params, request.params.max_tokens
        if request.may_shorten:
            max_tokens = max(1, min(max_tokens, window - longest))
            params = params.model_copy(update={"max_tokens": max_tokens})
        param = "prompt" if request.prompts[0].messages is None else "messages"
        check_length(longest + max_tokens, window, param=param, of="The prompt with max_tokens")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        prompts = [
            Prompt(tokens, self._key(seed, prompt, choice))
            for prompt, tokens in zip(request.prompts, of_prompts, strict=True)
            for choice in range(request.n)
        ]
        send(PromptsRead(prompt_tokens=tuple(map(len, of_prompts))))
        self._model.stream(
            prompts,
            params,
            send,
            top_logprobs=request.top_logprobs,
            is_streamed=request.is_streamed,
            is_stopping=is_stopping,
        )

    def _key(self, seed: int, prompt: PromptInput, choice: int) -> int:
        """Return the random key of a completion; the first choice has that of `LocalModel.generate`."""
        if prompt.tokens is not None:
            text = " ".join(map(str, prompt.tokens))
        elif prompt.messages is not None:
            text, _ = self._model.conversation(prompt.messages)
        else:
            text = prompt.text or ""
        return derive_key(seed, "sample", text, *([choice] if choice else []))

    def _tokens(self, prompt: PromptInput) -> list[int]:
        if prompt.tokens is not None:
            tokens = list(prompt.tokens)
            self._check_tokens(tokens)
        elif prompt.messages is not None:
            try:
                _, tokens = self._model.conversation(prompt.messages)
            except DataError as error:  # rejected or dropped by the template
                raise RequestRejectedError(str(error), code="invalid_value", param="messages") from error
        else:
            if found := self._model.control.search(prompt.text or ""):
                raise RequestRejectedError(
                    f"The prompt contains {found[0]}, a control token of the model. Send messages, or send the prompt "
                    "as token ids.",
                    code="invalid_value",
                    param="prompt",
                )
            tokens = self._model.tokens_of(prompt.text or "")
        if not tokens:
            raise RequestRejectedError(
                "The prompt is empty, and the model has no start token. Send a non-empty prompt.",
                code="invalid_value",
                param="prompt",
            )
        return tokens

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if wrong := [token for token in tokens if not 0 <= token < self._num_entries]:
            raise RequestRejectedError(
                f"{wrong[0]} is not a token of this model. Token ids are 0 to {self._num_entries - 1:,}.",
                code="invalid_value",
                param="prompt",
            )

    def _scored(self, prompt: PromptInput, top_logprobs: int) -> tuple[TokenLogprob, ...]:
        tokens = self._tokens(prompt)
        check_length(len(tokens), self._model.window_tokens, param="prompt")
        logprobs = self._model.token_logprobs(tokens, top_logprobs)
        return tuple(logprobs[len(self._model.begin) :] if prompt.text is not None else logprobs)

    def _tokenized(self, request: TokenizeRequest) -> Tokenized:
        if request.tokens is None:
            # Clients render prompts themselves and send the token ids.
            tokens = self._model.tokens_of(request.text or "", has_start=request.has_start, keeps_control=True)
            return Tokenized(tokens=tuple(tokens))
        self._check_tokens(request.tokens)
        return Tokenized(text=self._model.tokenizer.decode(list(request.tokens), skip_special_tokens=False))

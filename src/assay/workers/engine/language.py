"""A language model as an engine asks it: completions piece by piece, scores of prompts, vectors, spelling."""

import secrets
from collections.abc import Sequence

from assay.base.errors import DataError
from assay.base.seeds import derive_key
from assay.inference.local.local_model import LocalModel
from assay.inference.local.streaming import SeenToken, Teller, ToldPiece, mean_state, scored
from assay.inference.local.token_texts import TokenTexts
from assay.inference.protocol import (
    CompletionChunk,
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
    TopLogprob,
)
from assay.inference.rollout import Prompt
from assay.scoring.sampler import Message, Sampling
from assay.workers.engine.loaded import AskRefusedError, IsStopping, Tell, cannot, refuse_long, resident_bytes

DEFAULT_MAX_TOKENS = 1024
"""Longest completion where nobody says: memory is taken for all of it beforehand."""


class LanguageEngine:
    """Asks a `LocalModel`."""

    def __init__(self, model: LocalModel, digest: str) -> None:
        self._model = model
        self._texts = TokenTexts(model.tokenizer)
        self._digest = digest
        self._num_entries = int(model.network.get_output_embeddings().weight.shape[0])

    @property
    def ready(self) -> Ready:
        """See `LoadedModel`."""
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

    def answer(self, ask: EngineRequest, tell: Tell, is_stopping: IsStopping) -> None:
        """See `LoadedModel`."""
        match ask:
            case GenerateRequest():
                self._generate(ask, tell, is_stopping)
            case ScoreRequest():
                tell(Scored(prompts=tuple(self._scored(prompt, ask.top_logprobs) for prompt in ask.prompts)))
            case EmbedRequest():
                tokens = [self._tokens(prompt) for prompt in ask.prompts]
                for token in tokens:
                    refuse_long(len(token), self._model.window_tokens, param="input", of="An input")
                vectors = tuple(tuple(mean_state(self._model.network, token)) for token in tokens)
                tell(Embedded(vectors=vectors, num_tokens=sum(map(len, tokens))))
            case TokenizeRequest():
                tell(self._spelled(ask))
            case _:
                raise cannot(ask, self.ready)

    def _generate(self, ask: GenerateRequest, tell: Tell, is_stopping: IsStopping) -> None:
        of_prompts = [self._tokens(each) for each in ask.prompts]
        longest, window = max(map(len, of_prompts)), self._model.window_tokens
        max_tokens = ask.max_tokens or max(1, min(DEFAULT_MAX_TOKENS, window - longest))
        param = "prompt" if ask.prompts[0].messages is None else "messages"
        refuse_long(longest + max_tokens, window, param=param, of="The prompt with max_tokens")
        sampling = Sampling(temperature=ask.temperature, top_p=ask.top_p, max_tokens=max_tokens, stop=ask.stop)
        seed = secrets.randbits(63) if ask.seed is None else ask.seed
        prompts = [
            Prompt(tokens, self._key(seed, prompt, choice))
            for prompt, tokens in zip(ask.prompts, of_prompts, strict=True)
            for choice in range(ask.n)
        ]
        tell(PromptsRead(prompt_tokens=tuple(map(len, of_prompts))))
        teller = Teller(
            lambda piece: tell(self._piece(piece)),
            self._model.tokenizer,
            ends=self._model.ends,
            stop=ask.stop,
            top_logprobs=ask.top_logprobs,
            is_streamed=ask.is_streamed,
        )
        self._model.complete(prompts, sampling, is_stopping, teller)

    def _key(self, seed: int, prompt: PromptInput, choice: int) -> int:
        """Names a draw; the first choice has that of `LocalModel.sample`."""
        if prompt.tokens is not None:
            text = " ".join(map(str, prompt.tokens))
        elif prompt.messages is not None:
            text, _ = self._model.conversation(_messages(prompt))
        else:
            text = prompt.text or ""
        return derive_key(seed, "sample", text, *([choice] if choice else []))

    def _tokens(self, prompt: PromptInput) -> list[int]:
        if prompt.tokens is not None:
            tokens = list(prompt.tokens)
            self._check_tokens(tokens)
        elif prompt.messages is not None:
            try:
                _, tokens = self._model.conversation(_messages(prompt))
            except DataError as error:  # the template refuses it, or leaves a part out
                raise AskRefusedError(str(error), code="invalid_value", param="messages") from error
        else:
            if found := self._model.control.search(prompt.text or ""):
                raise AskRefusedError(
                    f"The prompt holds {found[0]}, a control token of the model. Write messages, or send the "
                    "prompt as token ids.",
                    code="invalid_value",
                    param="prompt",
                )
            tokens = self._model.tokens_of(prompt.text or "")
        if not tokens:
            raise AskRefusedError(
                "An empty prompt, and no token begins texts of this model: write something.",
                code="invalid_value",
                param="prompt",
            )
        return tokens

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if wrong := [token for token in tokens if not 0 <= token < self._num_entries]:
            raise AskRefusedError(
                f"{wrong[0]} is no token of this model; they are 0 to {self._num_entries - 1:,}.",
                code="invalid_value",
                param="prompt",
            )

    def _scored(self, prompt: PromptInput, top_logprobs: int) -> tuple[TokenLogprob, ...]:
        tokens = self._tokens(prompt)
        refuse_long(len(tokens), self._model.window_tokens, param="prompt")
        said = self._said(scored(self._model.network, tokens, top_logprobs=top_logprobs))
        return said[len(self._model.begin) :] if prompt.text is not None else said

    def _said(self, tokens: Sequence[SeenToken], *, is_ended: bool = False) -> tuple[TokenLogprob, ...]:
        found = []
        for place, seen in enumerate(tokens, start=1):
            own = self._texts.of(seen.token)
            likeliest = [(self._texts.of(token), logprob) for token, logprob in seen.top_logprobs]
            found.append(
                TokenLogprob(
                    text=own.text,
                    text_bytes=own.text_bytes and tuple(own.text_bytes),
                    logprob=seen.logprob,
                    top_logprobs=tuple(
                        TopLogprob(
                            text=each.text,
                            text_bytes=each.text_bytes and tuple(each.text_bytes),
                            logprob=logprob,
                        )
                        for each, logprob in likeliest
                    ),
                    is_end=is_ended and place == len(tokens) and seen.token in self._model.ends,
                )
            )
        return tuple(found)

    def _piece(self, piece: ToldPiece) -> CompletionChunk:
        return CompletionChunk(
            choice=piece.choice,
            text=piece.text,
            tokens=self._said(piece.tokens, is_ended=piece.reason == "stop"),
            num_tokens=piece.num_tokens,
            reason=piece.reason,
        )

    def _spelled(self, ask: TokenizeRequest) -> Tokenized:
        if ask.tokens is None:
            # For clients that render prompts themselves, and send them as token ids.
            tokens = self._model.tokens_of(ask.text or "", has_start=ask.has_start, keeps_control=True)
            return Tokenized(tokens=tuple(tokens))
        self._check_tokens(ask.tokens)
        return Tokenized(text=self._model.tokenizer.decode(list(ask.tokens), skip_special_tokens=False))


def _messages(prompt: PromptInput) -> list[Message]:
    assert prompt.messages is not None
    return [Message(role=message["role"], content=message["content"]) for message in prompt.messages]

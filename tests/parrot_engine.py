"""An engine without a model: it says what it was asked, at once, and can be made to wait or to die."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

from assay.inference.protocol import (
    CompletionChunk,
    Embedded,
    EmbedRequest,
    EngineRequest,
    EngineResponse,
    GenerateRequest,
    ModelSource,
    PromptInput,
    PromptsRead,
    Ready,
    Scored,
    ScoreRequest,
    Tokenized,
    TokenizeRequest,
    TokenLogprob,
)
from assay.serving.api_error import ApiError
from assay.serving.engines.process import EngineProcess, engine_lost


def token(text: str, logprob: float | None = -0.5, *, is_end: bool = False) -> TokenLogprob:
    top_logprobs = () if logprob is None else (TokenLogprob(text="?", text_bytes=(63,), logprob=-0.25),)
    return TokenLogprob(
        text=text, text_bytes=tuple(text.encode()), logprob=logprob, top_logprobs=top_logprobs, is_end=is_end
    )


class ParrotEngine(EngineProcess):
    """Goes on with a prompt's words, in upper case; a token is a word with its space."""

    def __init__(
        self,
        *,
        kind: str = "language_model",
        is_predicate: bool = False,
        classes: tuple[str, ...] = (),
        size: int = 0,
    ) -> None:
        self._is_over = False
        self.requests: list[EngineRequest] = []
        self.num_abandoned = 0
        self.dies_after: int | None = None
        """So many things said."""
        self.source: ModelSource | None = None
        self.waits = asyncio.Event()
        self.waits.set()
        self._loaded = Ready(
            kind=kind, digest="d" * 64, window_tokens=64, end_token="<end>", is_predicate=is_predicate,
            classes=classes, resident_bytes=size, template="{{ messages }}",
        )  # fmt: skip
        self._ready = self._loaded

    async def load(self, source: ModelSource) -> Ready:
        await asyncio.sleep(0)
        if source.run_id == "none":
            raise ApiError("no such run", code="model_not_usable")
        self.source = source
        return self._loaded

    def end(self) -> None:
        self._is_over = True

    async def stream(self, request: EngineRequest) -> AsyncGenerator[EngineResponse, None]:
        self.requests.append(request)
        is_whole = False
        try:
            await self.waits.wait()
            for location, output in enumerate(self._responses(request)):
                if location == self.dies_after:
                    self._is_over = True
                if self.is_over:
                    raise engine_lost()
                yield output
            is_whole = True
        finally:
            self.num_abandoned += not is_whole

    def _responses(self, request: EngineRequest) -> Iterator[EngineResponse]:
        match request:
            case GenerateRequest():
                yield PromptsRead(prompt_tokens=tuple(len(words(prompt)) for prompt in request.prompts))
                for choice in range(len(request.prompts) * request.n):
                    output = [f" {word.upper()}" for word in words(request.prompts[choice // request.n])]
                    pieces = output if request.is_streamed else ["".join(output)]
                    has_tokens = request.top_logprobs is not None
                    for location, text in enumerate(pieces, 1):
                        tokens = [token(f" {word}") for word in text.split()] if has_tokens else []
                        is_last = location == len(pieces)
                        tokens += [token("<end>", is_end=True)] if is_last and has_tokens else []
                        num = len(text.split()) + is_last
                        yield CompletionChunk(choice=choice, text=text, tokens=tuple(tokens), num_tokens=num,
                                    reason="stop" if is_last else None)  # fmt: skip
            case ScoreRequest(of="tokens"):
                of = [words(prompt) for prompt in request.prompts]
                yield Scored(prompts=tuple(tuple(token(w, -0.5 if i else None) for i, w in enumerate(item))
                                           for item in of))  # fmt: skip
            case EmbedRequest():
                yield Embedded(vectors=tuple((0.5, float(len(words(e)))) for e in request.prompts), num_tokens=3)
            case ScoreRequest():
                predictions: dict[str, float | str] = (
                    {"probability": 0.75} if self._loaded.is_predicate else {"reward": 1.5}
                )
                if self._loaded.classes:
                    predictions = {"predicted": "b", "probability_a": 0.25, "probability_b": 0.75}
                yield Scored(predictions=(predictions,), num_tokens=4)
            case TokenizeRequest():
                if request.tokens is not None:
                    yield Tokenized(text=" ".join(map(str, request.tokens)))
                else:
                    yield Tokenized(tokens=tuple(range(len((request.text or "").split()))))


def words(prompt: PromptInput) -> list[str]:
    if prompt.tokens is not None:
        return [str(item) for item in prompt.tokens]
    if prompt.messages is not None:
        return [word for message in prompt.messages for word in message["content"].split()]
    return (prompt.text or "").split()

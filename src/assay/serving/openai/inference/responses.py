"""Complete responses of models as the SDK's types define them, for direct requests and batches.

`EngineStream` hides how the engine is reached.
"""

import base64
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from assay.inference.protocol import (
    CompletionChunk,
    Embedded,
    EmbedRequest,
    EngineRequest,
    EngineResponse,
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
from assay.serving.openai.inference.completion_objects import TextChoice, chat_choice, new_heading, usage_object
from assay.serving.openai.inference.request_bodies import ChatRequest, CompletionRequest, EmbeddingRequest, prompts_of

EngineStream = Callable[[EngineRequest], AsyncGenerator[EngineResponse, None]]


class CompletionSet(NamedTuple):
    """The completions of one request."""

    prompt_tokens: tuple[int, ...]
    choices: dict[int, CompletionChunk]
    """By choice index; one chunk each."""

    @property
    def num_completion_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices.values())


class Echo(NamedTuple):
    """The prompt text and tokens before a completion; empty without `echo`."""

    text: str
    tokens: tuple[TokenLogprob, ...]
    num_tokens: int
    """Prompt tokens, used if no completion reports them."""


async def single_response(stream: EngineStream, request: EngineRequest) -> EngineResponse:
    """Return the response of a request with exactly one."""
    async with aclosing(stream(request)) as responses:
        async for response in responses:
            return response
    raise AssertionError("an engine says something")


async def collect_completions(stream: EngineStream, request: EngineRequest) -> CompletionSet:
    """Return all completions of a request."""
    prompt_tokens: tuple[int, ...] = ()
    choices: dict[int, CompletionChunk] = {}
    async with aclosing(stream(request)) as responses:
        async for response in responses:
            if isinstance(response, PromptsRead):
                prompt_tokens = response.prompt_tokens
            elif isinstance(response, CompletionChunk):
                choices[response.choice] = response
    return CompletionSet(prompt_tokens, choices)


async def chat_completion(stream: EngineStream, ready: Ready, request: ChatRequest, *, now_s: float) -> dict[str, Any]:
    """`ChatCompletion`."""
    heading = new_heading("chatcmpl", now_s, request.model, ready.digest)
    completions = await collect_completions(stream, request.engine_request())
    choices = [
        chat_choice(completions.choices[index], has_logprobs=request.logprobs) for index in sorted(completions.choices)
    ]
    usage = usage_object(sum(completions.prompt_tokens), completions.num_completion_tokens)
    return {**heading.shape("chat.completion"), "choices": choices, "usage": usage}


async def text_completion(
    stream: EngineStream, ready: Ready, request: CompletionRequest, *, now_s: float
) -> dict[str, Any]:
    """`Completion`."""
    heading = new_heading("cmpl", now_s, request.model, ready.digest)
    echoes = await echoes_of(stream, request)
    completions = CompletionSet((), {})
    if request.max_tokens:
        completions = await collect_completions(stream, request.engine_request())
    choices = []
    for index in range(len(request.prompts) * request.n):
        echo = echoes[index // request.n]
        piece = completions.choices.get(index, CompletionChunk(choice=index, text="", reason="length"))
        tokens = None if request.logprobs is None else (*echo.tokens, *piece.tokens)
        text = echo.text + piece.text
        choices.append(TextChoice(index, text, tokens, request.logprobs or 0, piece.reason).shape())
    prompt_tokens = sum(completions.prompt_tokens or (echoe.num_tokens for echoe in echoes))
    usage = usage_object(prompt_tokens, completions.num_completion_tokens)
    return {**heading.shape("text_completion"), "choices": choices, "usage": usage}


async def embeddings(stream: EngineStream, request: EmbeddingRequest) -> dict[str, Any]:
    """`CreateEmbeddingResponse`."""
    response = await single_response(stream, EmbedRequest(prompts=prompts_of(request.input, "input")))
    assert isinstance(response, Embedded)
    if request.dimensions not in (None, len(response.vectors[0])):
        raise ApiError(
            f"This model's embeddings have {len(response.vectors[0])} dimensions. Remove 'dimensions'.",
            param="dimensions",
            code="invalid_value",
        )
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, request.encoding_format)}
            for index, vector in enumerate(response.vectors)
        ],
        "model": request.model,
        "usage": {"prompt_tokens": response.num_tokens, "total_tokens": response.num_tokens},
        "x_assay": {"num_cut": response.num_cut},
    }


async def echoes_of(stream: EngineStream, request: CompletionRequest) -> list[Echo]:
    """Return the echo of each prompt."""
    if not request.echo and request.max_tokens:
        return [Echo("", (), 0)] * len(request.prompts)
    scored: tuple[tuple[TokenLogprob, ...], ...] = ((),) * len(request.prompts)
    if request.echo and request.logprobs is not None:
        response = await single_response(stream, ScoreRequest(prompts=request.prompts, top_logprobs=request.logprobs))
        assert isinstance(response, Scored)
        scored = response.prompts
    found = []
    for prompt, tokens in zip(request.prompts, scored, strict=True):
        text, num_tokens = await _prompt_text(stream, prompt)
        found.append(Echo(text if request.echo else "", tokens, num_tokens))
    return found


async def _prompt_text(stream: EngineStream, prompt: PromptInput) -> tuple[str, int]:
    """Return a prompt's text and number of tokens."""
    if prompt.tokens is None:
        response = await single_response(stream, TokenizeRequest(text=prompt.text, has_start=True))
        assert isinstance(response, Tokenized) and response.tokens is not None
        return prompt.text or "", len(response.tokens)
    response = await single_response(stream, TokenizeRequest(tokens=prompt.tokens))
    assert isinstance(response, Tokenized)
    return response.text or "", len(prompt.tokens)


def _encoded(vector: tuple[float, ...], form: str) -> Any:
    if form == "float":
        return list(vector)
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

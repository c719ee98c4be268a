"""`chat.completions.create`, and `completions.create` for texts or tokens; with `echo`, also logprobs of the prompt.

With `echo` and `logprobs`, the arrays hold all prompt tokens, the first without a logprob, then all sampled tokens
including the end token. Benchmarks that rank continuations rely on this.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from assay.inference.protocol import CompletionChunk, PromptsRead, TokenLogprob
from assay.serving.engines.process import EngineProcess
from assay.serving.openai.app_state import AppState
from assay.serving.openai.inference.completion_objects import (
    END_OF_STREAM,
    chat_delta,
    event,
    new_heading,
    text_choice,
    usage_object,
)
from assay.serving.openai.inference.engine_access import engine_for, run_on_engine, stream_response
from assay.serving.openai.inference.request_bodies import ChatRequest, CompletionRequest, parse_request
from assay.serving.openai.inference.responses import chat_completion, echoes_of, text_completion
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody


def completion_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["inference"], dependencies=QUERY_CHECKED)

    @router.post("/completions", summary="Create")
    async def complete(request: Request, body: JsonBody) -> Response:
        """Complete prompts."""
        return await completion_response(app, request, parse_request(CompletionRequest, body.json()))

    @router.post("/chat/completions", summary="Create")
    async def chat(request: Request, body: JsonBody) -> Response:
        """Complete a conversation."""
        return await completion_response(app, request, parse_request(ChatRequest, body.json()))

    return router


async def completion_response(app: AppState, request: Request, body: ChatRequest | CompletionRequest) -> Response:
    """Return a complete or streamed response."""
    if body.stream:
        if isinstance(body, ChatRequest):
            return await stream_response(request, _chat_events(app, request, body))
        return await stream_response(request, _text_events(app, request, body))

    def complete(engine: EngineProcess) -> Awaitable[dict[str, Any]]:
        if isinstance(body, ChatRequest):
            return chat_completion(engine, body, now_s=app.clock.now_s())
        return text_completion(engine, body, now_s=app.clock.now_s())

    return JSONResponse(await run_on_engine(app, request, body.model, complete))


async def _chat_events(app: AppState, request: Request, body: ChatRequest) -> AsyncGenerator[bytes, None]:
    prompt_tokens = num_completion_tokens = 0
    async with engine_for(app, request, body.model) as engine:
        shape = new_heading("chat.completion.chunk", "chatcmpl", app.clock.now_s(), body.model, engine.ready.digest)
        if body.has_usage:
            shape["usage"] = None

        def chunk(choice: dict[str, Any]) -> bytes:
            return event({**shape, "choices": [choice]})

        async with aclosing(engine.stream(body.engine_request())) as stream:
            async for response in stream:
                if isinstance(response, PromptsRead):
                    prompt_tokens = sum(response.prompt_tokens)
                    for index in range(body.n):
                        delta = {"role": "assistant", "content": "", "refusal": None}
                        yield chunk({"index": index, "delta": delta, "finish_reason": None, "logprobs": None})
                elif isinstance(response, CompletionChunk):
                    num_completion_tokens += response.num_tokens
                    yield chunk(chat_delta(response, has_logprobs=body.logprobs))
    if body.has_usage:
        yield event({**shape, "choices": [], "usage": usage_object(prompt_tokens, num_completion_tokens)})
    yield END_OF_STREAM


async def _text_events(app: AppState, request: Request, body: CompletionRequest) -> AsyncGenerator[bytes, None]:
    num_completion_tokens = 0
    async with engine_for(app, request, body.model) as engine:
        shape = new_heading("text_completion", "cmpl", app.clock.now_s(), body.model, engine.ready.digest)
        if body.has_usage:
            shape["usage"] = None
        echoes = await echoes_of(engine, body)
        prompt_tokens = sum(echoe.num_tokens for echoe in echoes)
        offsets = [0] * (len(echoes) * body.n)

        def chunk(index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> bytes:
            shown_tokens = None if body.logprobs is None else tokens
            choice = text_choice(index, text, shown_tokens, body.logprobs or 0, reason, offsets[index])
            offsets[index] += len(text)
            return event({**shape, "choices": [choice]})

        for index in range(len(offsets)):
            echo, reason = echoes[index // body.n], None if body.max_tokens else "length"
            if echo.text or reason:
                yield chunk(index, echo.text, echo.tokens, reason)
        if body.max_tokens:
            async with aclosing(engine.stream(body.engine_request())) as stream:
                async for response in stream:
                    if isinstance(response, PromptsRead):
                        prompt_tokens = sum(response.prompt_tokens)
                    if isinstance(response, CompletionChunk):
                        num_completion_tokens += response.num_tokens
                        yield chunk(response.choice, response.text, response.tokens, response.reason)
    if body.has_usage:
        yield event({**shape, "choices": [], "usage": usage_object(prompt_tokens, num_completion_tokens)})
    yield END_OF_STREAM

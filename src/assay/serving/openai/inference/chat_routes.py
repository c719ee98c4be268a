"""`chat.completions.create`, complete or streamed."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from assay.inference.protocol import CompletionChunk, PromptsRead
from assay.serving.engines.process import EngineProcess
from assay.serving.openai.app_state import QUERY_CHECKED, AppState, JsonBody
from assay.serving.openai.inference.completion_objects import (
    END_OF_STREAM,
    chat_delta,
    event,
    new_heading,
    usage_object,
)
from assay.serving.openai.inference.engine_access import engine_for, run_on_engine, stream_response
from assay.serving.openai.inference.request_bodies import ChatRequest, parse_request
from assay.serving.openai.inference.responses import chat_completion


def chat_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["inference"], dependencies=QUERY_CHECKED)

    @router.post("/chat/completions")
    async def create(request: Request, body: JsonBody) -> Response:
        """Complete a conversation."""
        return await chat_response(app, request, parse_request(ChatRequest, body.json()))

    return router


async def chat_response(app: AppState, request: Request, body: ChatRequest) -> Response:
    """Return a complete or streamed response."""
    if body.stream:
        return await stream_response(request, _events(app, request, body))

    def complete(engine: EngineProcess) -> Awaitable[dict[str, Any]]:
        return chat_completion(engine, body, now_s=app.clock.now_s())

    return JSONResponse(await run_on_engine(app, request, body.model, complete))


async def _events(app: AppState, request: Request, body: ChatRequest) -> AsyncGenerator[bytes, None]:
    prompt_tokens = num_completion_tokens = 0
    async with engine_for(app, request, body.model) as engine:
        heading = new_heading("chatcmpl", app.clock.now_s(), body.model, engine.ready.digest)
        shape = heading.shape("chat.completion.chunk")
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

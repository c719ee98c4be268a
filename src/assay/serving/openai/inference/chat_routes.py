"""`chat.completions.create`: an answer to a conversation, whole or while it is drawn."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from assay.inference.protocol import CompletionChunk, Engine, PromptsRead
from assay.serving.openai.bodies import read_json
from assay.serving.openai.inference.answers import chat_completion
from assay.serving.openai.inference.asking import ask_model, engine_of, streamed
from assay.serving.openai.inference.completion_shapes import (
    END_OF_STREAM,
    chat_delta,
    event,
    new_heading,
    usage_shape,
)
from assay.serving.openai.inference.questions import ChatQuestion, read_question
from assay.serving.openai.place import Place, query_of


def chat_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["inference"])

    @router.post("/chat/completions")
    async def create(request: Request) -> Response:
        """Answer a conversation."""
        query_of(request)
        return await chat_answer(place, request, read_question(ChatQuestion, await read_json(request)))

    return router


async def chat_answer(place: Place, request: Request, asked: ChatQuestion) -> Response:
    """The answer, whole or as a stream."""
    if asked.stream:
        return await streamed(request, _events(place, request, asked))

    def complete(engine: Engine) -> Awaitable[dict[str, Any]]:
        return chat_completion(engine.stream, engine.ready, asked, now_s=place.clock.now_s())

    return JSONResponse(await ask_model(place, request, asked.model, complete))


async def _events(place: Place, request: Request, asked: ChatQuestion) -> AsyncGenerator[bytes, None]:
    prompt_tokens = drawn = 0
    async with engine_of(place, request, asked.model) as engine:
        heading = new_heading("chatcmpl", place.clock.now_s(), asked.model, engine.ready.digest)
        shape = heading.shape("chat.completion.chunk")
        if asked.has_usage:
            shape["usage"] = None

        def chunk(choice: dict[str, Any]) -> bytes:
            return event({**shape, "choices": [choice]})

        async with aclosing(engine.stream(asked.ask())) as saying:
            async for said in saying:
                if isinstance(said, PromptsRead):
                    prompt_tokens = sum(said.prompt_tokens)
                    for index in range(asked.n):
                        delta = {"role": "assistant", "content": "", "refusal": None}
                        yield chunk({"index": index, "delta": delta, "finish_reason": None, "logprobs": None})
                elif isinstance(said, CompletionChunk):
                    drawn += said.num_tokens
                    yield chunk(chat_delta(said, has_logprobs=asked.logprobs))
    if asked.has_usage:
        yield event({**shape, "choices": [], "usage": usage_shape(prompt_tokens, drawn)})
    yield END_OF_STREAM

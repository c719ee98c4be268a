"""`completions.create`: texts and tokens gone on with; with `echo`, how likely they are themselves.

With `echo` and `logprobs` the arrays hold every token of the prompt, the first without a log-probability, and
then all that was drawn, an end token among them: so benchmarks that rank continuations count on it.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from assay.inference.protocol import CompletionChunk, Engine, PromptsRead, TokenLogprob
from assay.serving.openai.bodies import read_json
from assay.serving.openai.inference.answers import echoes_of, text_completion
from assay.serving.openai.inference.asking import ask_model, engine_of, streamed
from assay.serving.openai.inference.completion_shapes import (
    END_OF_STREAM,
    TextChoice,
    event,
    new_heading,
    usage_shape,
)
from assay.serving.openai.inference.questions import CompletionQuestion, read_question
from assay.serving.openai.place import Place, query_of


def completion_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["inference"])

    @router.post("/completions")
    async def create(request: Request) -> Response:
        """Go on with prompts."""
        query_of(request)
        asked = read_question(CompletionQuestion, await read_json(request))
        return await completion_answer(place, request, asked)

    return router


async def completion_answer(place: Place, request: Request, asked: CompletionQuestion) -> Response:
    """The answer, whole or as a stream."""
    if asked.stream:
        return await streamed(request, _events(place, request, asked))

    def complete(engine: Engine) -> Awaitable[dict[str, Any]]:
        return text_completion(engine.stream, engine.ready, asked, now_s=place.clock.now_s())

    return JSONResponse(await ask_model(place, request, asked.model, complete))


async def _events(place: Place, request: Request, asked: CompletionQuestion) -> AsyncGenerator[bytes, None]:
    drawn = 0
    async with engine_of(place, request, asked.model) as engine:
        heading = new_heading("cmpl", place.clock.now_s(), asked.model, engine.ready.digest)
        shape = heading.shape("text_completion")
        if asked.has_usage:
            shape["usage"] = None
        echoes = await echoes_of(engine.stream, asked)
        prompt_tokens = sum(echoe.num_tokens for echoe in echoes)
        told = [0] * (len(echoes) * asked.n)

        def chunk(index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> bytes:
            given = None if asked.logprobs is None else tokens
            choice = TextChoice(index, text, given, asked.logprobs or 0, reason, told[index])
            told[index] += len(text)
            return event({**shape, "choices": [choice.shape()]})

        for index in range(len(told)):
            echo, reason = echoes[index // asked.n], None if asked.max_tokens else "length"
            if echo.text or reason:
                yield chunk(index, echo.text, echo.tokens, reason)
        if asked.max_tokens:
            async with aclosing(engine.stream(asked.ask())) as saying:
                async for said in saying:
                    if isinstance(said, PromptsRead):
                        prompt_tokens = sum(said.prompt_tokens)
                    if isinstance(said, CompletionChunk):
                        drawn += said.num_tokens
                        yield chunk(said.choice, said.text, said.tokens, said.reason)
    if asked.has_usage:
        yield event({**shape, "choices": [], "usage": usage_shape(prompt_tokens, drawn)})
    yield END_OF_STREAM

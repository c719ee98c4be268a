"""`completions.create`: texts and tokens gone on with; with `echo`, how likely they are themselves.

With `echo` and `logprobs` the arrays hold every token of the prompt, the first without a log-probability, and
then all that was drawn, an end token among them: so benchmarks that rank continuations count on it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from assay.serving.engines.asks import (
    AskedPrompt,
    Engine,
    PromptsRead,
    SaidPiece,
    SaidToken,
    ScoreAsk,
    Scored,
    SpellAsk,
    Spelled,
)
from assay.serving.openai.bodies import read_json
from assay.serving.openai.inference.asking import Whole, engine_of, only_answer, said_to, streamed, whole_answer
from assay.serving.openai.inference.completion_shapes import (
    END_OF_STREAM,
    TextChoice,
    event,
    new_heading,
    usage_shape,
)
from assay.serving.openai.inference.questions import CompletionQuestion, read_question
from assay.serving.openai.place import Place, query_of


class _Echo(NamedTuple):
    """What stands before the completions of a prompt; nothing without `echo`."""

    text: str
    tokens: tuple[SaidToken, ...]
    num_tokens: int
    """Where no completion counts them."""


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
        return await streamed(_events(place, request, asked))
    async with engine_of(place, request, asked.model) as engine:
        heading = new_heading("cmpl", place.clock.now_s(), asked.model, engine.ready.digest)
        echoes = await _echoes(request, engine, asked)
        whole = Whole((), {})
        if asked.max_tokens:
            whole = await whole_answer(request, engine, asked.ask())
    choices = []
    for index in range(len(asked.prompts) * asked.n):
        echo = echoes[index // asked.n]
        piece = whole.choices.get(index, SaidPiece(choice=index, text="", reason="length"))
        tokens = None if asked.logprobs is None else (*echo.tokens, *piece.tokens)
        text = echo.text + piece.text
        choices.append(TextChoice(index, text, tokens, asked.logprobs or 0, piece.reason).shape())
    prompt_tokens = sum(whole.prompt_tokens or (each.num_tokens for each in echoes))
    shape = {**heading.shape("text_completion"), "choices": choices}
    return JSONResponse({**shape, "usage": usage_shape(prompt_tokens, whole.num_drawn)})


async def _events(place: Place, request: Request, asked: CompletionQuestion) -> AsyncIterator[bytes]:
    drawn = 0
    async with engine_of(place, request, asked.model) as engine:
        heading = new_heading("cmpl", place.clock.now_s(), asked.model, engine.ready.digest)
        shape = heading.shape("text_completion")
        if asked.has_usage:
            shape["usage"] = None
        echoes = await _echoes(request, engine, asked)
        prompt_tokens = sum(each.num_tokens for each in echoes)
        told = [0] * (len(echoes) * asked.n)

        def chunk(index: int, text: str, tokens: Sequence[SaidToken], reason: str | None) -> bytes:
            given = None if asked.logprobs is None else tokens
            choice = TextChoice(index, text, given, asked.logprobs or 0, reason, told[index])
            told[index] += len(text)
            return event({**shape, "choices": [choice.shape()]})

        for index in range(len(told)):
            echo, reason = echoes[index // asked.n], None if asked.max_tokens else "length"
            if echo.text or reason:
                yield chunk(index, echo.text, echo.tokens, reason)
        if asked.max_tokens:
            async with aclosing(said_to(request, engine, asked.ask())) as saying:
                async for said in saying:
                    if isinstance(said, PromptsRead):
                        prompt_tokens = sum(said.prompt_tokens)
                    if isinstance(said, SaidPiece):
                        drawn += said.num_tokens
                        yield chunk(said.choice, said.text, said.tokens, said.reason)
    if asked.has_usage:
        yield event({**shape, "choices": [], "usage": usage_shape(prompt_tokens, drawn)})
    yield END_OF_STREAM


async def _echoes(request: Request, engine: Engine, asked: CompletionQuestion) -> list[_Echo]:
    """What is told of each prompt before its completions."""
    if not asked.echo and asked.max_tokens:
        return [_Echo("", (), 0)] * len(asked.prompts)
    scored: tuple[tuple[SaidToken, ...], ...] = ((),) * len(asked.prompts)
    if asked.echo and asked.logprobs is not None:
        said = await only_answer(request, engine, ScoreAsk(prompts=asked.prompts, num_likeliest=asked.logprobs))
        assert isinstance(said, Scored)
        scored = said.prompts
    found = []
    for prompt, tokens in zip(asked.prompts, scored, strict=True):
        text, num_tokens = await _spelled(request, engine, prompt)
        found.append(_Echo(text if asked.echo else "", tokens, num_tokens))
    return found


async def _spelled(request: Request, engine: Engine, prompt: AskedPrompt) -> tuple[str, int]:
    """A prompt's text, and how many tokens it has."""
    if prompt.tokens is None:
        said = await only_answer(request, engine, SpellAsk(text=prompt.text, has_start=True))
        assert isinstance(said, Spelled) and said.tokens is not None
        return prompt.text or "", len(said.tokens)
    said = await only_answer(request, engine, SpellAsk(tokens=prompt.tokens))
    assert isinstance(said, Spelled)
    return said.text or "", len(prompt.tokens)

"""How a route asks a model: by its name, in its client's project, for as long as the client is there.

A client that hangs up gives up what it asked for, and the engine is free for others.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from assay.serving.engines.asks import Ask, Engine, Said
from assay.serving.engines.sources import NamedModel
from assay.serving.keeping import ANSWERS
from assay.serving.openai.inference.answers import Saying
from assay.serving.openai.inference.completion_shapes import event
from assay.serving.openai.place import Place, project_of
from assay.serving.refusal import RefusedError


async def model_of(place: Place, request: Request, model: str) -> NamedModel:
    """The model of a name, if who asks may."""
    found = await run_in_threadpool(place.names.find, model, project_of(request))
    if found is None:
        raise RefusedError(
            f"The model {model!r:.160} does not exist in this project; 'models.list' says which there are.",
            status=404,
            param="model",
            code="model_not_found",
        )
    return found


@asynccontextmanager
async def engine_of(place: Place, request: Request, model: str) -> AsyncIterator[Engine]:
    """The engine of a model, by its name; loaded if it is not."""
    found = await model_of(place, request, model)
    if place.engines is None:
        raise RefusedError("This server has no engines.", status=404, code="endpoint_not_served")
    weights = place.keeper.of(model, found.source.run_id, found.source.step)
    await run_in_threadpool(weights.keep, ANSWERS)
    async with place.engines.engine(found.source) as engine:
        yield engine


def saying_to(request: Request, engine: Engine) -> Saying:
    """Asks an engine, while the client is there."""
    return partial(said_to, request, engine)


async def said_to(request: Request, engine: Engine, ask: Ask) -> AsyncGenerator[Said, None]:
    """What an engine says, while the client is there."""
    gone = asyncio.ensure_future(_gone(request))
    try:
        async with aclosing(engine.ask(ask)) as saying:
            while True:
                following = asyncio.ensure_future(anext(saying, None))
                try:
                    await asyncio.wait((gone, following), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not following.done():
                        following.cancel()
                        await asyncio.wait((following,))
                if following.cancelled():
                    raise ClientDisconnect
                if (said := following.result()) is None:
                    return
                yield said
    finally:
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def streamed(events: AsyncIterator[bytes]) -> Response:
    """A stream of events; what is refused before the first is an answer like any other."""
    first = await anext(aiter(events))

    async def rest() -> AsyncIterator[bytes]:
        yield first
        try:
            async for each in events:
                yield each
        except RefusedError as error:  # the status is out already
            yield event(error.envelope())
        except ClientDisconnect:
            return

    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(rest(), media_type="text/event-stream", headers=headers)

"""How a route asks a model: by its name, in its client's project, for as long as the client is there.

A client that hangs up gives up what it asked for, and the engine is free for others.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from assay.inference.protocol import Engine
from assay.serving.engines.refusals import took_too_long
from assay.serving.engines.sources import NamedModel
from assay.serving.openai.inference.completion_shapes import event
from assay.serving.openai.place import Place, ResultT, project_of, while_connected
from assay.serving.refusal import RefusedError
from assay.serving.retention import ANSWERS

READ_S = 300.0
"""How long a client may go on to read what is drawn: it lies in memory."""


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
    async with place.engines.engine(found.source, project_of(request)) as engine:
        yield engine


async def ask_model(
    place: Place, request: Request, model: str, work: Callable[[Engine], Awaitable[ResultT]]
) -> ResultT:
    """The result of `work` with the engine of a model. A client that hangs up gives it up, also while it waits;
    the engine is free for others then."""

    async def ask() -> ResultT:
        async with engine_of(place, request, model) as engine:
            return await work(engine)

    return await while_connected(request, ask())


async def streamed(request: Request, events: AsyncGenerator[bytes, None]) -> StreamingResponse:
    """A stream of events; what is refused before the first is an answer like any other. A client that hangs up
    ends it. One that reads slowly keeps nobody from the engine: what is drawn waits for it, for `READ_S`."""
    first = await while_connected(request, anext(events))

    async def rest() -> AsyncIterator[bytes]:
        drawn = asyncio.Queue[bytes | None]()
        drawing = asyncio.ensure_future(_draw(events, drawn))
        try:
            yield first
            while (each := await drawn.get()) is not None:
                yield each
                if drawing.done() and asyncio.get_running_loop().time() > drawing.result() + READ_S:
                    yield event(took_too_long(READ_S).envelope())
                    return
            await drawing
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)

    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(rest(), media_type="text/event-stream", headers=headers)


async def _draw(events: AsyncGenerator[bytes, None], drawn: asyncio.Queue[bytes | None]) -> float:
    """Put all events into the queue, and None behind them; when that was done."""
    try:
        async with aclosing(events):
            async for each in events:
                drawn.put_nowait(each)
    except RefusedError as error:  # the status is out already
        drawn.put_nowait(event(error.envelope()))
    finally:
        drawn.put_nowait(None)
    return asyncio.get_running_loop().time()

"""Runs requests on a model's engine while the client is connected.

If the client disconnects, the request is cancelled and the engine is free for others.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from assay.serving.api_error import ApiError
from assay.serving.engines.process import EngineProcess, took_too_long
from assay.serving.engines.sources import NamedModel
from assay.serving.openai.app_state import AppState, ResultT, project_of, while_connected
from assay.serving.openai.inference.completion_objects import event
from assay.serving.retention import INFERENCE

SLOW_READER_S = 300.0
"""How long a slow client may read a finished stream, which is held in memory."""


async def find_model(app: AppState, request: Request, model: str) -> NamedModel:
    """Return the model if the client's project may query it. Raises `ApiError` otherwise."""
    found = await run_in_threadpool(app.names.find, model, project_of(request))
    if found is None:
        raise ApiError(
            f"The model {model!r:.160} does not exist in this project; 'models.list' returns the available ones.",
            status=404,
            param="model",
            code="model_not_found",
        )
    return found


@asynccontextmanager
async def engine_for(app: AppState, request: Request, model: str) -> AsyncIterator[EngineProcess]:
    """Yield the engine of a model, loading it if necessary."""
    found = await find_model(app, request, model)
    if app.engines is None:
        raise ApiError("This server runs without engines.", status=404, code="endpoint_not_served")
    weights = app.retention.of(model, found.source.run_id, found.source.step)
    await run_in_threadpool(weights.retain, INFERENCE)
    async with app.engines.engine(found.source, project_of(request)) as engine:
        yield engine


async def run_on_engine(
    app: AppState, request: Request, model: str, work: Callable[[EngineProcess], Awaitable[ResultT]]
) -> ResultT:
    """Return the result of `work` on a model's engine; cancelled if the client disconnects."""

    async def run() -> ResultT:
        async with engine_for(app, request, model) as engine:
            return await work(engine)

    return await while_connected(request, run())


async def stream_response(request: Request, events: AsyncGenerator[bytes, None]) -> StreamingResponse:
    """Return a stream of events. An error before the first event is a normal error response.

    The stream ends if the client disconnects. Events are queued, so a slow client does not block the engine.
    """
    first = await while_connected(request, anext(events))

    async def rest() -> AsyncIterator[bytes]:
        queue = asyncio.Queue[bytes | None]()
        filling = asyncio.ensure_future(_draw(events, queue))
        try:
            yield first
            while (data := await queue.get()) is not None:
                yield data
                if filling.done() and asyncio.get_running_loop().time() > filling.result() + SLOW_READER_S:
                    yield event(took_too_long(SLOW_READER_S).envelope())
                    return
            await filling
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(rest(), media_type="text/event-stream", headers=headers)


async def _draw(events: AsyncGenerator[bytes, None], queue: asyncio.Queue[bytes | None]) -> float:
    """Queue all events, then None; return the time."""
    try:
        async with aclosing(events):
            async for data in events:
                queue.put_nowait(data)
    except ApiError as error:  # the status was already sent
        queue.put_nowait(event(error.envelope()))
    finally:
        queue.put_nowait(None)
    return asyncio.get_running_loop().time()

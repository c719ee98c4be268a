"""Models that a worker runs, in engine processes as in the server.

The worker's thread is synchronous; an event loop drives the engines' sockets during each call.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from assay.inference.protocol import (
    Completion,
    Engine,
    GenerateRequest,
    Message,
    ModelSource,
    PromptInput,
    SamplerError,
    SamplingParams,
)
from assay.serving.api_error import ApiError
from assay.serving.engines.pool import EnginePool
from assay.serving.engines.process import EngineProcess
from assay.store.leased_worker import LeavingError

ResultT = TypeVar("ResultT")
TRIES = 3
"""Attempts per request, since a request may crash its engine."""
LOOK_S = 0.2


class ModelNotLoadedError(Exception):
    """The model cannot be loaded."""

    def __init__(self, refused: ApiError) -> None:
        super().__init__(refused.message)
        self.code = refused.code or "model_not_usable"


class EngineModels:
    """Models in engine processes."""

    def __init__(
        self,
        start: Callable[[socket.socket], BaseProcess],
        *,
        max_models: int,
        max_bytes: int | None,
        is_over: threading.Event,
    ) -> None:
        """`is_over`: the worker is stopping."""
        self._pool = EnginePool(lambda: EngineProcess.launch(start), max_models=max_models, max_bytes=max_bytes)
        self._runner = asyncio.Runner()
        self._is_over = is_over

    def run(self, source: ModelSource, work: Callable[[EngineProcess], Awaitable[ResultT]]) -> ResultT:
        """Return the result of `work` on a model's engine.

        Raises `ApiError` if the request is rejected, `ModelNotLoadedError` if the model cannot be loaded, and
        `LeavingError` if the worker is stopping.
        """
        return self._runner.run(self._until_stopped(self._with_retries(source, work)))

    def close(self) -> None:
        """Stop all engines."""
        self._runner.run(self._end())
        self._runner.close()

    async def _end(self) -> None:
        for engine in self._pool.loaded():
            engine.end()

    async def _until_stopped(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait((task,), timeout=LOOK_S)
            if self._is_over.is_set() and not task.done():
                task.cancel()
                await asyncio.wait((task,))
                raise LeavingError
        return task.result()

    async def _with_retries(self, source: ModelSource, work: Callable[[EngineProcess], Awaitable[ResultT]]) -> ResultT:
        for number in range(1, TRIES + 1):
            try:
                return await self._once(source, work)
            except ApiError as error:
                if error.status < 500 or number == TRIES:
                    raise
        raise AssertionError("the last try answers or raises")

    async def _once(self, source: ModelSource, work: Callable[[EngineProcess], Awaitable[ResultT]]) -> ResultT:
        async with AsyncExitStack() as stack:
            try:
                engine = await stack.enter_async_context(self._pool.engine(source))
            except ApiError as error:
                if error.status >= 500:
                    raise
                raise ModelNotLoadedError(error) from error
            return await work(engine)


class WorkerEngine(Engine):
    """A model of a worker, which runs in a process of its own."""

    def __init__(self, models: EngineModels, source: ModelSource, name: str) -> None:
        self._models = models
        self._source = source
        self.name = name

    def generate(
        self, prompts: Sequence[Sequence[Message]], params: SamplingParams, *, may_shorten: bool = False
    ) -> list[Completion | SamplerError]:
        """See `Engine`; with `may_shorten`, prompts run one at a time, because `max_tokens` then depends on the
        longest prompt of a request."""
        if not may_shorten and len(prompts) > 1:
            found = self._completions(prompts, params)
            if not isinstance(found, SamplerError):
                return found
        alone = (self._completions([prompt], params, may_shorten=may_shorten) for prompt in prompts)
        return [found if isinstance(found, SamplerError) else found[0] for found in alone]

    def _completions(
        self, prompts: Sequence[Sequence[Message]], params: SamplingParams, *, may_shorten: bool = False
    ) -> list[Completion | SamplerError] | SamplerError:
        request = GenerateRequest(
            prompts=tuple(PromptInput(messages=tuple(prompt)) for prompt in prompts),
            params=params,
            may_shorten=may_shorten,
        )
        try:
            prompt_tokens, choices = self._models.run(self._source, lambda engine: engine.generate(request))
        except ApiError as error:
            return SamplerError("server" if error.status >= 500 else "request", error.message)
        return [
            Completion(
                choices[index].text,
                finish_reason=choices[index].reason or "stop",
                prompt_tokens=prompt_tokens[index],
                completion_tokens=choices[index].num_tokens,
            )
            for index in range(len(prompts))
        ]

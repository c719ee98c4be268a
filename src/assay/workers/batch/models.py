"""Models that a worker asks: engines of its own, in processes, as a server has them.

A worker's thread asks and waits; the engines' sockets have an event loop of their own, which runs while
somebody waits.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Protocol, TypeVar

from assay.inference.protocol import (
    CompletionChunk,
    Engine,
    GenerateRequest,
    ModelSource,
    PromptInput,
    PromptsRead,
)
from assay.scoring.sampler import Completion, Message, SamplerError, Sampling
from assay.serving.engines.pool import EnginePool
from assay.serving.engines.process import EngineProcess, StartedProcess
from assay.serving.refusal import RefusedError

AnswerT = TypeVar("AnswerT")
TRIES = 3
"""An engine may die of what it is asked: so often another is asked the same."""
LOOK_S = 0.2


class LeavingError(Exception):
    """The worker is told to leave; what was asked is asked again by the next."""


class ModelNotLoadedError(Exception):
    """No question can be put to the model."""

    def __init__(self, refused: RefusedError) -> None:
        super().__init__(refused.message)
        self.code = refused.code or "model_not_usable"


class Models(Protocol):
    """Models that answer."""

    def ask(self, source: ModelSource, work: Callable[[Engine], Awaitable[AnswerT]]) -> AnswerT:
        """What comes of asking one; `RefusedError` where it refuses that, `ModelNotLoadedError` where it
        refuses everything, `LeavingError` where nobody wants to know any more."""
        ...


class EngineModels:
    """Real ones."""

    def __init__(
        self,
        start: Callable[[socket.socket], StartedProcess],
        *,
        most: int,
        most_bytes: int | None,
        is_over: threading.Event,
    ) -> None:
        """At most `most` at a time, of `most_bytes` of memory; `is_over`: the worker is to leave."""
        self._pool = EnginePool(lambda: EngineProcess.begun(start), most=most, most_bytes=most_bytes)
        self._runner = asyncio.Runner()
        self._is_over = is_over

    def ask(self, source: ModelSource, work: Callable[[Engine], Awaitable[AnswerT]]) -> AnswerT:
        """See `Models`."""
        return self._runner.run(self._while_wanted(self._asked(source, work)))

    def close(self) -> None:
        """Have no process any more."""
        self._runner.run(self._end())
        self._runner.close()

    async def _end(self) -> None:
        for engine in self._pool.loaded():
            engine.end()

    async def _while_wanted(self, work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait((task,), timeout=LOOK_S)
            if self._is_over.is_set() and not task.done():
                task.cancel()
                await asyncio.wait((task,))
                raise LeavingError
        return task.result()

    async def _asked(self, source: ModelSource, work: Callable[[Engine], Awaitable[AnswerT]]) -> AnswerT:
        for number in range(1, TRIES + 1):
            try:
                return await self._once(source, work)
            except RefusedError as error:
                if error.status < 500 or number == TRIES:
                    raise
        raise AssertionError("the last try answers or raises")

    async def _once(self, source: ModelSource, work: Callable[[Engine], Awaitable[AnswerT]]) -> AnswerT:
        async with AsyncExitStack() as stack:
            try:
                engine = await stack.enter_async_context(self._pool.engine(source))
            except RefusedError as error:
                if error.status >= 500:
                    raise
                raise ModelNotLoadedError(error) from error
            return await work(engine)


class ModelSampler:
    """A model as graders and data sources ask it: conversations in, completions out."""

    def __init__(self, models: Models, source: ModelSource, name: str) -> None:
        self._models = models
        self._source = source
        self.name = name

    def sample(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling
    ) -> list[Completion | SamplerError]:
        """See `Sampler`."""
        return self.complete(prompts, sampling, max_tokens=sampling.max_tokens)

    def complete(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, max_tokens: int | None
    ) -> list[Completion | SamplerError]:
        """Likewise; without `max_tokens` each is as long as it likes, so each is asked for alone: what there is
        room for depends on who is asked for beside it."""
        if max_tokens is not None and len(prompts) > 1:
            found = self._asked(prompts, sampling, max_tokens)
            if not isinstance(found, SamplerError):
                return found
        alone = ((prompt, self._asked([prompt], sampling, max_tokens)) for prompt in prompts)
        return [found if isinstance(found, SamplerError) else found[0] for _, found in alone]

    def _asked(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, max_tokens: int | None
    ) -> list[Completion | SamplerError] | SamplerError:
        ask = GenerateRequest(
            prompts=tuple(PromptInput(messages=tuple(map(dict, prompt))) for prompt in prompts),
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            stop=sampling.stop,
        )
        try:
            drawn = self._models.ask(self._source, lambda engine: _drawn(engine, ask))
        except RefusedError as error:
            return SamplerError("server" if error.status >= 500 else "request", error.message)
        return [
            Completion(
                drawn.pieces[place].text,
                finish_reason=drawn.pieces[place].reason or "stop",
                prompt_tokens=drawn.prompt_tokens[place],
                completion_tokens=drawn.pieces[place].num_tokens,
            )
            for place in range(len(prompts))
        ]


class _Drawn(NamedTuple):
    prompt_tokens: tuple[int, ...]
    pieces: dict[int, CompletionChunk]


async def _drawn(engine: Engine, ask: GenerateRequest) -> _Drawn:
    prompt_tokens: tuple[int, ...] = ()
    pieces: dict[int, CompletionChunk] = {}
    async for said in engine.stream(ask):
        if isinstance(said, PromptsRead):
            prompt_tokens = said.prompt_tokens
        elif isinstance(said, CompletionChunk):
            pieces[said.choice] = said
    return _Drawn(prompt_tokens, pieces)

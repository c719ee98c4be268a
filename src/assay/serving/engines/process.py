"""An engine in its own process, connected by a socket pair; JSON lines, responses matched by request number.

Only the process imports torch and holds the model. It exits when the server's end of the socket closes, so a
killed server leaves no engines behind. If the process dies, waiting requests fail at once.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from multiprocessing.process import BaseProcess
from typing import Self, TypeVar

from assay.inference.protocol import (
    REQUEST_LINE,
    RESPONSE_LINE,
    CompletionChunk,
    Embedded,
    EmbedRequest,
    EngineRequest,
    EngineResponse,
    GenerateRequest,
    ModelSource,
    PromptsRead,
    Ready,
    RequestLine,
    RequestRejected,
    Scored,
    ScoreRequest,
    Tokenized,
    TokenizeRequest,
)
from assay.serving.api_error import ApiError

REQUEST_TIMEOUT_S = 1800.0
"""Limit of one request. An engine processes requests one at a time, so others wait."""
MAX_LINE_BYTES = 1 << 28
"""Longest response line: the scores of a long batch."""

ResponseT = TypeVar("ResponseT", Ready, Scored, Embedded, Tokenized)


class EngineProcess:
    """One process and its requests; starts without a model."""

    def __init__(self, process: BaseProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self._queues: dict[int, asyncio.Queue[EngineResponse | ApiError | None]] = {}
        self._is_over = False
        self._ready: Ready | None = None
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def launch(cls, start: Callable[[socket.socket], BaseProcess]) -> Self:
        """Start a process with one end of a socket pair."""
        server_socket, engine_socket = socket.socketpair()
        with engine_socket:
            try:
                process = await asyncio.to_thread(start, engine_socket)
            except (OSError, EOFError) as error:  # the fork server was killed
                server_socket.close()
                raise engine_lost() from error
        reader, writer = await asyncio.open_connection(sock=server_socket, limit=MAX_LINE_BYTES)
        return cls(process, reader, writer)

    @property
    def ready(self) -> Ready:
        """The loaded model."""
        assert self._ready is not None
        return self._ready

    @property
    def is_over(self) -> bool:
        """Whether the process is gone."""
        return self._is_over

    async def load(self, source: ModelSource) -> Ready:
        """Load a model. Raises `ApiError` if that fails."""
        self._ready = await self._response(source, Ready)
        return self._ready

    async def stream(self, request: EngineRequest) -> AsyncGenerator[EngineResponse, None]:
        """Yield the responses of a request; closing the iterator cancels it.

        Raises `ApiError` if the request is rejected or the process died.
        """
        number, queue = next(self._numbers), asyncio.Queue[EngineResponse | ApiError | None]()
        self._queues[number] = queue
        is_done = self._is_over
        until_s = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_S
        try:
            if self._is_over:
                raise engine_lost()
            await self._send((number, request))
            while True:
                try:
                    async with asyncio.timeout_at(until_s):
                        message = await queue.get()
                except TimeoutError:
                    raise took_too_long(REQUEST_TIMEOUT_S) from None
                is_done = message is None or isinstance(message, ApiError)
                if message is None:
                    return
                if isinstance(message, ApiError):
                    raise message
                yield message
        finally:
            del self._queues[number]
            if not is_done and not self._is_over:
                self._writer.write(_line((number, None)))

    async def generate(self, request: GenerateRequest) -> tuple[tuple[int, ...], dict[int, CompletionChunk]]:
        """Return the number of tokens of each prompt, and the choices by index: one chunk each."""
        prompt_tokens: tuple[int, ...] = ()
        choices: dict[int, CompletionChunk] = {}
        async with aclosing(self.stream(request)) as responses:
            async for response in responses:
                if isinstance(response, PromptsRead):
                    prompt_tokens = response.prompt_tokens
                elif isinstance(response, CompletionChunk):
                    choices[response.choice] = response
        return prompt_tokens, choices

    async def score(self, request: ScoreRequest) -> Scored:
        return await self._response(request, Scored)

    async def embed(self, request: EmbedRequest) -> Embedded:
        return await self._response(request, Embedded)

    async def tokenize(self, request: TokenizeRequest) -> Tokenized:
        return await self._response(request, Tokenized)

    async def _response(self, request: EngineRequest, kind: type[ResponseT]) -> ResponseT:
        """Return the only response of a request."""
        async with aclosing(self.stream(request)) as responses:
            async for response in responses:
                assert isinstance(response, kind), response
                return response
        raise AssertionError("an engine responds")

    def end(self) -> None:
        """Stop at once, dropping running requests."""
        self._process.kill()
        self._lose()

    async def _send(self, line: RequestLine) -> None:
        try:
            self._writer.write(_line(line))
            await self._writer.drain()
        except OSError:
            self._lose()
            raise engine_lost() from None

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                number, response = RESPONSE_LINE.validate_json(line)
                if (queue := self._queues.get(number)) is not None:  # otherwise it was cancelled
                    queue.put_nowait(_rejected(response) if isinstance(response, RequestRejected) else response)
        except (OSError, ValueError) as error:
            logging.getLogger("assay.serving").error("engine: %s", error)
        finally:
            self.end()
            # Joined in a thread: the exit of a large process takes a while.
            await asyncio.shield(asyncio.to_thread(self._process.join))

    def _lose(self) -> None:
        self._is_over = True
        self._writer.close()
        for queue in self._queues.values():
            queue.put_nowait(engine_lost())


def _line(line: RequestLine) -> bytes:
    return REQUEST_LINE.dump_json(line, exclude_none=True) + b"\n"


def engine_lost() -> ApiError:
    """The process died; a retry starts a new one."""
    return ApiError(
        "The process of this model died. Retry the request; a new process is started.",
        status=503,
        code="engine_died",
        headers={"retry-after": "1"},
    )


def took_too_long(limit_s: float) -> ApiError:
    """400, because a retry would take as long."""
    return ApiError(
        f"The response was not complete within {limit_s / 60:.0f} minutes. Request fewer prompts, choices or tokens.",
        code="answer_too_long",
    )


def _rejected(rejected: RequestRejected) -> ApiError:
    """Convert an engine's rejection."""
    status = 500 if rejected.is_ours else 400
    return ApiError(rejected.message, status=status, param=rejected.param, code=rejected.code)

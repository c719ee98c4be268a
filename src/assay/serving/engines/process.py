"""An engine in a process of its own, over a pair of sockets: lines of JSON, answers by the number of their ask.

The process holds torch and the model; this side holds neither. It leaves when the other end of its socket is
gone, so a server that is killed leaves no engine behind; and when it dies, whoever waits for it is told at
once.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Protocol, Self

from assay.inference.protocol import (
    RESPONSE_LINE,
    Done,
    EngineRequest,
    EngineResponse,
    ModelSource,
    Ready,
    RequestLine,
    RequestRejected,
)
from assay.serving.engines.refusals import engine_lost, refused_by, took_too_long

ASK_S = 1800.0
"""How long one ask may take: an engine answers one after another, so others wait for it."""
MAX_LINE_BYTES = 1 << 28
"""An answer's longest line: the scores of a long batch."""


class StartedProcess(Protocol):
    """What was started, as `multiprocessing` has it."""

    def kill(self) -> None:
        """End it."""
        ...

    def join(self) -> None:
        """Wait for its end."""
        ...


class EngineProcess:
    """One process, and what is asked of it; begins without a model."""

    def __init__(
        self, process: StartedProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Queue[EngineResponse | None]] = {}
        self._is_over = False
        self._ready: Ready | None = None
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def begun(cls, start: Callable[[socket.socket], StartedProcess]) -> Self:
        """A new process, which is given its end of a pair of sockets."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.to_thread(start, theirs)
            except (OSError, EOFError) as error:  # what it is forked from was killed
                ours.close()
                raise engine_lost() from error
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
        return cls(process, reader, writer)

    @property
    def ready(self) -> Ready:
        """See `Engine`; only of one that has its model."""
        assert self._ready is not None
        return self._ready

    @property
    def is_over(self) -> bool:
        """Whether the process is gone."""
        return self._is_over

    async def load(self, source: ModelSource) -> Ready:
        """Have the model loaded; `RefusedError` where it cannot be."""
        async for said in self.stream(source):
            assert isinstance(said, Ready), said
            self._ready = said
        return self.ready

    async def stream(self, request: EngineRequest) -> AsyncGenerator[EngineResponse, None]:
        """See `Engine`."""
        number, queue = next(self._numbers), asyncio.Queue[EngineResponse | None]()
        self._answers[number] = queue
        is_answered = self._is_over
        until_s = asyncio.get_running_loop().time() + ASK_S
        try:
            if self._is_over:
                raise engine_lost()
            await self._tell(RequestLine(number=number, request=request))
            while True:
                try:
                    async with asyncio.timeout_at(until_s):
                        said = await queue.get()
                except TimeoutError:
                    raise took_too_long(ASK_S) from None
                is_answered = said is None or isinstance(said, Done | RequestRejected)
                if said is None:
                    raise engine_lost()
                if isinstance(said, RequestRejected):
                    raise refused_by(said)
                if isinstance(said, Done):
                    return
                yield said
        finally:
            del self._answers[number]
            if not is_answered and not self._is_over:
                self._writer.write(_line(RequestLine(number=number)))

    def end(self) -> None:
        """Have no process any more."""
        self._process.kill()
        self._lose()

    async def _tell(self, line: RequestLine) -> None:
        try:
            self._writer.write(_line(line))
            await self._writer.drain()
        except OSError:
            self._lose()
            raise engine_lost() from None

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                found = RESPONSE_LINE.validate_json(line)
                if (queue := self._answers.get(found.number)) is not None:  # else it was given up
                    queue.put_nowait(found.response)
        except (OSError, ValueError) as error:
            logging.getLogger("assay.serving").error("engine: %s", error)
        finally:
            self.end()
            # Its end is waited for elsewhere: a process that writes its last memory takes its time.
            await asyncio.shield(asyncio.to_thread(self._process.join))

    def _lose(self) -> None:
        self._is_over = True
        self._writer.close()
        for queue in self._answers.values():
            queue.put_nowait(None)


def _line(line: RequestLine) -> bytes:
    return line.model_dump_json(exclude_none=True).encode() + b"\n"

"""An engine's process: asks come in as lines, and are answered one after another, until the server is gone.

    socket --a thread--> asks, and which were given up        main thread --answers--> socket

Asks are answered in the main thread, where a chat template can be held to its time; the thread that listens
sees at once that an ask is given up, or that nobody is there any more.
"""

import logging
import os
import queue
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from assay.base.errors import AssayError
from assay.inference.protocol import (
    REQUEST_LINE,
    Done,
    EngineRequest,
    EngineResponse,
    ModelSource,
    RequestLine,
    RequestRejected,
    ResponseLine,
)
from assay.inference.rollout import GenerationAbandonedError
from assay.serving.http.log_limit import LimitedLogHandler
from assay.store.home import Home
from assay.workers.engine.loaded import AskRefusedError, LoadedModel, Tell
from assay.workers.engine.loading import load


class EngineLoop:
    """Answers what comes through a socket."""

    def __init__(self, home: Home, lines: BinaryIO, out: BinaryIO) -> None:
        self._home = home
        self._lines = lines
        self._out = out
        self._asks: queue.SimpleQueue[RequestLine] = queue.SimpleQueue()
        self._given_up: set[int] = set()
        self._model: LoadedModel | None = None

    def run(self) -> None:
        """Until the process is ended."""
        threading.Thread(target=self._listen, name="asks", daemon=True).start()
        while True:
            line = self._asks.get()
            assert line.request is not None
            self._answer(line.number, line.request)
            self._given_up.discard(line.number)

    def _listen(self) -> None:
        with suppress(ConnectionError):  # from a server that was killed with something of ours unread
            for line in self._lines:
                asked = REQUEST_LINE.validate_json(line)
                if asked.request is None:
                    self._given_up.add(asked.number)
                else:
                    self._asks.put(asked)
        os._exit(0)  # the server is gone: nobody waits for what is under way

    def _answer(self, number: int, ask: EngineRequest) -> None:
        def tell(said: EngineResponse) -> None:
            self._out.write(ResponseLine(number=number, response=said).model_dump_json().encode() + b"\n")
            self._out.flush()

        try:
            if number not in self._given_up:
                self._answered(number, ask, tell)
            tell(Done())
        except GenerationAbandonedError:
            return
        except AskRefusedError as error:
            tell(RequestRejected(message=str(error), code=error.code, param=error.param))
        except AssayError as error:
            tell(RequestRejected(message=str(error), code="model_not_usable", param="model"))
        except ConnectionError:
            os._exit(0)
        except Exception:  # a request's boundary: the others go on
            logging.getLogger("assay.engine").exception("an engine made a mistake")
            tell(
                RequestRejected(
                    message="The model's process made a mistake, which is ours.", code="", is_ours=True
                )
            )

    def _answered(self, number: int, ask: EngineRequest, tell: Tell) -> None:
        if isinstance(ask, ModelSource):
            self._model = load(self._home, ask)
            tell(self._model.ready)
            return
        assert self._model is not None, "loaded first"
        self._model.answer(ask, tell, lambda: number in self._given_up)


def run_engine(folder: str, ours: socket.socket) -> None:
    """Answer for the models of the home in a folder."""
    logging.getLogger().addHandler(LimitedLogHandler())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, with which this leaves
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    with ours, ours.makefile("rb") as lines, ours.makefile("wb") as out:
        EngineLoop(Home.at(Path(folder)), lines, out).run()

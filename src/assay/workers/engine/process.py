"""Main loop of an engine process: reads requests as lines, handles them one at a time, exits with the server.

    socket --thread--> requests and cancellations        main thread --responses--> socket

The main thread handles requests, because the time limit of chat templates needs signals. The reader thread notices
cancellations and a closed socket at once.
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
from assay.base.json_log import use_log_format
from assay.inference.protocol import (
    REQUEST_LINE,
    RESPONSE_LINE,
    EngineRequest,
    EngineResponse,
    ModelSource,
    RequestRejected,
)
from assay.inference.rollout import GenerationCancelledError
from assay.serving.http.log_limit import LimitedLogHandler
from assay.store.home import Home
from assay.workers.engine.language import LanguageEngine
from assay.workers.engine.loading import load
from assay.workers.engine.predicting import PredictingEngine
from assay.workers.engine.requests import RequestRejectedError, Send


class EngineLoop:
    """Handles the requests of a socket."""

    def __init__(self, home: Home, lines: BinaryIO, out: BinaryIO) -> None:
        self._home = home
        self._lines = lines
        self._out = out
        self._requests: queue.SimpleQueue[tuple[int, EngineRequest]] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._model: LanguageEngine | PredictingEngine | None = None

    def run(self) -> None:
        threading.Thread(target=self._listen, name="asks", daemon=True).start()
        while True:
            number, request = self._requests.get()
            self._respond(number, request)
            self._cancelled.discard(number)

    def _listen(self) -> None:
        with suppress(ConnectionError):  # the server was killed before reading all responses
            for line in self._lines:
                number, request = REQUEST_LINE.validate_json(line)
                if request is None:
                    self._cancelled.add(number)
                else:
                    self._requests.put((number, request))
        os._exit(0)  # the server is gone, so nobody needs the current response

    def _respond(self, number: int, request: EngineRequest) -> None:
        def send(response: EngineResponse | None) -> None:
            self._out.write(RESPONSE_LINE.dump_json((number, response)) + b"\n")
            self._out.flush()

        try:
            if number not in self._cancelled:
                self._handle(number, request, send)
            send(None)
        except GenerationCancelledError:
            return
        except RequestRejectedError as error:
            send(RequestRejected(message=str(error), code=error.code, param=error.param))
        except AssayError as error:
            send(RequestRejected(message=str(error), code="model_not_usable", param="model"))
        except ConnectionError:
            os._exit(0)
        except Exception:  # one request must not stop the engine
            logging.getLogger("assay.engine").exception("unexpected error in an engine")
            send(RequestRejected(message="Internal error in the model's process.", code="", is_ours=True))

    def _handle(self, number: int, request: EngineRequest, send: Send) -> None:
        if isinstance(request, ModelSource):
            self._model = load(self._home, request)
            send(self._model.ready)
            return
        assert self._model is not None, "loaded first"
        self._model.handle(request, send, lambda: number in self._cancelled)


def run_engine(folder: str, ours: socket.socket) -> None:
    """Run an engine for the models of the home in `folder`."""
    use_log_format("assay.engine")
    logging.getLogger().addHandler(LimitedLogHandler())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the server, and the engine exits with it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    with ours, ours.makefile("rb") as lines, ours.makefile("wb") as out:
        EngineLoop(Home.at(Path(folder)), lines, out).run()

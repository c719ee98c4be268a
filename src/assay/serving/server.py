"""Starts the server on a home: one process, no torch; everything that it keeps is in the home's `api`
folder."""

import socket
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, StoreError
from assay.serving.base_models import BaseModelFile
from assay.serving.engines.process import EngineProcess, StartedProcess
from assay.serving.files import FileShelf
from assay.store.home import Home
from assay.store.objects import open_store


class EngineBudget(NamedTuple):
    """How many models answer at a time, and how they are started."""

    start: Callable[[socket.socket], StartedProcess]
    """Starts a process that waits for its model, with its end of a pair of sockets."""
    most: int
    most_bytes: int | None = None
    """Memory of all that are loaded."""


def run_server(
    home: Home,
    models: Mapping[str, BaseModelFile],
    budget: EngineBudget,
    *,
    host: str,
    port: int,
    say: Callable[[str], None],
) -> None:
    """Serve until told to stop; `say` gets the address once it is listened on."""
    try:
        import uvicorn

        from assay.serving.engines.pool import EnginePool
        from assay.serving.openai.app import BASE_PATH, make_app
        from assay.serving.openai.door import LOOPBACK_NAMES
        from assay.serving.openai.place import Place
    except ImportError as error:
        raise ConfigError(
            f"'assay serve' needs {error.name}, which is not installed: pip install 'assay[serve]'."
        ) from error
    engines = EnginePool(
        lambda: EngineProcess.begun(budget.start), most=budget.most, most_bytes=budget.most_bytes
    )
    place = Place.of(open_store(str(home.api)), models, SystemClock(), engines)
    if host not in LOOPBACK_NAMES and not place.keys.are_there():
        raise ConfigError(
            f"--host {host}: a server without keys listens on this machine only. Make one ('assay key "
            "create'), or use 127.0.0.1, and reach it from elsewhere through ssh -L."
        )
    app = make_app(place)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"--host {host} --port {port}: cannot be listened on: {error.strerror}. Choose another --port."
            ) from error
        shown = f"[{host}]" if ":" in host else host
        say(f"serving http://{shown}:{listener.getsockname()[1]}{BASE_PATH}")
        threading.Thread(target=_sweep, args=(place.files, say), name="sweep", daemon=True).start()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
        server.run(sockets=[listener])


def _sweep(files: FileShelf, say: Callable[[str], None]) -> None:
    try:
        files.sweep()
    except StoreError as error:
        say(f"what was left half-uploaded was not swept: {error}")

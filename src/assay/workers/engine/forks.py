"""Starts engines by forking a server process that has imported torch; it starts with the first engine.

Importing takes seconds, a fork some hundredths of a second, and imported modules share memory. The API server itself
does not import torch.
"""

import socket
import threading
from multiprocessing.process import BaseProcess

from assay.elastic.fork_server import fork_context
from assay.store.home import Home


class EngineForks:
    """Starts engine processes for the models of a home."""

    def __init__(self, home: Home) -> None:
        self._folder = str(home.folder.resolve())
        self._lock = threading.Lock()

    def start(self, engine_socket: socket.socket) -> BaseProcess:
        """Start an engine with its end of a socket pair."""
        # Ctrl-C in a terminal reaches all processes. The fork server blocks it and exits with this process.
        with self._lock:
            context = fork_context("assay.workers.engine.process")
            process = context.Process(target=_run, args=(self._folder, engine_socket), daemon=True)
            process.start()
        return process


def _run(folder: str, ours: socket.socket) -> None:
    from assay.workers.engine.process import run_engine

    run_engine(folder, ours)

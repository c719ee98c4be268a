"""Starts engines by forking a server process that has imported torch; it starts with the first engine.

Importing takes seconds, a fork some hundredths of a second, and imported modules share memory. The API server itself
does not import torch.
"""

import multiprocessing
import signal
import socket
import threading
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess

from assay.store.home import Home

_PRELOAD = "assay.workers.engine.preload"


class EngineForks:
    """Starts engine processes for the models of a home."""

    def __init__(self, home: Home) -> None:
        self._folder = str(home.folder.resolve())
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([_PRELOAD])
        self._lock = threading.Lock()

    def start(self, engine_socket: socket.socket) -> BaseProcess:
        """Start an engine with its end of a socket pair."""
        # Ctrl-C in a terminal reaches all processes. The fork server blocks it and exits with this process.
        with self._lock:
            resource_tracker.ensure_running()  # starting it inside would unblock the signals
            previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            try:
                forkserver.ensure_running()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous)
            process = self._context.Process(target=_run, args=(self._folder, engine_socket), daemon=True)
            process.start()
        return process


def _run(folder: str, ours: socket.socket) -> None:
    from assay.workers.engine.process import run_engine

    run_engine(folder, ours)

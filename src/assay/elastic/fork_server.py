"""The server that ranks are forked from: it has imported torch, so a restart takes a fraction of a second.

Imports nothing itself, so that who is about to train can start it first, and check what it is given meanwhile.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from typing import Any


def fork_context() -> ForkServerContext:
    """Start the server that ranks are forked from.

    A cluster's SIGTERM and a terminal's Ctrl-C go to every process of a job, so the server holds both back
    for good, and a forked rank SIGTERM until it has its handler: it is never lost, and never ends a rank that
    has yet to learn what to do with it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["assay.elastic.preload"])
    resource_tracker.ensure_running()  # would release the signal if it were started within
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return context


@contextmanager
def started_at_once() -> Iterator[None]:
    """Have the server import while it is found out, in here, what is to be trained.

    It ends at once where that fails: else it would import for seconds after a mistake was told. One that had
    begun before serves on.
    """
    server: Any = forkserver._forkserver  # Python has no word for its end but its own tests'
    was_running = server._forkserver_pid is not None
    fork_context()
    try:
        yield
    except BaseException:
        if not was_running and server._forkserver_pid is not None:
            os.kill(server._forkserver_pid, signal.SIGKILL)
            server._stop()
        raise

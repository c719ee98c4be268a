"""The server that ranks are forked from. It has imported torch, so a restart takes a fraction of a second.

This module imports nothing heavy, so a command can start the server first and validate its input meanwhile.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from typing import Any


def fork_context(*modules: str) -> ForkServerContext:
    """Start the fork server if it does not run, and return its context. It imports `modules` besides a rank's.

    A scheduler's SIGTERM and a terminal's Ctrl-C go to every process of a job, so the server blocks both. A forked
    rank keeps SIGTERM blocked until its handler is installed: the signal is neither lost nor fatal.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["assay.elastic.preload", *modules])
    resource_tracker.ensure_running()  # started inside the block below, it would unblock the signals
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return context


@contextmanager
def started_at_once() -> Iterator[None]:
    """Let the server import torch while the body validates what to train.

    If the body raises, the server is killed, or it would delay the exit by seconds of imports. A server that was
    running before stays.
    """
    server: Any = forkserver._forkserver  # multiprocessing has no public call to stop it
    was_running = server._forkserver_pid is not None
    fork_context()
    try:
        yield
    except BaseException:
        if not was_running and server._forkserver_pid is not None:
            os.kill(server._forkserver_pid, signal.SIGKILL)
            server._stop()
        raise

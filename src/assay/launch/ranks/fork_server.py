"""The server that ranks are forked from: it has imported torch, so a restart takes a fraction of a second.

Imports nothing itself, so that who is about to train can start it first, and check what it is given meanwhile.
"""

import multiprocessing
import signal
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext


def fork_context() -> ForkServerContext:
    """Start the server that ranks are forked from.

    A cluster's SIGTERM and a terminal's Ctrl-C go to every process of a job, so the server holds both back
    for good, and a forked rank SIGTERM until it has its handler: it is never lost, and never ends a rank that
    has yet to learn what to do with it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["assay.launch.ranks.preload"])
    resource_tracker.ensure_running()  # would release the signal if it were started within
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return context

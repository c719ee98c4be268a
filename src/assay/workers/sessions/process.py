"""The process that executes sessions, until SIGTERM or Ctrl-C; it stores the states of its models when it leaves."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, StoreError
from assay.distributed.ranks import Ranks
from assay.serving.sessions.sessions import SessionRepository
from assay.store.home import Home
from assay.store.leased_worker import LeasedWorker
from assay.store.objects import open_store
from assay.workers.sessions.handler import SessionHandler
from assay.workers.sessions.model import SessionTools

SHORTEST_WAIT_S = 0.01
"""Between two looks for requests just after one; the wait grows to `interval_s` while there are none."""


def run_sessions(
    home: Home, *, commit_after_s: float, lease_s: float, interval_s: float, notify: Callable[[str], None]
) -> None:
    """Execute sessions until stopped.

    `commit_after_s`: see `SessionTools`. `lease_s`: another worker may take the sessions of a silent one after this.
    `interval_s`: longest time between two looks for requests.
    """
    if find_spec("peft") is None:
        raise ConfigError("'assay serve sessions' trains adapters and needs PEFT: pip install 'assay[lora]'.")
    clock, store, is_over = SystemClock(), open_store(str(home.api)), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    with TemporaryDirectory() as folder:
        ranks = Ranks.join(rank=0, world_size=1, rendezvous=f"file://{Path(folder)}/rendezvous", num_threads=1)
        tools = SessionTools(store, SessionRepository(store, clock), ranks, clock, commit_after_s, notify)
        handler = SessionHandler(tools)
        name = f"process {os.getpid()} on {socket.gethostname()}"
        worker = LeasedWorker(store, [handler], name=name, clock=clock, term_s=lease_s, notify=notify)
        notify(f"executing sessions of {home.api}")
        wait_s = SHORTEST_WAIT_S
        while not is_over.is_set():
            try:
                worker.poll()
            except StoreError as error:
                notify(f"sessions: {error} Retrying.")
                wait_s = interval_s
            wait_s = SHORTEST_WAIT_S if handler.has_executed else min(interval_s, 1.1 * wait_s)
            is_over.wait(0.0 if handler.has_executed else wait_s)
        with suppress(StoreError):  # otherwise the leases expire
            worker.leave()
        ranks.leave()

"""The process that executes sessions, until SIGTERM or Ctrl-C; it stores the states of its models when it leaves."""

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, StoreError
from assay.base.units import number_of
from assay.elastic.processor import gpus_here, processor_here
from assay.elastic.workers import Workers, room_here
from assay.serving.jobs import JobRepository
from assay.serving.queue.worker_registry import SESSION_WORKERS, WorkerRegistration
from assay.serving.sessions.sessions import SessionRepository
from assay.store.home import Home
from assay.store.leased_worker import LeasedWorker
from assay.store.objects import open_store
from assay.workers.fine_tuning.budgets import Budgets
from assay.workers.sessions.handler import SessionHandler
from assay.workers.sessions.model import SessionTools
from assay.workers.sessions.ranks import SessionRanks
from assay.workers.sessions.retention import finish_silent, remove_unnamed

SHORTEST_WAIT_S = 0.01
"""Between two looks for requests just after one; the wait grows to `interval_s` while there are none."""

CLEANING_S = 900.0
"""Between two looks for sessions to finish, and for finished ones from which something is removed."""


def run_sessions(
    home: Home,
    workers: Workers,
    *,
    commit_after_s: float,
    lease_s: float,
    interval_s: float,
    silent_s: float,
    keep_s: float,
    notify: Callable[[str], None],
) -> None:
    """Execute sessions until stopped.

    `workers`: ranks, which share the lanes of each request. `commit_after_s`: see `SessionTools`. `lease_s`: another
    worker may take the sessions of a silent one after this. `interval_s`: longest time between two looks for requests.
    `silent_s`: time after the last sign of a client until `finish_silent`. `keep_s`: time after the end of a session
    until `remove_unnamed`.
    """
    if find_spec("peft") is None:
        raise ConfigError("'assay serve sessions' trains adapters and needs PEFT: pip install 'assay[lora]'.")
    world_size = _world_size(workers)
    clock, store, is_over = SystemClock(), open_store(str(home.api)), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    with SessionRanks(str(home.api), world_size) as ranks:
        sessions = SessionRepository(store, clock)
        tools = SessionTools(store, sessions, ranks, clock, commit_after_s, notify, Counter())
        is_spent = Budgets(store, JobRepository(store, clock), lambda run_id: (), clock).is_spent
        handler = SessionHandler(tools, home, num_devices=world_size, is_spent=is_spent)
        name = f"process {os.getpid()} on {socket.gethostname()}"
        worker = LeasedWorker(store, [handler], name=name, clock=clock, term_s=lease_s, notify=notify)
        notify(f"executing sessions of {home.api} on {number_of(world_size, 'rank')}")
        registration = WorkerRegistration(store, clock, name=name, slots=1, folder=SESSION_WORKERS)
        wait_s, cleans_s, heard = SHORTEST_WAIT_S, 0.0, dict[str, float]()
        while not is_over.is_set():
            try:
                registration.renew()
                worker.poll()
                if clock.monotonic_s() >= cleans_s:
                    heard = finish_silent(sessions, heard, heard_before_s=clock.now_s() - silent_s)
                    remove_unnamed(sessions, finished_before_s=clock.now_s() - keep_s)
                    cleans_s = clock.monotonic_s() + CLEANING_S
            except StoreError as error:
                notify(f"sessions: {error} Retrying.")
                wait_s = interval_s
            wait_s = SHORTEST_WAIT_S if handler.has_executed else min(interval_s, 1.1 * wait_s)
            is_over.wait(0.0 if handler.has_executed else wait_s)
        with suppress(StoreError):  # otherwise the leases expire
            worker.leave()
            registration.deregister()


def _world_size(workers: Workers) -> int:
    """Return the number of ranks: for a range, as many as fit. Raises `ConfigError` if there is too little room."""
    return room_here(
        workers,
        num_lanes=1 << 20,  # each session has its own: one with fewer lanes than ranks uses some of them
        threads=1,
        num_gpus=0 if processor_here().instructions else len(gpus_here()),
        num_processors=len(os.sched_getaffinity(0)),
    )

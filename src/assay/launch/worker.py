"""The process of a worker: looks, waits, looks again; leaves at SIGTERM or Ctrl-C, and runs go on."""

import os
import signal
import socket
import threading
from collections.abc import Callable

from assay.base.clock import SystemClock
from assay.base.errors import StoreError
from assay.launch.fine_tuning.runs import RunsOfHome
from assay.launch.fine_tuning.worker import Worker
from assay.launch.places.launcher import Launcher
from assay.serving.files import FileShelf
from assay.serving.jobs import JobShelf
from assay.serving.webhooks.courier import Courier
from assay.store.home import Home
from assay.store.objects import open_store


def run_worker(
    home: Home,
    launcher: Launcher,
    *,
    runs_at_once: int,
    every_s: float,
    until_idle: bool,
    say: Callable[[str], None],
) -> None:
    """Work until told to stop; or, `until_idle`, until nothing goes on by itself."""
    clock, store = SystemClock(), open_store(str(home.api))
    files, name = FileShelf(store, clock), f"process {os.getpid()} on {socket.gethostname()}"
    worker = Worker(
        store,
        JobShelf(store, clock),
        RunsOfHome(home, files, launcher, clock),
        name=name,
        clock=clock,
        runs_at_once=runs_at_once,
    )
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    courier = Courier(store, clock, name=name, listed=home.settings().webhook_hosts)
    bringing = threading.Thread(target=courier.run, args=(is_over, say), name="courier")
    bringing.start()
    say(f"working at the jobs of {home.api}")
    try:
        while not is_over.is_set():
            try:
                is_busy = worker.look()
            except StoreError as error:
                say(f"{error} It is asked again.")
                is_busy = True
            if until_idle and not is_busy and not courier.has_something_due():
                break
            is_over.wait(every_s)
    finally:
        is_over.set()
        worker.leave()
        bringing.join()

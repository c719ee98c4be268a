"""Starts the server on a home: one process, no torch; everything that it keeps is in the home's `api`
folder."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError, StoreError
from assay.serving.base_models import BaseModelFile
from assay.serving.engines.process import EngineProcess, StartedProcess
from assay.serving.http.log_limit import LimitedLogHandler
from assay.serving.retention import stores_of
from assay.store.home import Home
from assay.store.objects import open_store
from assay.store.patience import Patience, at_once

if TYPE_CHECKING:
    from assay.serving.openai.place import Place

PATIENCE_S = 5.0
"""How long a store may be away before a client is told so (503), which asks again by itself."""
SWEEP_EVERY_S = 3600.0


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
    judge: str | None,
    say: Callable[[str], None],
) -> None:
    """Serve until told to stop; `say` gets the address once it is listened on."""
    try:
        from assay.serving.engines.pool import EnginePool
        from assay.serving.http.connections import TimedServer
        from assay.serving.openai.app import BASE_PATH, make_app
        from assay.serving.openai.door import LOOPBACK_NAMES
        from assay.serving.openai.place import DEFAULT_PROJECT, Place
    except ImportError as error:
        raise ConfigError(
            f"'assay serve' needs {error.name}, which is not installed: pip install 'assay[serve]'."
        ) from error
    engines = EnginePool(
        lambda: EngineProcess.begun(budget.start), most=budget.most, most_bytes=budget.most_bytes, say=say
    )
    log = LimitedLogHandler()
    logging.getLogger().addHandler(log)
    patience = Patience(PATIENCE_S, make_call=at_once, say=logging.getLogger("assay.serving").warning)
    store, settings = open_store(str(home.api), patience), home.settings()
    place = Place.of(
        store,
        models,
        SystemClock(),
        engines,
        judge=judge,
        webhook_hosts=settings.webhook_hosts,
        project_bytes=settings.project_storage_gb * 1e9,
        store_of_run=stores_of(home, patience),
        job_table=home.api_table,
    )
    if host not in LOOPBACK_NAMES and not place.keys.are_there():
        raise ConfigError(
            f"--host {host}: a server without keys listens on this machine only. Make one ('assay key "
            "create'), or use 127.0.0.1, and reach it from elsewhere through ssh -L."
        )
    # What an older assay kept apart by keys alone.
    for project in sorted({DEFAULT_PROJECT, *(key.created.project for key in place.keys.all())}):
        place.projects.ensure(project, by="")
    app = make_app(place)
    with listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        say(f"serving http://{shown}:{listener.getsockname()[1]}{BASE_PATH}")
        threading.Thread(target=_keep_house, args=(place, say), name="house", daemon=True).start()
        TimedServer(app, log).run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; raises `ConfigError` where that cannot be.

    Whoever is told the address may ask at once, and waits till the rest is up.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Of each connection, too: else an answer's body waits until its head is acknowledged, for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--host {host} --port {port}: cannot be listened on: {error.strerror}. Choose another --port."
        ) from error
    return listener


def _keep_house(place: "Place", say: Callable[[str], None]) -> None:
    is_relisted = False
    while True:
        try:
            if not is_relisted:
                _relist(place, in_peace(place.clock))
                is_relisted = True
            place.uploads.sweep()
            place.files.sweep()
            place.job_table.fill(place.projects.ids(), in_peace(place.clock))
        except StoreError as error:
            say(f"what expired was not swept, or jobs not put in their table; they are in an hour: {error}")
        place.clock.sleep_s(SWEEP_EVERY_S)


def _relist(place: "Place", rest: Callable[[], None]) -> None:
    """Show in lists what is there and was named by no list any more."""
    place.jobs.relist(rest)
    place.files.shelf.relist(lambda file: [] if file.removed else [file.created.project], rest)
    place.batches.shelf.relist(lambda batch: [batch.created.project], rest)
    place.evals.shelf.relist(lambda each: [] if each.is_deleted else [each.created.project], rest)
    place.eval_runs.shelf.relist(
        lambda run: [] if run.is_deleted else [run.created.project, run.created.eval_id], rest, num_owners=2
    )


def in_peace(clock: Clock) -> Callable[[], None]:
    """To be called now and then by a thread: it sleeps four times as long as that worked, for clients come
    first."""
    worked_s = time.thread_time()

    def rest() -> None:
        nonlocal worked_s
        clock.sleep_s(4 * (time.thread_time() - worked_s))
        worked_s = time.thread_time()

    return rest

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
    from assay.serving.openai.app_state import AppState

PATIENCE_S = 5.0
"""How long a store may be away before a client is told so (503), which asks again by itself."""
SWEEP_EVERY_S = 3600.0


class EngineBudget(NamedTuple):
    """How many models answer at a time, and how they are started."""

    start: Callable[[socket.socket], StartedProcess]
    """Starts a process that waits for its model, with its end of a pair of sockets."""
    max_models: int
    max_bytes: int | None = None
    """Memory of all that are loaded."""


def run_server(
    home: Home,
    models: Mapping[str, BaseModelFile],
    budget: EngineBudget,
    *,
    host: str,
    port: int,
    judge: str | None,
    notify: Callable[[str], None],
) -> None:
    """Serve until told to stop; `say` gets the address once it is listened on."""
    try:
        from assay.serving.engines.pool import EnginePool
        from assay.serving.http.connections import TimedServer
        from assay.serving.openai.app import BASE_PATH, make_app
        from assay.serving.openai.app_state import DEFAULT_PROJECT, AppState
        from assay.serving.openai.auth_middleware import LOOPBACK_NAMES
    except ImportError as error:
        raise ConfigError(
            f"'assay serve' needs {error.name}, which is not installed: pip install 'assay[serve]'."
        ) from error
    engines = EnginePool(
        lambda: EngineProcess.launch(budget.start),
        max_models=budget.max_models,
        max_bytes=budget.max_bytes,
        notify=notify,
    )
    log = LimitedLogHandler()
    logging.getLogger().addHandler(log)
    patience = Patience(PATIENCE_S, make_call=at_once, say=logging.getLogger("assay.serving").warning)
    store, settings = open_store(str(home.api), patience), home.settings()
    app = AppState.of(
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
    if host not in LOOPBACK_NAMES and not app.keys.any_exist():
        raise ConfigError(
            f"--host {host}: a server without keys listens on this machine only. Make one ('assay key "
            "create'), or use 127.0.0.1, and reach it from elsewhere through ssh -L."
        )
    app.projects.ensure(DEFAULT_PROJECT, by="")
    asgi_app = make_app(app)
    with listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        notify(f"serving http://{shown}:{listener.getsockname()[1]}{BASE_PATH}")
        threading.Thread(target=_keep_house, args=(app, notify), name="house", daemon=True).start()
        TimedServer(asgi_app, log).run(sockets=[listener])


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


def _keep_house(app: "Place", notify: Callable[[str], None]) -> None:
    is_relisted = False
    while True:
        try:
            if not is_relisted:
                _relist(app, in_peace(app.clock))
                is_relisted = True
            app.uploads.sweep()
            app.files.sweep()
            app.job_table.fill(app.projects.ids(), in_peace(app.clock))
        except StoreError as error:
            notify(f"what expired was not swept, or jobs not put in their table; they are in an hour: {error}")
        app.clock.sleep_s(SWEEP_EVERY_S)


def _relist(app: "Place", rest: Callable[[], None]) -> None:
    """Show in lists what is there and was named by no list any more."""
    app.jobs.relist(rest)
    app.files.logs.relist(lambda file: [] if file.removed else [file.created.project], rest)
    app.batches.logs.relist(lambda batch: [batch.created.project], rest)
    app.evals.logs.relist(lambda each: [] if each.is_deleted else [each.created.project], rest)
    app.eval_runs.logs.relist(
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

"""Runs the API server: one process without torch. All its data is in the home's `api` folder."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError, StoreError
from assay.serving.engines.process import EngineProcess
from assay.serving.http.log_limit import LimitedLogHandler
from assay.serving.retention import stores_of
from assay.store.home import Home
from assay.store.objects import open_store
from assay.store.retry_policy import RetryPolicy, at_once

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from assay.serving.base_models import BaseModelFile
    from assay.serving.openai.app_state import AppState

STORE_RETRY_S = 5.0
"""How long store calls are retried before a request fails with 503, which clients retry."""
SWEEP_INTERVAL_S = 3600.0


def run_server(
    home: Home,
    models: "Mapping[str, BaseModelFile]",
    start_engine: Callable[[socket.socket], BaseProcess],
    *,
    max_models: int,
    max_bytes: int | None,
    host: str,
    port: int,
    judge: str | None,
    add_pages: "Callable[[ASGIApp, AppState], tuple[ASGIApp, Callable[[], None]]]",
    notify: Callable[[str], None],
) -> None:
    """Serve until stopped. `add_pages` adds the dashboard and the operators' addresses to the API; it also returns
    what ends the event streams.
    `notify` gets the address once the server listens."""
    try:
        from assay.serving.engines.pool import EnginePool
        from assay.serving.http.connections import TimedServer
        from assay.serving.openai.app_state import BASE_PATH, DEFAULT_PROJECT, AppState
        from assay.serving.openai.auth_middleware import check_address

        for name in ("fastapi", "prometheus_client", "zstandard"):
            if find_spec(name) is None:
                raise ImportError(name=name)
    except ImportError as error:
        raise ConfigError(
            f"'assay serve' needs {error.name}, which is not installed: pip install 'assay[serve]'."
        ) from error
    engines = EnginePool(
        lambda: EngineProcess.launch(start_engine),
        max_models=max_models,
        max_bytes=max_bytes,
        notify=notify,
    )
    log = LimitedLogHandler()
    logging.getLogger().addHandler(log)
    retry_policy = RetryPolicy(STORE_RETRY_S, make_call=at_once, notify=logging.getLogger("assay.serving").warning)
    store, settings = open_store(str(home.api), retry_policy), home.settings()
    app = AppState.of(
        store,
        models,
        SystemClock(),
        engines,
        judge=judge,
        webhook_hosts=settings.webhook_hosts,
        project_bytes=settings.project_storage_gb * 1e9,
        store_of_run=stores_of(home, retry_policy),
        job_table=home.api_table,
    )
    check_address(host, app.keys, of="--host")
    app.projects.ensure(DEFAULT_PROJECT, by="")
    asgi_app, end_streams = add_pages(_api_when_needed(app), app)
    with listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}"
        notify(f"dashboard {address} and API {address}{BASE_PATH}")
        threading.Thread(target=_run_maintenance, args=(app, notify), name="house", daemon=True).start()
        TimedServer(asgi_app, log, end_streams).run(sockets=[listener])


def _api_when_needed(app: "AppState") -> "ASGIApp":
    """Return the API. Its routes are imported at the first request, since they take longer than the first page."""
    lock, apps = anyio.Lock(), list["ASGIApp"]()

    def make() -> None:
        from assay.serving.openai.app import make_app
        from assay.serving.tinker.app import with_tinker

        apps.append(make_app(app, with_tinker))

    async def respond(scope: "Scope", receive: "Receive", send: "Send") -> None:
        async with lock:
            if not apps:
                await anyio.to_thread.run_sync(make)
        await apps[0](scope, receive, send)

    return respond


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `ConfigError` if the address cannot be used.

    Clients may connect before the application is ready.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by connections. Without it, a body waits 40 ms for the acknowledgement of its head (Nagle).
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen: {error.strerror}. Choose another --port."
        ) from error
    return listener


def _run_maintenance(app: "AppState", notify: Callable[[str], None]) -> None:
    is_relisted = False
    while True:
        try:
            if not is_relisted:
                _restore_index(app, throttle(app.clock))
                is_relisted = True
            app.uploads.sweep()
            app.files.sweep()
            app.job_table.fill(app.projects.ids(), throttle(app.clock))
        except StoreError as error:
            notify(f"maintenance failed and is retried in an hour: {error}")
        app.clock.sleep_s(SWEEP_INTERVAL_S)


def _restore_index(app: "AppState", yield_cpu: Callable[[], None]) -> None:
    """Restore lost index markers."""
    for repository in (app.jobs, app.files, app.batches, app.evals, app.eval_runs):
        repository.restore_index(yield_cpu)


def throttle(clock: Clock) -> Callable[[], None]:
    """Return a function that sleeps four times as long as its thread worked since the last call, so that
    requests have priority."""
    worked_s = time.thread_time()

    def yield_cpu() -> None:
        nonlocal worked_s
        clock.sleep_s(4 * (time.thread_time() - worked_s))
        worked_s = time.thread_time()

    return yield_cpu

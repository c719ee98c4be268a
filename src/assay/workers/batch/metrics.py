"""Health and metrics of a worker, at `--metrics-address`.

They are of this process only; `assay serve` shows those of the home, so that no sum counts them twice.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.store.home import Home
from assay.store.leased_worker import LeasedWorker
from assay.store.ledger.open_ledger import OpenLedger
from assay.store.objects import ObjectStore

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


@contextmanager
def serving_metrics(
    home: Home,
    store: ObjectStore,
    address: str | None,
    loops: Mapping[str, LeasedWorker],
    notify: Callable[[str], None],
) -> Iterator[None]:
    """Serve `/healthz`, `/readyz` and `/metrics` at HOST:PORT in a thread; nothing without an address.

    `loops`: by what they work on.
    """
    if address is None:
        yield
        return
    if any(find_spec(name) is None for name in ("prometheus_client", "uvicorn", "starlette")):
        raise ConfigError("--metrics-address needs packages that are not installed: pip install 'assay[serve]'.")
    from starlette.responses import Response

    from assay.serving.http.connections import TimedServer
    from assay.serving.http.log_limit import LimitedLogHandler
    from assay.serving.http.operations import Operations, readiness_of
    from assay.serving.keys import KeyRepository
    from assay.serving.openai.auth_middleware import check_address
    from assay.serving.server import listening

    keys, (host, port) = KeyRepository(store, SystemClock()), _host_and_port(address)
    check_address(host, keys, of="--metrics-address")
    log = LimitedLogHandler()
    logging.getLogger().addHandler(log)
    readiness = readiness_of(home, OpenLedger(home))
    with listening(host, port) as listener:
        app = Operations(Response(status_code=404), readiness, keys, lambda: [_WorkerMetrics(loops)])
        server = TimedServer(app, log)
        thread = threading.Thread(target=server.run, args=([listener],), name="metrics", daemon=True)
        thread.start()
        notify(f"metrics at http://{host}:{listener.getsockname()[1]}/metrics")
        try:
            yield
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
            logging.getLogger().removeHandler(log)


class _WorkerMetrics:
    def __init__(self, loops: Mapping[str, LeasedWorker]) -> None:
        self._loops = loops

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.metrics_core import CounterMetricFamily

        from assay.serving.http.operations import gauge

        loops = dict(self._loops)
        text = "When a loop of this worker last looked for work."
        polled = {(name,): loop.polled_s for name, loop in loops.items()}
        yield gauge("assay_worker_last_poll_timestamp_seconds", text, polled, "loop")
        held = {(name,): loop.num_held for name, loop in loops.items()}
        yield gauge("assay_worker_leases", "Units of work that this worker holds.", held, "loop")
        text = "Looks for work and steps that a store has failed."
        errors = CounterMetricFamily("assay_worker_store_errors", text, labels=("loop",))
        for name, loop in loops.items():
            errors.add_metric((name,), loop.num_errors)
        yield errors


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(f"--metrics-address {address}: expected HOST:PORT, such as 127.0.0.1:9464.")
    return host.removeprefix("[").removesuffix("]"), int(port)

"""Addresses for operators, on the server and on a worker with `--metrics-address`.

    /healthz   200 while the process answers; without an answer, restart it
    /readyz    200 if it can work: its home and ledger can be read and written; else 503, which names what cannot
    /metrics   metrics in Prometheus' text format

The first two need no key and name no path, host, run or project; the log has the whole error. `/metrics` needs the
scope `metrics` or `admin` once there are keys; without keys, a host name of this machine.
"""

import logging
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.to_thread
from starlette.responses import JSONResponse, Response

from assay.base.errors import StoreAwayError, StoreError, StoreFullError
from assay.serving.keys import KeyRepository
from assay.serving.openai.app_state import BASE_PATH
from assay.serving.openai.auth_middleware import METRICS_PATH, AuthMiddleware
from assay.store.home import Home
from assay.store.ledger.open_ledger import OpenLedger

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CHECK_S = 2.0
"""What has not answered for this long is not ready."""
CACHE_S = 1.0
SCRAPE_CACHE_S = 5.0
MIN_FREE_BYTES = 64 << 20
BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
_METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS")
_HEADERS = {"cache-control": "no-store"}
_log = logging.getLogger("assay.serving")


class Readiness:
    """Checks of what a process needs, made in one thread at a time, so that a disk that hangs holds up nobody."""

    def __init__(self, checks: Mapping[str, Callable[[], object]]) -> None:
        """A check raises `StoreError` or `OSError`."""
        self._checks = checks
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began_s = 0.0
        self._results: dict[str, str] = {}

    def results(self) -> dict[str, str]:
        """Return `ok`, or what is wrong, by check."""
        with self._lock:
            thread = self._thread
            if thread is None or (not thread.is_alive() and time.monotonic() - self._began_s >= CACHE_S):
                self._began_s, self._results = time.monotonic(), {}
                thread = self._thread = threading.Thread(target=self._check, args=(self._results,), daemon=True)
                thread.start()
            results, left_s = self._results, self._began_s + CHECK_S - time.monotonic()
        thread.join(max(0.0, left_s))
        return {name: results.get(name, f"no answer within {CHECK_S:g} s") for name in self._checks}

    def _check(self, results: dict[str, str]) -> None:
        for name, check in self._checks.items():
            try:
                check()
                results[name] = "ok"
            except (StoreError, OSError) as error:
                _log.warning("not ready: %s: %s", name, error)
                results[name] = _reason(error)


def _reason(error: Exception) -> str:
    """Return what is wrong without paths and hosts."""
    if isinstance(error, StoreFullError):
        return "it is full"
    if isinstance(error, StoreAwayError):
        return "it does not answer, or another process has locked it"
    known = error.strerror if isinstance(error, OSError) else None
    return known or "it is gone, or cannot be read and written"


def readiness_of(home: Home, ledger: OpenLedger) -> Readiness:
    """Return the checks of a home: files can be written, there is free space, and the ledger can be written."""

    def check_home() -> None:
        with tempfile.TemporaryFile(dir=home.folder) as file:
            file.write(b"ready")

    def check_disk() -> None:
        if (free := shutil.disk_usage(home.folder).free) < MIN_FREE_BYTES:
            raise StoreFullError(f"{home.folder}: {free:,} bytes are free; {MIN_FREE_BYTES:,} are needed.")

    def check_ledger() -> None:
        with ledger.shown(None) as opened, opened.writing():
            pass  # the lock is taken and released; nothing is written

    return Readiness({"home": check_home, "disk": check_disk, "ledger": check_ledger})


class _ProcessMetrics(NamedTuple):
    registry: "CollectorRegistry"
    requests: "Counter"
    durations: "Histogram"


class Operations:
    """Answers the operators' addresses, and counts the requests of the application behind it."""

    def __init__(
        self,
        app: "ASGIApp",
        readiness: Readiness,
        keys: KeyRepository,
        make_collectors: "Callable[[], Sequence[Collector]]",
    ) -> None:
        """`make_collectors` is called at the first scrape, because what it imports would delay the start."""
        self._app = app
        self._readiness = readiness
        self._make_collectors = make_collectors
        self._own: dict[str, ASGIApp] = {
            "/healthz": JSONResponse({"status": "alive"}, headers=_HEADERS),
            "/readyz": self._respond_ready,
            METRICS_PATH: AuthMiddleware(self._respond_metrics, keys),
        }
        self._checking, self._scraping = anyio.CapacityLimiter(4), anyio.CapacityLimiter(1)
        self._scraped: tuple[float, bytes] = (-math.inf, b"")

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = self._own.get(scope["path"]) if scope["method"] in ("GET", "HEAD") else None
        began_s = time.monotonic()

        async def send_counted(message: "Message") -> None:
            if message["type"] == "http.response.start":
                route = scope["path"] if own else _route_of(scope)
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._metrics.requests.labels(method, route, message["status"]).inc()
                self._metrics.durations.labels(route).observe(time.monotonic() - began_s)
            await send(message)

        await (own or self._app)(scope, receive, send_counted)

    @cached_property
    def _metrics(self) -> "_ProcessMetrics":
        from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics

        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry, names = CollectorRegistry(), ("method", "route", "status")
        ProcessCollector(registry=registry)
        name, text = "assay_http_request_duration_seconds", "Time from a request to the head of its response."
        return _ProcessMetrics(
            registry,
            Counter("assay_http_requests", "Answered requests.", names, registry=registry),
            Histogram(name, text, ("route",), buckets=BUCKETS_S, registry=registry),
        )

    def _scrape(self) -> bytes:
        """Return all metrics; those of a few seconds ago if they are there. Called by one thread at a time."""
        from prometheus_client import generate_latest

        if time.monotonic() - self._scraped[0] >= SCRAPE_CACHE_S:
            if self._scraped[1] == b"":
                for collector in self._make_collectors():
                    self._metrics.registry.register(collector)
            self._scraped = (time.monotonic(), generate_latest(self._metrics.registry))
        return self._scraped[1]

    async def _respond_metrics(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        text = await anyio.to_thread.run_sync(self._scrape, limiter=self._scraping)
        await Response(text, headers=_HEADERS, media_type="text/plain; version=0.0.4")(scope, receive, send)

    async def _respond_ready(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        results = await anyio.to_thread.run_sync(self._readiness.results, limiter=self._checking)
        is_ready = all(result == "ok" for result in results.values())
        body = {"status": "ready" if is_ready else "not ready", "checks": results}
        await JSONResponse(body, 200 if is_ready else 503, _HEADERS)(scope, receive, send)


def _route_of(scope: "Scope") -> str:
    """Return the template of the address that was requested, e.g. `/v1/files/{file_id}`; `other` if there is none."""
    route: str = getattr(scope.get("route"), "path", "other")
    is_prefixed = not scope["path"].startswith(BASE_PATH) or route.startswith(("other", BASE_PATH))
    return route if is_prefixed else f"{BASE_PATH}{route}"


def gauge(name: str, text: str, values: Mapping[Any, float], *labels: str) -> "Metric":
    """Return a gauge with a value for each tuple of the labels' values."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family

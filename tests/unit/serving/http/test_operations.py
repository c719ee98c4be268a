"""/healthz, /readyz and /metrics: what they say while something is wrong, whom they answer, and what they count."""

import io
import json
import logging
import shutil
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from assay.base.errors import StoreError
from assay.base.json_log import LOG_FORMAT
from assay.dashboard.app import with_pages
from assay.dashboard.dashboard import Dashboard
from assay.serving.http import operations
from assay.serving.http.log_limit import LimitedLogHandler
from assay.serving.http.operations import Operations, Readiness, readiness_of
from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.ledger import database
from assay.store.objects import open_store
from clocks import ManualClock
from ledger_rows import locked
from served import server_of


class Site:
    """A server with the operators' addresses over an empty home, and a client that asks it."""

    def __init__(self, folder: Path) -> None:
        self.home = Home.at(folder / "runs")
        self.state = AppState.of(open_store(str(self.home.api)), {}, ManualClock(1_800_000_000.0))
        dashboard = Dashboard.of(self.home, self.state)
        pages, readiness = with_pages(server_of(self.state), dashboard), readiness_of(self.home, dashboard.open_ledger)
        app = Operations(pages, readiness, self.state.keys, list)
        self.client = TestClient(app, base_url="http://127.0.0.1:8017", raise_server_exceptions=False)

    def ready(self) -> tuple[int, dict[str, str]]:
        response = self.client.get("/readyz")
        assert str(self.home.folder) not in response.text
        body = response.json()
        assert body["status"] == ("ready" if response.status_code == 200 else "not ready")
        return response.status_code, body["checks"]

    def counted(self) -> dict[tuple[str, str, str], float]:
        """Return the number of requests by method, route and status, without those of `/metrics`."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        samples = [item for family in families for item in family.samples if item.name == "assay_http_requests_total"]
        found = {(item.labels["method"], item.labels["route"], item.labels["status"]): item.value for item in samples}
        return {key: value for key, value in found.items() if key[1] != "/metrics"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name, value in {"CACHE_S": 0.0, "SCRAPE_CACHE_S": 0.0}.items():
        monkeypatch.setattr(operations, name, value)
    monkeypatch.setattr(database, "LOCKED_S", 0.05)
    return Site(tmp_path)


READY = (200, {"home": "ok", "disk": "ok", "ledger": "ok"})


def test_a_locked_ledger_is_named_and_ready_again_once_it_is_let_go(site: Site) -> None:
    assert site.ready() == READY
    with locked(site.home):
        status, checks = site.ready()
        assert status == 503 and checks["home"] == "ok"
        assert checks["ledger"] == "it does not answer, or another process has locked it"
        assert site.client.get("/healthz").status_code == 200
    assert site.ready() == READY


def test_a_ledger_that_is_gone_is_named_and_not_made_again(site: Site) -> None:
    assert site.ready() == READY
    file = site.home.ledger_file()
    for path in site.home.folder.glob("ledger.db*"):
        path.rename(path.with_name(path.name.replace("ledger", "away")))
    assert site.ready() == (503, {"home": "ok", "disk": "ok", "ledger": "it is gone, or cannot be read and written"})
    assert not file.exists()
    for path in site.home.folder.glob("away.db*"):
        path.rename(path.with_name(path.name.replace("away", "ledger")))
    assert site.ready() == READY


def test_a_home_that_is_gone_and_a_full_disk_are_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 1000))
        assert site.ready() == (503, {"home": "ok", "disk": "it is full", "ledger": "ok"})
    site.home.folder.rename(site.home.folder.with_name("away"))
    status, checks = site.ready()
    assert status == 503 and checks["home"] == checks["disk"] == "No such file or directory"
    assert checks["ledger"] != "ok"
    assert site.client.get("/healthz").json() == {"status": "alive"}


def test_a_check_that_hangs_is_named_in_time_and_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "CHECK_S", 0.1)
    goes_on, calls = threading.Event(), []

    def hang() -> None:
        calls.append(1)
        goes_on.wait()

    readiness = Readiness({"fast": lambda: None, "disk": hang, "ledger": lambda: None})
    began_s = time.monotonic()
    silent = "no answer within 0.1 s"
    for _ in range(5):
        assert readiness.results() == {"fast": "ok", "disk": silent, "ledger": silent}
    assert len(calls) == 1 and time.monotonic() - began_s < 2.0
    goes_on.set()
    readiness._thread.join()
    assert readiness.results() == dict.fromkeys(("fast", "disk", "ledger"), "ok")


def test_checks_are_shared_by_requests_within_a_moment() -> None:
    calls = []
    readiness = Readiness({"ledger": lambda: calls.append(1)})
    for _ in range(9):
        readiness.results()
    assert len(calls) == 1


def test_the_log_has_the_error_that_the_answer_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise StoreError("ledger postgresql://me@db.lan/runs: refused")

    assert "db.lan" not in str(Readiness({"ledger": fail}).results())
    assert "not ready: ledger: ledger postgresql://me@db.lan/runs: refused" in caplog.text


@pytest.fixture
def keys(site: Site) -> dict[str, str]:
    scopes = {"metrics": ("metrics",), "admin": ("admin",), "project": ("read", "write")}
    return {
        name: site.state.keys.make(project="default", name="", scopes=scope, lives_s=None).secret
        for name, scope in scopes.items()
    }


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_metrics_open_with_the_scope_metrics_or_admin_only(site: Site, keys: dict[str, str]) -> None:
    responses = {name: site.client.get("/metrics", headers=bearer(secret)) for name, secret in keys.items()}
    assert {name: found.status_code for name, found in responses.items()} == {
        "metrics": 200,
        "admin": 200,
        "project": 403,
    }
    assert responses["project"].json()["error"]["message"].endswith("requires admin or metrics.")
    assert responses["metrics"].headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert site.client.get("/metrics").status_code == 401
    assert site.client.get("/metrics", headers=bearer("sk-assay-no")).status_code == 401


def test_a_scrapers_key_opens_nothing_else(site: Site, keys: dict[str, str]) -> None:
    for path in ("/v1/files", "/v1/models", "/v1/organization/projects"):
        assert site.client.get(path, headers=bearer(keys["metrics"])).status_code == 403, path
    html = {"accept": "text/html", "origin": "http://127.0.0.1:8017"}
    response = site.client.post("/login", data={"key": keys["metrics"]}, headers=html, follow_redirects=False)
    assert "set-cookie" not in response.headers
    response = site.client.post("/login", data={"key": keys["project"]}, headers=html, follow_redirects=False)
    assert "set-cookie" in response.headers


def test_without_keys_only_names_of_this_machine_read_metrics_and_health_has_no_rule(site: Site) -> None:
    elsewhere = {"host": "evil.example:8017"}
    assert site.client.get("/metrics", headers=elsewhere).status_code == 403
    assert site.client.get("/metrics").status_code == 200
    assert site.client.get("/healthz", headers=elsewhere).status_code == 200
    assert site.client.get("/readyz", headers=elsewhere).status_code == 200


def test_requests_are_counted_by_the_templates_of_their_routes(site: Site) -> None:
    get = site.client.get
    for file_id in ('x"y', "a", "b\\c"):
        get(f"/v1/files/{file_id}")
    get("/v1/models")
    get("/runs/r1", headers={"accept": "text/html"})
    get("/wp-login.php")
    site.client.request("BREW", "/v1/models")
    site.client.post("/healthz")
    get("/healthz")
    assert site.counted() == {
        ("GET", "/v1/files/{file_id}", "404"): 3,
        ("GET", "/v1/models", "200"): 1,
        ("GET", "/runs/{run_id}", "404"): 1,
        ("GET", "other", "404"): 1,
        ("other", "/v1/models", "404"): 1,
        ("POST", "other", "404"): 1,
        ("GET", "/healthz", "200"): 1,
    }


def test_durations_are_a_histogram_of_each_route_up_to_the_head_of_the_response(site: Site) -> None:
    site.client.get("/v1/models")
    families = {family.name: family for family in text_string_to_metric_families(site.client.get("/metrics").text)}
    durations = families["assay_http_request_duration_seconds"]
    assert durations.type == "histogram" and families["assay_http_requests"].type == "counter"
    buckets = [item for item in durations.samples if item.name.endswith("_bucket")]
    assert [item.value for item in buckets if item.labels["le"] == "+Inf"] == [1.0]
    assert "process_cpu_seconds" in families and not any(name.endswith("_created") for name in families)


def test_metrics_are_read_again_after_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SCRAPE_CACHE_S", 1000.0)
    site = Site(tmp_path)
    first = site.client.get("/metrics").text
    site.client.get("/healthz")
    assert site.client.get("/metrics").text == first
    monkeypatch.setattr(operations, "SCRAPE_CACHE_S", 0.0)
    assert site.counted()["GET", "/healthz", "200"] == 1


def test_a_logged_error_has_the_id_of_its_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_FORMAT, "json")
    monkeypatch.setattr(sys, "stderr", written := io.StringIO())
    handler = LimitedLogHandler()
    logging.getLogger().addHandler(handler)
    monkeypatch.setattr(type(site.state.files), "find", lambda *_: 1 // 0)
    response = site.client.get("/v1/files/file-0123456789abcdef01234567")
    logging.getLogger().removeHandler(handler)
    (line,) = map(json.loads, written.getvalue().splitlines())
    assert response.status_code == 500 and line["request"] == response.headers["x-request-id"]
    assert line["message"].startswith("GET /v1/files/") and "ZeroDivisionError" in line["exception"]
    assert (line["level"], line["logger"]) == ("error", "assay.serving")

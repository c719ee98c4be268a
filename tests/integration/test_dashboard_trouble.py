"""Servers that die, homes that cannot be read, many readers, and texts of users that want to run: in a browser."""

import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from assay.base.clock import SystemClock
from assay.records.run import Note, RunNotes
from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.objects import open_store
from browser import opened_browser
from dashboard_server import DashboardServer
from metric_runs import log_points, metric_run
from unit.dashboard.accepted import accept_eval_run, accept_job, launch, validate

pytestmark = pytest.mark.slow

HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{1234*1234}}\'"><svg onload=window.hacked=1>'
)
NOTICE_MS = 3000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "runs")


@pytest.fixture
def server(home: Home, tmp_path: Path) -> Iterator[DashboardServer]:
    run_with_points(home, "steady")
    with DashboardServer(home.folder, tmp_path / "server.log") as started:
        yield started


@pytest.fixture
def page() -> Iterator[Any]:
    with opened_browser() as browser:
        yield browser.new_page(viewport={"width": 1280, "height": 900})


def run_with_points(home: Home, run_id: str, **names: str) -> Any:
    run = metric_run(home, run_id, 0)
    log_points(run, 1, 0, loss=np.linspace(2, 1, 200), **{name: np.ones(20) for name in names.values()})
    return run


def api_of(home: Home) -> AppState:
    return AppState.of(open_store(str(home.api)), {}, SystemClock())


def test_a_killed_server_is_noticed_and_a_new_one_goes_on_with_the_login(
    home: Home, server: DashboardServer, page: Any
) -> None:
    key = api_of(home).keys.make(project="default", name="", scopes=("read",), lives_s=None)
    page.goto(f"{server.address}/runs")
    page.fill("input[name=key]", key.secret)
    page.click("button:has-text('Log in')")
    page.wait_for_selector("text=steady")
    server.kill()
    page.wait_for_selector("#trouble:not([hidden])", timeout=NOTICE_MS)
    assert "does not answer" in page.inner_text("#trouble")
    run_with_points(home, "while-it-was-away")
    server.start()
    page.wait_for_selector("text=while-it-was-away", timeout=20_000)
    page.wait_for_selector("#trouble", state="hidden", timeout=5000)
    assert page.url.endswith("/runs")


def test_a_ledger_that_vanishes_is_named_and_shown_again_once_it_is_back(
    home: Home, server: DashboardServer, page: Any
) -> None:
    page.goto(f"{server.address}/runs")
    file = home.ledger_file()
    assert file is not None
    away = file.with_suffix(".away")
    file.rename(away)
    page.wait_for_selector("#trouble:not([hidden])", timeout=10_000)
    assert "the file is gone" in page.inner_text("#trouble")
    assert not file.exists(), "no empty ledger takes its place"
    away.rename(file)
    page.wait_for_selector("#trouble", state="hidden", timeout=15_000)
    page.goto(f"{server.address}/runs")
    assert "steady" in page.inner_text("#page")


def test_a_page_of_an_error_loads_once_its_cause_is_gone(home: Home, server: DashboardServer, page: Any) -> None:
    assert page.goto(f"{server.address}/cost").status == 200
    file = home.ledger_file()
    assert file is not None
    file.rename(file.with_suffix(".away"))
    response = page.goto(f"{server.address}/cost")
    assert response.status == 503 and response.headers["retry-after"] == "5"
    file.with_suffix(".away").rename(file)
    page.wait_for_selector("h1:has-text('Cost by project')", timeout=20_000)


def test_a_locked_ledger_delays_no_reader(home: Home, server: DashboardServer, page: Any) -> None:
    file = home.ledger_file()
    assert file is not None
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert page.goto(f"{server.address}/runs").status == 200
        assert "steady" in page.inner_text("#page")
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_run_without_its_folder_is_said_and_comes_back(home: Home, server: DashboardServer, page: Any) -> None:
    assert page.goto(f"{server.address}/runs/steady").status == 200
    folder = home.run_dir("steady")
    folder.rename(folder.with_name("elsewhere"))
    response = page.goto(f"{server.address}/runs/steady")
    assert response.status in (200, 404, 503) and "failed; the server" not in page.inner_text("#page")
    folder.with_name("elsewhere").rename(folder)
    assert page.goto(f"{server.address}/runs/steady").status == 200


def test_hostile_texts_run_nothing_and_send_nothing(home: Home, server: DashboardServer, page: Any) -> None:
    run_with_points(home, "hostile", bad=HOSTILE)
    with home.open_ledger() as ledger:
        run = ledger.run("hostile")
        ledger.record_run(run.model_copy(update={"recipe": {"name": HOSTILE, HOSTILE: HOSTILE}}))
        note = Note(at_s=1.0, by=HOSTILE, text=HOSTILE)
        ledger.record_run_notes(RunNotes(run_id="hostile", tags=(HOSTILE,), notes=(note,)))
        (attempt,) = ledger.attempts("hostile")
        environment = attempt.environment.model_copy(update={"user": HOSTILE})
        changed = {"environment": environment, "reason": HOSTILE, "outcome": "failed", "ended_s": attempt.started_s + 9}
        ledger.record_attempt(attempt.model_copy(update=changed))
    api = api_of(home)
    job_id = accept_job(api, metadata={HOSTILE: HOSTILE}, suffix=HOSTILE, training_file=HOSTILE)
    validate(api, job_id)
    launch(api, job_id)
    eval_id = accept_eval_run(api, name=HOSTILE)
    foreign: list[str] = []
    page.on(
        "request",
        lambda request: foreign.append(request.url) if not request.url.startswith((server.address, "data:")) else None,
    )
    page.on("dialog", lambda dialog: foreign.append(dialog.message))
    addresses = [
        "/", "/runs", f"/runs?search={HOSTILE}", "/runs/hostile", "/runs/hostile/metrics",
        "/compare?runs=hostile,steady",
        "/benchmarks", "/decisions", "/programs", "/coverage", "/jobs", f"/jobs/{job_id}", f"/jobs/{eval_id}",
        "/cost?by=person", f"/nothing/{HOSTILE}", f"/runs/{HOSTILE}", f"/jobs?kind={HOSTILE}",
    ]  # fmt: skip
    for address in addresses:
        page.goto(f"{server.address}{address}")
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None, address
        assert page.locator("#page img, #page script, #page [onerror], #page [onload]").count() == 0, address
        assert "1522756" not in page.title()
    assert foreign == []
    page.goto(f"{server.address}/jobs/{job_id}")
    assert HOSTILE in page.inner_text("#page"), "it is shown as text"


def test_a_frame_and_a_form_of_another_site_get_nothing(server: DashboardServer, page: Any) -> None:
    page.route(
        "http://evil.example/",
        lambda route: route.fulfill(
            content_type="text/html", body=f'<iframe src="{server.address}/runs"></iframe><p>evil</p>'
        ),
    )
    page.goto("http://evil.example/")
    page.wait_for_timeout(1000)
    assert all("steady" not in frame.content() for frame in page.frames if frame != page.main_frame)
    with pytest.raises(Exception, match="403"):
        urlopen(Request(f"{server.address}/runs", headers={"host": "evil.example", "accept": "text/html"}))


def text_at(request: str | Request) -> str:
    with urlopen(request) as response:
        return response.read().decode()


def stream_of(server: DashboardServer, address: str) -> str:
    """Return the address of a page's event stream."""
    found = re.search(r'data-address="([^"]+)"', text_at(f"{server.address}{address}"))
    assert found is not None
    return found[1].replace("&amp;", "&")


def follow(server: DashboardServer, address: str, stopped: threading.Event) -> None:
    """Read a page's stream as its script does, and fetch the page again as often as the page says."""
    refresh_s, fetched_s = 2.0, time.monotonic()
    for line in lines_of(server, stream_of(server, address), stopped):
        if line.startswith(b"event: changed") and time.monotonic() - fetched_s >= refresh_s:
            fetched_s = time.monotonic()
            live = Request(f"{server.address}{address}", headers={"hx-request": "true", "accept": "text/html"})
            refresh = re.search(r'data-refresh-s="([\d.]+)"', text_at(live))
            refresh_s = float(refresh[1]) if refresh else refresh_s


def lines_of(server: DashboardServer, address: str, stopped: threading.Event) -> Iterator[bytes]:
    with suppress(OSError), urlopen(f"{server.address}{address}") as stream:
        for line in stream:
            if stopped.is_set():
                return
            yield line


def test_twenty_live_pages_take_a_tenth_of_a_core_and_streams_end_with_the_server(
    home: Home, server: DashboardServer
) -> None:
    stopped = threading.Event()
    run_ids = [f"run-{number}" for number in range(20)]
    for run_id in run_ids:
        run_with_points(home, run_id)
        (home.run_dir(run_id) / "log").mkdir()

    idle_stream = stream_of(server, "/runs")

    def train() -> None:
        while not stopped.wait(1.0):
            for run_id in run_ids:
                (home.run_dir(run_id) / "log" / "progress").write_text(str(time.time()))

    def idle() -> None:
        assert [*lines_of(server, idle_stream, stopped)]

    threads = [threading.Thread(target=follow, args=(server, f"/runs/{run_id}", stopped)) for run_id in run_ids]
    threads += [threading.Thread(target=train)]
    for thread in threads:
        thread.start()
    time.sleep(20)
    before_s, began_s = server.cpu_s(), time.monotonic()
    time.sleep(20)
    share = (server.cpu_s() - before_s) / (time.monotonic() - began_s)
    streams = [threading.Thread(target=idle) for _ in range(180)]
    for thread in streams:
        thread.start()
    time.sleep(5)
    try:
        server.interrupt(timeout_s=60)
        ended = [thread for thread in streams if not thread.is_alive()]
    finally:
        stopped.set()
        server.kill()
        for thread in (*threads, *streams):
            thread.join(20)
    assert len(ended) == len(streams), "the server ends its streams before it exits"
    assert share < 0.10, f"{share:.3f} of a core"

"""Every page for everybody: axe-core finds nothing, the keyboard reaches what it must, and scripts add no facts."""

import re
import time
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from starlette.routing import Match, Route

from assay.base.clock import SystemClock
from assay.dashboard.app import PAGES
from assay.dashboard.page import AREAS
from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.objects import open_store
from browser import opened_browser
from contract.test_ledger import benchmark_result
from dashboard_server import DashboardServer
from metric_runs import log_points, metric_run
from unit.dashboard.accepted import accept_batch, accept_eval_run, accept_job, launch, validate

pytestmark = pytest.mark.slow

NO_PAGES = re.compile(r"\.csv$|/curve$|/record$")
_ROUTES = {address: Route(address, lambda request: None) for address in PAGES}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    folder = tmp_path_factory.mktemp("accessible")
    home = Home.at(folder / "runs")
    for number, run_id in enumerate(("baseline", "candidate")):
        run = metric_run(home, run_id, 0, 50)
        steps = np.arange(200)
        log_points(run, 2, 50, loss=2 - steps / 200 - number, gradient_norm=np.ones(200), learning_rate=1e-3 * steps)
        with home.open_ledger() as ledger:
            for step in (100, 200):
                ledger.record_benchmark_result(benchmark_result("accuracy", step, run_id))
    api, now_s = AppState.of(open_store(str(home.api)), {}, SystemClock()), time.time()
    job_id = accept_job(api, at_s=now_s - 900, metadata={"team": "blue"})
    validate(api, job_id, at_s=now_s - 890)
    launch(api, job_id, at_s=now_s - 880)
    validate(api, accept_job(api, at_s=now_s - 600), at_s=now_s - 590)
    accept_batch(api, at_s=now_s - 300)
    accept_eval_run(api, at_s=now_s - 200)
    with DashboardServer(home.folder, folder / "server.log") as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def addresses(server: DashboardServer, browser: Any) -> list[str]:
    """One address of each kind of page, found by following links from the navigation."""
    page, found, waiting = browser.new_page(), {}, [link for _, link in AREAS]
    while waiting:
        address = waiting.pop(0)
        kind = kind_of(address)
        if kind is None or kind in found or NO_PAGES.search(kind):
            continue
        if page.goto(server.address + address).status != 200:
            continue  # the items of these results are not stored
        found[kind] = address
        links = page.eval_on_selector_all("a[href]", "links => links.map(link => link.getAttribute('href'))")
        waiting += [link for link in links if link.startswith("/")]
    page.close()
    assert len(found) >= 11, sorted(found)
    return [*found.values(), "/login", "/nothing"]


def kind_of(address: str) -> str | None:
    scope = {"type": "http", "method": "GET", "path": re.split(r"[?#]", address)[0]}
    return next((kind for kind, route in _ROUTES.items() if route.matches(scope)[0] is Match.FULL), None)


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(
    server: DashboardServer, browser: Any, addresses: list[str], scheme: str, width: int
) -> None:
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, found = context.new_page(), []
    for address in addresses:
        page.goto(server.address + address)
        page.wait_for_timeout(200)
        page.evaluate(axe)
        for violation in page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]:
            targets = [node["target"] for node in violation["nodes"][:3]]
            found.append((address, violation["id"], targets))
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append((address, "wider than the screen", []))
    context.close()
    assert found == []


def test_the_keyboard_alone_skips_filters_and_follows_links(server: DashboardServer, browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{server.address}/runs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.url.endswith("#page")
    page.goto(f"{server.address}/runs")
    focus_on(page, "search")
    page.keyboard.type("candidate")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("search=candidate"))
    focus_on(page, "candidate")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/runs/candidate"))
    assert "candidate" in page.inner_text("h1")
    page.close()


def focus_on(page: Any, target: str) -> None:
    """Press Tab until a field of this name or a link of this text has the focus, and shows it."""
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "({name: document.activeElement.name, text: document.activeElement.textContent,"
            " outline: getComputedStyle(document.activeElement).outlineStyle})"
        )
        if target in (focused["name"], focused["text"].strip()):
            assert focused["outline"] != "none"
            return
    raise AssertionError(f"the keyboard does not reach {target}")


def test_scripts_add_no_facts(server: DashboardServer, browser: Any, addresses: list[str]) -> None:
    without = browser.new_context(java_script_enabled=False).new_page()
    scripted = browser.new_context(timezone_id="UTC").new_page()
    for address in addresses:
        facts = []
        for page in (without, scripted):
            page.goto(server.address + address)
            page.wait_for_timeout(200)
            names = page.locator("h1, h2, h3, th, dt, summary").all_text_contents()
            facts.append(([name.strip() for name in names], page.locator("td, dd").count()))
        assert facts[0] == facts[1], address

"""A thousand checkpoints x twenty benchmarks, and a thousand runs compared, in a browser."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.base.clock import SystemClock
from assay.store.home import Home
from browser import opened_browser
from dashboard_home import Shape, make_home
from dashboard_server import DashboardServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

VIEW_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    """1,000 runs of 5 recipes; the first 20 have 50 checkpoints each on 20 benchmarks."""
    folder = tmp_path_factory.mktemp("matrix")
    make_home(Home.at(folder / "runs"), Shape(1000, 1000 * 20 * 60, 1000, 20, 0, SystemClock().now_s() - 60))
    with DashboardServer(folder / "runs", folder / "log") as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


def check_seconds(server: DashboardServer, page: Any, address: str, selector: str) -> None:
    """Check how long the best of three views takes until an element has been painted, and the server's CPU time.

    Other programs of this machine may use its cores; then a view takes longer by their share."""
    views = []
    for _ in range(3):
        started_s, spent_s = time.perf_counter(), server.cpu_s()
        page.goto(address)
        page.wait_for_selector(selector, state="attached")
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        views.append((time.perf_counter() - started_s, server.cpu_s() - spent_s))
    slower = max(1.0, 2.0 * os.getloadavg()[0] / (os.cpu_count() or 1))
    assert min(seconds for seconds, _ in views) < VIEW_S * slower, views
    assert min(spent_s for _, spent_s in views) < VIEW_S, views


def test_the_matrix_is_seen_within_a_second_and_leads_to_a_result(server: DashboardServer, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    check_seconds(server, page, f"{server.address}/benchmarks", "svg .shade")
    assert page.locator("svg[role=img]").first.get_attribute("aria-label").startswith("Heat map of 1,000 checkpoints")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.locator("main tbody th a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("text=best so far")
    assert page.locator("h1").inner_text().startswith("bench-") and "by luck alone" in page.content()
    assert complaints == []
    page.set_viewport_size({"width": 320, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.close()


def test_a_thousand_runs_are_compared_within_a_second_and_stay_selected(server: DashboardServer, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    address = f"{server.address}/compare?search=grpo&metric=loss"
    check_seconds(server, page, address, "figure svg .band")
    assert "5 recipes, 1,000 runs" in page.inner_text("header")
    page.goto(f"{server.address}/compare?run=grpo-000-s1&run=grpo-001-s2")
    page.select_option("select[name=metric]", "reward")
    page.keyboard.press("Tab")
    page.click("form.filters button")
    page.wait_for_selector("figure h3:has-text('reward')")
    assert "run=grpo-000-s1&run=grpo-001-s2" in page.url and "metric=reward" in page.url
    page.close()


def test_without_scripts_the_same_facts_are_shown(server: DashboardServer, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.address}/benchmarks")
    assert page.locator("main table").count() == 2 and page.locator("svg .shade").count() >= 20
    context.close()


def test_a_dead_result_folder_is_named(server: DashboardServer, browser: Any, tmp_path: Path) -> None:
    page = browser.new_page()
    response = page.goto(f"{server.address}/benchmarks/bench-00/grpo-000-s0/{_first_step(page, server)}")
    assert response.status >= 400 and "no such file" in page.inner_text("main, header")
    page.close()


def _first_step(page: Any, server: DashboardServer) -> str:
    page.goto(f"{server.address}/benchmarks/bench-00?run=grpo-000-s0")
    return page.locator("main tbody tr td").first.inner_text().replace(",", "")

"""Every page for everybody: axe-core finds nothing, the keyboard reaches what it must, and scripts add no facts."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from starlette.routing import Match, Route

from assay.dashboard.app import PAGES
from assay.dashboard.page import AREAS
from assay.store.home import Home
from browser import opened_browser
from dashboard_server import DashboardServer
from full_home import FullHome, fill
from sample_project import SampleProjects

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NO_PAGES = re.compile(r"\.csv$|/curve$")
MOST_TABS = 200
ZONE = "Asia/Kolkata"
_ROUTES = {address: Route(address, lambda request: None) for address in PAGES}
FACTS = """() => {
  const page = document.getElementById("page").cloneNode(true);
  page.querySelectorAll(".plot, .kind time").forEach((element) => element.remove());
  return page.textContent.replace(/\\s+/g, " ").trim();
}"""
"""The text of a page without what scripts draw, and without the moment at which it was made."""
DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
"""Ends once curves have the width of the window: they are drawn again a frame after it changes."""


@pytest.fixture(scope="module")
def full(sample_projects: SampleProjects, tmp_path_factory: pytest.TempPathFactory) -> FullHome:
    folder = tmp_path_factory.mktemp("accessible") / "project"
    return fill(Home.at(sample_projects.copy_to(folder, campaign=True)))


@pytest.fixture(scope="module")
def server(full: FullHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    with DashboardServer(full.home.folder, tmp_path_factory.mktemp("log") / "server.log") as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


class Reader:
    """A browser window of somebody who logged in and has no mouse."""

    def __init__(self, browser: Any, server: DashboardServer, secret: str, **options: Any) -> None:
        self.context = browser.new_context(**({"timezone_id": "UTC"} | options))
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self._address = server.address
        self.open("/login")
        self.tab_to("key")
        self.page.keyboard.type(secret)
        self.press("Enter", "/$")

    def open(self, address: str) -> int:
        """Open an address; return its status."""
        return int(self.page.goto(self._address + address).status)

    def press(self, key: str, url: str) -> None:
        """Press a key that leads to an address that matches a pattern."""
        self.page.keyboard.press(key)
        self.page.wait_for_url(re.compile(url))

    def follow(self, target: str, url: str) -> None:
        """Press Tab until a link or button of this text has the focus, then Enter."""
        self.tab_to(target)
        self.press("Enter", url)

    def type_in(self, field: str, text: str) -> None:
        """Press Tab until a field has the focus, and type over what it holds."""
        self.tab_to(field)
        if self.page.evaluate("document.activeElement.localName") == "input":
            self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def tab_to(self, target: str) -> None:
        """Press Tab until an element of this name, id, text or address has the focus, and shows it."""
        for _ in range(MOST_TABS):
            self.page.keyboard.press("Tab")
            words, outline = self.page.evaluate(
                "(() => { const e = document.activeElement; return [[e.name, e.id, e.textContent.trim(), "
                "e.getAttribute('href')], getComputedStyle(e).outlineStyle]; })()"
            )
            if target in words:
                assert outline != "none", f"the focus on {target} is not seen"
                return
        raise AssertionError(f"the keyboard does not reach {target} on {self.page.url}")

    def heading(self) -> str:
        return str(self.page.inner_text("h1"))


@pytest.fixture(scope="module")
def reader(browser: Any, server: DashboardServer, full: FullHome) -> Iterator[Reader]:
    found = Reader(browser, server, full.secret)
    yield found
    found.context.close()


@pytest.fixture(scope="module")
def addresses(reader: Reader) -> list[str]:
    """One address of each kind of page, found by following links from the navigation."""
    found: dict[str, str] = {}
    waiting = [*(link for _, link in AREAS), "/compare?run=finished&run=candidate", "/runs/one-rank/rollouts?against=1"]
    while waiting:
        address = waiting.pop(0)
        kind = kind_of(address)
        if kind is None or kind in found or NO_PAGES.search(kind) or reader.open(address) != 200:
            continue
        found[kind] = address
        while "eing computed" in reader.page.inner_text("body"):  # the suite's time limit ends it
            reader.page.wait_for_timeout(50)
        links = reader.page.eval_on_selector_all("a[href]", "links => links.map(link => link.getAttribute('href'))")
        waiting += [link for link in links if link.startswith("/")]
        items = [link for link in links if "item=" in link]
        found |= {"an item": items[0]} if items else {}
    assert set(found) == {kind for kind in PAGES if not NO_PAGES.search(kind)} | {"an item"}
    return [*found.values(), "/compare", "/runs?search=none", "/runs?sort=odd", "/nothing"]


def kind_of(address: str) -> str | None:
    scope = {"type": "http", "method": "GET", "path": re.split(r"[?#]", address)[0]}
    return next((kind for kind, route in _ROUTES.items() if route.matches(scope)[0] is Match.FULL), None)


def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(
    reader: Reader, browser: Any, server: DashboardServer, addresses: list[str]
) -> None:
    """320 pixels are also what 400% leave of a screen of 1280."""
    stranger = browser.new_context().new_page()
    found = [violation for address in addresses for violation in violations(reader.page, server.address + address)]
    found += violations(stranger, f"{server.address}/login")
    stranger.context.close()
    assert found == []


def violations(page: Any, address: str) -> Iterator[tuple[object, ...]]:
    """Yield what axe-core finds on a page at each width and in each scheme."""
    page.goto(address)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    for width in (320, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(DRAWN)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            yield address, width, "wider than the screen"
        for scheme, rules in (("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no colour is on its way to another
            for violation in page.evaluate(f"axe.run(document, {rules})")["violations"]:
                targets = [node["target"] for node in violation["nodes"][:3]]
                yield address, width, scheme, violation["id"], targets
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")


@pytest.mark.parametrize("has_scripts", [True, False])
def test_the_keyboard_alone_does_the_main_task_of_each_page(
    browser: Any, server: DashboardServer, full: FullHome, has_scripts: bool
) -> None:
    """Without scripts the same keys find the same; only the zoom of a live curve needs them."""
    walker = Reader(browser, server, full.secret, java_script_enabled=has_scripts, accept_downloads=True)
    page = walker.page
    walker.open("/")
    walker.follow("Skip to the page", "#page$")
    walker.follow("failed", "/runs/failed$")
    assert walker.heading() == "failed" and "CUDA out of memory" in page.inner_text(".sentence")
    walk_runs(walker)
    walk_a_run(walker, has_scripts=has_scripts)
    walk_benchmarks(walker)
    walk_decisions(walker)
    walk_a_job(walker, full.job_id)
    walker.open("/programs")
    walker.follow("small", "/programs/small")
    page.wait_for_selector("text=Burn-down", timeout=60_000)
    walker.tab_to("The numbers")
    page.keyboard.press("Enter")
    assert page.locator("details[open] tbody tr").first.is_visible()
    walker.context.close()


def walk_runs(walker: Reader) -> None:
    """Search, filter, sort and pin; then compare what was found."""
    page = walker.page
    walker.open("/runs")
    walker.type_in("search", "small")
    walker.type_in("status", "succ")
    walker.type_in("sort", "name")
    walker.type_in("baseline", "small-faster-s0")
    walker.press("Enter", "search=small.*status=succeeded.*sort=name.*baseline=small-faster-s0")
    runs = [name.strip() for name in page.locator("main tbody th").all_text_contents()]
    assert runs == ["small-faster-s0", "small-baseline-s0", "small-baseline-s1", "small-faster-s1"]
    walker.follow("compare these runs", "/compare")
    assert walker.heading() == "Compare" and "2 recipes, 4 runs" in page.inner_text(".kind")
    walker.type_in("metric", "grad")
    walker.follow("Show", "metric=gradient_norm")
    assert page.inner_text("figure h3") == "gradient_norm"


def walk_a_run(walker: Reader, *, has_scripts: bool) -> None:
    """Find a metric, zoom a curve, read its table twin and download it; read the rollouts of another step."""
    page = walker.page
    walker.open("/runs/silent")
    if has_scripts:
        page.wait_for_selector("#plot-training-loss canvas", state="attached")
        walker.tab_to("plot-training-loss")
        walker.press("+", r"zoom=training-loss:\d+-\d+")
    walker.tab_to("The numbers")
    page.keyboard.press("Enter")
    assert page.locator("#numbers-training-loss tbody tr").first.is_visible()
    walker.tab_to("loss as CSV")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "loss.csv"
    walker.follow("all 3 metrics", "/metrics")
    walker.type_in("prefix", "grad")
    walker.press("Enter", "prefix=grad")
    walker.follow("gradient_norm", "show=gradient_norm")
    assert page.inner_text("figure h3") == "gradient_norm"
    walker.open("/runs/one-rank")
    walker.follow("rollouts, step by step", "/rollouts")
    walker.type_in("step", "2")
    walker.press("Enter", "step=2")
    walker.follow("the step before", "step=1")


def walk_benchmarks(walker: Reader) -> None:
    """From all benchmarks to one item of a result."""
    page = walker.page
    walker.open("/benchmarks")
    walker.follow("likelihood", "/benchmarks/likelihood")
    score = page.locator("main td a[href*='/benchmarks/likelihood/']").first
    walker.follow(str(score.get_attribute("href")), r"/likelihood/[^/]+/\d+")
    walker.follow(page.locator("main tbody th").first.inner_text(), "item=")
    assert walker.heading().startswith("Item ") and "Grade" in page.inner_text("main")


def walk_decisions(walker: Reader) -> None:
    """From a number of a memo to its record."""
    walker.open("/decisions")
    walker.follow("small", "/decisions/small")
    record = walker.page.locator("main a[href*='/record?path=']").first
    walker.follow(str(record.get_attribute("href")), "/record")
    assert walker.page.inner_text("main pre")


def walk_a_job(walker: Reader, job_id: str) -> None:
    """Pause and resume."""
    word = walker.page.locator(".verdict .word")
    walker.open("/jobs")
    walker.follow(job_id, f"/jobs/{job_id}")
    walker.tab_to("Pause")
    walker.page.keyboard.press("Enter")
    walker.page.wait_for_selector("text=Resume")
    assert "paus" in word.inner_text()
    walker.tab_to("Resume")
    walker.page.keyboard.press("Enter")
    walker.tab_to("Resume")
    walker.page.keyboard.press("Enter")
    walker.page.wait_for_selector("button:has-text('Pause')")


AGES = re.compile(r"\d[\d.,:]* (?:s|min|h|days?)")
"""Ages differ between two looks, and cells have no space between them."""


def test_scripts_add_no_facts(
    reader: Reader, browser: Any, server: DashboardServer, full: FullHome, addresses: list[str]
) -> None:
    without = Reader(browser, server, full.secret, java_script_enabled=False)
    for address in addresses:
        facts = []
        for window in (reader, without):
            window.open(address)
            facts.append(AGES.sub("AGE", window.page.evaluate(FACTS)))
        assert facts[0] == facts[1] and facts[0], address
    without.context.close()


def test_times_are_in_the_readers_zone_with_utc_beside(browser: Any, server: DashboardServer, full: FullHome) -> None:
    window = Reader(browser, server, full.secret, timezone_id=ZONE)
    for address in ("/runs", f"/jobs/{full.job_id}"):
        window.open(address)
        times = window.page.eval_on_selector_all("time", "found => found.map(e => [e.dateTime, e.textContent])")
        assert times and "(local)" in window.page.inner_text("main") and "(UTC)" not in window.page.inner_text("main")
        for utc, shown in times:
            moment = datetime.fromisoformat(utc).astimezone(UTC)
            assert shown.startswith(f"{moment.astimezone(ZoneInfo(ZONE)):%Y-%m-%d %H:%M}"), (utc, shown)
            assert f"{moment:%H:%M}" in shown and shown.endswith(" UTC)"), (utc, shown)
    window.context.close()


def test_print_reduced_motion_and_forced_colours(reader: Reader) -> None:
    page = reader.page
    reader.open("/runs/silent")
    page.wait_for_selector("#plot-training-loss canvas", state="attached")
    page.emulate_media(media="print")
    assert not page.is_visible("nav.areas") and not page.is_visible("#plot-training-loss")
    assert page.is_visible("#training-loss svg") and page.is_visible("h1")
    page.emulate_media(media="screen", reduced_motion="reduce")
    moving = "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
    assert page.evaluate(moving) == 0 and page.evaluate("document.getAnimations().length") == 0
    page.emulate_media(reduced_motion="no-preference", forced_colors="active")
    reader.open("/benchmarks/likelihood")
    colour = "selector => getComputedStyle(document.querySelector(selector))"
    swatch = page.evaluate(f"({colour})('.swatch.s1').backgroundColor")
    text = page.evaluate(f"({colour})('svg text').fill")
    assert swatch not in ("rgba(0, 0, 0, 0)", page.evaluate(f"({colour})('body').backgroundColor"))
    assert text == page.evaluate(f"({colour})('h1').color")
    page.emulate_media(forced_colors="none")

"""Live curves in a browser: spikes, lost stretches, zoom, shared steps, and points that ranks log meanwhile."""

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import uvicorn

from assay.base.clock import SystemClock
from assay.dashboard.app import with_pages
from assay.dashboard.dashboard import Dashboard
from assay.serving.openai.app import make_app
from assay.serving.openai.app_state import AppState
from assay.serving.server import listening
from assay.store.home import Home
from assay.store.objects import open_store
from browser import opened_browser
from metric_runs import log_points, metric_run

pytestmark = pytest.mark.slow

LIVE_S = 3.0
PLOTS = ("training-loss", "gradient-norm", "learning-rate")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.at(tmp_path_factory.mktemp("home") / "runs")


@pytest.fixture(scope="module")
def address(home: Home) -> Iterator[str]:
    state = AppState.of(open_store(str(home.api)), {}, SystemClock())
    app = with_pages(make_app(state), Dashboard.of(home, state))
    with listening("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1280, "height": 1000})
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert complaints == []


def sample_run(home: Home, run_id: str, *starts: int, num_steps: int = 20_000) -> Any:
    run = metric_run(home, run_id, *(starts or (0,)))
    steps = np.arange(num_steps)
    loss = 1.0 + 0.1 * np.sin(steps / 50)
    loss[num_steps // 2] = 9.0
    log_points(run, 1, 0, loss=loss, gradient_norm=0.5 + steps / num_steps, learning_rate=np.full(num_steps, 1e-3))
    return run


def open_panels(page: Any, url: str) -> None:
    page.goto(url)
    page.locator("#training-loss").scroll_into_view_if_needed()
    for name in PLOTS:
        page.wait_for_selector(f"#plot-{name} canvas", state="attached", timeout=10_000)


def summary(page: Any, name: str = "training-loss") -> str:
    return page.locator(f"#plot-{name} canvas").get_attribute("aria-label") or ""


def windows(page: Any) -> set[str]:
    """Return the steps and widths that the figures show."""
    return {page.locator(f"#plot-{name}").get_attribute("data-drawn") for name in PLOTS}


def wait_until(page: Any, condition: Any, *, within_s: float = 10.0) -> float:
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < within_s, "nothing happened in time"
        page.wait_for_timeout(50)
    return time.monotonic() - began_s


def drawn_pixels(
    page: Any, name: str, variable: str, *, upper_part: float, between: tuple[float, float] = (0.0, 1.0)
) -> int:
    """Return how many pixels of a figure's upper part, between two shares of its width, have about the colour of a CSS
    variable."""
    return page.evaluate(
        """([name, variable, part, [from, to]]) => {
          const canvas = document.querySelector(`#plot-${name} canvas`), ctx = canvas.getContext("2d");
          const hex = getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
          const want = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
          const width = canvas.width - 80, height = Math.floor(canvas.height * part);
          const { data } = ctx.getImageData(80 + Math.floor(width * from), 0, Math.floor(width * (to - from)), height);
          let found = 0;
          for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] > 60 && want.every((value, c) => Math.abs(value - data[at + c]) < 12)) found += 1;
          return found;
        }""",
        [name, variable, upper_part, between],
    )


def test_a_curve_is_made_and_fetched_at_its_width(page: Any, home: Home, address: str) -> None:
    sample_run(home, "first-width", num_steps=10_000)
    fetched: list[str] = []
    page.on("request", lambda request: "columns=" in request.url and fetched.append(request.url))
    page.add_init_script("window.ResizeObserver = class { observe() {} unobserve() {} disconnect() {} };")
    open_panels(page, f"{address}/runs/first-width")
    widths = [page.locator(f"#plot-{name}").bounding_box()["width"] for name in PLOTS]
    assert [page.locator(f"#plot-{name} canvas").bounding_box()["width"] for name in PLOTS] == widths
    columns = (int(min(widths)) - 64) // 32 * 32
    assert columns > 300 and {re.search(r"columns=(\d+)", url)[1] for url in fetched} == {str(columns)}


def test_a_spike_of_one_sample_is_drawn(page: Any, home: Home, address: str) -> None:
    sample_run(home, "spike")
    open_panels(page, f"{address}/runs/spike")
    assert "highest 9" in summary(page) and "20,000 points" in summary(page)
    assert drawn_pixels(page, "training-loss", "--s1", upper_part=0.5) > 20


def test_columns_with_nan_are_counted_and_marked(page: Any, home: Home, address: str) -> None:
    log_points(sample_run(home, "nan"), 1, 20_000, loss=[np.nan])
    open_panels(page, f"{address}/runs/nan")
    assert "1 columns with NaN or infinity" in summary(page) and "NaN" not in summary(page, "gradient-norm")
    assert drawn_pixels(page, "training-loss", "--bad", upper_part=0.3) > 5
    assert drawn_pixels(page, "gradient-norm", "--bad", upper_part=0.3) == 0


def test_lost_steps_are_drawn_apart(page: Any, home: Home, address: str) -> None:
    run = sample_run(home, "lost", 0, 2_000, 8_000, num_steps=4_000)
    for attempt, start, num_steps in ((2, 2_000, 8_000), (3, 8_000, 2_000)):
        ones = np.ones(num_steps)
        log_points(run, attempt, start, loss=1.5 * ones, gradient_norm=ones, learning_rate=ones)
    open_panels(page, f"{address}/runs/lost")
    assert "rolled back" in summary(page)
    for between in ((0.2, 0.4), (0.8, 1.0)):
        assert drawn_pixels(page, "training-loss", "--lost", upper_part=1.0, between=between) > 50
    assert drawn_pixels(page, "training-loss", "--lost", upper_part=1.0, between=(0.45, 0.75)) == 0


def test_a_zoom_stands_in_the_address_and_holds_for_all_figures(page: Any, home: Home, address: str) -> None:
    run = sample_run(home, "near")
    open_panels(page, f"{address}/runs/near")
    over = page.locator("#plot-training-loss .u-over")
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
    page.mouse.up()
    wait_until(page, lambda: "zoom=" in page.url)
    found = re.search(r"zoom=training-loss:(\d+)-(\d+)", page.url)
    assert found and abs(int(found[1]) - 5_000) < 100 and abs(int(found[2]) - 10_000) < 100, page.url
    window = f"first={found[1]}&last={found[2]}"
    wait_until(page, lambda: all(window in drawn for drawn in windows(page)))
    log_points(run, 1, 20_000, loss=[1.0], gradient_norm=[1.0], learning_rate=[1.0])
    wait_until(page, lambda: "20,001 points" in summary(page))
    page.reload()
    open_panels(page, page.url)
    assert len(windows(page)) == 1 and all(window in drawn for drawn in windows(page))
    page.locator("#plot-training-loss").focus()
    for key in ("+", "ArrowRight"):
        before = page.url
        page.keyboard.press(key)
        wait_until(page, lambda before=before: page.url != before and "zoom=training-loss:" in page.url)
    page.keyboard.press("0")
    wait_until(page, lambda: "zoom" not in page.url)
    wait_until(page, lambda: all("first" not in drawn for drawn in windows(page)))


def test_all_figures_show_the_step_under_the_pointer(page: Any, home: Home, address: str) -> None:
    sample_run(home, "steps")
    open_panels(page, f"{address}/runs/steps")
    box = page.locator("#plot-training-loss .u-over").bounding_box()
    for share in (0.1, 0.37, 0.93):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + 30)
        page.wait_for_timeout(100)
        steps = {page.locator(f"#plot-{name} .readout[data-step]").get_attribute("data-step") for name in PLOTS}
        assert len(steps) == 1 and abs(int(steps.pop()) - 20_000 * share) < 200


def test_a_point_that_a_rank_logs_is_on_the_screen_within_three_seconds(page: Any, home: Home, address: str) -> None:
    run = sample_run(home, "live", num_steps=500)
    open_panels(page, f"{address}/runs/live")
    latencies_s = []
    for step in (500, 501):
        page.wait_for_timeout(1_500)
        log_points(run, 1, step, loss=[step / 10])
        text = f"last {step / 10:g}"
        latencies_s.append(wait_until(page, lambda text=text: text in summary(page)))
    assert max(latencies_s) < LIVE_S, latencies_s


def test_after_a_pause_of_the_network_a_page_goes_on_from_its_cursor(page: Any, home: Home, address: str) -> None:
    run = sample_run(home, "paused", num_steps=500)
    open_panels(page, f"{address}/runs/paused")
    requests: list[str] = []
    page.context.set_offline(True)
    page.wait_for_timeout(500)
    log_points(run, 1, 500, loss=np.ones(100), gradient_norm=np.ones(100))
    page.on("request", lambda request: requests.append(request.url))
    page.wait_for_timeout(1_500)
    page.context.set_offline(False)
    wait_until(page, lambda: "600 points" in summary(page), within_s=20)
    curves = [url for url in requests if "/curve?" in url]
    assert curves and not any("since=&" in url or url.endswith("since=") for url in curves)


def test_without_scripts_the_figures_are_drawings_with_their_numbers(browser: Any, home: Home, address: str) -> None:
    sample_run(home, "plain")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/runs/plain")
    for name in PLOTS:
        assert page.locator(f"#{name} svg").is_visible()
        assert page.locator(f"#{name} tbody tr").count() >= 20
    context.close()


@pytest.mark.parametrize("width", [320, 1280])
def test_a_page_of_curves_is_not_wider_than_its_window(browser: Any, home: Home, address: str, width: int) -> None:
    if not home.has_run("narrow"):
        sample_run(home, "narrow")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
    page.goto(f"{address}/runs/narrow")
    page.locator("#training-loss").scroll_into_view_if_needed()
    page.wait_for_selector("#plot-training-loss canvas", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()

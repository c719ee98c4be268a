"""The pages in a real browser: nothing fetched, nothing complained of, nothing wider than the window."""

from pathlib import Path

import pytest

from assay.reporting.documents.comparison import comparison_document
from assay.reporting.documents.memo import memo_document
from assay.reporting.documents.render import render_document
from assay.reporting.documents.runs.run import run_document
from variants import slow


@pytest.fixture(params=["run", "comparison", "empty", "memo"])
def file(request, tmp_path: Path, run_page, comparison_page, empty_page, memo_page) -> Path:
    pages = {
        "memo": lambda: render_document(memo_document(memo_page)),
        "run": lambda: render_document(run_document(run_page, now_s=0.0)),
        "comparison": lambda: render_document(comparison_document(comparison_page)),
        "empty": lambda: render_document(run_document(empty_page, now_s=0.0)),
    }
    path = tmp_path / "page.html"
    path.write_text(pages[request.param](), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", *slow("dark")])
@pytest.mark.parametrize("width", [420, *slow(1280)])
def test_a_page_shows_whole_and_quietly(browser, file, width, scheme):
    complaints, requests = [], []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_one_drawing_of_each_figure_is_shown_at_any_width(browser, run_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render_document(run_document(run_page, now_s=0.0)), encoding="utf-8")
    for width in (1280, 420):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto(path.as_uri())
        shown = page.eval_on_selector_all(
            "figure",
            "all => all.map(f => [...f.querySelectorAll('svg')].filter(s => s.checkVisibility()).length)",
        )
        assert set(shown) == {1}
        page.close()

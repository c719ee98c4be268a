"""Points of curves over HTTP, the list of metrics, and what a page holds for the script that draws curves."""

import json
import re
from html import unescape
from typing import Any

import numpy as np
import pytest

from metric_runs import log_points, metric_run
from unit.dashboard.conftest import Site

HOSTILE = '</script><img src=x onerror="alert(1)">/../?&#'


def table_of(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<f8").reshape(10, -1)


def facts_of(response: Any) -> Any:
    return json.loads(response.headers["assay-curves"])


def test_a_curve_has_each_spike_in_its_columns_and_lost_points_apart(site: Site) -> None:
    run = metric_run(site.dashboard.home, "sample", 0, 600)
    values = np.ones(1000)
    values[123] = 50.0
    log_points(run, 1, 1, loss=values)
    log_points(run, 2, 601, loss=np.full(400, 2.0))
    table = table_of(site.browser.get("/runs/sample/curve?name=loss&columns=40").content)
    assert table.shape[1] <= 40 and np.nanmax(table[2]) == 50.0
    assert np.all(np.diff(table[0]) > 0), "no step comes twice, so the line cannot go back"
    committed, lost = table[3][table[0] > 620], table[9][table[0] > 620]
    assert set(committed) == {2.0} and set(lost) == {1.0}


def test_a_cursor_brings_only_what_is_new(site: Site) -> None:
    run = metric_run(site.dashboard.home, "sample", 0)
    log_points(run, 1, 1, loss=np.ones(500))
    address = "/runs/sample/curve?name=loss&columns=1000"
    first = site.browser.get(address)
    unchanged = site.browser.get(address, headers={"if-none-match": first.headers["etag"]})
    assert unchanged.status_code == 304 and not unchanged.content
    log_points(run, 1, 501, loss=[7.0, 8.0])
    since = f"{address}&since={facts_of(first)[0]['cursor']}"
    news = site.browser.get(since)
    assert table_of(news.content)[3].tolist() == [7.0, 8.0]
    assert facts_of(news)[0]["points"] == 502 and facts_of(news)[0]["replaces_from"] == 501
    log_points(metric_run(site.dashboard.home, "other", 0), 1, 1, loss=np.ones(3))
    whole = site.browser.get(since.replace("sample", "other"))
    assert table_of(whole.content).shape[1] == 3 and facts_of(whole)[0]["replaces_from"] is None


def test_one_request_brings_several_metrics(site: Site) -> None:
    run = metric_run(site.dashboard.home, "sample", 0)
    log_points(run, 1, 1, loss=np.ones(5), kl=np.full(3, 2.0))
    response = site.browser.get("/runs/sample/curve?name=loss&name=nothing&name=kl")
    assert [facts["columns"] for facts in facts_of(response)] == [5, 0, 3]
    assert table_of(response.content[:400])[3].tolist() == [1.0] * 5
    assert table_of(response.content[400:])[3].tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "name=: expected 1 to 64 names of metrics"),
        ("name=loss&name=kl&since=1-2-3-x", "since=1-2-3-x: expected a cursor, or none, for each name"),
        ("name=loss&first=abc", "first=abc: expected a whole number"),
        ("name=loss&first=1e9", "first=1e9: expected a whole number"),
        ("name=loss&columns=-1", "columns=-1: expected a whole number"),
        ("name=loss&first=9&last=3", "begins at step 9 and ends at step 3"),
        ("name=loss&since=moon", "moon"),
    ],
)
def test_a_wrong_window_is_refused_by_name(site: Site, query: str, words: str) -> None:
    metric_run(site.dashboard.home, "sample", 0)
    response = site.browser.get(f"/runs/sample/curve?{query}")
    assert response.status_code == 400 and words in unescape(response.text)


def test_a_run_without_the_metric_has_an_empty_curve(site: Site) -> None:
    metric_run(site.dashboard.home, "sample", 0)
    response = site.browser.get("/runs/sample/curve?name=nothing")
    assert response.status_code == 200 and response.content == b""
    assert site.browser.get("/runs/nobody/curve?name=loss").status_code == 404


def test_csv_has_each_step_of_a_short_window(site: Site) -> None:
    run = metric_run(site.dashboard.home, "sample", 0, 5)
    log_points(run, 1, 1, loss=[1.0, np.nan, 3.0, np.inf, 5.0, 6.0])
    log_points(run, 2, 6, loss=[0.125])
    response = site.browser.get("/runs/sample/curve.csv?name=loss&first=2")
    heading, *rows = response.text.splitlines()
    assert heading.startswith("rolled_back,first_step,steps,minimum")
    assert [row.split(",")[:6] for row in rows] == [
        ["0", "2", "1", "nan", "nan", "nan"],
        ["0", "3", "1", "3.0", "3.0", "3.0"],
        ["0", "4", "1", "nan", "nan", "nan"],
        ["0", "5", "1", "5.0", "5.0", "5.0"],
        ["0", "6", "1", "0.125", "0.125", "0.125"],
        ["1", "6", "1", "6.0", "6.0", "6.0"],
    ]
    assert "attachment" in response.headers["content-disposition"]


def test_metrics_are_found_by_the_beginning_of_their_name_and_listed_in_pages(site: Site) -> None:
    run = metric_run(site.dashboard.home, "sample", 0)
    log_points(run, 1, 1, **{f"layer.{number:03d}": [1.0] for number in range(150)}, loss=[0.5], **{HOSTILE: [2.0]})
    first = site.browser.get("/runs/sample/metrics?prefix=layer").text
    assert first.count("show=layer") == 100 and "150 metrics" in first and "show=loss" not in first
    second = site.browser.get("/runs/sample/metrics?prefix=layer&page=2").text
    assert second.count("show=layer") == 50
    whole = site.browser.get("/runs/sample/metrics").text
    assert HOSTILE not in whole
    link = re.search(r'href="([^"]*onerror[^"]*)"', whole)
    assert link, "a name that is markup is shown and linked"
    shown = site.browser.get(unescape(link[1]))
    assert shown.status_code == 200 and HOSTILE not in shown.text and "data-figure" in shown.text
    assert site.browser.get("/runs/sample/metrics?show=nothing").status_code == 400


def test_a_run_page_shows_curves_without_scripts_and_says_where_their_points_are(site: Site) -> None:
    run = metric_run(site.dashboard.home, "sample", 0)
    log_points(run, 1, 1, loss=np.ones(50), tokens=np.full(50, 100.0), step_s=np.full(50, 0.5))
    text = site.browser.get("/runs/sample?zoom=training-loss:10-20").text
    figures = [json.loads(unescape(found)) for found in re.findall(r'data-figure="([^"]*)"', text)]
    assert [figure["title"] for figure in figures] == ["Training loss", "Throughput"]
    assert figures[0]["lines"][0]["address"] == "/runs/sample/curve?name=loss"
    assert figures[1]["lines"][0]["divisor"] == "/runs/sample/curve?name=step_s"
    assert text.count('class="at-rest"') == 2 and "curve.csv?name=loss" in text and "style=" not in text
    wrong = site.browser.get("/runs/sample?zoom=here")
    assert wrong.status_code == 400 and "zoom=here: expected FIGURE:FIRST-LAST" in unescape(wrong.text)


def test_a_time_on_a_page_is_an_element_that_a_script_can_translate(site: Site) -> None:
    metric_run(site.dashboard.home, "sample", 0)
    assert '<time datetime="2026-11-18T11:06:40Z">2026-11-18T11:06:40Z</time>' in site.browser.get("/runs/sample").text

"""Whatever stands in an address: a page, or an error that names the value. Never a failure of the server."""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from assay.dashboard.app import PAGES
from assay.store.home import Home
from metric_runs import log_points, metric_run
from unit.dashboard.accepted import accept_eval_run, accept_job, launch, validate
from unit.dashboard.conftest import Site, site_of
from unit.dashboard.test_benchmarks import put, scored
from unit.dashboard.test_cost import trained

TRICKY = (
    "", "0", "-1", "1.5", "1e400", "nan", "9" * 30, "9" * 5000, "\u0663", "\u00b2", "1_000", " 1", "x" * 10_000,
    "\0", "a\0b", "\x1b[2J", "<script>alert(1)</script>", "'\"--", "%", "_", "../..", "/", "a=b", "a=[", "a=!!x",
    "a=" + "[" * 3000, "a=2026-99-99", "a={", "=", ",", "x:1-2", "x:2-1", "2026-01-01", "0001-01-01", "9999-12-31",
    "2026-13-01", "*", "(", "\u202e", "\n", "loss", "sample", "recipe", "failed", "all", "day", "default",
)  # fmt: skip
SIGNS = st.characters(exclude_categories=["Cs"])
VALUES = st.one_of(st.sampled_from(TRICKY), st.text(SIGNS), st.integers().map(str))


class Recorded(QueryParams):
    """The query of a request, and which names were read."""

    names_read: set[str]

    def get(self, key: str, default: object = None) -> object:
        self.names_read.add(key)
        return super().get(key, default)

    def getlist(self, key: str) -> list[str]:
        self.names_read.add(key)
        return super().getlist(key)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    home = Home.at(tmp_path_factory.mktemp("filters") / "runs")
    found = site_of(home)
    log_points(metric_run(home, "sample", 0), 1, 0, loss=[3.0, 2.0, float("nan")])
    put(home, [scored("sample", 5, "sums", 0.5)])
    trained(found, "trained")
    job_id = accept_job(found.dashboard.api)
    validate(found.dashboard.api, job_id)
    launch(found.dashboard.api, job_id)
    accept_eval_run(found.dashboard.api)
    return found


def address_of(site: Site, page: str) -> str:
    (job_id,) = site.dashboard.api.jobs.newest("default")
    names = {"run_id": "sample", "benchmark": "sums", "step": "5", "job_id": job_id}
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "none"), page)


def smallest_query(page: str) -> str:
    return "?name=loss" if "/curve" in page else ""


@pytest.fixture
def names_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    Recorded.names_read = set()
    monkeypatch.setattr("starlette.requests.QueryParams", Recorded)
    yield Recorded.names_read


@pytest.mark.parametrize("page", PAGES)
def test_any_query_has_a_page_or_an_error_that_names_the_value(site: Site, names_read: set[str], page: str) -> None:
    address = address_of(site, page)
    site.browser.get(f"{address}{smallest_query(page)}")
    names = st.sampled_from(sorted(names_read) or ["nothing"])

    @settings(max_examples=25, deadline=None)
    @given(pairs=st.lists(st.tuples(names, VALUES), min_size=1, max_size=2))
    def request(pairs: list[tuple[str, str]]) -> None:
        response = site.browser.get(f"{address}?{urlencode(pairs)}")
        if response.status_code == 503:  # no items of the result lie in this home
            assert page.endswith("{step}") and "items" in response.text and response.headers.pop("retry-after")
        else:
            assert response.status_code in (200, 400, 404), (pairs, response.text)
        if response.status_code == 400:
            known = {*names_read, "nothing"}
            assert any(f"{name}=" in unescape(response.text) for name in known), (pairs, response.text)
        assert len(response.content) < 300_000 and "<script>alert" not in response.text
        assert set(response.headers) <= {*site.browser.get("/").headers, "etag", "assay-curves", "content-disposition"}

    request()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_takes_the_names_that_it_reads_and_refuses_others(site: Site, names_read: set[str], page: str) -> None:
    address = address_of(site, page)
    expected = site.browser.get(f"{address}{smallest_query(page)}").status_code
    empty = [*({"name": "loss"} if "/curve" in page else {}).items(), *((name, "") for name in names_read - {"name"})]
    assert site.browser.get(f"{address}?{urlencode(empty)}").status_code == expected
    refused = site.browser.get(f"{address}?{urlencode([*empty, ('colour', '<b>red')])}")
    assert refused.status_code == 400 and "colour=&lt;b&gt;red: " in refused.text


@settings(max_examples=60, deadline=None)
@given(page=st.sampled_from(sorted(PAGES)), name=st.one_of(st.sampled_from(TRICKY), st.text(SIGNS)))
def test_any_name_in_a_path_has_a_page_or_is_not_found(site: Site, page: str, name: str) -> None:
    address = re.sub(r"\{\w+\}", quote(name, safe=""), page)
    response = site.browser.get(f"{address}{smallest_query(page)}")
    assert response.status_code in (200, 400, 404, 405), (address, response.text)

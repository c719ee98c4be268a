"""The pages of many runs show what the ledger holds now, whatever a server has read before."""

import re
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.records.run import Run
from assay.store.home import Home
from assay.store.ledger.ledger import parsed
from dashboard_home import Shape, make_home
from unit.dashboard.conftest import Site, site_of

PAGES = ("/runs", "/runs?group=recipe", "/compare?search=grpo", "/benchmarks")


@pytest.fixture
def warm(tmp_path: Path) -> Site:
    """A server that has shown every page of 12 runs; 8 of them have results on 2 benchmarks."""
    home = Home.at(tmp_path / "runs")
    make_home(home, Shape(12, 12 * 20 * 30, 400, 2, 0, SystemClock().now_s() - 60))
    site = site_of(home)
    for address in PAGES:
        assert site.browser.get(address).status_code == 200
    return site


def listed(site: Site, address: str = "/runs") -> list[str]:
    text = site.browser.get(address).text
    return list(dict.fromkeys(re.findall(r'href="/runs/(grpo-\d+-s\d+)"', text)))


def test_a_run_that_changed_is_shown_as_it_is_and_no_other_is_read_again(warm: Site) -> None:
    with warm.dashboard.home.open_ledger() as ledger:
        run, (*_, attempt) = ledger.run("grpo-000-s3"), ledger.attempts("grpo-000-s3")
        ledger.record_run(run.model_copy(update={"recipe": {**run.recipe, "name": "renamed", "loader": {"lanes": 77}}}))
        ledger.record_attempt(attempt.model_copy(update={"world_size": 3}))
    misses = parsed.cache_info().misses
    assert listed(warm, "/runs?search=renamed") == listed(warm, "/runs?where=loader.lanes=77") == ["grpo-000-s3"]
    assert "loader.lanes" in warm.browser.get("/compare?search=grpo").text
    assert parsed.cache_info().misses - misses == 2, "the run and its attempt"
    assert ">3<" in re.sub(r"\s", "", warm.browser.get("/runs?search=renamed&columns=ranks").text)


def test_a_deleted_run_is_on_no_page(warm: Site) -> None:
    with warm.dashboard.home.open_ledger() as ledger:
        ledger.forget("grpo-000-s3")
    assert len(listed(warm)) == 11 and "grpo-000-s3" not in listed(warm)
    for address in PAGES:
        assert "grpo-000-s3" not in warm.browser.get(address).text, address
    assert warm.browser.get("/compare?run=grpo-000-s3").status_code == 404


def test_a_ledger_that_was_replaced_is_shown_at_once(warm: Site, tmp_path: Path) -> None:
    home, other = warm.dashboard.home, Home.at(tmp_path / "other")
    with home.open_ledger() as ledger, other.open_ledger() as replacement:
        run: Run = ledger.run("grpo-000-s3")
        replacement.record_run(run.model_copy(update={"num_steps": 4_321}))
    file, newer = home.ledger_file(), other.ledger_file()
    assert file is not None and newer is not None
    newer.replace(file)
    assert listed(warm) == ["grpo-000-s3"] and "/4,321" in warm.browser.get("/runs").text
    assert "No benchmark results yet" in warm.browser.get("/benchmarks").text

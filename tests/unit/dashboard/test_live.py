"""When an open page fetches itself again."""

import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from metric_runs import log_points, metric_run
from unit.dashboard.conftest import Site


@pytest.mark.parametrize("address", ["/", "/runs", "/cost", "/jobs", "/programs", "/decisions", "/runs/sample"])
def test_a_page_that_was_just_opened_does_not_fetch_itself_again(site: Site, address: str) -> None:
    log_points(metric_run(site.dashboard.home, "sample", 0), 1, 1, loss=np.ones(5))
    assert not _changed_topics(site, address)


def test_a_change_while_a_page_is_made_leads_to_another_fetch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run = metric_run(site.dashboard.home, "sample", 0)
    now_s = site.dashboard.clock.now_s

    def change_and_read_clock() -> float:
        log_points(run, 1, 1, loss=np.ones(5))
        site.dashboard.watch.forget()
        return now_s()

    monkeypatch.setattr(site.dashboard.clock, "now_s", change_and_read_clock)
    assert _changed_topics(site, "/runs/sample") == {"run:sample"}


def _changed_topics(site: Site, address: str) -> set[str]:
    """Return the topics whose versions differ from those with which the page was sent, but for those that change by
    themselves."""
    page = site.browser.get(address)
    assert page.status_code == 200
    (stream,) = re.findall(r'data-address="([^"]+)"', page.text)
    query = parse_qs(urlsplit(unescape(stream)).query)
    versions = dict(zip(query["topic"], map(int, query["at"]), strict=True))
    now = site.dashboard.watch.versions(versions)
    changed = {topic for topic, version in now.items() if version != versions[topic]}
    return {topic for topic in changed if topic != "minute" and not topic.startswith("computed:")}

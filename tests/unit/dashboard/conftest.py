"""A dashboard over an empty home, asked without a network."""

from pathlib import Path
from typing import NamedTuple

import pytest
from starlette.testclient import TestClient

from assay.base.clock import Clock, SystemClock
from assay.dashboard.app import with_pages
from assay.dashboard.dashboard import Dashboard
from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.objects import open_store
from served import server_of


class Site(NamedTuple):
    """A dashboard, and a browser that asks it."""

    dashboard: Dashboard
    browser: TestClient


def site_of(home: Home, clock: Clock | None = None) -> Site:
    state = AppState.of(open_store(str(home.api)), {}, clock or SystemClock())
    dashboard = Dashboard.of(home, state)
    browser = TestClient(with_pages(server_of(state), dashboard), base_url="http://127.0.0.1:8017")
    browser.headers["accept"] = "text/html"
    return Site(dashboard, browser)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return site_of(Home.at(tmp_path / "runs"))

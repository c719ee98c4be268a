"""Debian's Chromium for tests."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Open a browser. Skips if there is none, or fails where $ASSAY_REQUIRE names chromium."""
    absent = [
        name
        for name, present in (("chromium", CHROMIUM), ("playwright", importlib.util.find_spec("playwright")))
        if not present
    ]
    if absent and "chromium" in os.environ.get("ASSAY_REQUIRE", "").split(","):
        pytest.fail(f"chromium is required here (ASSAY_REQUIRE), but {absent} is not installed", pytrace=False)
    if absent:
        pytest.skip(f"{' and '.join(absent)} not installed (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()

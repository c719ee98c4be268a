"""Takes the pictures of docs/dashboard.md again, in Debian's Chromium.

    ASSAY_HOME=pictures assay demo
    python benchmarks/dashboard_pictures.py pictures [--out docs/dashboard]

Starts a server on the home and follows links as a reader does, so the home may have any runs and campaign.
"""

import os
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import CHECKOUT, options_of

WIDTH, SCALE = 1000, 0.8
QUALITY = 55
"""Of WebP: a file stays under 60 kB."""


def interrupted_run(page: Any, address: str) -> int:
    page.goto(f"{address}/cost")
    page.click("#interruptions tbody th a")
    page.wait_for_selector("#plot-training-loss canvas")
    return 1340


def best_checkpoint(page: Any, address: str) -> int:
    page.goto(f"{address}/benchmarks")
    page.click("main tbody th a")
    return 1000


def decision(page: Any, address: str) -> int:
    page.goto(f"{address}/decisions")
    page.click("main tbody th a")
    return 900


def cost(page: Any, address: str) -> int:
    page.goto(f"{address}/cost?by=day")
    return 860


def compare(page: Any, address: str) -> int:
    page.goto(f"{address}/compare?search=-s&metric=loss")
    return 1000


PICTURES: dict[str, Callable[[Any, str], int]] = {
    "compare": compare,
    "run": interrupted_run,
    "benchmark": best_checkpoint,
    "decision": decision,
    "cost": cost,
}
"""By file name: opens a page and returns the height of its picture in pixels."""


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--out", type=Path, default=CHECKOUT / "docs" / "dashboard")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "assay", "serve", "--port", "0"]
    with subprocess.Popen(
        command, env={**os.environ, "ASSAY_HOME": str(options.home)}, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            take_pictures(next(filter(None, map(address_in, server.stderr))), options.out)
        finally:
            server.terminate()


def address_in(line: str) -> str:
    found = re.search(r"dashboard (\S+)", line)
    return found[1] if found else ""


def take_pictures(address: str, out: Path) -> None:
    """Write each picture into a folder and print its size."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 700}, color_scheme="light", timezone_id="UTC")
        page.set_default_timeout(300_000)
        for name, show in PICTURES.items():
            height = min(show(page, address), page.evaluate("document.documentElement.scrollHeight"))
            page.set_viewport_size({"width": WIDTH, "height": height})
            page.wait_for_timeout(1500)
            file = out / f"{name}.webp"
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": SCALE}
            screenshot = page.context.new_cdp_session(page).send(
                "Page.captureScreenshot", {"format": "webp", "quality": QUALITY, "clip": clip}
            )
            file.write_bytes(b64decode(screenshot["data"]))
            print(f"{file}: {file.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()

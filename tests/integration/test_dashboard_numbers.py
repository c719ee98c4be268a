"""Every number on every page is in the JSON of a command that the page's footer names."""

import json
import re
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.routing import Match, Route
from starlette.testclient import TestClient

from assay.dashboard.app import PAGES
from assay.dashboard.page import AREAS
from assay.store.home import Home
from full_home import fill
from in_process import AssayAt
from page_numbers import KnownNumbers, PageFacts, Shown, numbers_of
from sample_project import SampleProjects
from unit.dashboard.conftest import site_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MOST = 3
"""Pages of a kind that are read."""
NO_PAGES = re.compile(r"\.csv$|/curve$|/record$")
FIRST = ("/runs/one-rank", "/runs?group=recipe", "/cost?by=day", "/cost?by=person", "/benchmarks?campaign=small")
AGES = {"age", "ago", "last sign", "last sign of life"}
"""They change while the test runs."""
OF_PLANS = {"days late", "planned", "actual", "forecast: median [P10, P90]", "probability"}
"""Of a program's schedule, risks and budget by day; tests/unit/reporting/documents/test_numbers.py has them."""
MEANS = {"mean", "step (mean)"}
"""Of the points in a column of a curve; that they are right is in tests/unit/dashboard/test_curves.py."""
OF_GROUPS = {"min", "max"}
"""Of curves over seeds; that they are right is in tests/unit/dashboard/test_compare.py."""
OF_PAGES = {"/compare": OF_GROUPS, "/programs/{name}": OF_PLANS}
NOT_PRINTED = re.compile(r"evaluation, apart: .*|no sign of life for \d+ \w+")
"""The sum over a memo's runs, of which a decision's record has training only; and an age."""
_ROUTES = {address: Route(address, lambda request: None) for address in PAGES}


def kind_of(address: str) -> str | None:
    scope = {"type": "http", "method": "GET", "path": re.split(r"[?#]", address)[0]}
    return next((kind for kind, route in _ROUTES.items() if route.matches(scope)[0] is Match.FULL), None)


class Walk:
    """Follows the links of a home's pages."""

    def __init__(self, home: Path, secret: str = "") -> None:
        self.home = home
        self.browser: TestClient = site_of(Home.at(home)).browser
        self._printed: dict[tuple[str, ...], Any] = {}
        if secret:
            self.browser.post("/login", data={"key": secret}, headers={"origin": "http://127.0.0.1:8017"})
            self.browser.headers["authorization"] = f"Bearer {secret}"

    @cached_property
    def pages(self) -> dict[str, PageFacts]:
        """Some pages of each kind, by address."""
        found: dict[str, PageFacts] = {}
        kinds: list[str | None] = []
        first = FIRST if Home.at(self.home).has_run("one-rank") else ()
        waiting = [*(address for _, address in AREAS), *first]
        while waiting:
            address = waiting.pop(0).partition("#")[0]
            kind = kind_of(address)
            if kind is None or address in found or NO_PAGES.search(kind) or kinds.count(kind) >= MOST:
                continue
            kinds.append(kind)
            found[address] = PageFacts(self.text(address))
            waiting += found[address].links
        return found

    def text(self, address: str) -> str:
        """Return a page when all of it is computed."""
        for _ in range(1200):
            response = self.browser.get(address)
            assert response.status_code == 200, (address, response.text)
            if "eing computed" not in response.text:
                return response.text
            time.sleep(0.1)
        raise AssertionError(address)

    def _json(self, command: list[str]) -> Any:
        key = tuple(command)
        if key not in self._printed:
            if command[0] == "GET":
                self._printed[key] = self.browser.get(command[1], headers={"accept": "application/json"}).json()
            else:
                # There are holes and alarms.
                code = 1 if command[:2] in (["eval", "coverage"], ["plan", "status"]) else 0
                self._printed[key] = json.loads(AssayAt(self.home)(*command, code=code).out)
            if command[:2] == ["plan", "status"]:  # the page compares with the budget and the offer
                program, folder = map(Path, command[2:4])
                offer = json.loads((folder / "offer.json").read_text())
                self._printed[key] = [self._printed[key], offer, yaml.safe_load(program.read_text())]
        return self._printed[key]

    def unknown(self) -> Iterator[tuple[str, Shown]]:
        """Yield the numbers that are on a page and in none of its commands' JSON."""
        for address, page in self.pages.items():
            points = [self.browser.get(link).text for link in page.links if "/curve.csv?" in link]
            known = KnownNumbers([*map(self._json, page.commands()), *(re.split(r"[,\s]", text) for text in points)])
            skipped = AGES | MEANS | OF_PAGES.get(kind_of(address) or "", set())
            for heading, text in page.cells:
                for number in numbers_of(heading, NOT_PRINTED.sub("", text)) if heading not in skipped else ():
                    if not known.has(number):
                        yield address, number


def test_every_number_of_every_page_is_in_the_json_that_its_footer_names(
    sample_projects: SampleProjects, tmp_path: Path
) -> None:
    filled = fill(Home.at(sample_projects.copy_to(tmp_path / "project", campaign=True)))
    walk = Walk(filled.home.folder, filled.secret)
    kinds = {kind_of(address) for address in walk.pages}
    assert kinds >= {kind for kind in PAGES if not NO_PAGES.search(kind)}, "a kind of page that no link leads to"
    assert not list(walk.unknown())
    assert sum(len(page.cells) for page in walk.pages.values()) > 2000, "the pages are not read"


def test_a_number_that_is_wrong_in_its_last_digit_is_found(sample_projects: SampleProjects, tmp_path: Path) -> None:
    walk = Walk(sample_projects.copy_to(tmp_path / "project", campaign=True))
    wrong = 0
    for address in ("/benchmarks", "/decisions", "/runs", "/cost?by=day"):
        page = PageFacts(walk.text(address))
        known = KnownNumbers(map(walk._json, page.commands()))
        for heading, text in page.cells:
            for number in numbers_of(heading, text):
                if number.tolerance < 0.001 and heading not in AGES:
                    wrong += not known.has(number._replace(value=number.value + 4 * number.tolerance, text="wrong"))
    assert wrong >= 10

"""The pages of decisions, coverage, programs and runs show the numbers of the commands' JSON, with links to records."""

import html
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from starlette.testclient import TestClient

from assay.records.evaluation import Estimate
from assay.reporting.views.statements import bound_text, chance_text, interval_words
from assay.store.home import Home
from in_process import AssayAt
from sample_project import SampleProjects
from unit.dashboard.conftest import site_of


class Pages:
    """A browser on the dashboard of a home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.browser: TestClient = site_of(Home.at(home)).browser

    def text(self, address: str) -> str:
        """Return a page when all of it is computed."""
        for _ in range(600):
            response = self.browser.get(address)
            assert response.status_code == 200, (address, response.text)
            if "eing computed" not in response.text:
                return html.unescape(response.text)
            time.sleep(0.05)
        raise AssertionError(address)


@pytest.fixture(scope="module")
def pages(sample_projects: SampleProjects, tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(sample_projects.copy_to(tmp_path_factory.mktemp("site") / "project", campaign=True))


def printed(home: Path, *command: object, code: int = 0) -> Any:
    return json.loads(AssayAt(home)(*command, "--json", code=code).out)


def test_all_campaigns_have_the_numbers_of_the_list(pages: Pages) -> None:
    (line,) = printed(pages.home, "decide", "list")
    text = pages.text("/decisions")
    effect = Estimate(value=line["effect"], low=line["low"], high=line["high"], confidence=line["confidence"])
    assert interval_words(effect, line["unit"]) in text and line["recommendation"] in text
    assert 'href="/decisions/small"' in text
    assert pages.browser.get("/decisions?decision=maybe").status_code == 400
    assert "No campaign matches" in pages.text("/decisions?search=large")


def test_a_memo_has_the_numbers_of_its_decision_and_links_to_every_record(pages: Pages) -> None:
    (decision,) = printed(pages.home, "decide", "show", "small")
    text = pages.text("/decisions/small")
    assert interval_words(Estimate.model_validate(decision["effect"]), decision["unit"]) in text
    assert bound_text(decision["least_effect"], decision["unit"]) in text
    for gate in decision["gates"]:
        for clause in gate["clauses"]:
            assert f" {clause['name']}<" in text, clause["name"]
            if clause["type"] in ("worth", "replication"):
                assert chance_text(clause["value"]) in text
    for run in decision["runs"]:
        assert f'href="/runs/{run["run_id"]}"' in text and run["weights_digest"][:12] in text
        assert pages.browser.get(f"/runs/{run['run_id']}").status_code == 200
    records = dict.fromkeys(re.findall(r'href="(/decisions/small/record\?path=[^"]+)"', text))
    assert len(records) >= 4
    for address in records:
        path = unquote(address.partition("path=")[2])
        shown = pages.text(address)
        record = json.loads((pages.home / path).read_text())
        if record["kind"] == "benchmark_result":
            items = re.search(r'href="(/benchmarks/[^"]+)"', shown)
            assert items is not None and f'href="/runs/{record["run_id"]}"' in shown
            assert pages.browser.get(items[1]).status_code == 200, items[1]
            assert str(record["score"]["value"]) in shown


def test_only_records_that_a_memo_names_are_shown(pages: Pages) -> None:
    for path in ("../campaign.yaml", "/etc/passwd", "finished/run.json", ""):
        response = pages.browser.get("/decisions/small/record", params={"path": path})
        assert response.status_code == 404, path
    assert pages.browser.get("/decisions/none").status_code == 404
    assert pages.browser.get("/decisions/..%2Fx").status_code == 404


def test_a_decision_that_was_changed_is_named(pages: Pages, sample_projects: SampleProjects, tmp_path: Path) -> None:
    home = sample_projects.copy_to(tmp_path / "project", campaign=True)
    (file,) = (home / "campaigns" / "small" / "decisions").glob("*.json")
    file.write_text(file.read_text().replace('"owner":""', '"owner":"nobody"'))
    text = Pages(home).text("/decisions/small")
    assert "differs from the decision that the ledger has on record" in text


def test_coverage_has_the_holes_of_the_command_first(pages: Pages) -> None:
    project = pages.home.parent
    modes = [
        {"name": "found", "owner": "data", "least_effect": 0.9},
        {"name": "slang", "owner": "safety", "least_effect": 0.01},
        {"name": "leaks", "owner": "safety", "least_effect": 0.001},
    ]  # fmt: skip
    benchmark = {"type": "classification", "name": "loss", "score": "log_loss", "failure_modes": ["found", "leaks"]}
    (project / "coverage.yaml").write_text(yaml.safe_dump({"failure_modes": modes}))
    (project / "modes.yaml").write_text(yaml.safe_dump({"name": "s", "benchmarks": [benchmark]}))
    assert "assay eval coverage FILE" in pages.text("/coverage")
    command = ("eval", "coverage", str(project / "coverage.yaml"), "--suite", str(project / "modes.yaml"))
    found = printed(pages.home, *command, code=1)
    text = pages.text("/coverage")
    names = [mode["name"] for mode in found["modes"]]
    holes = [mode["name"] for mode in found["modes"] if mode["is_hole"]]
    assert holes == ["slang", "leaks"] and names[0] == "found"
    table = text[text.index("<tbody>") :]
    assert table.index("slang") < table.index("leaks") < table.index("found")
    for mode in found["modes"]:
        for cell in mode["cells"]:
            assert f"finds {cell['could_detect']:.3g}" in table and 'href="/benchmarks/loss"' in table
    (project / "modes.yaml").unlink()
    assert "modes.yaml" in pages.text("/coverage") and "recovers by itself" in pages.text("/coverage")
    (project / "modes.yaml").write_text(yaml.safe_dump({"name": "s", "benchmarks": [benchmark]}))
    assert "2 of 3 uncovered" in pages.text("/coverage")


def test_the_first_page_has_the_numbers_of_the_run_list(pages: Pages) -> None:
    lines = printed(pages.home, "runs", "list")
    pending = [line for line in printed(pages.home, "decide", "list") if not line["is_final"]]
    text = pages.text("/")
    tiles = dict(re.findall(r'<dt>([^<]+)</dt><dd class="value">([^<]+)', text))
    assert lines and tiles["running"] == str(sum(line["status"] in ("running", "unknown") for line in lines))
    assert tiles["failed"] == str(sum(line["status"] in ("failed", "gone") for line in lines))
    assert text.count("a look is pending") == len(pending)

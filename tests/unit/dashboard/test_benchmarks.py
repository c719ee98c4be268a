"""Pages of benchmark scores: the matrix, one benchmark, a result's items and one item."""

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.base.errors import ConfigError
from assay.cli.main import cli
from assay.evals.queue import Checkpoint, benchmark_folder, result_of
from assay.evals.scorer import Identity
from assay.evals.version import present_suite
from assay.records.benchmark import BenchmarkResult
from assay.records.campaign import Campaign
from assay.records.evaluation import Estimate
from assay.reporting.views.benchmark_items import newest_result
from assay.scoring.grade import ItemFailure
from assay.statistics.benchmark_items import ItemScore, items_bytes, items_table, save_result
from assay.store.home import Home
from assay.store.ledger import tables
from assay.store.ledger.ledger import upsert
from metric_runs import metric_run
from unit.dashboard.conftest import Site

HOSTILE = "<script>alert(1)</script>/../é"


def scored(run_id: str, step: int, benchmark: str, value: float, **changes: Any) -> BenchmarkResult:
    weights = hashlib.sha256(f"{run_id} {step}".encode()).hexdigest()
    return BenchmarkResult(
        run_id=run_id, candidate="lr-1", step=step, weights_digest=weights, benchmark=benchmark, benchmark_sha256="b",
        grader_sha256="g", prompt_sha256="p", num_items=9, num_failed=0, could_detect=None, device_s=0,
        score=Estimate(value=value, low=value - 0.04, high=value + 0.04), evaluated_s=1e9 + step, items_sha256="i",
    ).model_copy(update=changes)  # fmt: skip


def put(home: Home, results: list[BenchmarkResult]) -> None:
    rows = [
        {
            "run_id": result.run_id, "step": result.step, "benchmark": result.benchmark, "score": result.score.value,
            "version_sha256": result.version_sha256(), "record": result.to_json(),
        }
        for result in results
    ]  # fmt: skip
    with home.open_ledger() as ledger, ledger.writing() as connection:
        upsert(connection, tables.benchmark_results, rows)


def printed(home: Home, *command: str) -> Any:
    environment = {"ASSAY_HOME": str(home.folder), "ASSAY_LEDGER": home.ledger}
    found = CliRunner().invoke(cli, [*command, "--json"], env=environment)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_numbers_of_the_pages_are_those_of_the_command(site: Site) -> None:
    home = site.dashboard.home
    put(home, [scored(run, step, name, 0.4 + 0.01 * step + 0.1 * (run == "b"))
               for run in "ab" for step in (1, 2, 3) for name in ("sums", "facts")])  # fmt: skip
    page = site.browser.get("/benchmarks").text
    lines = printed(home, "eval", "history", "--benchmark", "sums")
    assert len(lines) == 6
    for line in lines:
        cell = f'/benchmarks/sums/{line["run_id"]}/{line["step"]}">{line["score"]["value"]:.4f} ±0.040'
        assert cell in page
    assert f"[{lines[0]['luckiest_low']:.4f}, {lines[0]['luckiest_high']:.4f}]" in page
    assert lines[0]["may_be_chance"] is False and f"one of {lines[0]['num_candidates']}" in page
    one = site.browser.get("/benchmarks/sums?run=b").text
    of_run = printed(home, "eval", "history", "b", "--benchmark", "sums")
    assert f"{of_run[-1]['best_value']:.4f}" in one and "by luck alone" in one and "may be luck" in one


def test_a_checkpoint_is_one_row_whatever_its_suites_call_it_and_links_to_its_run(site: Site) -> None:
    home = site.dashboard.home
    metric_run(home, "known", 0)
    put(home, [scored("known", 5, "sums", 0.5), scored("known", 5, "facts", 0.6, candidate="baseline"),
               scored("a-model", 5, "sums", 0.4)])  # fmt: skip
    page = site.browser.get("/benchmarks").text
    assert "2 checkpoints on 2 benchmarks" in page
    assert page.count('href="/runs/known"') == 1 and "/runs/a-model" not in page, "a model is no run"
    assert '<a href="/runs/known">' in site.browser.get("/benchmarks/sums").text
    only = site.browser.get("/benchmarks?candidate=baseline").text
    assert "1 checkpoint on 1 benchmark" in only and ">facts<" in only


def test_the_filters_stand_under_the_title_and_stay_as_typed(site: Site) -> None:
    put(site.dashboard.home, [scored("a", 1, "sums", 0.5)])
    page = site.browser.get("/benchmarks").text
    assert page.index('id="page"') < page.index("<h1>") < page.index('id="filters"') < page.index("<main>")
    assert re.search(r'<form[^>]* id="filters"[^>]* data-live>', page), "a fetch of the page leaves the form alone"


def test_a_campaign_shows_its_own_runs_only_on_the_page_and_on_the_command_line(site: Site) -> None:
    home = site.dashboard.home
    ids = ["warm-baseline-s0", "warm-fast-s0", "warm-fast-s9", "warm-up"]
    put(home, [scored(run_id, step, "sums", 0.1 * step) for run_id in ids for step in (1, 2)])
    config = {"baseline": "baseline", "candidates": [{"name": "fast"}], "first_seed": 0, "seeds": 2}
    fields = {"config_sha256": "", "recipe": {}, "base_dir": "", "known_good_sha256": None, "created_s": 0.0}
    with home.open_ledger() as ledger:
        ledger.record_campaign(Campaign.model_validate({"name": "warm", "config": config, "suites": {}, **fields}))
    page, one = (site.browser.get(f"/benchmarks{name}?campaign=warm").text for name in ("", "/sums"))
    lines = printed(home, "eval", "history", "--campaign", "warm")
    assert {line["run_id"] for line in lines} == {*ids[:2]} and len(lines) == 4
    for text in (page, one):
        assert all(f">{run_id}<" in text for run_id in ids[:2]) and not any(f">{run_id}<" in text for run_id in ids[2:])
        assert "assay eval history --campaign warm" in text
    assert "/benchmarks/sums?campaign=warm&amp;version=" in page, "the filter goes along to the benchmark"
    wrong = site.browser.get("/benchmarks?campaign=cold")
    assert wrong.status_code == 400 and "campaign=cold: expected one of warm" in wrong.text


def test_versions_and_incomplete_results_are_columns_of_their_own(site: Site) -> None:
    other = scored("a", 2, "sums", 0.9, prompt_sha256="q")
    put(site.dashboard.home, [scored("a", 1, "sums", 0.5), other, scored("a", 3, "sums", 1.0, incomplete_reason="cut")])
    page = site.browser.get("/benchmarks").text
    assert f"/benchmarks/sums/a/2?version={other.version_sha256()[:12]}" in page and "sums (not whole)" in page
    chosen = site.browser.get(f"/benchmarks/sums?version={other.version_sha256()[:8]}").text
    assert ">0.9000</a>" in chosen and ">0.5000</a>" not in chosen


def test_a_thousand_checkpoints_on_twenty_benchmarks_are_one_small_page(site: Site) -> None:
    put(site.dashboard.home, [scored(f"run-{at % 10}", at, f"bench-{name}", (at * 7919 + name * 31) % 997 / 1000)
                              for at in range(1000) for name in range(20)])  # fmt: skip
    site.browser.get("/benchmarks")
    started_s = time.process_time()
    page = site.browser.get("/benchmarks")
    spent_s = time.process_time() - started_s
    assert page.text.count('class="shade h') >= 20 * 8 and "1,000 checkpoints on 20 benchmarks" in page.text
    assert len(page.content) < 300_000 and spent_s < 1.0, (len(page.content), spent_s)
    last = site.browser.get("/benchmarks?page=40").text
    assert "run-9" in last and "next rows" not in last


@pytest.fixture
def result(site: Site, tmp_path: Path) -> BenchmarkResult:
    """A result with its items, and the suite that its campaign names."""
    home = site.dashboard.home
    suite = tmp_path / "suite.yaml"
    (tmp_path / "sums.jsonl").write_text(
        json.dumps({"id": HOSTILE, "prompt": "What is <b>2 + 2</b>?", "choices": [" 4", " 5"], "answer": 0}) + "\n"
        + json.dumps({"id": "other", "prompt": "What is 3 + 3?", "choices": [" 6", " 7"], "answer": 0})
    )  # fmt: skip
    suite.write_text("name: s\nbenchmarks: [{type: multiple_choice, name: sums, items: sums.jsonl}]")
    version = present_suite(suite).versions["sums"]
    items = [
        ItemScore(HOSTILE, HOSTILE, 1.0, completion="<i>4</i>", details='{"margin": 0.25}', finish_reason="stop"),
        ItemScore("other", "other", None, failure=ItemFailure("sampler_timeout", "after 60 s " + "&" * 1_000_000)),
    ]
    checkpoint, identity = Checkpoint("r", "lr-1", 0, 5, "ab" * 32), Identity("sums", **version)
    found = result_of(checkpoint, identity, items, 1e9)
    save_result(home.run_dir("r") / benchmark_folder(checkpoint, identity), found, items_bytes(items_table(items)))
    put(home, [found])
    return found


def test_a_cell_leads_to_its_items_and_an_item_to_prompt_completion_and_grade(
    site: Site, result: BenchmarkResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.dashboard.pages.benchmarks._suites", lambda *_: iter([tmp_path / "suite.yaml"]))
    assert 'href="/benchmarks/sums/r/5"' in site.browser.get("/benchmarks").text
    page = site.browser.get("/benchmarks/sums/r/5").text
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page and "assay eval work r --suite" in page
    assert "failed" in page and "2 items" in page
    assert [item["item_id"] for item in printed(site.dashboard.home, "eval", "items", "r", "--benchmark", "sums",
                                                "--step", "5")] == sorted([HOSTILE, "other"])  # fmt: skip
    item = site.browser.get("/benchmarks/sums/r/5", params={"item": HOSTILE}).text
    for part in ("What is &lt;b&gt;2 + 2&lt;/b&gt;?", "&lt;i&gt;4&lt;/i&gt;", "margin", "0.25", "stop"):
        assert part in item
    failed = site.browser.get("/benchmarks/sums/r/5?show=failed").text
    assert "1 item<" in failed and ">other</a>" in failed


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/benchmarks/none", 404, "No results of benchmark"),
        ("/benchmarks/sums/r/five", 400, "step=five: expected a whole number"),
        ("/benchmarks/sums/r/6", 404, "No result of"),
        ("/benchmarks/sums/r/5?show=best", 400, "show=best: expected one of"),
        ("/benchmarks/sums/r/5?item=none", 404, "has no item"),
        ("/benchmarks?page=-1", 400, "page=-1"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(
    site: Site, result: BenchmarkResult, address: str, status: int, words: str
) -> None:
    response = site.browser.get(address)
    assert response.status_code == status and words in response.text


def test_items_that_were_changed_are_named_and_not_shown(site: Site, result: BenchmarkResult) -> None:
    (file,) = site.dashboard.home.run_dir("r").rglob("items.parquet")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    page = site.browser.get("/benchmarks/sums/r/5")
    assert page.status_code >= 400 and "changed after it was written" in page.text


def test_of_several_versions_the_named_one_or_the_last_one_is_shown(site: Site) -> None:
    older, newer = scored("a", 1, "sums", 0.5), scored("a", 1, "sums", 0.9, prompt_sha256="q", evaluated_s=2e9)
    put(site.dashboard.home, [older, newer])
    with site.dashboard.home.open_ledger() as ledger:
        assert newest_result(ledger, "a", "sums", 1) == newer
        assert newest_result(ledger, "a", "sums", 1, version=older.version_sha256()[:12]) == older
        with pytest.raises(ConfigError, match="no result of 'sums' for a at step 2"):
            newest_result(ledger, "a", "sums", 2)

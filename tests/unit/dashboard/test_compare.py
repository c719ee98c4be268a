"""Runs grouped by recipe, compared over all seeds; columns, baseline, tags and notes of the list of runs."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner

from assay.base.clock import SystemClock
from assay.cli.main import cli
from assay.reporting.views.runs.run_groups import (
    GroupScore,
    RunGroup,
    best_of_groups,
    group_curves,
    group_title,
    run_groups,
)
from assay.reporting.views.runs.run_list import current_summaries
from assay.store.home import Home
from assay.store.metrics.curves import metric_series
from dashboard_home import Shape, make_home
from unit.dashboard.conftest import Site, site_of
from unit.store.ledger.test_goodput import run_of

SAME_SITE = {"origin": "http://127.0.0.1:8017"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """24 runs of 3 recipes: 10, 10 and 4 seeds; the first 12 have benchmark results."""
    home = Home.at(tmp_path_factory.mktemp("compared") / "runs")
    make_home(home, Shape(24, 24 * 20 * 30, 600, 2, 0, SystemClock().now_s() - 60))
    return home


@pytest.fixture
def compared(home: Home) -> Site:
    return site_of(home)


def printed(home: Home, *command: str) -> Any:
    environment = {"ASSAY_HOME": str(home.folder), "ASSAY_LEDGER": home.ledger}
    found = CliRunner().invoke(cli, [*command, "--json"], env=environment)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_numbers_of_the_comparison_are_those_of_the_command(compared: Site, home: Home) -> None:
    page = compared.browser.get("/compare?run=grpo-000-s1&run=grpo-001-s0").text
    groups = printed(home, "runs", "groups", "grpo-000-s1", "grpo-001-s0")
    assert [len(group["runs"]) for group in groups] == [10, 10]
    for group in groups:
        for score in group["scores"]:
            estimate = score["estimate"]
            assert f"{estimate['value']:.4f} [{estimate['low']:.4f}, {estimate['high']:.4f}]" in page
    assert set(groups[0]["patch"]) == {"trainer.optimizer.learning_rate"} and "1e-05" in page and "2e-05" in page
    assert "assay decide compare grpo-000-s1 grpo-001-s0" in page, "the runs that the reader named"
    for heading in ("Curves", "Scores and cost", "What the recipes change", "grpo-000-s1"):
        assert heading in page


def test_a_groups_mean_is_over_all_seeds_whichever_run_is_selected(home: Home) -> None:
    with home.open_ledger() as ledger:
        (group,) = run_groups(ledger, runs=["grpo-000-s1"])
        (same,) = run_groups(ledger, runs=["grpo-000-s7", "grpo-000-s2"])
        results = ledger.benchmark_results()
        (mean, one) = group_curves(ledger, [group], "loss", highlighted=["grpo-000-s1"])
        (other, *_) = group_curves(ledger, [same], "loss", highlighted=["grpo-000-s7"])
        curves = [metric_series(ledger, run_id, "loss", max_points=10**6) for run_id in group.runs]
    assert group == same and mean == other and one.name == "grpo-000-s1"
    last = [curve.values[curve.steps == curve.steps.max()][-1] for curve in curves]
    assert mean.values[-1] == pytest.approx(np.mean(last))
    for score in group.scores:
        found = [result for result in results if result.benchmark == score.name and result.run_id in group.runs]
        newest = {run_id: max((r.step, r.score.value) for r in found if r.run_id == run_id) for run_id in group.runs}
        values = np.array([value for _, value in newest.values()])
        half_width = scipy.stats.t.ppf(0.975, 9) * values.std(ddof=1) / 10**0.5
        assert (score.estimate.value, score.num_seeds) == (pytest.approx(values.mean()), 10)
        assert score.estimate.high == pytest.approx(values.mean() + half_width)


def test_runs_with_one_seed_count_once_and_the_newest_of_them(home: Home) -> None:
    with home.open_ledger() as ledger:
        (group,) = run_groups(ledger, runs=["grpo-000-s1"])
        summaries = [summary for summary in current_summaries(ledger) if summary.run.run_id in group.runs]
        values = [0.1 * number for number in range(len(summaries))]
        once = [item._replace(metric="m", value=value) for item, value in zip(summaries, values, strict=True)]
        again = [item._replace(value=9.0, run=item.run.model_copy(update={"run_id": "old"})) for item in once]
        groups = [run_groups(ledger, summaries=found)[0] for found in (once, once + again)]
    (first, *_), (second, *_) = (found.scores for found in groups)
    assert first == second and first.num_seeds == len(values)
    assert first.estimate.value == pytest.approx(np.mean(values))


def test_more_groups_than_lines_are_one_band_with_the_selected_runs(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.reporting.views.runs.run_groups.MAX_LINES", 2)
    with home.open_ledger() as ledger:
        groups = run_groups(ledger)
        names = [line.name for line in group_curves(ledger, groups, "loss", highlighted=["grpo-001-s0", "grpo-002-s0"])]
    assert len(groups) == 3 and names == ["all 24 runs, mean", "grpo-001-s0"]


def test_a_new_run_of_another_recipe_changes_neither_key_nor_scores(home: Home) -> None:
    with home.open_ledger() as ledger:
        alone, together = run_groups(ledger, runs=["grpo-002-s0"]), run_groups(ledger)
    (same,) = [group for group in together if group.key == alone[0].key]
    assert same.model_copy(update={"patch": {}}) == alone[0]


def test_the_best_recipe_is_not_called_best_if_luck_explains_it() -> None:
    def group(value: float) -> RunGroup:
        estimate = {"value": value, "low": value - 0.1, "high": value + 0.1}
        score = GroupScore(name="sums", higher_is_better=True, num_seeds=3, estimate=estimate)
        return RunGroup(key="k", name="n", runs=("r",), seeds=(0,), statuses={}, patch={}, scores=(score,),
                        device_hours=0, evaluation_hours=0)  # fmt: skip

    assert best_of_groups([group(0.50), group(0.55)], "sums").may_be_chance
    assert not best_of_groups([group(0.50), group(0.95)], "sums").may_be_chance
    assert best_of_groups([group(0.50)], "sums") is None and best_of_groups([group(0.5)], "none") is None


def test_runs_are_grouped_with_a_pinned_baseline(compared: Site, home: Home) -> None:
    page = compared.browser.get("/runs?group=recipe&baseline=grpo-001-s3").text
    first, second = page.index("(baseline)"), page.index("learning_rate=1e-05")
    assert first < second and "3 recipes" in page
    key = printed(home, "runs", "groups", "grpo-000-s0")[0]["key"]
    assert f'href="/compare?group={key}"' in page
    link = re.search(r'href="(/compare[^"]*)">compare these recipes', page)
    assert link and "3 recipes" in compared.browser.get(unescape(link[1])).text
    assert 'href="/runs?group=recipe&amp;page=1">by recipe' in compared.browser.get("/runs").text


def test_a_title_has_the_recipes_name_if_much_differs_and_no_absent_keys() -> None:
    def title(patch: dict[str, Any]) -> str:
        return group_title(RunGroup(key="k", name="n", runs=("r",), seeds=(0,), statuses={}, patch=patch, scores=(),
                                    device_hours=0, evaluation_hours=0))  # fmt: skip

    assert title({"a.rate": 1, "b": None}) == "rate=1" and title({"b": None}) == "n"
    assert title({"a.rate": 1, "b": None, "c": 2, "d": 3}) == "n, rate=1, c=2"


def test_columns_are_chosen_and_a_baseline_is_pinned(compared: Site) -> None:
    query = {"columns": "status,trainer.optimizer.learning_rate", "baseline": "grpo-000-s3", "search": "grpo-00"}
    page = compared.browser.get("/runs", params=query).text
    header = page[page.index("<thead>") : page.index("</thead>")]
    assert header.count("<th scope") == 4 and "against the baseline" in header and "device time" not in header
    body = page[page.index("<tbody>") :]
    assert body.index("grpo-000-s3") < body.index("grpo-002-s0") and "trainer.optimizer.learning_rate=2e-05" in body
    assert "the same recipe" in body and 'href="/compare?search=grpo-00"' in page


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/runs?columns=luck", 400, "columns=luck: expected some of status"),
        ("/runs?baseline=nobody", 400, "baseline=nobody"),
        ("/runs?group=luck", 400, "group=luck: expected one of recipe"),
        ("/compare?run=nobody", 404, "No run &#39;nobody&#39;"),
        ("/compare?group=nothing", 404, "group &#39;nothing&#39;"),
        ("/compare", 200, "Name the runs"),
        ("/compare?search=nobody", 200, "No run matches"),
        ("/compare?run=grpo-000-s0&metric=none", 200, "No run has a metric"),
        ("/compare?run=grpo-000-s0&metric=loss&baseline=&run=&group=", 200, "1 recipe, 10 runs"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(compared: Site, address: str, status: int, words: str) -> None:
    response = compared.browser.get(address)
    assert response.status_code == status and words in response.text


def test_a_writer_tags_and_notes_runs_and_a_reader_does_not(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "runs")
    make_home(home, Shape(1, 300, 1, 1, 0, SystemClock().now_s() - 60))
    site = site_of(home)
    assert 'action="/runs/tag"' not in site.browser.get("/runs").text, "pages are read-only without keys"
    for scopes in (("read",), ("read", "write")):
        key = site.dashboard.api.keys.make(project="default", name="me", scopes=scopes, lives_s=None)
        site.browser.post("/login", data={"key": key.secret}, headers=SAME_SITE)
        page = site.browser.get("/runs").text
        assert ('action="/runs/tag"' in page) == ("write" in scopes)
    with home.open_ledger() as ledger:
        (run,) = ledger.runs()
    if run.run_id not in page:
        pytest.skip("runs without a job are shown to admins only")
    token = page.split('name="token" value="')[1].split('"')[0]
    form = {"token": token, "run": run.run_id}
    tagged = site.browser.post(
        "/runs/tag", data={**form, "tags": "good odd"}, headers=SAME_SITE, follow_redirects=False
    )
    assert tagged.status_code == 303 and tagged.headers["location"] == f"/runs/{run.run_id}"
    site.browser.post("/runs/tag", data={**form, "tags": "odd-"}, headers=SAME_SITE)
    site.browser.post("/runs/note", data={**form, "text": "<b>kept</b>"}, headers=SAME_SITE)
    with home.open_ledger() as ledger:
        (notes,) = ledger.run_notes(run.run_id)
    assert notes.tags[-1] == "good" and "odd" not in notes.tags and notes.notes[-1].text == "<b>kept</b>"
    assert notes.notes[-1].by == key.created.key_id
    assert "&lt;b&gt;kept" in site.browser.get("/runs").text
    assert "has no tag" in site.browser.post("/runs/tag", data={**form, "tags": "none-"}, headers=SAME_SITE).text
    stolen = site.browser.post("/runs/note", data={**form, "token": "x", "text": "no"}, headers=SAME_SITE)
    assert stolen.status_code == 403


def test_seeds_of_a_campaign_are_one_group_and_titles_lead_with_what_sets_it_apart(site: Site) -> None:
    recipes = {
        f"{arm}-s{seed}": {"name": arm, "seed": seed, "loader": {"lanes": lanes, "seed": seed}, "rate": rate}
        for arm, lanes, rate in (("pilot", 8, 1.0), ("baseline", 2, 1.0), ("faster", 2, 3.0))
        for seed in range(2)
    }
    with site.dashboard.home.open_ledger() as ledger:
        for run_id, recipe in recipes.items():
            ledger.record_run(run_of(run_id).model_copy(update={"recipe": recipe}))
        groups = {group.name: group for group in run_groups(ledger)}
    assert {name: len(group.runs) for name, group in groups.items()} == {"pilot": 2, "baseline": 2, "faster": 2}
    assert next(iter(groups["pilot"].patch.items())) == ("loader.lanes", 8)
    assert next(iter(groups["faster"].patch.items())) == ("rate", 3.0)

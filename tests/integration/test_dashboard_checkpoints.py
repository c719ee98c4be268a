"""Scores are added for a checkpoint that the recipe does not select: a writer asks for them, a worker makes them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.elastic.supervisor import RestartPolicy
from assay.records.run import Run
from assay.store.home import Home
from assay.workflows.bookkeeping import writer_of
from assay.workflows.train import train_run
from unit.dashboard.conftest import site_of

SAME_SITE = {"origin": "http://127.0.0.1:8017"}
SUITE = "name: held-out\nbenchmarks: [{type: classification, name: validation, chunk_items: 32}]"


@pytest.mark.slow
def test_a_requested_checkpoint_is_evaluated_by_the_next_worker(
    new_tiny_run: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE)
    run = new_tiny_run(
        evaluation={"suite": str(suite), "every_steps": 10}, trainer__max_steps=10, retention__keep_last=5
    )
    home = Home.from_environment()
    with writer_of(home, run) as writer:
        train_run(home, run, writer, world_size=1, policy=RestartPolicy())
    site = site_of(home)
    key = site.dashboard.api.keys.make(project="default", name="me", scopes=("read", "write"), lives_s=None)
    site.browser.post("/login", data={"key": key.secret}, headers=SAME_SITE)
    address = f"/runs/{run.run_id}/checkpoints"
    page = site.browser.get(address).text
    assert "not requested" in page and "done" in page and f"assay eval work {run.run_id}" in page
    form = {"token": page.split('name="token" value="')[1].split('"')[0]}
    wrong = site.browser.post(f"/runs/{run.run_id}/evaluate", data={**form, "step": "7"}, headers=SAME_SITE)
    assert wrong.status_code == 400 and "step=7: expected" in wrong.text
    site.browser.post(f"/runs/{run.run_id}/evaluate", data={**form, "step": "5"}, headers=SAME_SITE)
    assert ">requested<" in site.browser.get(address).text
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["eval", "work", run.run_id, "--json"])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["step"] for result in results] == [5, 10]
    assert ">requested<" not in site.browser.get(address).text
    assert f"/benchmarks/validation/{run.run_id}/5" in site.browser.get("/benchmarks").text

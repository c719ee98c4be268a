"""`assay runs rollout`: answers of a killed and resized run, each drawn again alone; and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.elastic.supervisor import RestartPolicy
from assay.records.replay import RolloutReport
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.methods.grpo.method import GrpoMethod
from assay.training.replay.request import RolloutRequest
from assay.workflows.rollout import rollout_again
from in_process import assay
from method_runs import digest, eventful
from one_rank import rows_of_steps
from prompt_rows import grpo_recipe, prompt_dataset


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))


def again(name: str, step: int, row: int, sample: int) -> RolloutReport:
    run = Home.from_environment().run(name)
    log = CommitLog(open_store(run.store_url))
    return rollout_again(run, log, RolloutRequest(step, row, sample))


@pytest.mark.slow
def test_an_answer_is_drawn_again_and_what_cannot_be_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = grpo_recipe(prompt_dataset(tmp_path / "rows"), tmp_path / "base")
    tree["trainer"] |= {"max_steps": 3, "commit_every": 2}
    digest(tree, "run", RestartPolicy())
    rows = sorted(row for lane in rows_of_steps(tree, 3)[2] for row in lane)
    capsys.readouterr()
    request = ("runs", "rollout", "run", "--step", 3, "--row", rows[0], "--sample", 1)
    assert assay(*request, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "equal" and (report["policy_step"], report["from_step"]) == (2, 2)
    assert [item["quantity"] for item in report["compared"]] == [
        "rollout alone",
        "journaled digest",
        "rollout_digest",
    ]
    assert len(report["tokens"]) == len(report["logprobs"]) and report["completion"].startswith("t")
    assert len(report["group_rewards"]) == 4 and report["group_rewards"][1] == report["reward"]
    assert assay(*request) == 0
    output = capsys.readouterr().out
    assert output.startswith("EQUAL  run, step 3, row") and report["because"] in output

    for wrong, expected in (
        (("--step", 2, "--row", rows[0]), f"--row {rows[0]}: not a row of step 2, whose rows are "),
        (("--step", 9, "--row", 1), "--step 9: the run has the steps 1 to 3"),
        (("--step", 3, "--row", rows[0], "--sample", 4), "each prompt has the samples 0 to 3"),
    ):
        assert assay("runs", "rollout", "run", *wrong) == 2
        assert expected in capsys.readouterr().err

    completed = GrpoMethod._generate

    def spoiled(self: GrpoMethod, model: Any, prompts: Any, *rest: Any) -> Any:
        responses = completed(self, model, prompts, *rest)
        if len(prompts) == 1:
            responses[0].logprobs.view(np.uint32)[0] ^= 1
        return responses

    monkeypatch.setattr(GrpoMethod, "_generate", spoiled)
    assert assay(*request) == 1
    assert "≠ rollout alone" in capsys.readouterr().out


@pytest.mark.parametrize("number", [20, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(2000)])])
@pytest.mark.slow
def test_answers_of_a_killed_and_resized_run_are_drawn_again_alone(number: int, tmp_path: Path) -> None:
    tree = grpo_recipe(prompt_dataset(tmp_path / "rows"), tmp_path / "base")
    digest(tree, "eventful", eventful())
    steps = rows_of_steps(tree, 12)
    random_draws = np.random.default_rng(number)
    found = []
    for _ in range(number):
        step = int(random_draws.integers(1, 13))
        row = int(random_draws.choice([row for lane in steps[step - 1] for row in lane]))
        found.append(again("eventful", step, row, int(random_draws.integers(4))))
    assert [report.verdict for report in found] == ["equal"] * number
    assert len({report.outcome for report in found}) > 1

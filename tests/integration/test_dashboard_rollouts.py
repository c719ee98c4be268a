"""Rollouts that one can read, step by step, of a run that trained on rewards."""

import json

import pytest
from click.testing import CliRunner

from assay.cli.main import cli
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from one_rank import one_rank_run, train_here
from prompt_rows import grpo_recipe, prompt_dataset
from unit.dashboard.conftest import Site, site_of


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("rollouts")
    trainer = {"max_steps": 6, "commit_every": 3}
    tree = grpo_recipe(prompt_dataset(folder / "prompts"), folder / "base", trainer=trainer, method={})
    run = one_rank_run(tree, folder / "home" / "one-rank")
    train_here(run)
    (folder / "home" / "one-rank" / RUN_FILE).write_text(run.to_sealed_json())
    return Home.at(folder / "home")


@pytest.fixture
def reading(home: Home) -> Site:
    return site_of(home)


def test_two_steps_are_read_side_by_side_with_the_rewards_of_the_command(reading: Site, home: Home) -> None:
    environment = {"ASSAY_HOME": str(home.folder), "ASSAY_LEDGER": home.ledger}
    command = ["runs", "rollouts", "one-rank", "--step", "6", "--against", "1", "--json"]
    found = CliRunner().invoke(cli, command, env=environment)
    assert found.exit_code == 0, found.output
    later, earlier = json.loads(found.stdout)
    assert (later["step"], earlier["step"], later["first_step"], later["last_step"]) == (6, 1, 1, 6)
    page = reading.browser.get("/runs/one-rank/rollouts?step=6&against=1")
    assert page.status_code == 200
    for step in (later, earlier):
        rewards = [one["reward"] for one in step["completions"] if one["reward"] is not None]
        assert step["mean_reward"] == pytest.approx(sum(rewards) / len(rewards))
        assert f"{step['mean_reward']:.4f}" in page.text
        read = [one for one in step["completions"] if one["completion"]]
        assert read and all(one["prompt"] for one in read), "the log has the texts of each step's first prompt"
    prompts = [{one["row_id"] for one in step["completions"]} for step in (later, earlier)]
    if prompts[0] & prompts[1]:
        assert "step 1</th>" in page.text and "step 6</th>" in page.text
    else:
        assert "No prompt was sampled at step 1 and at step 6" in page.text


def test_steps_lead_to_one_another_and_a_wrong_one_is_named(reading: Site) -> None:
    page = reading.browser.get("/runs/one-rank/rollouts").text
    assert "step 6" in page and "step=5" in page and "against=1" in page and "step=7" not in page
    assert "rollouts, step by step" in reading.browser.get("/runs/one-rank").text
    missing = reading.browser.get("/runs/one-rank/rollouts?step=9")
    assert missing.status_code == 404 and "steps 1 to 6" in missing.text
    assert "step=x: expected" in reading.browser.get("/runs/one-rank/rollouts?step=x").text

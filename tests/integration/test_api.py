"""A script of a user trains, stops, resumes, forks, compares, audits and replays with `import assay`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import assay
from assay.records.run import Attempt
from assay.reporting.views.statements import statement_text
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import process_key, save_launch
from assay.store.objects import open_store

pytestmark = pytest.mark.slow

SCRIPT = """
import json
import sys

import assay

run = assay.train({recipe!r}, "trainer.epochs=2", workers=2, run_id="first")
lower = run.fork("trainer.optimizer.learning_rate=1e-4", step=35, run_id="lower")
steps, losses, _ = run.curve("loss")
replayed = run.replay(7)
report = assay.compare(run, lower)
assert "torch" not in sys.modules
print(json.dumps({{
    "status": run.status, "audit": run.audit(deep=True).facts.verdict, "steps": len(steps), "loss": losses[6],
    "replay": replayed.facts.verdict, "compared": [one.candidate_run_id for one in report.facts],
    "page": str(report.save("page.html")), "shown": str(report), "runs": [one.id for one in assay.runs()],
    "overview": list(assay.overview(run).facts.run_ids),
}}))
"""


def attempts_of(run: assay.Run) -> list[Attempt]:
    return saved_attempts(run.folder)


def test_a_script_without_a_main_guard_trains_and_judges(
    recipe: Path, tmp_path: Path, run_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(recipe=str(recipe)))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "attempt 1 begins on 2 workers" in done.stderr, "progress is seen"
    found = json.loads(done.stdout)
    assert (found["status"], found["audit"], found["replay"]) == ("succeeded", "pass", "equal")
    assert found["steps"] == 40 and np.isfinite(found["loss"])
    assert found["compared"] == ["lower"] and found["runs"] == ["lower", "first"] and found["overview"] == ["first"]
    assert Path(tmp_path, found["page"]).read_text().startswith("<!doctype html>")
    assert "lower against first" in found["shown"]
    log = CommitLog(open_store(Home.from_environment().run("first").store_url))
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "undisturbed"))
    _, undisturbed, _ = run_here(trainer__epochs=2)
    assert log.finished().weights_digest == undisturbed.finished().weights_digest


def test_a_run_in_the_background_is_stopped_resumed_and_waited_for(tiny_recipe_tree, recipe: Path) -> None:
    tree = tiny_recipe_tree | {"trainer": {**tiny_recipe_tree["trainer"], "epochs": 60}}
    run = assay.train(tree, on="background", run_id="behind")
    while not attempts_of(run) or run.view().step == 0:
        assert run.status in ("launched", "running"), run.report()
    with pytest.raises(TimeoutError, match="run 'behind' is running after"):
        run.wait(timeout_s=0.1)
    with pytest.raises(assay.AssayError, match=r"not been evaluated: it is running\. Compare it once it has ended"):
        assay.compare(run, run)
    run.stop()
    stopped = run.wait(timeout_s=240).view()
    with pytest.raises(assay.AssayError, match=r"it was stopped\. Finish it with assay\.run\('behind'\)\.resume\(\)"):
        assay.compare(run, run)
    assert stopped.status == "preempted" and 0 < stopped.step < stopped.total_steps
    with pytest.raises(assay.AssayError, match="a run's recipe never changes") as wrong:
        assay.train("trainer.epochs=1", resume="behind")
    with pytest.raises(assay.AssayError, match=r"Continue it with assay\.run\('behind'\)\.resume\(\)"):
        assay.train(tree, run_id="behind")
    assert wrong.value.exit_code == 2
    with pytest.raises(assay.AssayError, match=r"has no metric 'los'\. It has: .*loss"):
        run.curve("los")
    with pytest.raises(assay.AssayError, match="There is no keyword 'wokers'"):
        assay.train(str(recipe), wokers=2)


def test_a_run_that_was_waited_for_has_been_evaluated(recipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = assay.train(recipe, on="background", run_id="behind").wait()
    fork = run.fork(step=15, on="background").wait()
    assert assay.compare(run, fork).facts[0].candidate_run_id == fork.id
    with subprocess.Popen(["sleep", "2"]) as evaluates:
        key = process_key(evaluates.pid)
        save_launch(Home.from_environment().run("behind"), launcher="background", job=str(evaluates.pid), world_size=1,
                    process=key)  # fmt: skip
        run.wait()
        assert evaluates.poll() == 0, "what follows training is waited for"
    run.stop()
    assert re.search(r"^run behind: .*has ended; nothing to stop\n", capfd.readouterr().err, re.MULTILINE)


def test_a_check_is_a_report_and_starts_nothing(recipe: Path, campaign_file: Path) -> None:
    checked = assay.train(recipe, "trainer.epochs=2", workers=2, check=True, measure=0.5)
    assert (checked.facts.num_steps, checked.facts.world_size) == (40, 2) and checked.facts.measured is not None
    assert re.search(r"^steps +40: 2 epochs of 20 steps over ", str(checked)) and "2 workers" in str(checked)
    assert "<pre>" in checked._repr_html_()
    unmeasured = assay.train(assay.Recipe(recipe), check=True, measure=0)
    assert unmeasured.facts.measured is None and "time  " not in str(unmeasured)
    power = assay.decide(campaign_file, check=True, measure=0)
    assert power.facts and str(power) == "\n".join(map(statement_text, power.facts)) + "\n"
    assert "cost" in assay.decide(campaign_file, check=True, measure=0.5).facts[0].code
    assert assay.runs() == []
    with pytest.raises(assay.AssayError, match="small: no such campaign"):
        assay.Campaign("small")


def test_keywords_that_start_no_run_end_in_a_sentence(recipe: Path, tmp_path: Path) -> None:
    run = assay.train(recipe, run_id="first", verify_commits=0)
    with pytest.raises(assay.AssayError, match=r"no run is started\.(.|\n)*can be forked with this recipe"):
        run.fork(step=15, check=True)
    with pytest.raises(assay.AssayError, match="check=True needs a RECIPE"):
        run.resume(check=True)
    with pytest.raises(assay.AssayError, match=r"(?s)with these options, no run is started.*#SBATCH"):
        assay.train(recipe, on="slurm", dry_run=True)
    with pytest.raises(assay.AssayError, match="There is no keyword 'help'"):
        assay.train(recipe, help=True)
    stages = tmp_path / "stages.yaml"
    stages.write_text("name: two\nstages: []\n")
    with pytest.raises(assay.AssayError, match="a pipeline, not a recipe"):
        assay.train(stages)
    assert [one.id for one in assay.runs()] == ["first"]


@pytest.fixture
def campaign_file(tiny_dataset: Path, recipe: Path) -> Path:
    """A campaign of two runs of each arm."""
    tree = {
        "name": "small", "question": "Does a far higher learning rate help?", "recipe": recipe.name,
        "candidates": [{"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.02}}],
        "seeds": 2, "budget_device_hours": 1,
        "benchmarks": [{"type": "predictions", "name": "likelihood", "score": "log_likelihood"}],
        "rule": {"primary": ["likelihood"], "least_effect": 0.02},
    }  # fmt: skip
    file = recipe.parent / "campaign.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def test_a_campaign_of_a_first_recipe_is_decided_and_read_again(
    tiny_dataset: Path, recipe: Path, campaign_file: Path
) -> None:
    first = assay.Recipe.new(assay.Dataset(tiny_dataset), epochs=1, name="first").changed(
        "loader.lanes=4", "trainer.max_steps=8"
    )
    assert first.resolved()["trainer"]["max_steps"] == 8 and "max_steps" not in assay.Recipe.new(tiny_dataset).values
    assert first.resolved()["evaluation"] is None and "evaluation" not in first.values
    first.save(recipe)
    with pytest.raises(assay.AssayError, match="no such campaign; there is none"):
        assay.Campaign("small")
    campaign = assay.decide(campaign_file, "question=Does it?")
    assert campaign.recommendations.keys() == {"faster"} and len(campaign.runs) == 4
    assert all(run.audit().facts.verdict == "pass" for run in campaign.runs)
    (campaign.folder / "memo.html").unlink()
    again = assay.Campaign("small").decide_again()
    assert (campaign.folder / "memo.html").exists(), "it was decided again"
    assert again.recommendations == campaign.recommendations
    assert again.memo().facts.question == "Does it?" and "faster" in str(again.memo())
    assert "<iframe" in again._repr_html_()
    with pytest.raises(assay.AssayError, match=r"trainer\.epoch .*: no such key\. Perhaps you meant 'trainer\.epochs'"):
        first.changed("trainer.epoch=2")

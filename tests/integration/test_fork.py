"""`assay train --from RUN@STEP key=value`: a run of its own that goes on from another one's commit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.records.commit import Commit
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.workflows.fork import plan_fork
from in_process import assay


@pytest.fixture(scope="module")
def trained(tiny_tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a run of ten steps, `parent`, in windows of four, with commits at 5 and 10."""
    began = tmp_path_factory.mktemp("parent") / "began"
    began.mkdir()
    recipe = began / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({**tiny_tree, "trainer": {**tiny_tree["trainer"], "max_steps": 10}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(began / "home"))
        assert assay("train", recipe, "--run-id", "parent") == 0
    # Whoever copies it from where it lies now has a home that was moved, and no copy of one that is there.
    return began.rename(began.with_name("trained")) / "home"


@pytest.fixture
def parent(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """That run, for one test."""
    shutil.copytree(trained, tmp_path / "home")
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return Home.from_environment().run("parent")


def log_of(run_id: str) -> CommitLog:
    return CommitLog(open_store(Home.from_environment().run(run_id).store_url))


def last(run_id: str) -> Commit:
    return log_of(run_id).commits()[-1]


@pytest.mark.slow
def test_a_fork_learns_what_was_to_come_and_its_audit_says_from_where(parent: Run, capfd) -> None:
    forked = ("train", "--from", f"{parent.run_id}@5", "--run-id", "fork", "trainer.max_steps=15")
    assert assay(*forked, "--workers", 2, "--json") == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["step"], shown["attempts"][0]["start_step"], shown["commits"][0]["attempt"]) == (15, 5, 0)
    lineage = shown["parent"]
    assert (lineage["run_id"], lineage["step"]) == (parent.run_id, 5)
    assert lineage["changes"] == {"trainer.max_steps": [10, 15]}
    audit = shown["audit"]
    assert (audit["verdict"], audit["rows_trained"], audit["rows_expected"]) == ("pass", 320, 320)
    assert audit["forked_from"] == f"{parent.run_id}@5"
    assert any(f"up to step 5: run '{parent.run_id}'" in item for item in audit["not_checked"])
    assert assay("runs", "diff", parent.run_id, "fork") == 0
    assert f"{parent.run_id}@5" in capfd.readouterr().out.partition("environment")[2].partition("data:")[0]
    assert assay("runs", "show", "fork") == 0
    assert f"{parent.run_id}@5  trainer.max_steps 10 → 15" in capfd.readouterr().out
    assert assay("runs", "replay", "fork", "--step", 5) == 2
    assert f"assay runs replay {parent.run_id} --step 5" in capfd.readouterr().err
    assert assay("runs", "replay", "fork", "--step", 6) == 0
    for step, owner in ((5, "these very weights are its"), (15, "the steps up to there were its")):
        folder = Path(parent.run_dir).parent / f"model-{step}"
        assert assay("runs", "export", f"fork@{step}", "--out", folder) == 0
        card = " ".join((folder / "README.md").read_text().split())
        assert f"A fork of `parent@5`: {owner}" in card and "of what was learned behind parent@5" in card


@pytest.mark.slow
def test_a_fork_stands_by_itself_once_its_parent_is_gone(parent: Run, capfd) -> None:
    weights = last(parent.run_id).weights_digest
    assert assay("train", "--from", f"{parent.run_id}@5", "--run-id", "a") == 0
    shutil.rmtree(parent.run_dir)
    capfd.readouterr()
    assert assay("runs", "audit", "a") == 0
    assert "it is not here any more, so nothing proves them" in capfd.readouterr().out
    assert assay("train", "--from", "a@5", "--run-id", "b") == 0
    assert last("b").weights_digest == weights


def test_a_fork_of_unchanged_recipe_ends_with_the_weights_of_the_run(parent: Run) -> None:
    assert assay("train", "--from", f"{parent.run_id}@5", "--run-id", "same") == 0
    assert last("same").weights_digest == last(parent.run_id).weights_digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loader.seed=3", "it decides the rows of a step"),
        ("loader.lanes=16", "it decides the rows of a step"),
        ("data.split.validation_fraction=0.2", "counts the rows of that dataset and split"),
        ("method.encoder.hidden_size=32", "the shape or the meaning of the weights"),
        ("method.categorical_columns=[]", "the shape or the meaning of the weights"),
        ("trainer.max_steps=5", "has nothing left to train: the recipe ends at step 5"),
        ("trainer.learning_rate=1", "trainer.learning_rate (override): no such key"),
    ],
)
def test_what_a_fork_can_not_change_is_refused_with_the_reason(parent: Run, capfd, change: str, message: str) -> None:
    home = Path(parent.run_dir).parent
    before = sorted(home.glob("*/run.json"))
    assert assay("train", "--from", f"{parent.run_id}@5", change) == 2
    assert message in capfd.readouterr().err
    assert sorted(home.glob("*/run.json")) == before


def test_rates_and_dropout_may_change_and_a_step_that_has_no_commit_is_named(parent: Run, capfd) -> None:
    home = Home.from_environment()
    new: Any = {"world_size": 1, "run_id": None, "store_url": None}
    changes = ("method.head_dropout=0.3", "trainer.optimizer.learning_rate=1e-4", "trainer.epochs=3", "seed=4")
    fork = plan_fork(home, parent.run_id, 5, (*changes, "trainer.max_steps=null"), **new)
    assert fork.parent is not None and len(fork.parent.changes) == 5
    assert assay("train", "--from", f"{parent.run_id}@7", "trainer.max_steps=12") == 2
    assert "It has commits at steps: 5, 10" in capfd.readouterr().err


@pytest.mark.slow
def test_a_fork_that_was_interrupted_is_copied_when_it_goes_on(parent: Run) -> None:
    assert assay("train", "--from", f"{parent.run_id}@5", "--run-id", "fork") == 0
    whole = last("fork").weights_digest
    for room in ("log", "attempts", "checkpoints", "metrics"):
        shutil.rmtree(Path(parent.run_dir).parent / "fork" / room)
    assert assay("train", "--resume", "fork") == 0
    assert last("fork").weights_digest == whole


def test_a_fork_whose_commit_is_damaged_is_not_trained_from_nothing(parent: Run, capfd) -> None:
    assert assay("train", "--from", f"{parent.run_id}@5", "--run-id", "fork") == 0
    log = log_of("fork")
    for commit in log.commits():
        (Path(parent.run_dir).parent / "fork" / commit.folder / commit.files[0].path).write_bytes(bytes(10))
    assert assay("train", "--resume", "fork") == 1
    assert f"'assay train --from {parent.run_id}@5'" in capfd.readouterr().err


def test_a_log_that_begins_with_another_commit_than_the_record_says_fails_the_audit(parent: Run) -> None:
    assert assay("train", "--from", f"{parent.run_id}@5", "--run-id", "fork") == 0
    run = Home.from_environment().run("fork")
    no_fork = run.model_copy(update={"parent": None})
    report = audit_run(no_fork, log_of("fork"))
    assert report.verdict == "fail"
    assert "run.json says that it was forked from no run" in " ".join(report.problems)


def test_what_is_proposed_after_a_loss_that_is_not_finite_works(recipe: Path, capfd) -> None:
    too_high = ("trainer.optimizer.learning_rate=1e19", "trainer.max_steps=3")
    assert assay("train", recipe, "--run-id", "wild", *too_high) == 1
    output = capfd.readouterr().err
    command = "assay train --from wild@0 trainer.optimizer.learning_rate=0.0001"
    assert f"Nothing is committed yet. If the learning rate is too high, '{command}'" in output
    assert "is intact" not in output and "--resume" not in output
    assert assay("runs", "show", "wild") == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "FAILED: LOSS NOT FINITE" in shown and command in shown and "--resume" not in shown
    assert assay(*command.split()[1:], "--run-id", "tame") == 0
    assert Home.from_environment().run("tame").parent is None
    assert last("tame").step == 3

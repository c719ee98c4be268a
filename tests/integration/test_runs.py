"""Many runs: found by what they are and what people said of them, set side by side, and deleted."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from in_process import assay


@pytest.fixture(scope="module")
def trained(tiny_tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a home of two finished runs of five steps, `slow` and `fast`; the second is stored beside
    it."""
    began = tmp_path_factory.mktemp("runs") / "began"
    (began / "store").mkdir(parents=True)
    (began / "store" / "notes.txt").write_text("not ours")
    recipe = began / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({**tiny_tree, "trainer": {**tiny_tree["trainer"], "max_steps": 5}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(began / "home"))
        assert assay("train", recipe, "--run-id", "slow") == 0
        faster = ("trainer.optimizer.learning_rate=0.01", "--store", began / "store", "--run-id", "fast")
        assert assay("train", recipe, *faster) == 0
    # Whoever copies it from where it lies now has a home that was moved, and no copy of one that is there.
    return began.rename(began.with_name("trained"))


@pytest.fixture
def home(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """That home, for one test."""
    shutil.copytree(trained, tmp_path / "here")
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "here" / "home"))
    return Home.from_environment()


def listed(capfd, *options: object) -> list[str]:
    capfd.readouterr()
    assert assay("runs", *options, "--json") == 0
    return [line["run_id"] for line in json.loads(capfd.readouterr().out)]


@pytest.mark.slow
def test_runs_are_found_by_tag_text_status_and_recipe_and_sorted(home: Home, capfd) -> None:
    assert assay("runs", "tag", "fast", "good", "draft") == 0
    assert assay("runs", "tag", "fast", "draft-") == 0
    assert assay("runs", "note", "slow", "labels", "were", "wrong") == 0
    assert listed(capfd) == ["fast", "slow"]
    assert listed(capfd, "--sort", "name", "--limit", 1) == ["fast"]
    assert listed(capfd, "--tag", "good") == ["fast"]
    assert listed(capfd, "--tag", "draft") == []
    assert listed(capfd, "--search", "WRONG") == ["slow"]
    assert listed(capfd, "--where", "trainer.optimizer.learning_rate=0.01") == ["fast"]
    assert listed(capfd, "--status", "failed") == []
    assert listed(capfd, "--status", "stopped") == listed(capfd, "--status", "preempted") == []
    assert assay("runs") == 0
    shown = capfd.readouterr().out
    assert "good" in shown and "labels were wrong" in shown and "last sign" in shown
    assert assay("runs", "show", "slow", "--json") == 0
    (note,) = json.loads(capfd.readouterr().out)["notes"]
    assert note["text"] == "labels were wrong"
    assert assay("runs", "--where", "trainer=1") == 2
    capfd.readouterr()
    assert assay("runs", "--where", "trainer.optimizer.learning_rat=0.01") == 2
    assert "no run's recipe has that key. Perhaps you meant trainer.optimizer.l" in capfd.readouterr().err
    assert assay("runs", "tag", "fast", "two words") == 2
    assert assay("runs", "tag", "fast", "unknown-") == 2


@pytest.mark.slow
def test_tags_and_notes_of_a_lost_ledger_come_back_from_the_folders(home: Home, capfd) -> None:
    assert assay("runs", "tag", "slow", "kept") == 0
    for path in home.folder.glob("ledger.db*"):
        path.unlink()
    assert listed(capfd, "--rebuild", "--tag", "kept") == ["slow"]


def test_triage_of_two_runs_data_says_what_their_metric_did_and_what_would_prove_why(home: Home, capfd) -> None:
    assert assay("triage", "data", "slow", "fast", "--json") == 0
    moved = json.loads(capfd.readouterr().out)["moved"]
    assert (moved["metric"], moved["overall"]["column"]) == ("AUC", "")
    assert moved["overall"]["low"] < moved["overall"]["after"] - moved["overall"]["before"] < moved["overall"]["high"]
    assert moved["run_id"] == "fast" and moved["dataset"] and moved["device_hours"] > 0
    assert assay("triage", "data", "slow", "fast") == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "both are the same rows" in shown and "AUC all rows 0." in shown
    assert "next train the recipe of fast with data.dataset=" in shown


def test_a_diff_names_what_was_done_otherwise_and_what_came_of_it(home: Home, capfd) -> None:
    capfd.readouterr()
    assert assay("runs", "diff", "slow", "fast", "--json") == 0
    found = json.loads(capfd.readouterr().out)
    (changed,) = found["recipe"]
    assert (changed["name"], changed["before"], changed["after"]) == (
        "trainer.optimizer.learning_rate",
        0.001,
        0.01,
    )
    assert (found["is_dataset_equal"], found["weights_equal"], found["first_different_step"]) == (True, False, 2)
    assert [item["step"] for item in found["loss"]] == [1, 2, 3, 4, 5]
    assert [item["name"] for item in found["environment"]] == ["store"] or not found["environment"]
    outcome = {item["name"]: item for item in found["outcome"]}
    assert outcome["step"]["before"] == outcome["step"]["after"] == 5
    assert outcome["device_seconds"]["before"] > 0
    assert assay("runs", "diff", "slow", "fast") == 0
    output = capfd.readouterr().out
    assert "differs from step 2 on" in output
    assert "trainer.optimizer.learning_rate" in output, "a key as it is typed"
    assert "device time" in output and "currency" not in output, "no price is known: no line says nothing"
    (home.folder / "settings.yaml").write_text("currency: EUR\ndevice_hour_prices: {cpu: 0.04}")
    assert assay("runs", "diff", "slow", "fast") == 0
    output = capfd.readouterr().out
    assert re.search(r"currency +EUR", output) and not re.search(r"\.\d{9}", output)
    assert assay("eval", "run", "slow", "--suite", home.folder / "settings.yaml") == 2
    assert "assay eval work slow --suite" in capfd.readouterr().err
    assert assay("runs", "diff", "slow", "slow") == 0
    assert "equal, bit for bit" in capfd.readouterr().out


def test_a_run_is_deleted_with_its_commits_and_nothing_else_is(home: Home, tmp_path: Path, capfd) -> None:
    capfd.readouterr()
    assert assay("runs", "delete", "fast") == 2
    assert "Add --yes" in capfd.readouterr().err
    assert assay("runs", "delete", "fast", "--yes") == 0
    assert f"{tmp_path / 'here' / 'store'}" in capfd.readouterr().out
    assert listed(capfd) == ["slow"]
    assert not (home.folder / "fast").exists()
    assert [path.name for path in (tmp_path / "here" / "store").rglob("*") if path.is_file()] == ["notes.txt"]
    assert listed(capfd, "--rebuild") == ["slow"]
    assert assay("runs", "audit", "slow") == 0
    assert assay("runs", "delete", "fast", "--yes") == 2


def test_whoever_needs_a_run_is_named_before_it_is_deleted(home: Home, capfd) -> None:
    assert assay("train", "--from", "slow@5", "trainer.max_steps=6", "--run-id", "fork") == 0
    assert assay("decide", "compare", "slow", "fast", "--allowed-loss", 2) == 2
    assert "cannot lose as much. A point is 0.01; perhaps you meant 0.02" in capfd.readouterr().err
    assert assay("decide", "compare", "slow", "fast", "--allowed-loss", 0.99) == 0
    capfd.readouterr()
    assert assay("runs", "delete", "slow", "--yes") == 0
    output = capfd.readouterr().out
    assert "fork was forked from it: its weights stay" in output
    assert "fast was compared with it" in output
    assert assay("runs", "audit", "fork") == 0


def test_a_run_that_trains_is_not_deleted_and_an_interrupted_deletion_goes_on(home: Home, capfd, monkeypatch) -> None:
    from assay.workflows import delete as deletion

    with monkeypatch.context() as patch:
        patch.setattr(deletion, "state_of", lambda launch: "running")
        assert assay("runs", "delete", "slow", "--yes") == 2
        assert "'assay train stop slow'" in capfd.readouterr().err
    assert CommitLog(open_store(str(home.run_dir("slow")))).finished() is not None
    (home.run_dir("slow") / "log" / "00000000.json").unlink()  # as if it had been killed on the way
    assert assay("runs", "delete", "slow", "--yes") == 0
    assert listed(capfd) == ["fast"]


def test_device_time_has_a_price_where_one_is_set(home: Home, capfd) -> None:
    capfd.readouterr()
    assert assay("runs", "show", "slow", "--json") == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["cost"] is None and shown["currency"] is None
    (home.folder / "settings.yaml").write_text("{currency: EUR, device_hour_prices: {cpu: 3600}}")
    assert assay("runs", "show", "slow", "--json") == 0
    assert json.loads(capfd.readouterr().out)["cost"] == pytest.approx(sum(shown["device_seconds"].values()))
    assert assay("runs", "goodput", "--json") == 0
    goodput = json.loads(capfd.readouterr().out)
    assert goodput["cost"] == pytest.approx(goodput["held_device_s"])
    for command in (("runs", "show", "slow"), ("runs", "goodput", "slow", "fast"), ("runs", "diff", "slow", "fast")):
        assert assay(*command) == 0
        assert "EUR" in capfd.readouterr().out
